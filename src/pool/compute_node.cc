#include "pool/compute_node.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/mutants.h"
#include "base/mutex.h"
#include "pool/format.h"
#include "pool/layout.h"
#include "pool/memory/recycler.h"

namespace pando::pool {
namespace {

using fabric::Batch;
using fabric::Buffer;
using fabric::NodeId;

// How long close() waits for retired blocks to become safe; what is not by then, others recover.
constexpr std::size_t kCloseRounds = 100;
// How long it waits for memory nodes that do not answer, before it is a death.
constexpr int kQuiesceLeases = 4;

bool is_fenced(const Status& status) {
  return !status && status.error().code() == ErrorCode::kFenced;
}

}  // namespace

ComputeNode::ComputeNode(std::unique_ptr<fabric::Fabric> fabric, const PoolOptions& options)
    : fabric_(std::move(fabric)),
      options_(options),
      budget_(options.compute_budget),
      limbo_(epochs_),
      membership_(*this),
      memory_nodes_(*this),
      allocator_(*this),
      catalogue_(*this),
      recycler_(std::make_unique<Recycler>(*this)) {
  budget_.take(BudgetUse::kMembership, sizeof(ComputeNode));
}

ComputeNode::~ComputeNode() { assert(sessions_.empty()); }

// ---- Opening and closing ----

Task<Status> ComputeNode::open(Session& session) {
  {
    Operation op(session);
    auto formatted = co_await format_or_check(op);
    if (!formatted) co_return fail(formatted.error());
    pool_id_ = formatted->pool_id;
    if (Status joined = co_await membership_.join(op); !joined) co_return joined;
    if (Status all = co_await memory_nodes_.open(op, formatted->nodes); !all) {
      (void)co_await membership_.leave(op, true);  // a predecessor's ledger is still there
      co_return all;
    }
    co_await allocator_.take_first_pages(op);
  }
  const base::MutexLock lock(mutex_);
  last_success_ = session.worker().now();
  co_return Status{};
}

Task<Status> ComputeNode::close(Session& session) {
  const Result<bool> all_given = co_await rest(session);
  if (!all_given) co_return fail(all_given.error());
  co_return co_await give_up_slot(session, *all_given);
}

Task<Result<bool>> ComputeNode::rest(Session& session) {
  const auto heart = std::make_shared<Heart>();
  session.worker().spawn(keep_beating(session, heart));
  // An operation each time, so that it does not itself hold the epoch.
  // What it recycles is put back, or left to others.
  const auto unfinished = [this] { return allocator_.waiting() > 0 || recycler_->holds(); };
  for (std::size_t round = 0; round < kCloseRounds && unfinished(); ++round) {
    const std::uint64_t before = epochs_.current();
    if (!co_await upkeep(session)) break;
    if (epochs_.current() == before) co_await session.worker().sleep_for(hurried_beat());
  }
  limbo_.collect();
  const Result<bool> all_given = co_await quiesce(session);
  const bool proves = !base::mutated(base::Mutant::kNoQuiesce);
  heart->stopped = true;
  while (heart->beating) co_await session.worker().yield();
  if (!all_given || !proves) co_return all_given;
  Operation op(session);
  if (Status proved = co_await prove_quiescent(op); !proved) co_return fail(proved.error());
  co_return all_given;
}

Task<Status> ComputeNode::give_up_slot(Session& session, bool all_given) {
  Operation op(session);
  co_return co_await membership_.leave(op, !all_given);
}

// Who is about to leave is not dead yet, however long that takes. It is over some time after it was
// stopped, and touches nothing from then on but `heart`.
Task<void> ComputeNode::keep_beating(Session& session, std::shared_ptr<Heart> heart) {
  for (;;) {
    co_await session.worker().sleep_for(beat());
    if (heart->stopped) co_return;
    heart->beating = true;
    {
      Operation op(session);
      (void)co_await membership_.beat(op);
    }
    heart->beating = false;
    if (heart->stopped) co_return;
  }
}

// Step 2 of leaving, and giving back what is free. It may need a memory node that cannot be reached
// now, but soon. Whether all could be given back: Allocator::give_back_all().
Task<Result<bool>> ComputeNode::quiesce(Session& session) {
  for (const task::TimePoint until = session.worker().now() + kQuiesceLeases * options_.lease;;) {
    {
      Operation op(session);
      const bool rests = !base::mutated(base::Mutant::kNoQuiesce);
      const Status freed = rests ? co_await abandoned_locks_.take_back(op) : Status{};
      const Status resolved = rests ? co_await in_doubt_.resolve(op) : Status{};
      const Result<bool> given = freed && resolved ? co_await allocator_.give_back_all(op)
                                                   : Result<bool>(fail(ErrorCode::kUnavailable));
      if (!rests) co_return given.value_or(false);
      if (given && !in_doubt_.any()) co_return given;
      if (session.worker().now() >= until) {
        // The pool is full, and others still read what was retired: that is lost, and no reason to
        // be taken for dead.
        if (!given && given.error().code() == ErrorCode::kOutOfMemory) co_return false;
        co_return freed ? resolved ? given : Result<bool>(fail(resolved.error()))
                        : Result<bool>(fail(freed.error()));
      }
    }
    co_await session.worker().sleep_for(hurried_beat());
  }
}

// Step 3: a verb at every memory node.
Task<Status> ComputeNode::prove_quiescent(Operation& op) {
  if (abandoned_locks_.any() || in_doubt_.any()) {
    co_return fail(
        ErrorCode::kUnavailable,
        "a memory node did not answer: this compute node cannot leave, and will be taken "
        "for dead");
  }
  const std::vector<NodeId> nodes = memory_nodes_.all();
  Buffer buffer = op.buffer(nodes.size() * 8);
  Batch batch(op.cost());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    batch.read(superblock_field(nodes[i], offsetof(Superblock, state_word)), buffer.data() + i * 8,
               8);
  }
  co_return co_await op.submit(batch);
}

