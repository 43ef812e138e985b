// AbandonedLocks: lock words of this compute node that nobody here holds any more.
//
// A coroutine that is destroyed, or whose unlocking failed, may leave its word in a lock in far
// memory. While this compute node lives, no one may take such a lock over; so the housekeeper takes
// the word back, with a CAS from exactly that word. No word is used twice, so that this never frees
// another's lock. What the lock guarded may be in the middle of a change: whoever locks it next
// tells by its content.
//
// Or by a mark: of a word that keeps a note while it is free (index/common/node_locks.h), the bits
// that name its holder are taken back, and a mark is left. Such a word has little room to be
// unique: its user waits while one is pending().
//
// A CAS that is still under way, or whose outcome is unknown, takes effect before ours or not at
// all: rule 9 of fabric/verbs.h.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "fabric/verbs.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

class AbandonedLocks {
 public:
  // The low half of a lock word: new for each lock taken by this compute node, whatever index it is
  // of.
  std::uint32_t next_sequence() { return sequence_.fetch_add(1, std::memory_order_relaxed); }

  // `holder`: the bits of the word that name its holder. They become 0, and those of `mark` 1.
  void add(fabric::Address at, std::uint64_t word, std::uint64_t holder = ~std::uint64_t{0},
           std::uint64_t mark = 0);
  // Whether any may still stand anywhere.
  bool any() const { return any_.load(std::memory_order_acquire); }
  // Whether a word of this compute node's may still stand there.
  bool pending(fabric::Address at) const;
  // The housekeeper's, one at a time: what is no longer pending() will not be taken back any more.
  // What could not be reached stays for the next time.
  Task<Status> take_back(Operation& op);

 private:
  struct Abandoned {
    fabric::Address at;
    std::uint64_t word;
    std::uint64_t holder;
    std::uint64_t mark;
    friend bool operator==(const Abandoned&, const Abandoned&) = default;
  };
  static Task<Status> take_back(Operation& op, Abandoned each);

  std::atomic<std::uint32_t> sequence_{1};
  std::atomic<bool> any_{false};
  std::atomic<bool> taking_{false};
  mutable base::Mutex mutex_;
  std::vector<Abandoned> abandoned_ PANDO_GUARDED_BY(mutex_);
};

}  // namespace pando::pool
