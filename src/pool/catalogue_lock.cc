#include "pool/catalogue_lock.h"

#include <fmt/format.h>

#include "pool/compute_node.h"
#include "pool/pause.h"

namespace pando::pool {
namespace {

using fabric::Batch;

constexpr fabric::Address kLockWord = tables_field(offsetof(PoolTables, catalogue_lock_word));

}  // namespace

CatalogueLock::~CatalogueLock() {
  if (flag_) catalogue_.locked_.store(false, std::memory_order_release);
}

Task<Status> CatalogueLock::acquire(Operation& op) {
  for (Pause pause(op); catalogue_.locked_.exchange(true, std::memory_order_acquire);) {
    if (Status waited = co_await pause.wait("the catalogue"); !waited) co_return waited;
  }
  flag_ = true;
  co_return co_await acquire_word(op);
}

Task<Status> CatalogueLock::acquire_word(Operation& op) {
  Membership& membership = catalogue_.node_.membership();
  const std::uint64_t self = membership.self();
  std::uint64_t expected = 0;
  for (Pause pause(op);;) {
    Batch batch(op.cost());
    batch.compare_swap(kLockWord, expected, self);
    if (Status swapped = co_await op.submit(batch); !swapped) co_return swapped;
    if (batch[0].succeeded()) {
      word_ = true;
      co_return Status{};
    }
    const std::uint64_t holder = batch[0].previous;
    expected = 0;
    if (holder == 0) continue;
    if (holder == self) {
      expected = holder;
      continue;
    }
    auto gone = co_await membership.gone(op, static_cast<OwnerId>(holder));
    if (!gone) co_return fail(gone.error());
    if (*gone) {
      expected = holder;
      continue;
    }
    op.count_retry();
    if (Status waited = co_await pause.wait("the catalogue"); !waited) {
      co_return fail(ErrorCode::kTimeout,
                     fmt::format("the catalogue is held by the compute node in place {}",
                                 owner_slot(static_cast<OwnerId>(holder))));
    }
  }
}

Task<Status> CatalogueLock::release(Operation& op) {
  if (!std::exchange(word_, false)) co_return Status{};
  const std::uint64_t self = catalogue_.node_.membership().self();
  Batch batch(op.cost());
  batch.compare_swap(kLockWord, self, 0);
  if (Status swapped = co_await op.submit(batch); !swapped) co_return swapped;
  if (batch[0].succeeded()) co_return Status{};
  co_return fail(ErrorCode::kFenced, "this compute node's lock of the catalogue was taken over");
}

}  // namespace pando::pool
