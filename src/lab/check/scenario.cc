#include "lab/check/scenario.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>

#include "api/state.h"
#include "base/random.h"
#include "fabric/sim/tcp_simulation.h"
#include "lab/check/inspection.h"
#include "lab/check/late_lock.h"
#include "pool/layout.h"
#include "pool/memory/recycler.h"
#include "pool/memory/shared_stack.h"
#include <pando/pando.h>

namespace pando::lab::check {
namespace {

using base::Random;
using fabric::ClientId;
using fabric::NodeId;
using fabric::sim::kMicrosecond;
using fabric::sim::kMillisecond;
using fabric::sim::Simulation;
using fabric::sim::Time;

// Long: locks are not fair, and some seeds make a round trip last for a tenth of a millisecond.
constexpr std::chrono::milliseconds kDeadline{500};
constexpr Time kDeadlineTime = static_cast<Time>(kDeadline.count()) * kMillisecond;
// From the last fault, or from the last operation that began, to the next, at most.
constexpr Time kStuckAfter = 4 * kDeadlineTime;
constexpr Time kFaultsWithin = 6 * kMillisecond;
// Births count in 22 bits, versions in the lowest 14 of the same.
constexpr std::uint32_t kLastBirth = (1u << 22) - 4;
constexpr Time kLongestCut = 8 * kLeaseTime;
constexpr unsigned kStruck = 2;  // at most, in a run

class Scenario final : Inspection {
 public:
  Scenario(const CheckPlan& plan, CheckObserver* observer)
      : Inspection(plan, observer, [this](ErrorCode code) { return excused(code); }) {}

  CheckOutcome run() {
    try {
      if (set_up()) {
        schedule_faults();
        work();
        inspect([this] { return add_compute_node(); });
        sum_up();
      }
    } catch (const std::logic_error& stuck) {  // the engine's: a plain call that never ends
      problem(stuck.what());
    }
    take_down();
    for (std::string& problem : recorder_.problems())
      outcome_.problems.push_back(std::move(problem));
    return std::move(outcome_);
  }

 private:
  // Counts a task among its node's for as long as its frame lives.
  class Running {
   public:
    explicit Running(ComputeNode& node) : node_(&node) { ++node.running; }
    Running(Running&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
    Running& operator=(Running&&) = delete;
    ~Running() { end(); }
    void end() {
      if (ComputeNode* const node = std::exchange(node_, nullptr)) --node->running;
    }

   private:
    ComputeNode* node_;
  };

  std::uint64_t node_bytes() const {
    return (std::uint64_t{plan_.chunks} + 1) * pool::kChunkBytes;  // one for superblock and tables
  }

  // ---- Setting up

  bool over_tcp() const { return plan_.fabric == CheckedFabric::kTcp; }

  Result<std::unique_ptr<Simulation>> make_simulation() const {
    constexpr std::uint32_t kOnChipBytes = 4096;
    if (over_tcp()) {
      return fabric::sim::make_tcp_simulation({.node_bytes = node_bytes(),
                                               .nodes = plan_.memory_nodes,
                                               .onchip_bytes = kOnChipBytes,
                                               .native_masked_cas = plan_.native_masked_cas,
                                               .sockets = plan_.sockets,
                                               .timeout = plan_.timeout});
    }
    return Simulation::make({.bytes = node_bytes() * plan_.memory_nodes,
                             .nodes = plan_.memory_nodes,
                             .native_masked_cas = plan_.native_masked_cas,
                             .huge_pages = false,
                             .onchip_bytes = kOnChipBytes,
                             .adversary = plan_.adversary,
                             .grows = plan_.faults.has(Fault::kJoin)});
  }

