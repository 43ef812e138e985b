#include "pool/membership/abandoned_locks.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "pool/turn.h"

namespace pando::pool {

void AbandonedLocks::add(fabric::Address at, std::uint64_t word, std::uint64_t holder,
                         std::uint64_t mark) {
  const base::MutexLock lock(mutex_);
  abandoned_.push_back({at, word, holder, mark});
  any_.store(true, std::memory_order_release);
}

bool AbandonedLocks::pending(fabric::Address at) const {
  if (!any_.load(std::memory_order_acquire)) return false;
  const base::MutexLock lock(mutex_);
  return std::ranges::find(abandoned_, at, &Abandoned::at) != abandoned_.end();
}

Task<Status> AbandonedLocks::take_back(Operation& op) {
  if (!any_.load(std::memory_order_acquire)) co_return Status{};
  const Turn turn(taking_);
  if (!turn) co_return fail(ErrorCode::kBusy, "another one is taking locks back");
  std::vector<Abandoned> mine;
  {
    const base::MutexLock lock(mutex_);
    mine = abandoned_;
  }
  Status all;
  std::set<fabric::NodeId> silent;  // not asked again and again, each time for as long as it takes
  for (const Abandoned& each : mine) {
    if (silent.contains(each.at.node())) continue;
    Status done = co_await take_back(op, each);
    // Nothing stands in memory that is lost.
    if (!done && done.error().code() != ErrorCode::kDataLost) {
      silent.insert(each.at.node());
      all = std::move(done);
      continue;
    }
    const base::MutexLock lock(mutex_);
    abandoned_.erase(std::ranges::find(abandoned_, each));
    any_.store(!abandoned_.empty(), std::memory_order_relaxed);
  }
  co_return all;
}

Task<Status> AbandonedLocks::take_back(Operation& op, Abandoned each) {
  for (std::uint64_t guess = each.word;;) {
    fabric::Batch batch(op.cost());
    if (each.mark == 0) {
      batch.compare_swap(each.at, each.word, 0);
    } else {
      batch.masked_compare_swap(each.at, each.word, each.mark, each.holder, each.holder | each.mark,
                                guess);
    }
    if (Status done = co_await op.submit(batch); !done) co_return done;
    if (!batch[0].misguessed()) co_return Status{};
    guess = batch[0].previous;
  }
}

}  // namespace pando::pool
