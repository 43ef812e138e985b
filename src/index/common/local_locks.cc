#include "index/common/local_locks.h"

#include <cassert>

namespace pando::index {

namespace {

template <class Ticket>
Ticket* find(Ticket* first, fabric::Address lock, Ticket* Ticket::* next) {
  while (first != nullptr && first->lock != lock) first = first->*next;
  return first;
}

}  // namespace

bool LocalLocks::try_acquire(Ticket& ticket, fabric::Address lock) {
  ticket = Ticket{};
  ticket.lock = lock;
  Bucket& in = bucket(lock);
  const base::MutexLock guard(in.mutex);
  if (find(in.holders, lock, &Ticket::next_holder_) != nullptr) return false;
  ticket.next_holder_ = in.holders;
  in.holders = &ticket;
  return true;
}

bool LocalLocks::enqueue(Ticket& ticket, task::Worker& worker, std::coroutine_handle<> waiter) {
  Bucket& in = bucket(ticket.lock);
  const base::MutexLock guard(in.mutex);
  Ticket* holder = find(in.holders, ticket.lock, &Ticket::next_holder_);
  if (holder == nullptr) {
    ticket.next_holder_ = in.holders;
    in.holders = &ticket;
    return false;
  }
  ticket.worker_ = &worker;
  ticket.waiter_ = waiter;
  if (holder->last_waiter_ != nullptr) {
    holder->last_waiter_->next_waiter_ = &ticket;
  } else {
    holder->first_waiter_ = &ticket;
  }
  holder->last_waiter_ = &ticket;
  return true;
}

bool LocalLocks::should_hand_over(const Ticket& ticket, std::uint32_t limit) {
  if (ticket.handovers_ >= limit) return false;
  Bucket& in = bucket(ticket.lock);
  const base::MutexLock guard(in.mutex);
  assert(find(in.holders, ticket.lock, &Ticket::next_holder_) == &ticket);
  return ticket.first_waiter_ != nullptr;
}

bool LocalLocks::release(Ticket& ticket, bool handed_over, std::uint64_t word) {
  Bucket& in = bucket(ticket.lock);
  const base::MutexLock guard(in.mutex);
  Ticket** link = &in.holders;
  while (*link != &ticket) link = &(*link)->next_holder_;
  Ticket* next = ticket.first_waiter_;
  if (next == nullptr && handed_over) return false;
  if (next == nullptr) {
    *link = ticket.next_holder_;
  } else {
    next->first_waiter_ = next->next_waiter_;
    next->last_waiter_ = next->first_waiter_ == nullptr ? nullptr : ticket.last_waiter_;
    next->next_waiter_ = nullptr;
    next->handed_over = handed_over;
    next->word = word;
    next->handovers_ = handed_over ? ticket.handovers_ + 1 : 0;
    next->next_holder_ = ticket.next_holder_;
    *link = next;
    // Within the lock, so that a withdraw() of the woken ticket comes before or after all of this.
    next->worker_->wake(next->waiter_);
  }
  ticket.first_waiter_ = ticket.last_waiter_ = ticket.next_holder_ = nullptr;
  return next != nullptr;
}

bool LocalLocks::withdraw(Ticket& ticket) {
  Bucket& in = bucket(ticket.lock);
  const base::MutexLock guard(in.mutex);
  Ticket* holder = find(in.holders, ticket.lock, &Ticket::next_holder_);
  if (holder == &ticket) return true;
  Ticket* before = nullptr;
  for (Ticket* each = holder == nullptr ? nullptr : holder->first_waiter_; each != nullptr;
       before = each, each = each->next_waiter_) {
    if (each != &ticket) continue;
    (before == nullptr ? holder->first_waiter_ : before->next_waiter_) = ticket.next_waiter_;
    if (holder->last_waiter_ == &ticket) holder->last_waiter_ = before;
    break;
  }
  return false;
}

}  // namespace pando::index