  bool set_up() {
    auto made = make_simulation();
    if (!made) return complain("the simulation", made.error());
    simulation_ = std::move(*made);
    side_indexes_.emplace(
        plan_,
        SideIndexes::Judge{.excused = [this](ErrorCode code) { return excused(code); },
                           .problem = [this](std::string what) { problem(std::move(what)); }});
    simulation_->set_instant(true);
    for (unsigned i = 0; i < plan_.compute_nodes; ++i) {
      if (!add_compute_node()) return false;
    }
    if (!preload()) return false;
    simulation_->set_instant(false);
    watch_.on_trespass(node_bytes(), [this](const std::string& what) { problem(what); });
    simulation_->set_trace(&watch_);
    watch_.on_leaving([this](ClientId client) {
      if (!simulation_->haunts(client)) return;
      problem(fmt::format("compute node {} has left, though verbs of it may yet happen", client));
    });
    watch_.on_doubt([this](ClientId client) {
      const auto node = std::ranges::find(nodes_, client, &ComputeNode::client);
      return node == nodes_.end() ? 0 : node->epoch();
    });
    watch_.on_late([this](const fabric::sim::LateVerb& late) { look_at_late(late); });
    let_time_pass(kLeaseTime / 2);  // they have been there for a while, and listed what they hold
    for (ComputeNode& node : nodes_) start(node);
    return true;
  }

  // What a verb may yet change is not to be used again, but by its own client, which can do so only
  // by a verb that resolves it. Locks are another matter: late_lock.h.
  void look_at_late(const fabric::sim::LateVerb& late) {
    look_at_epoch(late);
    for (const ComputeNode& node : nodes_) {
      if (node.client == late.client || node.absent() || simulation_->is_fenced(node.client)) {
        continue;
      }
      if (!node.allocator().may_reuse(late.at) || only_locks(late, node)) continue;
      problem(
          fmt::format("a verb of compute node {} changes memory node {}, offset {:#x}, which "
                      "compute node {} holds free",
                      late.client, late.at.node(), late.at.offset(), node.client));
    }
  }

  // A verb that may come late holds its operation's epoch p until it has come
  // (pool/membership/in_doubt.h), so that nobody sees more than p + 1. p is no more than its
  // compute node had seen when it came to be in doubt. Of those who were coming in then nothing is
  // known.
  void look_at_epoch(const fabric::sim::LateVerb& late) {
    if (late.note == 0) return;
    for (const ComputeNode& node : nodes_) {
      if (node.epoch() <= late.note + 1) continue;
      return problem(
          fmt::format("a verb of compute node {} changes memory node {}, offset {:#x}, in epoch "
                      "{}, though it has been in doubt since epoch {}",
                      late.client, late.at.node(), late.at.offset(), node.epoch(), late.note));
    }
  }

  bool only_locks(const fabric::sim::LateVerb& late, const ComputeNode& holder) const {
    const auto self = std::ranges::find(nodes_, late.client, &ComputeNode::client);
    if (self == nodes_.end() || !at_free_lock(late.at, holder.allocator().held())) return false;
    return locks_harmlessly(late, self->owner, [this](pool::OwnerId owner) {
      return std::ranges::any_of(nodes_, [&](const ComputeNode& node) {
        return node.owner == owner && !node.left && !simulation_->is_fenced(node.client);
      });
    });
  }

  bool complain(std::string_view what, const Error& error) {
    problem(fmt::format("{}: {}", what, error.message()));
    return false;
  }

  PoolOptions pool_options() const {
    PoolOptions options;
    options.compute_budget = plan_.compute_budget;
    options.deadline = kDeadline;
    options.lease = kLease;
    return options;
  }

  ComputeNode* add_compute_node() {
    auto fabric = simulation_->open_client();
    if (!fabric) {
      if (!excused(fabric.error().code())) complain("coming in", fabric.error());
      return nullptr;
    }
    const ClientId client = (*fabric)->client();
    auto pool = api::PoolState::open_pool(std::move(*fabric), pool_options());
    if (!pool) {
      if (!excused(pool.error().code())) complain("opening the pool", pool.error());
      return nullptr;
    }
    if (plan_.near_wrap) {
      api::Internals::of(*pool).compute_node.allocator().begin_incarnations_at(kLastBirth);
      if (nodes_.empty() && !raise_tags(*pool)) return nullptr;
    }
    auto index = nodes_.empty() ? pool->create_index(kCheckedIndex, plan_.index)
                                : pool->open_index(kCheckedIndex, plan_.index);
    if (!index) {
      if (!excused(index.error().code())) complain("opening the index", index.error());
      return nullptr;
    }
    ComputeNode& node = nodes_.emplace_back(std::move(*pool), std::move(*index));
    node.client = client;
    node.owner = api::Internals::of(*node.pool).compute_node.membership().self();
    return &node;
  }

