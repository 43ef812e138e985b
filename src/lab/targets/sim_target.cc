#include "lab/targets/sim_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "api/state.h"
#include "lab/client_loop.h"
#include "lab/targets/compute_nodes.h"

namespace pando::lab {

namespace {

using fabric::sim::Simulation;

constexpr const char* kIndexName = "bench";

// One client's place while a phase runs.
struct Seat {
  Worker worker;
  PandoClient client;

  Seat(Worker own, const Index& index) : worker(std::move(own)), client(worker, index) {}
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;
};

Task<void> count_down(Task<void> task, std::uint64_t& running) {
  co_await std::move(task);
  --running;
}

// Verbs take no time while it inserts, but housekeeping must have its turns all the same: it frees
// what caches have replaced.
class PopulatingClient : public PandoClient {
 public:
  using PandoClient::PandoClient;

  Task<Status> insert(Key key, std::string_view value, Counters* cost) {
    constexpr std::uint64_t kBetweenBeats = 4096;
    if (++inserts_ % kBetweenBeats == 0) {
      co_await api::Internals::of(worker()).lane->worker.sleep_for(pool::ComputeNode::kBeat);
    }
    co_return co_await PandoClient::insert(key, value, cost);
  }

 private:
  std::uint64_t inserts_ = 0;
};

class SimTarget final : public Target {
 public:
  SimTarget(std::string name, PoolOptions pool, std::unique_ptr<Simulation> simulation,
            ComputeNodes nodes)
      : name_(std::move(name)),
        pool_options_(pool),
        simulation_(std::move(simulation)),
        nodes_(std::move(nodes)) {}
  // Nobody looks at how long leaving takes.
  ~SimTarget() override { simulation_->set_instant(true); }

  std::string name() const override { return name_; }
  std::string fabric() const override { return "sim"; }
  bool is_peer() const override { return false; }
  Result<TargetMemory> memory() override { return memory_of(nodes_); }
  Now clock() const override {
    return [simulation = simulation_.get()] { return to_nanoseconds(simulation->time()); };
  }

  PhaseResult run(const Works& works) override {
    std::vector<std::unique_ptr<Seat>> seats;
    std::uint64_t running = 0;
    for (std::size_t client = 0; client < works.size(); ++client) {
      ClientWork& work = *works[client];
      const ComputeNode& node = nodes_[client % nodes_.size()];
      auto worker = node.pool.make_worker();
      if (!worker) {
        work.failures().add("making a worker: " + worker.error().message());
        return {};
      }
      seats.push_back(std::make_unique<Seat>(std::move(*worker), node.index));
      Seat& seat = *seats.back();
      for (unsigned i = 0; i < work.tasks(); ++i, ++running) {
        seat.worker.spawn(count_down(client_loop(seat.client, work), running));
      }
    }
    simulation_->reset_use();
    const fabric::sim::Time begin = simulation_->time();
    simulation_->engine().run_until([&running] { return running == 0; },
                                    std::numeric_limits<fabric::sim::Time>::max());
    return {.time = to_nanoseconds(simulation_->time() - begin), .network = network_use()};
  }

  void populate(const Works& works) override {
    simulation_->set_instant(true);
    if (const Status done = populate_at_once(works); !done) {
      works.front()->failures().add("populating: " + done.error().message());
    }
    simulation_->set_instant(false);
  }
  // One thread inserts. So the tree is the same whatever the number of clients that follow.
  unsigned populating_clients(unsigned) const override { return 1; }

 private:
  static std::chrono::nanoseconds to_nanoseconds(fabric::sim::Time time) {
    return std::chrono::nanoseconds(time / fabric::sim::kNanosecond);
  }

  Status populate_at_once(const Works& works) {
    // It should never have to look for an inner node.
    PoolOptions ample = pool_options_;
    ample.compute_budget = std::max(ample.compute_budget, pool_bytes() / 8);
    auto pool = nodes_.front().pool.attach(ample);
    if (!pool) return fail(pool.error());
    auto index = pool->open_index(kIndexName);
    if (!index) return fail(index.error());
    auto worker = pool->make_worker();
    if (!worker) return fail(worker.error());
    PopulatingClient client(*worker, *index);
    for (const auto& work : works) worker->run(client_loop(client, *work));
    return {};
  }

  fabric::Fabric& fabric_at(const ComputeNode& node) const {
    return api::Internals::of(node.pool).compute_node.fabric();
  }

  std::uint64_t pool_bytes() const {
    const fabric::Fabric& fabric = fabric_at(nodes_.front());
    return fabric.memory_node_size(0) * fabric.memory_node_count();
  }

  NetworkUse network_use() const {
    NetworkUse network{.preset = std::string(simulation_->preset().name)};
    const std::size_t memory_nodes = fabric_at(nodes_.front()).memory_node_count();
    for (std::size_t i = 0; i < memory_nodes; ++i) {
      network.memory_nodes.push_back(
          {fmt::format("memory {}", i),
           simulation_->use_of_memory_node(static_cast<fabric::NodeId>(i))});
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      network.compute_nodes.push_back({fmt::format("compute {}", i),
                                       simulation_->use_of_client(fabric_at(nodes_[i]).client())});
    }
    return network;
  }

  std::string name_;
  PoolOptions pool_options_;
  std::unique_ptr<Simulation> simulation_;
  ComputeNodes nodes_;  // go first: they take leave of the memory nodes
};

}  // namespace

Result<std::unique_ptr<Target>> open_sim_target(const fabric::sim::SimOptions& cluster,
                                                const PandoTargetOptions& options) {
  auto simulation = Simulation::make(cluster);
  if (!simulation) return fail(simulation.error());
  auto first = api::PoolState::open_pool((*simulation)->attach(), options.pool);
  if (!first) return fail(first.error());
  auto nodes = open_compute_nodes(std::move(*first), kIndexName, options.index, options.pool,
                                  options.compute_nodes);
  if (!nodes) return fail(nodes.error());
  return std::make_unique<SimTarget>(options.index_text, options.pool, std::move(*simulation),
                                     std::move(*nodes));
}

}  // namespace pando::lab
