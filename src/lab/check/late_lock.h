// Late verbs at the locks of nodes that are free for reuse.
//
// What a late verb may change is held back until it has come (pool/membership/in_doubt.h), but for
// the lock word of a node, which outlives it and which others come back to by old pointers
// (pool/memory/block.h, invariant 2). There a verb may come late if it does one of these, and no
// more:
//   - nothing: a compare-and-swap that fails;
//   - it locks: from no owner, or from one who is gone, to its client;
//   - it unlocks: from its client to no owner. So does a WRITE, which does not compare: it must
//     find its own client's word.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>

#include "fabric/sim/simulation.h"
#include "pool/membership/membership.h"
#include "pool/memory/block.h"
#include "pool/memory/free_blocks.h"

namespace pando::lab::check {

// Whether `at` is the lock word of a free node among these.
inline bool at_free_lock(fabric::Address at, std::span<const pool::FreeRun> free) {
  return std::ranges::any_of(free, [at](const pool::FreeRun& run) {
    const fabric::Address first = run.block.address;
    const auto lock_word_at = pool::description(run.block.kind).lock_word_at;
    if (!lock_word_at || at < first) return false;
    const std::uint64_t distance = at.raw() - first.raw();
    return distance % run.block.bytes() == *lock_word_at &&
           distance / run.block.bytes() < run.count;
  });
}

// Of a verb that came to such a word. `self` is its client; `lives` says whose verbs may still take
// effect.
inline bool locks_harmlessly(const fabric::sim::LateVerb& late, pool::OwnerId self,
                             const std::function<bool(pool::OwnerId)>& lives) {
  using fabric::VerbKind;
  if (late.length != sizeof(late.before)) return false;
  const auto before = static_cast<pool::OwnerId>(late.before >> 32);
  const auto after = static_cast<pool::OwnerId>(late.after >> 32);
  const bool unlocks = before == self && after == 0;
  const VerbKind kind = late.verb->kind;
  if (kind == VerbKind::kWrite) return unlocks;
  if (kind != VerbKind::kCompareSwap && kind != VerbKind::kMaskedCompareSwap) return false;
  const bool locks = after == self && before != self && (before == 0 || !lives(before));
  return late.before == late.after || locks || unlocks;
}

}  // namespace pando::lab::check