  // Of the shared stacks, which nobody else uses yet.
  bool raise_tags(Pool& pool) {
    const auto write = [this](pool::Operation& op) -> Task<Status> {
      static constexpr std::uint64_t kLastTag = ((std::uint64_t{1} << 22) - 2) << 42;
      for (std::size_t i = 0; i < plan_.memory_nodes * pool::kClasses; ++i) {
        const std::size_t of_class = i % pool::kClasses;
        const fabric::Address stack =
            pool::stack_address(static_cast<NodeId>(i / pool::kClasses), pool::kind_at(of_class),
                                pool::size_class_at(of_class));
        const auto word = co_await pool::read_word(op, stack);
        if (!word) co_return fail(word.error());
        const std::uint64_t raised = kLastTag | pool::stack_place(*word);
        fabric::Batch batch;
        batch.write_word(stack, &raised);
        if (Status written = co_await op.submit(batch); !written) co_return written;
      }
      co_return Status{};
    };
    const Status raised = api::Internals::of(pool).run(write);
    return raised ? true : complain("raising tags", raised.error());
  }

  bool preload() {
    for (const OwnedKey& key : requests_.universe()) {
      if (random_.below(100) >= plan_.preloaded) continue;
      const std::string value = requests_.new_value();
      const Status put = nodes_.front().index->put(key, value);
      if (!put && excused(put.error().code())) continue;
      if (!put) return complain("preloading", put.error());
      recorder_.set_initial(key, value);
    }
    return true;
  }

  // ---- The clients

  void start(ComputeNode& node) {
    for (unsigned i = 0; i < plan_.clients; ++i) {
      auto worker = node.pool->make_worker();
      if (!worker) {
        complain("making a worker", worker.error());
        return;
      }
      put_to_work(node, node.crews.emplace_back(std::move(*worker)), plan_.operations);
    }
    if (!plan_.faults.has(Fault::kIndexes)) return;
    if (auto worker = node.pool->make_worker()) {
      Worker& place = node.builders.emplace_back(std::move(*worker));
      place.spawn(builder(node, place, Random(random_.next())));
    }
  }

  void put_to_work(ComputeNode& node, Crew& crew, unsigned operations) {
    for (unsigned j = 0; j < plan_.tasks; ++j) {
      RecordedIndex& view = node.views.emplace_back(*node.index, recorder_, node.client);
      crew.views.push_back(&view);
      crew.worker.spawn(
          client(node, crew.worker, view, Random(random_.next()), operations, Running(node)));
    }
  }

  Task<void> client(ComputeNode& node, Worker& worker, RecordedIndex& index, Random random,
                    unsigned operations, Running running) {
    for (unsigned i = 0; i < operations; ++i) {
      ++outcome_.coverage.operations;
      note_ends();
      const Status done = co_await operate(node, worker, index, requests_.draw(random));
      if (!done && done.error().code() == ErrorCode::kOutOfMemory)
        ++outcome_.coverage.out_of_memory;
      if (done || is_answer(done.error().code())) continue;
      const bool for_good = done.error().code() == ErrorCode::kFenced ||
                            (done.error().code() == ErrorCode::kDataLost && random.below(4) == 0);
      if (for_good) break;
      // As anybody would; and many writes of unknown outcome make a history hard to judge.
      task::Worker& own = api::Internals::of(worker).lane->worker;
      co_await own.sleep_for(std::chrono::microseconds(1 + random.below(1000)));
    }
    running.end();
    if (node.running > 0) co_return;
    if (simulation_->is_fenced(node.client)) ++replacements_;
    if (node.retires) leaving_.push_back(&node);
  }

  // An operation that takes long, and holds the epoch meanwhile.
  Task<void> sleeper(ComputeNode& node, Worker& worker, Time time) {
    const Running running(node);
    const pool::Operation op(*api::Internals::of(worker).lane->session);
    co_await op.worker().sleep_for(std::chrono::microseconds(time / kMicrosecond));
  }

  Task<void> builder(ComputeNode& node, Worker& worker, Random random) {
    const Running running(node);
    const auto rounds = static_cast<unsigned>(2 + random.below(8));
    co_await side_indexes_->client(worker, random, rounds);
  }

  static bool is_answer(ErrorCode code) {
    return code == ErrorCode::kNotFound || code == ErrorCode::kExists;
  }

