// A client is killed while it holds a lock that others want. How long until the next writer has it.
//
// PANDO_TAKEOVER_ROUNDS: how often (default 3). Where it is set, the worst time is judged, too: no
// more than two leases.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "cluster/client_process.h"
#include "cluster/daemon.h"
#include "support/conformance.h"
#include "support/outcome.h"
#include "support/proxy.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;
using Way = Proxy::Way;

constexpr std::uint64_t kHotKey = 7;

struct TakeoverBoard {
  std::atomic<bool> ready;
  std::atomic<bool> go;
};

// Writes once more when it is told to.
void hold_the_lock(const std::string& url, TakeoverBoard& board) {
  Pool pool = must(Pool::open(url));
  const Index index = must(pool.open_index("kv"));
  for (int i = 0; i < 10; ++i) must(index.put(kHotKey, "the holder's"));
  board.ready = true;
  while (!board.go) std::this_thread::sleep_for(100us);
  (void)index.put(kHotKey, "the holder's last");
}

std::size_t count_of(const std::string& text, std::string_view word) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++count;
  return count;
}

// Connections by which something waits that came after so many messages.
std::size_t held_connections(const Proxy& network, const std::vector<std::uint64_t>& after = {}) {
  std::size_t held = 0;
  for (std::size_t i = 0; i < network.connections(); ++i) {
    const std::uint64_t before = i < after.size() ? after[i] : 0;
    if (network.waiting(i, Way::kUp) > 0 && network.messages(i, Way::kUp) > before) ++held;
  }
  return held;
}

// One message by each connection, then no more. How many each has had before.
std::vector<std::uint64_t> let_one_pass(Proxy& network) {
  std::vector<std::uint64_t> before;
  for (std::size_t i = 0; i < network.connections(); ++i) {
    before.push_back(network.messages(i, Way::kUp));
    network.hold(i, Way::kUp, 1);
  }
  return before;
}

// A write may READ before it locks. Each message is sent when the one before it was answered, so
// once both its thread and its housekeeper wait for the network, what went before has happened.
bool stop_with_lock(Proxy& network, const Index& index, std::vector<std::uint64_t> before) {
  for (int messages = 1; messages < 10; ++messages) {
    if (!eventually([&] { return held_connections(network, before) >= 2; })) return false;
    const Status sound = index.check();
    if (!sound && sound.error().detail().ends_with("locked")) return true;
    before = let_one_pass(network);
  }
  return false;
}

class Takeover : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Indexes, Takeover, ::testing::Values("sherman", "chime"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Takeover, TheNextWriterSucceeds) {
  const char* const asked = std::getenv("PANDO_TAKEOVER_ROUNDS");
  const int rounds = asked != nullptr ? std::atoi(asked) : 3;
  constexpr PoolOptions kOptions;
  const Daemon node({"--size", "64MiB"});
  Proxy network(node.place());
  Pool pool = must(Pool::open("tcp:" + node.place(), kOptions));
  const Index index = must(pool.create_index("kv", must(IndexOptions::parse(GetParam()))));
  must(index.put(kHotKey, "first"));

  std::vector<std::chrono::duration<double>> times;
  for (int round = 0; round < rounds; ++round) {
    const Shared<TakeoverBoard> board;
    ClientProcess holder([&] { hold_the_lock("tcp:" + network.place(), *board); });
    ASSERT_TRUE(eventually([&] { return board->ready.load(); }));
    // Its lock goes through; what it writes, with the unlock, does not. Its heart stops here.
    const auto begun = std::chrono::steady_clock::now();
    const std::vector<std::uint64_t> before = let_one_pass(network);
    board->go = true;
    ASSERT_TRUE(stop_with_lock(network, index, before));
    holder.kill();

    const std::string ours = "ours " + std::to_string(round);
    ASSERT_TRUE(succeeded(index.put(kHotKey, ours)));
    times.emplace_back(std::chrono::steady_clock::now() - begun);
    EXPECT_EQ(count_of(node.log(), "fenced"), static_cast<std::size_t>(round) + 1)
        << "it did not hold the lock: " << node.log();
    for (std::size_t i = 0; i < network.connections(); ++i) network.release(i, Way::kUp);
    EXPECT_TRUE(eventually([&] { return held_connections(network) == 0; }));
    EXPECT_TRUE(holds(index.get(kHotKey), ours));
  }
  EXPECT_TRUE(eventually([&] { return index.check().has_value(); }));
  std::ranges::sort(times);
  std::printf(
      "%s: %d holders killed; the next writer succeeded after %.3f s (median), %.3f s at "
      "worst\n",
      GetParam(), rounds, times[times.size() / 2].count(), times.back().count());
  if (asked != nullptr) {
    EXPECT_LE(times.back(), 2 * kOptions.lease);
  }
}

}  // namespace
}  // namespace pando::testing
