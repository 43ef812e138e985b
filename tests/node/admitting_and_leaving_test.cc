// Clients that come in, come back and go, seen at the memory node: what it must refuse, and whom it
// must forget.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "fabric/wire/control.h"
#include "fabric/wire/messages.h"
#include "support/conformance.h"
#include "support/memory_nodes.h"
#include "support/outcome.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;
using fabric::ClientId;
using fabric::wire::ControlLink;

class AdmittingAndLeaving : public ::testing::Test {
 protected:
  // A connection for verbs; of a new client where the client is 0.
  Result<ControlLink> open(ClientId client, std::uint32_t generation) const {
    return ControlLink::open(fabric::wire::parse_place(nodes_.tcp_url().substr(4)).value(), "", "",
                             {.client = client,
                              .generation = generation,
                              .purpose = fabric::wire::Purpose::kVerbs,
                              .joins = static_cast<std::uint8_t>(client == 0 ? 1 : 0)},
                             20s);
  }
  // Whether a request is answered, well or not; any will do.
  static bool is_served(ControlLink& link) {
    const Status answer = link.fence(kNobody, 20s);
    return answer || (answer.error().code() != ErrorCode::kUnavailable &&
                      answer.error().code() != ErrorCode::kFenced);
  }
  static constexpr ClientId kNobody = 1'000'000;

  MemoryNodes nodes_{{}};
};

// Its connect began before another connection of the client's broke, and comes through afterwards.
TEST_F(AdmittingAndLeaving, AConnectionOfAnOlderGenerationIsNotLetIn) {
  ControlLink first = must(open(0, 1));
  const ClientId client = first.welcome().client;
  ControlLink newer = must(open(client, 2));
  EXPECT_FALSE(open(client, 1));
  EXPECT_TRUE(is_served(newer));
  ControlLink as_new = must(open(client, 2));
  EXPECT_TRUE(is_served(as_new));
}

// Nothing of it is left at the node by which one could tell, but the promise is of its client.
TEST_F(AdmittingAndLeaving, AnOlderGenerationIsNotLetInThoughTheNewerHasEnded) {
  ControlLink first = must(open(0, 1));
  const ClientId client = first.welcome().client;
  {
    ControlLink newer = must(open(client, 2));
  }
  EXPECT_TRUE(eventually([&] { return nodes_.counts(0).open_connections == 0; }));
  EXPECT_FALSE(open(client, 1));
  EXPECT_TRUE(open(client, 2));
}

TEST_F(AdmittingAndLeaving, WhoHasSaidLeaveHasNothingOpenOnceItIsFenced) {
  ControlLink watcher = must(open(0, 1));
  ControlLink one = must(open(0, 1));
  const ClientId client = one.welcome().client;
  ControlLink another = must(open(client, 1));
  ASSERT_TRUE(succeeded(one.leave(20s)));
  ASSERT_TRUE(succeeded(watcher.fence(client, 20s)));
  EXPECT_FALSE(is_served(another));
  EXPECT_FALSE(open(client, 1));
  EXPECT_TRUE(is_served(watcher));
}

// They end after the node has let them in and before they have a place in the pool, by which others
// would know of them.
TEST_F(AdmittingAndLeaving, ThoseWhoEndWhileTheyComeInKeepNobodyOut) {
  const auto until = std::chrono::steady_clock::now() + 60s;
  for (int i = 0; i < 2'000; ++i) {
    auto link = open(0, 1);
    while (!link && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(10ms);
      link = open(0, 1);
    }
    ASSERT_TRUE(succeeded(link)) << "client " << i;
  }
  Result<Pool> pool = Pool::open(nodes_.tcp_url());
  ASSERT_TRUE(eventually(
      [&] {
        if (!pool) pool = Pool::open(nodes_.tcp_url());
        return pool.has_value();
      },
      30s))
      << pool.error().message();
  const Index index = must(pool->create_index("kv"));
  EXPECT_TRUE(succeeded(index.put(1, "served")));
  EXPECT_TRUE(holds(index.get(1), "served"));
}

// As before, but with a client that has its place: it is not taken for one of those.
TEST_F(AdmittingAndLeaving, WhoHasAPlaceInThePoolStays) {
  Pool pool = must(Pool::open(nodes_.tcp_url()));
  const Index index = must(pool.create_index("kv"));
  ASSERT_TRUE(succeeded(index.put(1, "before")));
  const auto until = std::chrono::steady_clock::now() + 20s;
  for (int i = 0; i < 1'500; ++i) {
    while (!open(0, 1) && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(10ms);
    }
  }
  EXPECT_TRUE(succeeded(index.put(1, "after")));
  EXPECT_TRUE(holds(index.get(1), "after"));
}

}  // namespace
}  // namespace pando::testing
