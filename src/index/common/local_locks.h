// LocalLocks: one compute node's queue in front of each remote lock.
//
// Coroutines of the same compute node that want the same remote lock wait here, in order, instead
// of fighting over it with verbs. Whoever is done may hand the remote lock over to the next in
// line, which then saves acquiring it; a bounded number of times, so that other compute nodes get
// their turn.
//
// The table holds no memory of its own but its buckets: tickets live in the coroutines that hold or
// wait. Thread-safe; waiters resume on their own workers.
#pragma once

#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>

#include "base/mutex.h"
#include "fabric/verbs.h"
#include "task/worker.h"

namespace pando::index {

class LocalLocks {
 public:
  // From acquire() to release() in place: neither moved nor destroyed.
  struct Ticket {
    fabric::Address lock;
    // Set where the predecessor left the remote lock held, with this word in it.
    bool handed_over = false;
    std::uint64_t word = 0;

   private:
    friend class LocalLocks;
    task::Worker* worker_ = nullptr;
    std::coroutine_handle<> waiter_;
    std::uint32_t handovers_ = 0;
    Ticket* next_holder_ = nullptr;  // in the bucket
    Ticket* first_waiter_ = nullptr;
    Ticket* last_waiter_ = nullptr;
    Ticket* next_waiter_ = nullptr;
  };

  struct [[nodiscard]] Acquisition {
    LocalLocks& locks;
    Ticket& ticket;
    task::Worker& worker;
    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> waiter) const {
      return locks.enqueue(ticket, worker, waiter);
    }
    void await_resume() const noexcept {}
  };
  // co_await acquire(…): the ticket is the holder from then on.
  Acquisition acquire(Ticket& ticket, fabric::Address lock, task::Worker& worker) {
    ticket = Ticket{};
    ticket.lock = lock;
    return {*this, ticket, worker};
  }
  bool try_acquire(Ticket& ticket, fabric::Address lock);

  // Whether to leave the remote lock held for the next in line. REQUIRES: ticket is the holder.
  bool should_hand_over(const Ticket& ticket, std::uint32_t limit);
  // Makes the next in line the holder; `handed_over` tells it that the remote lock is held with
  // `word`. Only after should_hand_over() answered true, or with false. False: nobody is next.
  // Where it was to be handed over, the ticket is the holder still.
  bool release(Ticket& ticket, bool handed_over, std::uint64_t word = 0);
  // For a coroutine that is destroyed between acquire() and its resumption. True: the ticket had
  // become the holder already and still is; release() it.
  bool withdraw(Ticket& ticket);

 private:
  static constexpr std::size_t kBuckets = 128;
  struct Bucket {
    base::Mutex mutex;
    Ticket* holders PANDO_GUARDED_BY(mutex) = nullptr;
  };

  bool enqueue(Ticket& ticket, task::Worker& worker, std::coroutine_handle<> waiter);
  Bucket& bucket(fabric::Address lock) {
    return buckets_[(lock.raw() * 0x9e3779b97f4a7c15u) >> 57];
  }

  std::array<Bucket, kBuckets> buckets_;
};

}  // namespace pando::index