// ---- Sessions ----

Result<std::unique_ptr<Session>> ComputeNode::make_session(task::Worker& worker) {
  auto endpoint = fabric_->open_endpoint(worker);
  if (!endpoint) return fail(endpoint.error());
  return std::make_unique<Session>(*this, worker, std::move(*endpoint));
}

void ComputeNode::add_session(Session* session) {
  const base::MutexLock lock(mutex_);
  sessions_.push_back(session);
}

void ComputeNode::remove_session(Session* session) {
  const base::MutexLock lock(mutex_);
  (session->housekeeping() ? closed_housekeeping_ : closed_operations_) += session->counters();
  std::erase(sessions_, session);
}

// ---- Housekeeping ----

// Each part whatever became of the others: a memory node that does not answer must not keep locks,
// or calls that wait for them, at another one. What could not be done is done the next time; only
// the pool's tables, which the beat needs, are needed by all.
//
// Who has been shut out of one memory node is being declared dead, by one who could not reach the
// others or died at it. If its heart beat on, nobody would end that, and what it holds there (a
// lock, the recycling) would be held for good.
Task<Status> ComputeNode::upkeep(Session& session) {
  Operation op(session);
  co_await allocator_.update_ledger(
      op);  // first: until then what was taken dies with this compute node
  const Status beat = co_await membership_.beat_and_look_after(op);
  if (is_fenced(beat)) co_return beat;
  co_await memory_nodes_.look(op);
  const Status freed = co_await abandoned_locks_.take_back(op);
  const Status resolved = co_await in_doubt_.resolve(op);
  (void)co_await catalogue_.tidy(op);
  const Status collected = co_await allocator_.collect(op);
  const Status recycled = co_await recycler_->look(op);
  for (const Status& each : {freed, resolved, collected, recycled}) {
    if (is_fenced(each)) co_return each;
  }
  co_return beat;
}

