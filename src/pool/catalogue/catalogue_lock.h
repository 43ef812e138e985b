// The catalogue lock: CatalogueLock lock(catalogue); co_await lock.acquire(op); … release(op).
//
// The word is {owner id:32, sequence:32}, as in the locks of nodes. A compute node's own coroutines
// take turns by a local flag first. A word that could not be given back, because the link broke or
// the coroutine was destroyed, the housekeeper takes back (abandoned_locks.h).
#pragma once

#include "pool/catalogue/catalogue.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

class CatalogueLock {
 public:
  // Who is not patient does not wait for another holder (kBusy).
  explicit CatalogueLock(Catalogue& catalogue, bool patient = true)
      : catalogue_(catalogue), patient_(patient) {}
  ~CatalogueLock();  // gives the local flag back, and abandons a word that may still be there
  CatalogueLock(const CatalogueLock&) = delete;
  CatalogueLock& operator=(const CatalogueLock&) = delete;

  // kTimeout, naming the holder.
  Task<Status> acquire(Operation& op);
  Task<Status> release(Operation& op);

 private:
  Task<Status> acquire_word(Operation& op);

  Catalogue& catalogue_;
  const bool patient_;
  bool flag_ = false;
  std::uint64_t word_ = 0;  // ours in far memory, as far as one knows
};

}  // namespace pando::pool
