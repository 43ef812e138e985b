// Fetcher: gets blocks from far memory where no task can be dropped in the middle of it.
//
// Taking chunks or a magazine is a CAS that somebody must hear of: who is destroyed while it is
// under way has lost them for as long as the pool lives. So the housekeeper does it, for all of its
// compute node, one after another; those who want a block wait. If one of them is dropped
// meanwhile, what was fetched stays with the compute node. Where no housekeeper serves, callers do
// it themselves.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "pool/event.h"
#include "pool/memory/allocator.h"
#include "pool/memory/block.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

class Fetcher {
 public:
  using Answer = Result<std::optional<Block>>;

  explicit Fetcher(Allocator::State& allocator) : allocator_(allocator) {}
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  // As Allocator::State::attempt(). Its cost is the operation's.
  Task<Answer> fetch(Operation& op, BlockKind kind, std::size_t size_class,
                     std::optional<fabric::NodeId> near);

  // The housekeeper's: serves until stop(), and what was asked for by then.
  Task<void> serve(Session& session);
  void stop();

 private:
  struct Request;
  class Ticket;

  std::shared_ptr<Request> ask(BlockKind kind, std::size_t size_class,
                               std::optional<fabric::NodeId> near);
  std::shared_ptr<Request> next();
  void answer(Request& request, Answer answer);

  Allocator::State& allocator_;
  Event wakeup_;
  base::Mutex mutex_;  // of requests, too; never held across an await
  bool serving_ PANDO_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Request>> requests_ PANDO_GUARDED_BY(mutex_);
};

}  // namespace pando::pool
