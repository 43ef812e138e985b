// Several compute nodes on the same memory: each has caches and a budget of its own, and all see
// every write at once. Here they are threads of one process.
#include <cstdint>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <pando/pando.h>

namespace {

constexpr std::uint64_t kNodes = 3;
constexpr std::uint64_t kKeysEach = 2'000;

// What one compute node does: opens the index by name and writes its share of the keys.
void run_node(pando::Pool pool, std::uint64_t number) {
  auto index = pool.open_index("shared").value();
  for (std::uint64_t i = 0; i < kKeysEach; ++i) {
    index.put(i * kNodes + number, "from node " + std::to_string(number)).value();
  }
}

}  // namespace

int main() {
  auto pool = pando::Pool::open("embedded:256MiB?nodes=2").value();
  auto index = pool.create_index("shared").value();

  std::vector<std::jthread> nodes;
  for (std::uint64_t number = 0; number < kNodes; ++number) {
    // attach() makes a further compute node; this one may keep 1 MiB in its own memory.
    auto node = pool.attach({.compute_budget = 1 << 20}).value();
    nodes.emplace_back(run_node, node, number);
  }
  nodes.clear();  // joins the threads

  std::uint64_t expected = 0;
  auto all = index.range(0);
  for (const auto& [key, value] : all) {
    const std::string writer = "from node " + std::to_string(expected % kNodes);
    if (key.integer() != expected || value != writer) return 1;
    ++expected;
  }
  const auto stats = pool.stats().value();
  std::cout << expected << " keys in " << stats.remote_bytes() << " bytes of remote memory, "
            << stats.compute.bytes << " bytes here\n";
  return all.status() && expected == kNodes * kKeysEach ? 0 : 1;
}