  Task<Status> operate(const ComputeNode& node, Worker& worker, RecordedIndex& index,
                       Request request) {
    RequestSpan span(observer_, *simulation_, node.client, index, request);
    Status done;
    switch (request.kind) {
      case RequestKind::kGet: {
        const auto found = co_await index.get(worker, request.key);
        span.end(found);
        if (!found) co_return fail(found.error());
        co_return done;
      }
      case RequestKind::kPut:
        done = co_await index.put(worker, request.key, request.value);
        break;
      case RequestKind::kInsert:
        done = co_await index.insert(worker, request.key, request.value);
        break;
      case RequestKind::kUpdate:
        done = co_await index.update(worker, request.key, request.value);
        break;
      case RequestKind::kErase:
        done = co_await index.erase(worker, request.key);
        break;
      case RequestKind::kMultiGet:
        done = co_await index.multi_get(worker, request.keys);
        break;
      case RequestKind::kScan:
        done = co_await index.scan(worker, requests_.universe(), request.key, request.limit);
        break;
    }
    span.end(done);
    co_return done;
  }

  // ---- Faults

  // An error that some fault explains.
  bool excused(ErrorCode code) const {
    if (code == ErrorCode::kOutOfMemory) return short_of_memory();
    if (faults_over_ && !lost_memory_) return false;
    const FaultSet& faults = plan_.faults;
    switch (code) {
      case ErrorCode::kTimeout:
        return faults.breaks() && simulation_->time() < last_fault_ + 2 * kDeadlineTime;
      case ErrorCode::kIndeterminate:
        // Who shares the writing of another, combined, is told when that one is dropped.
        if (faults.has(Fault::kDrop) || faults.has(Fault::kLeave)) return true;
        // What was under way when one was shut out.
        if (faults.has(Fault::kPause) && simulation_->coverage().fenced > 0) return true;
        [[fallthrough]];
      case ErrorCode::kUnavailable:
        // Who stood still for longer than a memory node waits finds a connection closed.
        if (over_tcp() && faults.has(Fault::kPause)) return true;
        return faults.has(Fault::kCut) || faults.has(Fault::kRestart) || faults.has(Fault::kLose);
      case ErrorCode::kFenced:
        return faults.breaks();
      case ErrorCode::kDataLost:
        return lost_memory_;
      case ErrorCode::kNotFound:
      case ErrorCode::kIncompatible:
        return lost_memory_;  // of the whole pool, for those who come later
      default:
        return false;
    }
  }

  void at(Time when, std::function<void()> action) {
    simulation_->engine().at(simulation_->time() + when, std::move(action));
  }
  // `lasts`: after how long its effects are over.
  void note_fault(Time lasts, std::string_view what) {
    last_fault_ = std::max(last_fault_, simulation_->time() + lasts);
    if (observer_ != nullptr) observer_->fault(simulation_->time(), what);
  }
  Time some_time() { return random_.below(kFaultsWithin); }
  NodeId some_memory_node() {
    return static_cast<NodeId>(random_.below(simulation_->memory_nodes()));
  }
  ComputeNode& some_compute_node() { return nodes_[random_.below(nodes_.size())]; }

  template <class Action>
  void schedule(Fault fault, std::uint64_t most, Action action) {
    if (!plan_.faults.has(fault)) return;
    for (std::uint64_t i = 1 + random_.below(most); i > 0; --i) action();
  }

