// What the public handles stand for. Internal to src/api.
//
// Ownership: Pool, Index and Worker handles share a PoolState. An IndexState is shared by all
// handles of one index in one compute node; the last one gone closes the index in the catalogue. A
// Worker and each plain call in progress use a Session of their own.
//
// Within a coroutine nothing here blocks (task/resuming.h): plain calls are refused, and what the
// destructors of last handles do, closing an index or the pool, waits until the thread is outside.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "index/index.h"
#include "pool/compute_node.h"
#include "task/resuming.h"
#include "task/worker.h"
#include <pando/pando.h>

namespace pando::api {

// kInvalidArgument inside a coroutine, where `call` would stop the worker that runs it, and maybe
// for ever; `instead` says what to do there.
Status check_may_block(std::string_view call, std::string_view instead);
// The same for a call that has no form for coroutines.
Status check_may_block(std::string_view call);

// A worker with its session.
struct Lane {
  explicit Lane(task::Clock& clock) : worker(clock) {}
  // Unfinished tasks hold buffers of the session's endpoint: they go first.
  ~Lane() { worker.drop_tasks(); }

  task::Worker worker;
  std::unique_ptr<pool::Session> session;
};

struct PoolState : std::enable_shared_from_this<PoolState> {
  static Result<std::shared_ptr<PoolState>> open(std::unique_ptr<fabric::Fabric> fabric,
                                                 const PoolOptions& options);
  // The same, as a handle. For those who make their fabric themselves.
  static Result<Pool> open_pool(std::unique_ptr<fabric::Fabric> fabric, const PoolOptions& options);
  PoolState(std::unique_ptr<fabric::Fabric> fabric, const PoolOptions& options)
      : compute_node(std::move(fabric), options) {}
  ~PoolState();

  Result<std::unique_ptr<Lane>> make_lane();

  // Runs the coroutine that `make` makes of a Session, to its end, on this thread. Refused inside
  // a coroutine; who has a better word for that checks before.
  template <class Make>
  auto run_on_session(Make make)
      -> decltype(make(std::declval<pool::Session&>()).handle().promise().take()) {
    if (task::inside_task()) [[unlikely]]
      return fail(refuse_plain_call());
    Result<std::unique_ptr<Lane>> lane = take_lane();
    if (!lane) return fail(lane.error());
    auto result = (*lane)->worker.run(make(*(*lane)->session));
    return_lane(std::move(*lane));
    return result;
  }
  // The same for a coroutine of one Operation.
  template <class Make>
  auto run(Make make) {
    return run_on_session([&](pool::Session& session) { return with_operation(session, make); });
  }

  Result<std::shared_ptr<IndexState>> open_index(std::string_view name,
                                                 const IndexOptions* options);
  Result<std::shared_ptr<IndexState>> create_index(std::string_view name,
                                                   const IndexOptions& options);
  void close_index(IndexState* index);

  pool::ComputeNode compute_node;

 private:
  static constexpr std::size_t kParked = 32;

  static Error refuse_plain_call();
  template <class Make>
  static auto with_operation(pool::Session& session, Make& make)
      -> decltype(make(std::declval<pool::Operation&>())) {
    pool::Operation op(session);
    co_return co_await make(op);
  }
  Result<std::unique_ptr<Lane>> take_lane();
  void return_lane(std::unique_ptr<Lane> lane);
  Result<std::shared_ptr<IndexState>> share(const pool::IndexRecord& record,
                                            const IndexOptions& options,
                                            std::unique_ptr<index::Tree> tree)
      PANDO_REQUIRES(indexes_mutex_);
  // The index of the record, with these options, or with what it has where there are none.
  // `shared`: it is open here already.
  Result<std::shared_ptr<IndexState>> open_record(std::string_view name,
                                                  const pool::IndexRecord& record,
                                                  const IndexOptions* options,
                                                  const std::shared_ptr<IndexState>& shared)
      PANDO_REQUIRES(indexes_mutex_);

  // Idle lanes for plain calls: each thread has a favourite place, so that it mostly gets the lane
  // it had before, with one atomic exchange.
  std::array<std::atomic<Lane*>, kParked> parked_{};
  base::Mutex spare_mutex_;
  std::vector<std::unique_ptr<Lane>> spare_ PANDO_GUARDED_BY(spare_mutex_);

  base::Mutex indexes_mutex_;  // held by who opens, creates or closes one
  std::map<std::string, std::weak_ptr<IndexState>, std::less<>> indexes_
      PANDO_GUARDED_BY(indexes_mutex_);

  // On a thread of its own; on a simulated clock, as a task that the simulation runs.
  std::unique_ptr<Lane> housekeeper_lane_;
  std::thread housekeeper_;
};

struct IndexState {
  std::shared_ptr<PoolState> pool;
  pool::IndexRecord record;
  IndexInfo info;
  IndexOptions settings;  // all of them, spelled out
  std::unique_ptr<index::Tree> tree;
};

struct WorkerState {
  std::shared_ptr<PoolState> pool;
  std::unique_ptr<Lane> lane;
};

// From a handle of the public interface to what is behind it: for this layer, for those above it
// that watch what applications cannot see, and for tests.
struct Internals {
  static PoolState& of(const Pool& pool) { return *pool.state_; }
  static WorkerState& of(const Worker& worker) { return *worker.state_; }
};

}  // namespace pando::api
