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

bool nothing_waits(const Proxy& network) {
  for (std::size_t i = 0; i < network.connections(); ++i) {
    if (network.waiting(i, Way::kUp) > 0) return false;
  }
  return true;
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
    for (std::size_t i = 0; i < network.connections(); ++i) network.hold(i, Way::kUp, 1);
    board->go = true;
    ASSERT_TRUE(eventually([&] {
      const Status sound = index.check();
      return !sound && sound.error().detail().ends_with("locked");
    }));
    holder.kill();

    const std::string ours = "ours " + std::to_string(round);
    ASSERT_TRUE(succeeded(index.put(kHotKey, ours)));
    times.emplace_back(std::chrono::steady_clock::now() - begun);
    EXPECT_EQ(count_of(node.log(), "fenced"), static_cast<std::size_t>(round) + 1)
        << "it did not hold the lock: " << node.log();
    for (std::size_t i = 0; i < network.connections(); ++i) network.release(i, Way::kUp);
    EXPECT_TRUE(eventually([&] { return nothing_waits(network); }));
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
