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
#include "lab/check/history.h"
#include "lab/check/request.h"
#include "pool/census.h"
#include "pool/layout.h"
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

constexpr std::string_view kIndexName = "checked";
constexpr std::uint64_t kNodeBytes = std::uint64_t{64} << 20;
constexpr std::chrono::milliseconds kLease{4};
// Long: locks are not fair, and some seeds make a round trip last for a tenth of a millisecond.
constexpr std::chrono::milliseconds kDeadline{500};
constexpr Time kLeaseTime = static_cast<Time>(kLease.count()) * kMillisecond;
constexpr Time kDeadlineTime = static_cast<Time>(kDeadline.count()) * kMillisecond;
// From the last fault, or from the last operation that began, to the next, at most.
constexpr Time kPatience = 4 * kDeadlineTime;
constexpr Time kFaultsWithin = 6 * kMillisecond;
// Runs and magazines that a compute node may have been taking when it died.
constexpr std::uint64_t kTakenAtOnce = 8 * pool::kChunkBytes;
// Of a history, before it is given up as too hard: a second or so.
constexpr std::size_t kConfigurations = 300'000;

class Scenario {
 public:
  Scenario(const CheckPlan& plan, CheckObserver* observer)
      : plan_(plan),
        random_(base::mix64(plan.seed, 2)),
        observer_(observer),
        recorder_([this](ErrorCode code) { return excused(code); }) {}

