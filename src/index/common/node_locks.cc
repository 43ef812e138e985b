#include "index/common/node_locks.h"

#include <algorithm>
#include <chrono>

#include "base/mutants.h"
#include "task/worker.h"

namespace pando::index {

using namespace std::chrono_literals;
using base::Mutant;
using base::mutated;

namespace {

constexpr int kEagerAttempts = 16;
constexpr task::Duration kLongestPause = 100us;

// Waits a little longer each time, letting the worker's other coroutines run: one of them may be
// the holder.
Task<void> pause(Operation& op, int attempt) {
  if (attempt < kEagerAttempts) {
    co_await op.worker().yield();
    co_return;
  }
  const int doublings = std::min(attempt - kEagerAttempts, 7);
  co_await op.worker().sleep_for(std::min<task::Duration>(1us * (1 << doublings), kLongestPause));
}

}  // namespace

NodeLock::~NodeLock() {
  if (queued_) locks_.withdraw(*this);
  if (held_ || local_) locks_.abandon(*this);
}

NodeLocks::NodeLocks(pool::ComputeNode& compute_node, const LockOptions& options)
    : compute_node_(compute_node), options_(options) {
  compute_node_.budget().take(pool::BudgetUse::kLockTable, bytes());
}

NodeLocks::~NodeLocks() { compute_node_.budget().give_back(pool::BudgetUse::kLockTable, bytes()); }

fabric::Address NodeLocks::word_for(fabric::Address node) const {
  if (!options_.on_chip) return node;
  const std::uint64_t words = compute_node_.fabric().caps().onchip_bytes / sizeof(std::uint64_t);
  const std::uint64_t hash = (node.raw() * 0x9e3779b97f4a7c15u) >> 20;
  return {node.node(), fabric::Address::kOnChip + hash % words * sizeof(std::uint64_t)};
}

std::uint64_t NodeLocks::new_word() {
  return (std::uint64_t{compute_node_.membership().self()} << 32) |
         compute_node_.abandoned_locks().next_sequence();
}

Task<Status> NodeLocks::read(Operation& op, NodeLock& lock, const LockTarget& target) {
  fabric::Batch batch(op.cost());
  add_carried(batch, lock);
  target.parts.read(batch, target.node, target.image);
  Status status = co_await op.submit(batch);
  if (status) lock.carried_bytes_ = 0;
  co_return status;
}

void NodeLocks::add_carried(fabric::Batch& batch, const NodeLock& lock) {
  if (lock.carried_bytes_ != 0) {
    batch.write(lock.carried_to_, lock.carried_from_, lock.carried_bytes_);
  }
}

void NodeLocks::start(NodeLock& lock, const LockTarget& target) const {
  lock.word_at_ = word_for(target.node);
  lock.noted_ = target.word == LockWord::kNoted;
  lock.free_word_ = 0;
  lock.repair_ = false;
}

// One CAS of the lock word from `expected` to a word of ours, with the node read behind it.
Task<Result<bool>> NodeLocks::attempt(Operation& op, NodeLock& lock, const LockTarget& target,
                                      std::uint64_t expected, std::uint64_t& seen) {
  if (lock.noted_) co_return co_await attempt_noted(op, lock, target, expected, seen);
  const std::uint64_t word = new_word();
  fabric::Batch batch(op.cost());
  add_carried(batch, lock);
  const std::size_t cas = batch.compare_swap(lock.word_at_, expected, word);
  if (options_.lock_with_read) target.parts.read(batch, target.node, target.image);
  // Ours as far as one knows, until one knows better: the coroutine may be destroyed meanwhile.
  lock.word_ = word;
  lock.held_ = true;
  Status status = co_await op.submit(batch);
  const fabric::Verb& swap = batch[cas];
  seen = swap.previous;
  const bool swapped =
      swap.outcome == fabric::Outcome::kExecuted && (swap.succeeded() || mutated(Mutant::kNoLock));
  status = co_await after_swap(op, lock, target, std::move(status), swap, swapped);
  if (!status) co_return fail(status.error());
  lock.repair_ = swapped && expected != 0;
  if (lock.repair_) takeovers_.fetch_add(1, std::memory_order_relaxed);
  co_return swapped;
}

// The same for a word that keeps its note: from `expected`'s owner, whatever the note.
Task<Result<bool>> NodeLocks::attempt_noted(Operation& op, NodeLock& lock, const LockTarget& target,
                                            std::uint64_t expected, std::uint64_t& seen) {
  const std::uint64_t unique = new_word();
  const std::uint64_t word = (unique & kOwnerMask) | ((unique << 24) & kSequenceMask);
  seen = word & kOwnerMask;
  // What one of us may have left there is as good as held: it hardly tells from ours.
  if (compute_node_.abandoned_locks().pending(lock.word_at_)) co_return false;
  for (std::uint64_t guess = expected;; guess = seen) {
    fabric::Batch batch(op.cost());
    add_carried(batch, lock);
    const std::size_t cas =
        batch.masked_compare_swap(lock.word_at_, expected, word, kOwnerMask, kHolderMask, guess);
    if (options_.lock_with_read) target.parts.read(batch, target.node, target.image);
    lock.word_ = word;
    lock.held_ = true;
    Status status = co_await op.submit(batch);
    const fabric::Verb& swap = batch[cas];
    seen = swap.previous;
    const bool swapped = swap.outcome == fabric::Outcome::kExecuted &&
                         (swap.succeeded() || (!swap.misguessed() && mutated(Mutant::kNoLock)));
    if (swapped) lock.word_ = word | (seen & ~kHolderMask);
    status = co_await after_swap(op, lock, target, std::move(status), swap, swapped);
    if (!status) co_return fail(status.error());
    if (!swapped && swap.misguessed() && !op.expired()) continue;
    const bool taken_over = (seen & kOwnerMask) != 0;
    lock.repair_ = swapped && (taken_over || (seen & kUnfinished) != 0);
    if (swapped && taken_over) takeovers_.fetch_add(1, std::memory_order_relaxed);
    co_return swapped;
  }
}

// After the CAS: whether the lock is held, or may be; the node's READ where it does not go along.
Task<Status> NodeLocks::after_swap(Operation& op, NodeLock& lock, const LockTarget& target,
                                   Status status, const fabric::Verb& swap, bool swapped) {
  if (status) lock.carried_bytes_ = 0;
  lock.held_ = swapped || (swap.outcome == fabric::Outcome::kIndeterminate &&
                           !mutated(Mutant::kForgottenLock));
  if (status && swapped && !options_.lock_with_read && !target.parts.empty()) {
    status = co_await read(op, lock, target);
  }
  if (!status) abandon(lock);
  co_return status;
}

// Whether a lock with this word may be taken over.
Task<Result<bool>> NodeLocks::owner_gone(Operation& op, std::uint64_t word) {
  const auto owner = static_cast<pool::OwnerId>(word >> 32);
  if (owner == 0 || mutated(Mutant::kNoTakeover)) co_return false;
  co_return co_await compute_node_.membership().gone(op, owner);
}

Task<Status> NodeLocks::lock(Operation& op, NodeLock& lock, LockTarget target) {
  start(lock, target);
  if (options_.local_table) {
    if (!local_.try_acquire(lock.ticket_, lock.word_at_)) {
      (void)op.deadline();  // the clock runs while it waits
      lock.queued_ = true;
      co_await local_.acquire(lock.ticket_, lock.word_at_, op.worker());
      lock.queued_ = false;
    }
    lock.local_ = true;
    if (lock.ticket_.handed_over) {
      lock.word_ = lock.ticket_.word;
      lock.held_ = true;
      lock.repair_ = lock.noted_ && (lock.word_ & kUnfinished) != 0;
      Status status = co_await read(op, lock, target);
      if (!status) abandon(lock);
      co_return status;
    }
  }
  std::uint64_t last_seen = 0;
  task::TimePoint since;  // when it was first seen
  std::uint64_t expected = 0;
  for (int tries = 0;; ++tries) {
    std::uint64_t seen = 0;
    Result<bool> locked = co_await attempt(op, lock, target, expected, seen);
    if (!locked) co_return fail(locked.error());
    if (*locked) co_return Status{};
    op.count_retry();
    // Nobody frees abandoned locks, or finds out who is dead, where housekeeping cannot.
    if (Status healthy = compute_node_.health(); !healthy) {
      let_go(lock);
      co_return healthy;
    }
    if (op.expired()) {
      let_go(lock);
      co_return fail(ErrorCode::kTimeout, "waiting for the lock of a node");
    }
    expected = 0;
    if (seen != last_seen) {
      last_seen = seen;
      since = op.worker().now();
      tries = 0;
    }
    if (op.worker().now() - since > compute_node_.options().lease / 4) {
      Result<bool> gone = co_await owner_gone(op, seen);
      if (!gone) {
        let_go(lock);
        co_return fail(gone.error());
      }
      if (*gone) expected = seen;
      since = op.worker().now();
    }
    if (expected == 0) co_await pause(op, tries);
  }
}

Task<Result<bool>> NodeLocks::try_lock(Operation& op, NodeLock& lock, LockTarget target) {
  start(lock, target);
  if (options_.local_table) {
    if (!local_.try_acquire(lock.ticket_, lock.word_at_)) co_return false;
    lock.local_ = true;
  }
  std::uint64_t seen = 0;
  Result<bool> locked = co_await attempt(op, lock, target, 0, seen);
  if (locked && !*locked) {
    // Known to be dead already, or (most likely) not: no waiting here.
    Result<bool> gone = co_await owner_gone(op, seen);
    if (gone && *gone) locked = co_await attempt(op, lock, target, seen, seen);
  }
  if (locked && !*locked) let_go(lock);
  co_return locked;
}

void NodeLocks::add_unlock(fabric::Batch& batch, NodeLock& lock) {
  lock.hand_over_ = lock.local_ && options_.handovers > 0 &&
                    local_.should_hand_over(lock.ticket_, options_.handovers);
  set_free_word(lock);
  if (!lock.hand_over_) batch.write_word(lock.word_at_, &lock.free_word_);
}

// What the word says to the next holder.
void NodeLocks::set_free_word(NodeLock& lock) {
  if (!lock.noted_) return;
  lock.word_ = lock.repair_ ? lock.word_ | kUnfinished : lock.word_ & ~kUnfinished;
  lock.free_word_ = lock.word_ & ~kHolderMask;
}

// A wrong guess is not corrected: it is a hint, and whoever reads the whole node sets it right.
void NodeLocks::add_note(fabric::Batch& batch, fabric::Address node, std::uint32_t note) const {
  batch.masked_compare_swap(word_for(node), 0, note, kOwnerMask, NodeLock::kNoteMask, 0);
}

void NodeLocks::unlocked(NodeLock& lock) {
  lock.held_ = false;
  if (lock.hand_over_) handed_over_.fetch_add(1, std::memory_order_relaxed);
  let_go(lock);
}

Task<Status> NodeLocks::unlock(Operation& op, NodeLock& lock) {
  fabric::Batch batch(op.cost());
  co_return co_await submit_with_unlock(op, batch, lock);
}

Task<Status> NodeLocks::write_and_unlock(Operation& op, fabric::Batch& batch, NodeLock& lock) {
  if (!options_.unlock_with_write) {
    Status written = co_await op.submit(batch);
    if (!written) {
      abandon(lock);
      co_return written;
    }
    co_return co_await unlock(op, lock);
  }
  co_return co_await submit_with_unlock(op, batch, lock);
}

Task<Status> NodeLocks::submit_with_unlock(Operation& op, fabric::Batch& batch, NodeLock& lock) {
  if (mutated(Mutant::kUnlockFirst)) {
    fabric::Batch early(op.cost());
    set_free_word(lock);
    early.write_word(lock.word_at_, &lock.free_word_);
    (void)co_await op.submit(early);
  }
  add_unlock(batch, lock);
  Status status = co_await op.submit(batch);
  if (status) {
    unlocked(lock);
  } else {
    abandon(lock);
  }
  co_return status;
}

// Leaves the local queue; the remote lock is free, or handed over.
void NodeLocks::let_go(NodeLock& lock) {
  if (!lock.local_) return;
  if (lock.hand_over_ && !local_.release(lock.ticket_, true, lock.word_)) {
    hand_to_housekeeper(lock);  // whom it was meant for has gone; before anyone else can want it
    lock.hand_over_ = false;
  }
  if (!lock.hand_over_) local_.release(lock.ticket_, false);
  lock.local_ = lock.hand_over_ = false;
}

void NodeLocks::hand_to_housekeeper(const NodeLock& lock) {
  if (lock.noted_) {
    compute_node_.abandoned_locks().add(lock.word_at_, lock.word_, kHolderMask, kUnfinished);
  } else {
    compute_node_.abandoned_locks().add(lock.word_at_, lock.word_);
  }
  compute_node_.kick();
}

// Gives up a lock whose word may or may not still be ours at the memory node. It is never handed
// over.
void NodeLocks::abandon(NodeLock& lock) {
  if (lock.held_) {
    hand_to_housekeeper(lock);
  }
  lock.held_ = lock.hand_over_ = false;
  let_go(lock);
}

void NodeLocks::withdraw(NodeLock& lock) {
  lock.queued_ = false;
  if (!local_.withdraw(lock.ticket_)) return;
  lock.local_ = true;
  lock.held_ = lock.ticket_.handed_over;
  lock.word_ = lock.ticket_.word;
}

}  // namespace pando::index
