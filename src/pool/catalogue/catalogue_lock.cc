#include "pool/catalogue/catalogue_lock.h"

#include <fmt/format.h>

#include "pool/compute_node.h"
#include "pool/pause.h"

namespace pando::pool {
namespace {

using fabric::Batch;

constexpr fabric::Address kLockWord = tables_field(offsetof(PoolTables, catalogue_lock_word));

}  // namespace

CatalogueLock::~CatalogueLock() {
  if (word_ != 0) {
    catalogue_.node_.abandoned_locks().add(kLockWord, word_);
    catalogue_.node_.kick();
  }
  if (flag_) catalogue_.locked_.store(false, std::memory_order_release);
}

Task<Status> CatalogueLock::acquire(Operation& op) {
  for (Pause pause(op); catalogue_.locked_.exchange(true, std::memory_order_acquire);) {
    if (!patient_) co_return fail(ErrorCode::kBusy, "the catalogue is locked");
    if (Status waited = co_await pause.wait("the catalogue"); !waited) co_return waited;
  }
  flag_ = true;
  co_return co_await acquire_word(op);
}

Task<Status> CatalogueLock::acquire_word(Operation& op) {
  ComputeNode& node = catalogue_.node_;
  std::uint64_t expected = 0;
  for (Pause pause(op);;) {
    word_ =
        (std::uint64_t{node.membership().self()} << 32) | node.abandoned_locks().next_sequence();
    Batch batch(op.cost());
    batch.compare_swap(kLockWord, expected, word_);
    const Status swapped = co_await op.submit(batch);
    if (swapped && batch[0].succeeded()) co_return Status{};
    if (batch[0].outcome != fabric::Outcome::kIndeterminate) word_ = 0;
    if (!swapped) co_return swapped;
    const std::uint64_t seen = batch[0].previous;
    expected = 0;
    if (seen == 0) continue;
    const auto holder = static_cast<OwnerId>(seen >> 32);
    // With the flag ours, a word of this compute node is one that somebody here has abandoned.
    auto gone = holder == node.membership().self() ? Result<bool>(true)
                                                   : co_await node.membership().gone(op, holder);
    if (!gone) co_return fail(gone.error());
    if (*gone) {
      expected = seen;
      continue;
    }
    if (!patient_) co_return fail(ErrorCode::kBusy, "the catalogue is locked");
    op.count_retry();
    if (Status waited = co_await pause.wait("the catalogue"); !waited) {
      co_return fail(
          ErrorCode::kTimeout,
          fmt::format("the catalogue is held by the compute node in place {}", owner_slot(holder)));
    }
  }
}

Task<Status> CatalogueLock::release(Operation& op) {
  if (word_ == 0) co_return Status{};
  Batch batch(op.cost());
  batch.compare_swap(kLockWord, word_, 0);
  if (Status swapped = co_await op.submit(batch); !swapped) co_return swapped;
  word_ = 0;
  if (batch[0].succeeded()) co_return Status{};
  co_return fail(ErrorCode::kFenced, "this compute node's lock of the catalogue was taken over");
}

}  // namespace pando::pool
