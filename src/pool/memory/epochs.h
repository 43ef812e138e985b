// Epochs: when a freed block may be reused.
//
// A global epoch counts in far memory. Each compute node announces there the oldest epoch that any
// operation of it may have pinned, and anyone moves the global epoch from E to E + 1 once every
// living compute node has announced E or later.
//
// A block is retired after it has become unreachable in far memory, stamped with this compute
// node's current() s. Claim: once this compute node has seen the global epoch reach s + 3, no
// operation anywhere holds the block.
//   The retiring operation pinned p <= s, and its node announces at most p until it ends; so while
//   the block was being unlinked the global epoch was at most p + 1 <= s + 1, and any operation
//   that found the block before pinned at most s + 1. To reach s + 3 every node must have announced
//   s + 2, that is, ended all operations pinned at s + 1 or before.
// Pointers kept between operations (caches) are not covered: incarnations, dead marks and fences
// catch those (index/blink/node.h).
//
// Why announceable() is never more than an operation's pin, now or later: see Operation::pin().
// Announcing less than one could is always safe, and only holds memory back.
//
// Joining. A compute node's slot is taken before it reads the global epoch E and starts to pin from
// there. Whoever moves the epoch to E + 1 later may have looked before the slot was taken:
// harmless, E + 1 is allowed while E is pinned. Whoever moves it from E + 1 has itself announced E
// + 1, so has looked at the slots after it was E + 1, so after the slot was taken. Until the
// newcomer announces, its slot shows what the predecessor there announced, which is no more than E.
//
// Between two epochs this compute node counts on by itself: an operation pins a moment, {epoch,
// tick}, and its epoch is what matters to others. Ticks are for what only this compute node's
// operations can hold (Limbo), which need not wait for the others.
//
// Thread-safe. observe() is Membership's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "pool/memory/budget.h"

namespace pando::pool {

class Session;

class Epochs {
 public:
  static constexpr std::uint64_t kGrace = 3;

  // A moment of this compute node: {epoch:44, tick:20}.
  using Moment = std::uint64_t;
  static constexpr unsigned kTickBits = 20;
  static constexpr std::uint64_t epoch_of(Moment moment) { return moment >> kTickBits; }
  static constexpr Moment start_of(std::uint64_t epoch) { return epoch << kTickBits; }

  Moment now() const { return now_.load(std::memory_order_seq_cst); }
  // The global epoch as last seen by this compute node.
  std::uint64_t current() const { return epoch_of(now()); }
  bool safe(std::uint64_t stamp) const { return current() >= stamp + kGrace; }

  void join(Session* session);
  void leave(Session* session);
  // Sets current() to what was read from far memory.
  void observe(std::uint64_t global);
  // What may be announced now: no operation of this compute node pinned an earlier epoch, nor will.
  std::uint64_t announceable() const;

  // The oldest moment that an operation of this compute node has pinned; kUnpinned where none is
  // under way. With barrier: what the caller wrote before is seen by operations that pin after.
  Moment oldest_pin() const;
  Moment oldest_pin_barrier() const;
  // The moment, which is over then, and a barrier: an operation that pins a later one sees what the
  // caller wrote before. Where ticks run out, it is over with its epoch.
  Moment stamp_barrier();

 private:
  std::atomic<Moment> now_{start_of(1)};
  mutable base::Mutex mutex_;
  std::vector<Session*> sessions_ PANDO_GUARDED_BY(mutex_);
};

// Compute-side memory (cache entries) that lock-free readers may still look at: freed by the same
// rule, but covering this compute node's operations alone, so sooner.
//
// An object is deferred after it has been unlinked, stamped s. Claim: operations that hold it have
// pinned s or less, so once no pin of this compute node is at most s, nobody holds it.
//   An operation that pinned more than s read now() after our stamp_barrier(), a
//   read-modify-write of the same word, so it sees that the object was unlinked. One that pins s or
//   less after our look at its session does so by a read-modify-write of the word that we looked at
//   by one, so it sees it as well.
// An operation that evicts holds its own victims back until it ends, and so do those that began
// before.
//
// Thread-safe; collect() costs a glance at each session while nothing is safe.
class Limbo {
 public:
  // Carried by each object that may be deferred, so that deferring takes no memory.
  struct Deferred {
    Deferred* next = nullptr;
    std::uint64_t stamp = 0;
    void (*free)(Deferred*) = nullptr;
  };

  explicit Limbo(Epochs& epochs) : epochs_(epochs) {}
  ~Limbo();  // runs everything: REQUIRES no reader left
  Limbo(const Limbo&) = delete;
  Limbo& operator=(const Limbo&) = delete;
  // `free(object)` runs once no reader of this compute node can hold `object`, on any thread.
  void defer(Deferred* object, void (*free)(Deferred*));
  // Runs what is safe by now. Called by the housekeeper and by caches under pressure.
  void collect();

 private:
  Deferred* take_safe() PANDO_REQUIRES(mutex_);
  static void run(Deferred* first);

  Epochs& epochs_;
  std::atomic<bool> waiting_{false};
  base::Mutex mutex_;
  Deferred* first_ PANDO_GUARDED_BY(mutex_) = nullptr;  // by stamp
  Deferred* last_ PANDO_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace pando::pool