  void schedule_faults() {
    faults_over_ = false;
    for (unsigned i = 0; i < plan_.recyclings; ++i) {
      at(some_time(), [this] {
        if (ComputeNode& node = some_compute_node(); node.pool)
          api::Internals::of(*node.pool).compute_node.recycler().request();
      });
    }
    schedule(Fault::kKill, 3, [this] { schedule_kill(); });
    schedule(Fault::kPause, 3, [this] { at(some_time(), [this] { pause(); }); });
    schedule(Fault::kCut, over_tcp() ? 24 : 6, [this] { at(some_time(), [this] { cut(); }); });
    schedule(Fault::kRestart, 2, [this] { at(some_time(), [this] { restart(false); }); });
    if (plan_.faults.has(Fault::kLose)) at(some_time(), [this] { restart(true); });
    schedule(Fault::kLeave, 2, [this] {
      const bool in_peace = random_.below(2) == 0;
      schedule_departure([this, in_peace](ComputeNode& node) {
        node.retires = true;
        if (!in_peace || node.running == 0) leaving_.push_back(&node);
      });
    });
    schedule(Fault::kDrop, 4, [this] {
      schedule_departure([this](ComputeNode& node) { dropping_.push_back(&node); });
    });
    if (over_tcp() && plan_.faults.has(Fault::kKill)) {
      for (std::uint64_t i = random_.below(4); i > 0; --i) at(some_time(), [this] { ++visits_; });
    }
    schedule(Fault::kJoin, 2, [this] { at(some_time(), [this] { join_memory(); }); });
    if (plan_.faults.has(Fault::kKill)) {
      watch_.on_recovery(
          [this](ClientId client) { strike(client, 3, 24, outcome_.coverage.recoverers_killed); });
      watch_.on_recycling(
          [this](ClientId client) { strike(client, 20, 60, outcome_.coverage.recyclers_killed); });
    }
  }

  // At a step, not at a time: so it is as likely to be in the middle of something.
  void schedule_kill() {
    ComputeNode& victim = some_compute_node();
    const ClientId client = victim.client;
    using fabric::sim::Counted;
    const bool drop = random_.below(3) != 0;
    const std::uint64_t steps = 1 + random_.below(1 + random_.below(4000));
    const auto strike = [this, &victim, drop] { kill(victim, drop); };
    if (random_.below(3) == 0) {
      simulation_->after_steps(client, steps, Counted::kAll, strike);
      return;
    }
    // In the middle of a change of structure, or shortly after it.
    const std::uint64_t later = 1 + random_.below(6);
    simulation_->after_steps(client, 1 + random_.below(20), Counted::kLongWrites,
                             [this, client, later, strike] {
                               simulation_->after_steps(client, later, Counted::kWrites, strike);
                             });
  }

  // Who goes lets time pass until it is gone: that is for work(), which is told here.
  template <class Departure>
  void schedule_departure(Departure departure) {
    using fabric::sim::Counted;
    ComputeNode& node = some_compute_node();
    const auto go = [this, departure, &node] {
      if (!faults_over_ && !node.absent()) departure(node);
    };
    if (random_.below(3) == 0) return at(some_time(), go);
    const auto counted = static_cast<Counted>(random_.below(3));
    const std::uint64_t most = counted == Counted::kLongWrites ? 20 : 1500;
    simulation_->after_steps(node.client, 1 + random_.below(1 + random_.below(most)), counted, go);
  }

  void kill(ComputeNode& victim, bool drop) {
    if (victim.absent() || faults_over_) return;
    victim.held = true;
    victim.struck = true;
    simulation_->hold(victim.client, std::nullopt, drop);
    note_fault(kBuried, fmt::format("compute node {} dies{}", victim.client,
                                    drop ? ", its verbs half done" : ""));
    ++outcome_.coverage.kills;
    ++replacements_;
  }

  // It has just begun something that others will have to finish: once in `rarely`, it dies there.
  void strike(ClientId client, std::uint64_t rarely, std::uint64_t steps, std::uint64_t& killed) {
    const auto victim = std::ranges::find(nodes_, client, &ComputeNode::client);
    if (victim == nodes_.end() || killed >= kStruck || fates_.below(rarely) != 0) return;
    const bool drop = fates_.below(3) != 0;
    simulation_->after_steps(client, 1 + fates_.below(steps), fabric::sim::Counted::kAll,
                             [this, &node = *victim, drop, &killed] {
                               const std::uint64_t before = outcome_.coverage.kills;
                               kill(node, drop);
                               killed += outcome_.coverage.kills - before;
                             });
  }

  void pause() {
    if (faults_over_) return;
    ComputeNode& node = some_compute_node();
    if (node.held || !node.pool) return;
    const Time lasts = 1 + random_.below(random_.below(2) == 0 ? kLeaseTime / 4 : 4 * kLeaseTime);
    simulation_->hold(node.client, lasts);
    node.struck = true;
    note_fault(lasts + kBuried, fmt::format("compute node {} stands still for {} us", node.client,
                                            lasts / kMicrosecond));
    ++outcome_.coverage.pauses;
  }

