// The catalogue lock: CatalogueLock lock(catalogue); co_await lock.acquire(op); … release(op).
//
// The word holds its owner's id. A compute node's own coroutines take turns by a local flag first;
// so one that holds the flag and finds its own id in the word has found a lock that an earlier one
// could not give back (its link broke), and takes it.
#pragma once

#include "pool/catalogue.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

class CatalogueLock {
 public:
  explicit CatalogueLock(Catalogue& catalogue) : catalogue_(catalogue) {}
  ~CatalogueLock();  // gives the local flag back
  CatalogueLock(const CatalogueLock&) = delete;
  CatalogueLock& operator=(const CatalogueLock&) = delete;

  // kTimeout, naming the holder.
  Task<Status> acquire(Operation& op);
  Task<Status> release(Operation& op);

 private:
  Task<Status> acquire_word(Operation& op);

  Catalogue& catalogue_;
  bool flag_ = false;
  bool word_ = false;
};

}  // namespace pando::pool
