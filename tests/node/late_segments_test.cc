// Segments that come late: a client's verbs that are still on their way when it gives up, leaves or
// comes back must not land where others write by then.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/conformance.h"
#include "support/memory_nodes.h"
#include "support/outcome.h"
#include "support/proxy.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;
using Way = Proxy::Way;

// A patient client, B, and the client A, which has memory node 1 behind a network that the test
// rules. Indexes have one leaf each; those that the tests use have it on memory node 1.
class LateSegments : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr std::uint64_t kKeys = 30;  // of each index: they fit a leaf
  static constexpr std::uint64_t kKey = 7;
  static constexpr std::array kLeafBytes = {"1024", "2048", "4096"};
  static constexpr std::array kSpans = {"64", "128", "192"};
  // A gives up soon, and B takes nobody for dead who only waits for that.
  static constexpr auto kLongLease = 3s;
  static constexpr const char* kShortTimeout = "?timeout=1000";

  LateSegments() {
    const std::string url = nodes_.tcp_url();
    const std::size_t comma = url.find(',');
    network_.emplace(url.substr(comma + 1));
    b_ = must(Pool::open(url, {.deadline = 20s, .lease = kLongLease}));
    a_ = must(Pool::open(url.substr(0, comma + 1) + network_->place() + kShortTimeout));
  }

  // Names of two of them. Memory comes from the nodes in turn, a chunk for each size of leaf.
  std::vector<std::string> make_indexes() {
    const bool sherman = std::string(GetParam()) == "sherman";
    const std::string setting = sherman ? ":leaf_bytes=" : ":span=";
    for (const std::string size : sherman ? kLeafBytes : kSpans) {
      const auto options = must(IndexOptions::parse(GetParam() + setting + size));
      std::vector<std::string> behind_network;
      for (const std::string& name : {"first of " + size, "second of " + size}) {
        Index made = must(b_->create_index(name, options));
        for (std::uint64_t key = 0; key < kKeys; ++key) must(made.put(key, "start"));
        if (messages_of_a_put(must(a_->open_index(name))) == kMessagesOfAPut) {
          behind_network.push_back(name);
        }
      }
      if (behind_network.size() == 2) return behind_network;
    }
    return {};
  }

  // Lock and read; write and unlock.
  static constexpr std::uint64_t kMessagesOfAPut = 2;
  std::uint64_t messages_of_a_put(const Index& index) {
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      EXPECT_TRUE(eventually([&] { return index.put(key, "warm").has_value(); }));
    }
    const std::size_t connection = network_->busiest();
    const std::uint64_t before =
        connection < network_->connections() ? network_->messages(connection, Way::kUp) : 0;
    must(index.put(kKey, "warm"));
    return connection < network_->connections() ? network_->messages(connection, Way::kUp) - before
                                                : 0;
  }

  // Nothing of A's comes to memory node 1 any more, but for so many messages by one connection.
  void hold_all(std::size_t but_for, std::uint64_t messages) {
    network_->hold_newcomers(Way::kUp);
    for (std::size_t i = 0; i < network_->connections(); ++i) {
      network_->hold(i, Way::kUp, i == but_for ? messages : 0);
    }
  }
  void release_all() {
    network_->let_newcomers_pass();
    for (std::size_t i = 0; i < network_->connections(); ++i) network_->release(i, Way::kUp);
  }
  bool all_delivered() const {
    for (std::size_t i = 0; i < network_->connections(); ++i) {
      if (network_->waiting(i, Way::kUp) > 0) return false;
    }
    return true;
  }

  MemoryNodes nodes_{{.bytes = 64 << 20, .nodes = 2}};
  std::optional<Proxy> network_;  // between A and memory node 1
  std::optional<Pool> b_;
  std::optional<Pool> a_;
};

