// Compute nodes that are taken for dead: those that are, and only those.

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "cluster/client_process.h"
#include "cluster/daemon.h"
#include "fabric/open.h"
#include "support/conformance.h"
#include "support/memory_nodes.h"
#include "support/outcome.h"
#include "support/proxy.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;

// From now on nothing goes through it, and nothing that went into it is lost.
void block(Proxy& network) {
  for (const Proxy::Way way : {Proxy::Way::kUp, Proxy::Way::kDown}) {
    network.hold_newcomers(way);
    for (std::size_t i = 0; i < network.connections(); ++i) network.hold(i, way);
  }
}

void unblock(Proxy& network) {
  network.let_newcomers_pass();
  for (const Proxy::Way way : {Proxy::Way::kUp, Proxy::Way::kDown}) {
    for (std::size_t i = 0; i < network.connections(); ++i) network.release(i, way);
  }
}

// A index whose only leaf is on memory node 0, which a client reaches in spite of the network.
Index make_on_node_0(Pool& pool, const MemoryNodes& nodes) {
  for (const char* const leaf_bytes : {"1024", "2048", "4096"}) {
    const std::string options = std::string("sherman:leaf_bytes=") + leaf_bytes;
    Index index = must(pool.create_index(leaf_bytes, must(IndexOptions::parse(options))));
    must(index.put(1, "start"));
    const std::uint64_t before = nodes.counts(1).writes;
    for (int i = 0; i < 10; ++i) must(index.put(1, "start"));
    if (nodes.counts(1).writes - before < 10) return index;
  }
  throw std::runtime_error("no leaf is on memory node 0");
}

// A falls silent. B, which cannot reach memory node 1, is the first to notice and cannot shut A out
// there. It must not stop beating while it tries: C would take it for dead, too.
TEST(Fencing, WhoCannotReachAMemoryNodeIsNotTakenForDead) {
  MemoryNodes nodes({.bytes = 64 << 20, .nodes = 2});
  const std::string url = nodes.tcp_url();
  const std::size_t comma = url.find(',');
  const std::string first = url.substr(4, comma - 4);
  const std::string second = url.substr(comma + 1);
  Proxy of_a_to_first(first);
  Proxy of_a_to_second(second);
  Proxy of_b_to_second(second);

  Pool c = must(Pool::open(url, {.lease = 1'000ms}));
  const Index of_c = make_on_node_0(c, nodes);
  const std::string name = must(c.list_indexes()).back().name;
  Pool b = must(Pool::open("tcp:" + first + "," + of_b_to_second.place(), {.lease = 500ms}));
  const Index of_b = must(b.open_index(name));
  ASSERT_TRUE(succeeded(of_b.put(1, "B")));
  {
    Pool a = must(Pool::open("tcp:" + of_a_to_first.place() + "," + of_a_to_second.place()));
    ASSERT_TRUE(succeeded(must(a.open_index(name)).put(1, "A")));

    block(of_b_to_second);
    block(of_a_to_first);
    block(of_a_to_second);
    // Longer than it takes to give up a memory node, twice, and to be taken for dead.
    const auto until = std::chrono::steady_clock::now() + 6s;
    std::uint64_t written = 0;
    while (std::chrono::steady_clock::now() < until) {
      const Status put = of_b.put(1, std::to_string(++written));
      ASSERT_TRUE(succeeded(put)) << "B reaches all that it needs";
      std::this_thread::sleep_for(20ms);
    }
    EXPECT_EQ(nodes.counts(0).fenced, 1u) << "A, by C";
    EXPECT_EQ(nodes.counts(1).fenced, 1u);
    EXPECT_TRUE(holds(of_c.get(1), std::to_string(written)));

    unblock(of_a_to_first);
    unblock(of_a_to_second);
    EXPECT_TRUE(eventually([&] {
      const auto index = a.open_index(name);
      return !index && index.error().code() == ErrorCode::kFenced;
    })) << "A was silent for longer than a lease";
  }
  unblock(of_b_to_second);
  const Index elsewhere = must(b.create_index("elsewhere"));
  EXPECT_TRUE(eventually([&] { return elsewhere.put(1, "B").has_value(); }));
  EXPECT_TRUE(succeeded(of_b.put(1, "B")));
  EXPECT_EQ(nodes.counts(0).fenced, 1u);
}

// Real processes, each killed when the memory nodes have let it in and the pool does not know of it
// yet.
TEST(Fencing, ClientsKilledWhileTheyComeInKeepNobodyOut) {
  const Daemon node({"--size", "64MiB"});
  const std::string url = "tcp:" + node.place();
  const auto patience = std::chrono::steady_clock::now() + 60s;
  constexpr std::size_t kClients = 2'000;
  std::size_t killed = 0;
  std::size_t turned_away = 0;
  while (killed < kClients && std::chrono::steady_clock::now() < patience) {
    std::vector<ClientProcess> some;
    for (int i = 0; i < 8; ++i) {
      some.emplace_back([&] {
        const auto fabric = fabric::open_fabric(url);
        if (fabric) raise(SIGKILL);
      });
    }
    for (ClientProcess& client : some) {
      const auto ended = client.wait(30s);
      ASSERT_TRUE(ended) << "it hangs";
      ++(WIFSIGNALED(*ended) ? killed : turned_away);
    }
    if (turned_away > 0) std::this_thread::sleep_for(10ms);
  }
  std::printf("%zu clients killed while they came in, %zu were turned away\n", killed, turned_away);
  ASSERT_GE(killed, kClients);
  Result<Pool> pool = Pool::open(url);
  ASSERT_TRUE(eventually([&] { return pool || (pool = Pool::open(url)); }, 30s))
      << pool.error().message();
  const Index index = must(pool->create_index("kv"));
  EXPECT_TRUE(succeeded(index.put(1, "served")));
  EXPECT_TRUE(holds(index.get(1), "served"));
}

}  // namespace
}  // namespace pando::testing