  CheckOutcome run() {
    try {
      if (set_up()) {
        schedule_faults();
        work();
        inspect();
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
  struct Node {
    Node(Pool opened, Index of) : pool(std::move(opened)), index(std::move(of)) {}
    Pool pool;
    std::optional<Index> index;
    ClientId client = 0;
    std::deque<RecordedIndex> views;
    std::deque<Worker> workers;  // and their tasks, which use the views
    unsigned running = 0;
    bool held = false;  // dead
  };

  void problem(std::string what) { outcome_.problems.push_back(std::move(what)); }

  // ---- Setting up

  bool over_tcp() const { return plan_.fabric == CheckedFabric::kTcp; }

  Result<std::unique_ptr<Simulation>> make_simulation() const {
    constexpr std::uint32_t kOnChipBytes = 4096;
    if (over_tcp()) {
      return fabric::sim::make_tcp_simulation({.node_bytes = kNodeBytes,
                                               .nodes = plan_.memory_nodes,
                                               .onchip_bytes = kOnChipBytes,
                                               .native_masked_cas = plan_.native_masked_cas,
                                               .sockets = plan_.sockets,
                                               .timeout = plan_.timeout});
    }
    return Simulation::make({.bytes = kNodeBytes * plan_.memory_nodes,
                             .nodes = plan_.memory_nodes,
                             .native_masked_cas = plan_.native_masked_cas,
                             .huge_pages = false,
                             .onchip_bytes = kOnChipBytes,
                             .adversary = plan_.adversary});
  }

  bool set_up() {
    auto made = make_simulation();
    if (!made) return complain("the simulation", made.error());
    simulation_ = std::move(*made);
    simulation_->set_instant(true);
    for (unsigned i = 0; i < plan_.compute_nodes; ++i) {
      if (!add_node()) return false;
    }
    if (!preload()) return false;
    simulation_->set_instant(false);
    simulation_->set_trace(observer_);
    let_time_pass(kLeaseTime / 2);  // they have been there for a while, and told what they hold
    for (Node& node : nodes_) start(node);
    return true;
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

  Node* add_node() {
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
    auto index = nodes_.empty() ? pool->create_index(kIndexName, plan_.index)
                                : pool->open_index(kIndexName, plan_.index);
    if (!index) {
      if (!excused(index.error().code())) complain("opening the index", index.error());
      return nullptr;
    }
    Node& node = nodes_.emplace_back(std::move(*pool), std::move(*index));
    node.client = client;
    return &node;
  }

  bool preload() {
    for (const OwnedKey& key : requests_.universe()) {
      if (random_.below(100) >= plan_.preloaded) continue;
      const std::string value = requests_.new_value();
      const Status put = nodes_.front().index->put(key, value);
      if (!put) return complain("preloading", put.error());
      recorder_.set_initial(key, value);
    }
    return true;
  }

  // ---- The clients

  void start(Node& node) {
    for (unsigned i = 0; i < plan_.clients; ++i) {
      auto worker = node.pool.make_worker();
      if (!worker) {
        complain("making a worker", worker.error());
        return;
      }
      Worker& place = node.workers.emplace_back(std::move(*worker));
      for (unsigned j = 0; j < plan_.tasks; ++j) {
        RecordedIndex& view = node.views.emplace_back(*node.index, recorder_);
        place.spawn(client(node, place, view, Random(random_.next())));
        ++node.running;
      }
    }
  }

  Task<void> client(Node& node, Worker& worker, RecordedIndex& index, Random random) {
    for (unsigned i = 0; i < plan_.operations; ++i) {
      ++outcome_.coverage.operations;
      const Status done = co_await operate(node, worker, index, requests_.draw(random));
      if (done || is_answer(done.error().code())) continue;
      const bool for_good = done.error().code() == ErrorCode::kFenced ||
                            (done.error().code() == ErrorCode::kDataLost && random.below(4) == 0);
      if (for_good) break;
      // As anybody would; and many writes of unknown outcome make a history hard to judge.
      task::Worker& own = worker.state().lane->worker;
      co_await own.sleep_for(std::chrono::microseconds(1 + random.below(1000)));
    }
    --node.running;
    if (node.running == 0 && simulation_->is_fenced(node.client)) ++replacements_;
  }

  static bool is_answer(ErrorCode code) {
    return code == ErrorCode::kNotFound || code == ErrorCode::kExists;
  }

  Task<Status> operate(const Node& node, Worker& worker, RecordedIndex& index, Request request) {
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
    if (faults_over_ && !lost_memory_) return false;
    const FaultSet& faults = plan_.faults;
    switch (code) {
      case ErrorCode::kTimeout:
        return faults.breaks() && simulation_->time() < last_fault_ + 2 * kDeadlineTime;
      case ErrorCode::kUnavailable:
      case ErrorCode::kIndeterminate:
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
  // `settles`: after how long its effects are over.
  void note_fault(Time settles, std::string_view what) {
    last_fault_ = std::max(last_fault_, simulation_->time() + settles);
    if (observer_ != nullptr) observer_->fault(simulation_->time(), what);
  }
  Time some_time() { return random_.below(kFaultsWithin); }
  NodeId some_memory_node() { return static_cast<NodeId>(random_.below(plan_.memory_nodes)); }
  Node& some_node() { return nodes_[random_.below(nodes_.size())]; }

  void schedule_faults() {
    faults_over_ = false;
    if (plan_.faults.has(Fault::kKill)) {
      for (std::uint64_t i = 1 + random_.below(3); i > 0; --i) schedule_kill();
    }
    if (plan_.faults.has(Fault::kPause)) {
      for (std::uint64_t i = 1 + random_.below(3); i > 0; --i) at(some_time(), [this] { pause(); });
    }
    if (plan_.faults.has(Fault::kCut)) {
      const std::uint64_t most = over_tcp() ? 24 : 6;
      for (std::uint64_t i = 1 + random_.below(most); i > 0; --i) {
        at(some_time(), [this] { cut(); });
      }
    }
    if (over_tcp() && plan_.faults.has(Fault::kKill)) {
      for (std::uint64_t i = random_.below(4); i > 0; --i) at(some_time(), [this] { ++visits_; });
    }
    if (plan_.faults.has(Fault::kRestart)) {
      for (std::uint64_t i = 1 + random_.below(2); i > 0; --i) {
        at(some_time(), [this] { restart(false); });
      }
    }
    if (plan_.faults.has(Fault::kLose)) at(some_time(), [this] { restart(true); });
  }

  // At a step, not at a time: so it is as likely to be in the middle of something.
  void schedule_kill() {
    Node& victim = some_node();
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

  void kill(Node& victim, bool drop) {
    if (victim.held || faults_over_) return;
    victim.held = true;
    simulation_->hold(victim.client, std::nullopt, drop);
    note_fault(3 * kLeaseTime, fmt::format("compute node {} dies{}", victim.client,
                                           drop ? ", its verbs half done" : ""));
    ++outcome_.coverage.kills;
    ++replacements_;
  }

  void pause() {
    if (faults_over_) return;
    Node& node = some_node();
    if (node.held) return;
    const Time lasts = 1 + random_.below(random_.below(2) == 0 ? kLeaseTime / 4 : 4 * kLeaseTime);
    simulation_->hold(node.client, lasts);
    note_fault(lasts + 3 * kLeaseTime, fmt::format("compute node {} stands still for {} us",
                                                   node.client, lasts / kMicrosecond));
    ++outcome_.coverage.pauses;
  }

  void cut() {
    if (faults_over_) return;
    Time lasts = 1 + random_.below(random_.below(4) == 0 ? 2 * kLeaseTime : kMillisecond);
    // Often for longer than a client waits: then the outcome is unknown to it.
    if (over_tcp()) lasts *= 1 + random_.below(4);
    const ClientId client = some_node().client;
    const NodeId memory_node = some_memory_node();
    simulation_->cut_link(client, memory_node, lasts);
    const Time settles = over_tcp() ? 2 * lasts : lasts;  // until what was held back has come
    note_fault(settles + 3 * kLeaseTime,
               fmt::format("the link of compute node {} and memory node {} is cut for {} us",
                           client, memory_node, lasts / kMicrosecond));
    ++outcome_.coverage.cuts;
  }

  void restart(bool lose) {
    if (faults_over_) return;
    const Time lasts = 1 + random_.below(2 * kMillisecond);
    const NodeId node = some_memory_node();
    simulation_->stop_node(node, lasts, lose);
    note_fault(lasts + 3 * kLeaseTime,
               fmt::format("memory node {} goes away for {} us{}", node, lasts / kMicrosecond,
                           lose ? " and loses its memory" : ""));
    lost_memory_ |= lose;
    ++(lose ? outcome_.coverage.losses : outcome_.coverage.restarts);
  }

  // ---- Working

  bool finished() const {
    return std::ranges::all_of(nodes_,
                               [](const Node& node) { return node.held || node.running == 0; });
  }

  void work() {
    while (!finished() || replacements_ + visits_ > 0) {
      const Time limit = std::max(last_fault_, simulation_->time()) + kPatience;
      const std::uint64_t begun = outcome_.coverage.operations;
      const bool something = simulation_->engine().run_until(
          [this] { return finished() || replacements_ + visits_ > 0; }, limit);
      replace();
      // Each message that it sends on its way in may be its last.
      for (; visits_ > 0; --visits_) simulation_->visit(1 + random_.below(6));
      if (something || last_fault_ + kPatience > limit) continue;
      if (outcome_.coverage.operations > begun) continue;
      problem(fmt::format("nothing has ended for {} ms:{}", kPatience / kMillisecond, pending()));
      return;
    }
  }

  std::string pending() const {
    std::string text;
    for (const Node& node : nodes_) {
      if (!node.held && node.running > 0) {
        text += fmt::format(" {} on compute node {}", node.running, node.client);
      }
    }
    return text;
  }

  // Those who died come back under another name, sometimes.
  void replace() {
    for (; replacements_ > 0; --replacements_) {
      if (nodes_.size() >= std::size_t{2} * plan_.compute_nodes || random_.below(3) == 0) continue;
      if (Node* node = add_node(); node != nullptr) start(*node);
    }
  }

  // ---- Inspecting

  void let_time_pass(Time time) {
    simulation_->engine().run_until([] { return false; }, simulation_->time() + time);
  }

  void inspect() {
    if (outcome_.failed()) return;
    // The dead are found out, and faults that are still to come have come and gone.
    let_time_pass(4 * kLeaseTime);
    while (simulation_->time() < last_fault_ + 4 * kLeaseTime) let_time_pass(kLeaseTime);
    faults_over_ = true;
    for (const Node& node : nodes_) {
      if (node.index) outcome_.coverage.add_index_counts(node.index->stats().counts);
      for (const Worker& worker : node.workers) {
        outcome_.coverage.retries += worker.counters().retries;
      }
    }
    Node* const inspector = lost_memory_ ? survivor() : add_node();
    if (inspector == nullptr) return check_history();
    RecordedIndex& view = inspector->views.emplace_back(*inspector->index, recorder_);
    for (const OwnedKey& key : requests_.universe())
      look(*inspector, view, {.kind = RequestKind::kGet, .key = key});
    // Each leaf is written, in any order: whatever was left half done there is found.
    const base::Permutation order(requests_.universe().size(), random_.next());
    for (std::size_t i = 0; i < requests_.universe().size(); ++i) {
      const OwnedKey& key = requests_.universe()[order(i)];
      look(*inspector, view,
           {.kind = RequestKind::kPut, .key = key, .value = requests_.new_value()});
    }
    look_through(*inspector, view);
    for (const OwnedKey& key : requests_.universe()) {
      if (random_.below(2) == 0) look(*inspector, view, {.kind = RequestKind::kErase, .key = key});
    }
    look_through(*inspector, view);
    // A newcomer, alone, learns only now whose locks may be left because they died.
    let_time_pass(3 * kLeaseTime);
    if (!lost_memory_) check_structure(*inspector);
    check_history();
    if (!lost_memory_) check_leaks(*inspector);
    if (!something_broke() && simulation_->coverage().fenced > 0) {
      problem("a compute node was taken for dead, though nothing had happened to it");
    }
  }

  // All keys, in parts that do not take longer than an operation may.
  void look_through(const Node& inspector, RecordedIndex& view) {
    constexpr std::size_t kPart = 1000;
    for (std::size_t i = 0; i < requests_.universe().size(); i += kPart) {
      look(inspector, view,
           {.kind = RequestKind::kScan, .key = requests_.universe()[i], .limit = kPart + 1});
    }
  }

  // By a plain call.
  void look(const Node& inspector, RecordedIndex& view, const Request& request) {
    RequestSpan span(observer_, *simulation_, inspector.client, view, request);
    if (request.kind == RequestKind::kGet) span.end(view.get(request.key));
    if (request.kind == RequestKind::kPut) span.end(view.put(request.key, request.value));
    if (request.kind == RequestKind::kErase) span.end(view.erase(request.key));
    if (request.kind == RequestKind::kScan)
      span.end(view.scan(requests_.universe(), request.key, request.limit));
  }

  Node* survivor() {
    for (Node& node : nodes_) {
      if (!node.held && !simulation_->is_fenced(node.client)) return &node;
    }
    return nullptr;
  }

  void check_structure(Node& node) {
    if (const Status sound = node.index->check(); !sound) {
      problem("the structure: " + sound.error().message());
    }
  }

  void check_history() {
    const KeyedHistory history = recorder_.history();
    outcome_.history = history.operations();
    const Verdict verdict = history.check({.configurations = kConfigurations});
    if (verdict.linearizable()) return;
    if (verdict.kind == Verdict::Kind::kUndecided) {
      ++outcome_.coverage.undecided;
      return;
    }
    problem(verdict.explanation);
    outcome_.suspect.emplace(verdict.key, history.of_key(verdict.key));
  }

  // Blocks that only the dead knew of are lost; none may be freed twice.
  void check_leaks(Node& inspector) {
    for (Node& node : nodes_) {
      if (node.held) continue;
      node.workers.clear();
      node.views.clear();
      node.index.reset();
    }
    Status dropped = inspector.pool.drop_index(kIndexName);
    for (int i = 0; i < 5 && !dropped && dropped.error().code() == ErrorCode::kBusy; ++i) {
      // Those who died unseen have yet to be found out.
      let_time_pass(2 * kLeaseTime);
      dropped = inspector.pool.drop_index(kIndexName);
    }
    if (!dropped) {
      return problem("dropping the index: " + dropped.error().message());
    }
    // A long list of retired blocks waits in blocks of its own, until its epoch is over.
    for (int i = 0; i < 50 && unbalanced(); ++i) let_time_pass(2 * kLeaseTime);
    if (unbalanced()) {
      problem(fmt::format("{} blocks were allocated and {} freed, though the index is gone",
                          blocks(&pool::Allocator::allocated), blocks(&pool::Allocator::freed)));
    }
    count_memory(inspector);
  }

  // With the index gone, all memory is free, once, but for what the dead took with them.
  void count_memory(Node& inspector) {
    let_time_pass(4 * kLeaseTime);  // what the dead held free is given back
    std::vector<const pool::Allocator*> living;
    for (const Node& node : nodes_) {
      if (node.held || simulation_->is_fenced(node.client)) continue;
      living.push_back(&node.pool.state().node.allocator());
    }
    simulation_->set_instant(true);
    simulation_->set_alone(true);
    const auto census = inspector.pool.state().run(
        [&](pool::Operation& op) { return pool::take_census(op, living); });
    simulation_->set_alone(false);
    simulation_->set_instant(false);
    if (!census) return problem("counting free memory: " + census.error().message());
    for (const std::string& twice : census->twice) problem(twice);
    outcome_.coverage.lost_bytes += census->other;
    for (const Node& node : nodes_) {
      outcome_.coverage.inherited_blocks += node.pool.state().node.allocator().inherited();
    }
    if (const std::uint64_t most = may_be_lost(); census->other > most) {
      problem(fmt::format("{} bytes of far memory are lost, of which faults explain {}",
                          census->other, most));
    }
  }

  // At most what the dead held, and what their operations had in hand. Where outcomes are unknown,
  // any chunk may be lost.
  std::uint64_t may_be_lost() const {
    if (!something_broke()) return 0;
    const FaultSet& faults = plan_.faults;
    if (faults.has(Fault::kCut) || faults.has(Fault::kRestart) || faults.has(Fault::kLose)) {
      return kNodeBytes * plan_.memory_nodes;
    }
    const std::uint64_t in_hand =
        blocks(&pool::Allocator::allocated) - blocks(&pool::Allocator::freed);
    std::uint64_t bytes = in_hand * pool::class_bytes(pool::kSizeClasses - 1);
    for (const Node& node : nodes_) {
      if (!node.held && !simulation_->is_fenced(node.client)) continue;
      bytes += kTakenAtOnce;
      for (const pool::FreeRun& run : node.pool.state().node.allocator().held()) {
        bytes += run.count * run.block.bytes();
      }
    }
    return bytes;
  }

  // Whether any fault beyond tearing and delays has struck.
  bool something_broke() const {
    const CheckCoverage& seen = outcome_.coverage;
    return seen.kills + seen.pauses + seen.cuts + seen.restarts + seen.losses > 0;
  }

  // Blocks of the dead, and those of unknown outcome, are not given back.
  bool unbalanced() const {
    const std::uint64_t allocated = blocks(&pool::Allocator::allocated);
    const std::uint64_t freed = blocks(&pool::Allocator::freed);
    return something_broke() ? freed > allocated : freed != allocated;
  }

  std::uint64_t blocks(std::uint64_t (pool::Allocator::*count)() const) const {
    std::uint64_t sum = 0;
    for (const Node& node : nodes_) sum += (node.pool.state().node.allocator().*count)();
    return sum;
  }

  void sum_up() {
    outcome_.time = simulation_->time();
    outcome_.coverage.runs = 1;
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
    for (Node& node : nodes_) node.workers.clear();  // and the tasks that have not ended
    for (Node& node : nodes_) {
      if (node.client != 0) simulation_->release(node.client);
    }
    if (!over_tcp()) simulation_->set_instant(true);  // how they leave is of interest there
    nodes_.clear();
    // What died with lost memory, others do not find dead.
    if (outcome_.failed() || lost_memory_) return;
    for (std::string& each : simulation_->left_behind()) problem(std::move(each));
  }

  const CheckPlan& plan_;
  Random random_;
  RequestSource requests_{plan_, random_};
  CheckObserver* const observer_;
  CheckOutcome outcome_;
  HistoryRecorder recorder_;
  std::unique_ptr<Simulation> simulation_;
  std::deque<Node> nodes_;
  unsigned replacements_ = 0;
  unsigned visits_ = 0;  // of those who die on their way in
  bool lost_memory_ = false;
  bool faults_over_ = true;  // until they are scheduled
  Time last_fault_ = 0;
};

}  // namespace

CheckCoverage& CheckCoverage::operator+=(const CheckCoverage& other) {
  runs += other.runs;
  operations += other.operations;
  fabric += other.fabric;
  kills += other.kills;
  pauses += other.pauses;
  cuts += other.cuts;
  restarts += other.restarts;
  losses += other.losses;
  retries += other.retries;
  undecided += other.undecided;
  lost_bytes += other.lost_bytes;
  inherited_blocks += other.inherited_blocks;
  add_index_counts(other.index);
  return *this;
}

void CheckCoverage::add_index_counts(
    const std::vector<std::pair<std::string, std::uint64_t>>& counts) {
  for (const auto& [name, count] : counts) {
    const auto at = std::ranges::find(index, name, &std::pair<std::string, std::uint64_t>::first);
    if (at == index.end()) {
      index.emplace_back(name, count);
    } else {
      at->second += count;
    }
  }
}

CheckOutcome run_check(const CheckPlan& plan, CheckObserver* observer) {
  return Scenario(plan, observer).run();
}

}  // namespace pando::lab::check
