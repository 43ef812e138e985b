// How fast the simulated fabric runs on this machine: verbs a second of wall time, on one core.
//
//   reads     640 clients, one READ of 192 bytes in flight each, anywhere in 3 GiB
//   searches  the same clients searching an index of sherman's
//
// The first is the engine alone; the second has the index's own work in it. Figures are this
// machine's: for finding what is slow, not for comparing machines.
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "api/state.h"
#include "base/random.h"
#include "fabric/sim/simulation.h"
#include "fabric/verbs.h"
#include "task/worker.h"
#include <pando/pando.h>

namespace pando {
namespace {

using fabric::sim::Simulation;

constexpr unsigned kClients = 640;
constexpr unsigned kComputeNodes = 10;
constexpr std::uint64_t kMemory = std::uint64_t{3} << 30;
constexpr std::uint32_t kReadBytes = 192;
constexpr std::uint64_t kReads = 20'000'000;
constexpr std::uint64_t kSearches = 5'000'000;
constexpr std::uint64_t kKeys = 10'000'000;

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Runs what was spawned until all of it has ended, and tells how fast.
void run(std::string_view name, Simulation& simulation, const unsigned& running) {
  const std::uint64_t verbs_before = simulation.coverage().verbs;
  const auto time_before = simulation.time();
  const Stopwatch wall;
  simulation.engine().run_until([&running] { return running == 0; }, ~fabric::sim::Time{0});
  const double seconds = wall.seconds();
  const auto verbs = static_cast<double>(simulation.coverage().verbs - verbs_before);
  const double simulated =
      static_cast<double>(simulation.time() - time_before) / fabric::sim::kSecond;
  fmt::print("{:9} {:.2f} M verbs/s of wall time ({:.1f} M verbs, {:.2f} s, {:.3f} s simulated)\n",
             name, verbs / seconds / 1e6, verbs / 1e6, seconds, simulated);
}

// ---- READs ----

struct Client {
  explicit Client(fabric::Fabric& fabric)
      : worker(fabric.clock()), endpoint(fabric.open_endpoint(worker).value()) {}
  ~Client() { worker.drop_tasks(); }

  task::Worker worker;
  std::unique_ptr<fabric::Endpoint> endpoint;
};

Task<void> read_anywhere(Client& client, std::uint64_t seed, unsigned& running) {
  base::Random random(seed);
  const fabric::Buffer buffer = client.endpoint->buffer(kReadBytes);
  for (std::uint64_t i = 0; i < kReads / kClients; ++i) {
    const std::uint64_t line = random.below(kMemory / fabric::kLineBytes - 2);
    fabric::Batch batch;
    batch.read({0, (line + 1) / 2 * 2 * fabric::kLineBytes}, buffer.data(), kReadBytes);
    if (!co_await client.endpoint->submit(batch)) break;
  }
  --running;
}

// Memory that was never written is one page of zeros, and always in the cache.
Task<void> write_everywhere(Client& client) {
  constexpr std::uint32_t kPiece = 1 << 20;
  const fabric::Buffer buffer = client.endpoint->buffer(kPiece);
  for (std::uint64_t at = 0; at < kMemory; at += kPiece) {
    fabric::Batch batch;
    batch.write({0, at}, buffer.data(), kPiece);
    if (!co_await client.endpoint->submit(batch)) break;
  }
}

void bench_reads() {
  auto simulation = Simulation::make({.bytes = kMemory}).value();
  std::vector<std::unique_ptr<fabric::Fabric>> fabrics;
  fabrics.reserve(kComputeNodes);
  for (unsigned i = 0; i < kComputeNodes; ++i) fabrics.push_back(simulation->attach());
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(kClients);
  for (unsigned i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Client>(*fabrics[i % kComputeNodes]));
  }
  simulation->set_instant(true);
  clients.front()->worker.run(write_everywhere(*clients.front()));
  simulation->set_instant(false);
  unsigned running = kClients;
  for (unsigned i = 0; i < kClients; ++i) {
    clients[i]->worker.spawn(read_anywhere(*clients[i], i, running));
  }
  run("reads", *simulation, running);
}

// ---- Searches ----

std::uint64_t key_of(std::uint64_t item) { return base::mix64(item); }

Task<void> insert_all(Worker& worker, const Index& index) {
  // Housekeeping must have its turns: it frees what caches have replaced.
  constexpr std::uint64_t kBetweenBeats = 4096;
  for (std::uint64_t item = 0; item < kKeys; ++item) {
    if (item % kBetweenBeats == 0) {
      co_await api::Internals::of(worker).lane->worker.sleep_for(pool::ComputeNode::kBeat);
    }
    if (!co_await index.insert(worker, key_of(item), "01234567")) break;
  }
}

Task<void> search(Worker& worker, const Index& index, std::uint64_t seed, std::uint64_t count,
                  unsigned& running) {
  base::Random random(seed);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!co_await index.get(worker, key_of(random.below(kKeys)))) break;
  }
  --running;
}

void bench_searches() {
  auto simulation = Simulation::make({.bytes = kMemory}).value();
  std::vector<Pool> pools;
  std::vector<Index> indexes;
  for (unsigned i = 0; i < kComputeNodes; ++i) {
    pools.push_back(api::PoolState::open_pool(simulation->attach(), {}).value());
    indexes.push_back((i == 0 ? pools[i].create_index("x") : pools[i].open_index("x")).value());
  }
  std::vector<Worker> workers;
  workers.reserve(kClients);
  for (unsigned i = 0; i < kClients; ++i) {
    workers.push_back(pools[i % kComputeNodes].make_worker().value());
  }
  simulation->set_instant(true);
  const Stopwatch wall;
  workers.front().run(insert_all(workers.front(), indexes.front()));
  fmt::print("populate  {:.2f} M inserts/s of wall time\n", kKeys / wall.seconds() / 1e6);
  simulation->set_instant(false);
  const auto search_all = [&](std::string_view name, std::uint64_t total) {
    unsigned running = kClients;
    for (unsigned i = 0; i < kClients; ++i) {
      workers[i].spawn(
          search(workers[i], indexes[i % kComputeNodes], i, total / kClients, running));
    }
    run(name, *simulation, running);
  };
  search_all("cold", kSearches / 5);
  search_all("searches", kSearches);
}

}  // namespace
}  // namespace pando

int main() {
  pando::bench_reads();
  pando::bench_searches();
}