Task<void> ComputeNode::housekeeping(Session& session) {
  session.mark_housekeeping();
  recycler_->serve(true);
  task::Worker& worker = session.worker();
  // A second coroutine sleeps, so that this one waits for two things at once, and the heart beats
  // on while it has much to collect.
  const Task<void> ticker = tick(session);
  worker.start(ticker.handle());
  const Task<void> fetcher = allocator_.fetch_for_all(session);
  worker.start(fetcher.handle());
  while (!stopping_.load()) {
    if (kicked_.exchange(false)) membership_.want(epochs_.current() + Epochs::kGrace);
    const std::uint64_t before = epochs_.current();
    at_upkeep_ = true;
    const Status done = co_await upkeep(session);
    at_upkeep_ = false;
    limbo_.collect();
    note(done, worker.now());
    if (is_fenced(done)) stopping_.store(true);  // for good
    if (stopping_.load()) break;
    const bool content = epochs_.current() >= membership_.wanted();
    if (!done || (content && !recycler_->active())) {
      co_await wakeup_.wait(worker);
    } else if (content || epochs_.current() == before) {
      co_await worker.sleep_for(hurried_beat());  // peers have yet to announce, or to answer
    }
  }
  recycler_->serve(false);
  allocator_.stop_fetching();
  while (!ticker.done() || !fetcher.done()) {
    co_await worker.sleep_for(hurried_beat());
    if (!ticker.done()) continue;
    Operation op(session);
    (void)co_await membership_.beat(op);  // what is still fetched may take long
  }
}

// Until the last upkeep has ended, which may take as long as any.
Task<void> ComputeNode::tick(Session& session) {
  while (!stopping_.load() || at_upkeep_) {
    co_await session.worker().sleep_for(beat());
    wakeup_.set();
    if (!at_upkeep_) continue;
    Operation op(session);
    (void)co_await membership_.beat(op);  // what is wrong, the next upkeep finds too
  }
}

void ComputeNode::stop() {
  stopping_.store(true);
  wakeup_.set();
}

void ComputeNode::kick() {
  if (kicked_.load(std::memory_order_relaxed) || kicked_.exchange(true)) return;
  wakeup_.set();
}

// A memory node that does not answer now may do so later: an error is held against the pool only
// once nothing has worked for a lease. Being fenced is for good, and so is the loss of the tables.
void ComputeNode::note(const Status& done, task::TimePoint now) {
  const auto for_good = [](const Status& status) {
    return is_fenced(status) || (!status && status.error().code() == ErrorCode::kDataLost);
  };
  const base::MutexLock lock(mutex_);
  if (for_good(health_)) return;
  if (done) {
    last_success_ = now;
    health_ = {};
  } else if (for_good(done) || now - last_success_ >= task::Duration(options_.lease)) {
    health_ = done;
  }
}

Status ComputeNode::health() const {
  const base::MutexLock lock(mutex_);
  return health_;
}

// ---- Statistics ----

Task<Result<PoolStats>> ComputeNode::stats(Operation& op) {
  PoolStats stats;
  const std::vector<NodeId> nodes = memory_nodes_.all();
  Buffer buffer = op.buffer(nodes.size() * 8);
  Batch batch(op.cost());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    batch.read(superblock_field(nodes[i], offsetof(Superblock, next_chunk_word)),
               buffer.data() + i * 8, 8);
  }
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::uint64_t reserved = 0;
    std::memcpy(&reserved, buffer.data() + i * 8, sizeof(reserved));
    stats.memory_nodes.push_back({nodes[i], fabric_->memory_node_size(nodes[i]), reserved});
  }

  stats.compute.budget = budget_.limit();
  for (std::size_t i = 0; i < kBudgetUses; ++i) {
    const auto use = static_cast<BudgetUse>(i);
    const std::uint64_t bytes = budget_.used(use);
    stats.compute.parts.emplace_back(to_string(use), bytes);
    stats.compute.bytes += bytes;
  }
  stats.epoch = epochs_.current();
  stats.blocks_allocated = allocator_.allocated();
  stats.blocks_freed = allocator_.freed();

  const base::MutexLock lock(mutex_);
  stats.operations = closed_operations_;
  stats.housekeeping = closed_housekeeping_;
  for (const Session* session : sessions_) {
    (session->housekeeping() ? stats.housekeeping : stats.operations) += session->counters();
    stats.compute.transfer_buffers += session->buffer_bytes();
  }
  co_return stats;
}

}  // namespace pando::pool
