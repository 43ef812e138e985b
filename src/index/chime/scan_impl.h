// Chime: what a scan reads of a leaf instead of all of it. Keys [from, to) of a leaf that the cache
// knows from end to end: the neighbourhoods of these keys with their replicas (cover.h), believed
// as a point read's are. No header: where the leaf ends is told as for a point read, where it
// begins never changes.
#pragma once

#include "index/chime/chime.h"
#include "index/chime/cover.h"

namespace pando::index::chime {

template <class K>
bool Chime<K>::read_part(fabric::Batch& batch, LeafPart& part, std::byte* image) {
  if constexpr (K::kType == KeyType::kInteger) {
    if (!options_.exclude || !options_.replicas) return false;
    const Cover cover = Cover::of(options_.leaf, part.from, part.to);
    part.all = cover.is_all();
    if (part.all) {
      part.to = part.high;
    } else {
      partial_leaf_scans_.fetch_add(1, std::memory_order_relaxed);
    }
    cover.for_each_part([&](std::size_t offset, std::size_t bytes) {
      batch.read(part.leaf.address + offset, image + offset, bytes);
    });
    return true;
  }
  return false;
}

template <class K>
Verdict Chime<K>::slots_of_part(const LeafPart& part, Leaf<K> leaf,
                                std::vector<std::size_t>& slots) const {
  if constexpr (K::kType == KeyType::kInteger) {
    const Cover cover =
        part.all ? Cover::all(options_.leaf) : Cover::of(options_.leaf, part.from, part.to);
    std::optional<std::uint16_t> version;
    bool same_leaf = true;
    bool same_version = true;
    cover.for_each_replica([&](std::size_t r) {
      const bool reaches = options_.sibling_validation ? leaf.replica_sibling(r) == part.next
                                                       : leaf.replica_fence(r) == part.high;
      same_leaf &= leaf.replica_birth(r) == part.leaf.birth && !leaf.replica_dead(r) &&
                   leaf.replica_has_next(r) && reaches;
      if (!version) version = leaf.replica_version(r);
      same_version &= leaf.replica_version(r) == *version;
    });
    if (!mutated(Mutant::kNoPartCheck)) {
      if (!same_version) return Verdict::kTorn;
      if (!same_leaf) return Verdict::kStale;
      if (!leaf.agrees(cover.entries(), cover.homes(), *version)) return Verdict::kTorn;
    }
    for (std::size_t i = 0; i < leaf.capacity(); ++i) {
      if (!cover.entries()[i] || leaf.empty(i)) continue;
      if (leaf.key_word(i) >= part.from && leaf.key_word(i) < part.to) slots.push_back(i);
    }
  }
  return Verdict::kGood;
}

}  // namespace pando::index::chime