INSTANTIATE_TEST_SUITE_P(Indexes, LateSegments, ::testing::Values("sherman", "chime"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LateSegments, OfAClientThatHasLeftOverwriteNothing) {
  const std::vector<std::string> names = make_indexes();
  ASSERT_EQ(names.size(), 2u);
  const Index of_b = must(b_->open_index(names[0]));
  {
    const Index of_a = must(a_->open_index(names[0]));
    ASSERT_EQ(messages_of_a_put(of_a), kMessagesOfAPut);
    const std::size_t connection = network_->busiest();
    hold_all(connection, 1);
    const Status put = of_a.put(kKey, "A");
    ASSERT_FALSE(put) << "its WRITE is held back";
    EXPECT_GT(network_->waiting(connection, Way::kUp), 0u);
  }
  a_.reset();  // it leaves, or cannot

  for (std::uint64_t key = 0; key < kKeys; ++key) {
    ASSERT_TRUE(succeeded(of_b.put(key, "B"))) << "whoever has the lock is gone";
  }
  release_all();
  EXPECT_TRUE(eventually([&] { return all_delivered(); }));
  for (int i = 0; i < 20; ++i) {  // the memory node takes its time, too
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      ASSERT_TRUE(holds(of_b.get(key), "B")) << "key " << key;
    }
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_TRUE(eventually([&] { return of_b.check().has_value(); }));
}

// Two connections of A's to memory node 1, of two threads. The first is still coming in when the
// second breaks and is made anew. What was under way on the first must be over by then: else its
// lock lands after it was taken back, and nobody ever unlocks it.
TEST_P(LateSegments, OfAConnectionThatBeganBeforeABreakLockNothing) {
  const std::vector<std::string> names = make_indexes();
  ASSERT_EQ(names.size(), 2u);
  const Index first_of_a = must(a_->open_index(names[0]));
  const Index second_of_a = must(a_->open_index(names[1]));
  const Index of_b = must(b_->open_index(names[0]));
  ASSERT_EQ(messages_of_a_put(first_of_a), kMessagesOfAPut);
  ASSERT_EQ(messages_of_a_put(second_of_a), kMessagesOfAPut);
  const std::size_t second = network_->busiest();

  network_->hold_newcomers(Way::kUp);
  const std::size_t first = network_->connections();
  Status over_first;
  std::thread other_thread([&] { over_first = first_of_a.put(kKey, "first"); });
  ASSERT_TRUE(eventually(
      [&] { return network_->connections() > first && network_->waiting(first, Way::kUp) > 0; }));
  network_->let_newcomers_pass();

  network_->hold(second, Way::kUp);
  Status over_second;
  std::thread breaking([&] {
    // On this thread's connection, not on that of a thread that is new to the pool.
    ASSERT_TRUE(eventually([&] { return network_->waiting(second, Way::kUp) > 0; }));
    network_->cut(second, Proxy::Side::kBoth);
  });
  over_second = second_of_a.put(kKey, "second");
  breaking.join();
  ASSERT_TRUE(eventually([&] { return second_of_a.put(kKey, "second").has_value(); }))
      << "it comes back by a newer connection";

  network_->hold(first, Way::kUp, 2);  // it is let in, or refused; its verbs are on their way
  other_thread.join();
  // Whether it was done or not, A's housekeeper sees to the lock.
  std::this_thread::sleep_for(300ms);
  ASSERT_TRUE(succeeded(of_b.put(kKey, "B, before they arrive")));
  network_->release(first, Way::kUp);
  EXPECT_TRUE(eventually([&] { return all_delivered(); }));
  std::this_thread::sleep_for(200ms);
  ASSERT_TRUE(succeeded(of_b.put(kKey, "B"))) << "nobody holds the lock";
  EXPECT_TRUE(holds(of_b.get(kKey), "B"));
  ASSERT_TRUE(succeeded(first_of_a.put(kKey, "A")));
  EXPECT_TRUE(holds(of_b.get(kKey), "A"));
  EXPECT_TRUE(eventually([&] { return of_b.check().has_value(); }));
}

}  // namespace
}  // namespace pando::testing
