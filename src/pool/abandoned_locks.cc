#include "pool/abandoned_locks.h"

#include <utility>

namespace pando::pool {

void AbandonedLocks::add(fabric::Address at, std::uint64_t word) {
  const std::scoped_lock lock(mutex_);
  abandoned_.push_back({at, word});
  any_.store(true, std::memory_order_release);
}

Task<Status> AbandonedLocks::take_back(Operation& op) {
  if (!any_.load(std::memory_order_acquire)) co_return Status{};
  std::vector<Abandoned> mine;
  {
    const std::scoped_lock lock(mutex_);
    mine = std::exchange(abandoned_, {});
    any_.store(false, std::memory_order_relaxed);
  }
  Status all;
  for (const Abandoned& each : mine) {
    fabric::Batch batch(op.cost());
    batch.compare_swap(each.at, each.word, 0);
    if (Status done = co_await op.submit(batch); !done) {
      add(each.at, each.word);
      all = std::move(done);
    }
  }
  co_return all;
}

}  // namespace pando::pool
