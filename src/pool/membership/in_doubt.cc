#include "pool/membership/in_doubt.h"

#include <algorithm>
#include <utility>

#include "base/mutants.h"
#include "base/mutex.h"
#include "pool/layout.h"

namespace pando::pool {

void InDoubt::add(fabric::NodeId node, std::uint64_t epoch) {
  if (base::mutated(base::Mutant::kInDoubtIsOver)) return;
  const base::MutexLock lock(mutex_);
  const auto [at, fresh] = held_.try_emplace(node, epoch);
  at->second = std::min(at->second, epoch);
  update();
}

void InDoubt::update() {
  std::uint64_t least = kNone;
  for (const Held* const all : {&held_, &resolving_}) {
    for (const auto& [node, epoch] : *all) least = std::min(least, epoch);
  }
  oldest_.store(least, std::memory_order_release);
}

Task<Status> InDoubt::resolve(Operation& op) {
  if (!any()) co_return Status{};
  Held now;
  {
    const base::MutexLock lock(mutex_);
    // Whoever was destroyed at this has left something.
    for (const auto& [node, epoch] : std::exchange(held_, {})) {
      const auto [at, fresh] = resolving_.try_emplace(node, epoch);
      at->second = std::min(at->second, epoch);
    }
    now = resolving_;
  }
  Status all;
  for (const auto& [node, epoch] : now) {
    const Status resolved = co_await post_to(op, node);
    if (!resolved && resolved.error().code() != ErrorCode::kDataLost) {
      all = resolved;
      continue;
    }
    const base::MutexLock lock(mutex_);
    resolving_.erase(node);
    update();
  }
  co_return all;
}

// Anything will do: that it has completed is what counts.
Task<Status> InDoubt::post_to(Operation& op, fabric::NodeId node) {
  const auto word =
      co_await read_word(op, superblock_field(node, offsetof(Superblock, state_word)));
  if (!word) co_return fail(word.error());
  co_return Status{};
}

}  // namespace pando::pool