  void cut() {
    if (faults_over_) return;
    Time lasts = 1 + random_.below(random_.below(4) == 0 ? 2 * kLeaseTime : kMillisecond);
    // Often for longer than a client waits: then the outcome is unknown to it.
    if (over_tcp()) lasts *= 1 + random_.below(4);
    ComputeNode& node = some_compute_node();
    const NodeId memory_node = some_memory_node();
    // Nobody is taken for dead who reaches memory node 0, so that others go on for long.
    const bool for_long = memory_node != 0 && fates_.below(3) == 0;
    cut(node, memory_node, for_long ? 1 + fates_.below(kLongestCut) : lasts);
  }

  void cut(ComputeNode& node, NodeId memory_node, Time lasts) {
    simulation_->cut_link(node.client, memory_node, lasts);
    // Heartbeats are on memory node 0. Who leaves must reach all of them.
    node.struck |= memory_node == 0 || node.left;
    const Time held_up = over_tcp() ? 2 * lasts : lasts;  // until what was held back has come
    note_fault(held_up + kBuried,
               fmt::format("the link of compute node {} and memory node {} is cut for {} us",
                           node.client, memory_node, lasts / kMicrosecond));
    ++outcome_.coverage.cuts;
  }

  void restart(bool lose) {
    if (faults_over_) return;
    const Time lasts = 1 + random_.below(2 * kMillisecond);
    const NodeId id = some_memory_node();
    simulation_->stop_memory_node(id, lasts, lose);
    for (ComputeNode& node : nodes_) node.struck |= lose || id == 0 || node.left;
    note_fault(lasts + kBuried,
               fmt::format("memory node {} goes away for {} us{}", id, lasts / kMicrosecond,
                           lose ? " and loses its memory" : ""));
    lost_memory_ |= lose;
    ++(lose ? outcome_.coverage.losses : outcome_.coverage.restarts);
  }

  void join_memory() {
    if (faults_over_) return;
    simulation_->add_memory_node(random_.below(2) == 0 ? kMillisecond : 2 * kLeaseTime);
    note_fault(4 * kLeaseTime, "a memory node is added");
    ++outcome_.coverage.joins;
  }

  // ---- Going, of workers and of compute nodes

  // Its tasks end in the middle of whatever they are at.
  void dismiss(Crew& crew) {
    for (RecordedIndex* view : crew.views) view->abandon();
    crew.views.clear();
  }

  void drop_workers() {
    for (ComputeNode* const node : std::exchange(dropping_, {})) {
      if (node->absent() || node->crews.empty() || simulation_->is_held(node->client)) continue;
      auto fresh = node->pool->make_worker();
      if (!fresh) continue;
      Crew& crew = node->crews[random_.below(node->crews.size())];
      note_fault(kLeaseTime, fmt::format("a worker of compute node {} is dropped", node->client));
      const unsigned before = node->running;
      crew.worker = std::move(*fresh);
      cut_short_ += before - node->running;
      dismiss(crew);
      put_to_work(*node, crew, std::max(1u, plan_.operations / 4));
      ++outcome_.coverage.drops;
    }
  }

  void let_leave() {
    for (ComputeNode* const node : std::exchange(leaving_, {})) {
      const auto stays = [node](const ComputeNode& each) {
        return !each.absent() && &each != node;
      };
      if (node->absent() || simulation_->is_held(node->client)) continue;
      const auto other = std::ranges::find_if(nodes_, stays);
      if (other == nodes_.end()) continue;
      if (random_.below(3) == 0) hold_epoch(*other);
      // In the middle of what it does, so that it has something to prove.
      if (plan_.faults.has(Fault::kCut) && random_.below(2) == 0) {
        const NodeId somewhere = some_memory_node();
        cut(*node, simulation_->busy_memory_node(node->client).value_or(somewhere),
            1 + random_.below(2 * kLeaseTime));
      }
      leave(*node);
      if (random_.below(2) == 0) ++replacements_;
    }
  }

  // So that who leaves cannot wait for all that it has retired.
  void hold_epoch(ComputeNode& node) {
    auto worker = node.pool->make_worker();
    if (!worker) return;
    Worker& place = node.builders.emplace_back(std::move(*worker));
    place.spawn(sleeper(node, place, (4 + random_.below(6)) * kLeaseTime));
  }

