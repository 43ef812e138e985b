#include "pool/unsettled.h"

#include <algorithm>

#include "base/mutants.h"
#include "pool/layout.h"

namespace pando::pool {

void Unsettled::add(fabric::NodeId node, std::uint64_t epoch) {
  if (base::mutated(base::Mutant::kUnsettledIsOver)) return;
  const std::scoped_lock lock(mutex_);
  Held& held = held_[node];
  held.epoch = std::min(held.epoch, epoch);
  held.added = ++added_;
  update();
}

void Unsettled::update() {
  std::uint64_t least = kNone;
  for (const auto& [node, held] : held_) least = std::min(least, held.epoch);
  oldest_.store(least, std::memory_order_release);
}

Task<Status> Unsettled::settle(Operation& op) {
  if (!any()) co_return Status{};
  std::map<fabric::NodeId, Held> before;
  {
    const std::scoped_lock lock(mutex_);
    before = held_;
  }
  Status all;
  for (const auto& [node, held] : before) {
    const Status settled = co_await post_to(op, node);
    if (!settled && settled.error().code() != ErrorCode::kDataLost) {
      all = settled;
      continue;
    }
    const std::scoped_lock lock(mutex_);
    // What came meanwhile was posted later, perhaps.
    const auto now = held_.find(node);
    if (now != held_.end() && now->second.added == held.added) held_.erase(now);
    update();
  }
  co_return all;
}

// Anything will do: that it has completed is what counts.
Task<Status> Unsettled::post_to(Operation& op, fabric::NodeId node) {
  const auto word =
      co_await read_word(op, superblock_field(node, offsetof(Superblock, state_word)));
  if (!word) co_return fail(word.error());
  co_return Status{};
}

}  // namespace pando::pool