  // Time passes until it is gone.
  void leave(ComputeNode& node) {
    node.left = true;
    // It must reach every memory node to leave; else it is a death.
    node.struck |= outcome_.coverage.cuts + outcome_.coverage.restarts > 0;
    note_fault(kLeaseTime, fmt::format("compute node {} leaves", node.client));
    ++outcome_.coverage.leaves;
    cut_short_ += node.running;
    dismiss_all(node);
    node.index.reset();
    node.recovered = node.allocator().recovered();
    node.held_bytes = held_bytes(node.allocator());
    node.allocated = node.allocator().allocated();
    node.freed = node.allocator().freed();
    node.left_behind = node.allocator().left_behind();
    node.pool.reset();
    note_fault(kLeaseTime, fmt::format("compute node {} is gone", node.client));
  }

  // ---- Working

  bool finished() const {
    return std::ranges::all_of(
        nodes_, [](const ComputeNode& node) { return node.absent() || node.running == 0; });
  }

  // Something waits that lets time pass itself.
  bool called_for() const {
    return replacements_ + visits_ > 0 || !leaving_.empty() || !dropping_.empty();
  }

  void work() {
    while (!finished() || called_for()) {
      const Time limit = std::max(last_fault_, simulation_->time()) + kStuckAfter;
      const std::uint64_t begun = outcome_.coverage.operations;
      const bool something =
          simulation_->engine().run_until([this] { return finished() || called_for(); }, limit);
      drop_workers();
      let_leave();
      replace();
      // Each message that it sends on its way in may be its last.
      for (; visits_ > 0; --visits_) simulation_->visit(1 + random_.below(6));
      if (something || last_fault_ + kStuckAfter > limit) continue;
      if (outcome_.coverage.operations > begun) continue;
      problem(fmt::format("nothing has ended for {} ms:{}", kStuckAfter / kMillisecond, pending()));
      return;
    }
  }

  std::string pending() const {
    std::string text;
    for (const ComputeNode& node : nodes_) {
      if (!node.absent() && node.running > 0) {
        text += fmt::format(" {} on compute node {}", node.running, node.client);
      }
    }
    return text;
  }

  // Those who died come back under another name, sometimes.
  void replace() {
    for (; replacements_ > 0; --replacements_) {
      if (nodes_.size() >= std::size_t{2} * plan_.compute_nodes || random_.below(3) == 0) continue;
      if (ComputeNode* node = add_compute_node(); node != nullptr) start(*node);
    }
  }

  void sum_up() {
    outcome_.time = simulation_->time();
    outcome_.coverage.runs = 1;
    outcome_.coverage.side_indexes = side_indexes_->created();
    outcome_.coverage.ended_unknown = recorder_.ended();
    outcome_.coverage.fabric = simulation_->coverage();
    std::string all =
        fmt::format("{} {} {} ", outcome_.time, outcome_.history, outcome_.coverage.fabric.verbs);
    const KeyedHistory history = recorder_.history();
    for (const OwnedKey& key : requests_.universe()) {
      for (const Operation& operation : history.of_key(order_bytes(key)).operations) {
        all += to_string(operation);
      }
    }
    outcome_.digest = XXH3_64bits(all.data(), all.size());
  }

  void take_down() {
    if (simulation_ == nullptr) return;
    faults_over_ = true;
    simulation_->set_trace(nullptr);
    for (ComputeNode& node : nodes_) {  // and the tasks that have not ended
      node.crews.clear();
      node.builders.clear();
    }
    for (ComputeNode& node : nodes_) {
      if (node.client != 0) simulation_->release(node.client);
    }
    if (!over_tcp()) simulation_->set_instant(true);  // how they leave is of interest there
    nodes_.clear();
    if (outcome_.failed()) return;
    for (std::string& each : simulation_->left_behind()) problem(std::move(each));
  }

  Random fates_{base::mix64(plan_.seed, 3)};  // for what came to be drawn later than the rest
  unsigned replacements_ = 0;
  unsigned visits_ = 0;  // of those who die on their way in
  std::vector<ComputeNode*> leaving_;
  std::vector<ComputeNode*> dropping_;
};

}  // namespace

CheckOutcome run_check(const CheckPlan& plan, CheckObserver* observer) {
  return Scenario(plan, observer).run();
}

}  // namespace pando::lab::check
