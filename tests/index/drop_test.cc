// Dropping an index that someone else, now dead, had begun to drop.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "api/state.h"
#include "fabric/embedded/embedded.h"
#include "pool/memory/census.h"
#include "support/fault_fabric.h"
#include <pando/pando.h>

namespace pando::index {
namespace {

using namespace std::chrono_literals;
using testing::Counted;
using testing::Faults;

struct Dropped {
  bool died = false;
  pool::Census census;
};

// Whose first drop dies at its WRITE number `write`, of which a few are its housekeeper's; of 0,
// nobody's does.
Dropped drop(const std::string& kind, std::uint64_t write) {
  const PoolOptions options{.lease = 50ms};
  const auto memory =
      fabric::open_embedded({.bytes = 16 << 20, .nodes = 2, .huge_pages = false}).value();
  Pool pool = api::PoolState::open_pool(memory->attach().value(), options).value();
  {
    const Index index = pool.create_index("index", IndexOptions::parse(kind).value()).value();
    for (int n = 0; n < 2000; ++n) {
      // Long, and alike for long: so are the separators.
      const std::string key = std::string(100, 'k') + std::to_string(n * 7919 % 2000);
      EXPECT_TRUE(index.put(key, std::string(200, 'v')));
    }
  }
  Dropped dropped;
  if (write > 0) {
    const auto faults = std::make_shared<Faults>();
    Pool victim =
        api::PoolState::open_pool(testing::with_faults(memory->attach().value(), faults), options)
            .value();
    faults->count_from_here(Counted::kWrites);
    faults->die_at({.verb = write});
    dropped.died = !victim.drop_index("index");
  }
  Status done;
  for (int i = 0; i < 400 && (dropped.died || i == 0); ++i) {
    done = pool.drop_index("index");
    if (done || done.error().code() != ErrorCode::kNotFound) break;
    std::this_thread::sleep_for(10ms);  // the dead one is not known to be dead yet
  }
  if (dropped.died || write == 0) {
    EXPECT_TRUE(done) << done.error().message();
  }
  // Until what is retired is free, and what the dead one held has been recovered.
  for (int i = 0; i < 60; ++i) {
    auto& node = api::Internals::of(pool).compute_node;
    const pool::Allocator* living[] = {&node.allocator()};
    auto census = api::Internals::of(pool).run(
        [&](pool::Operation& op) { return pool::take_census(op, living); });
    if (census) dropped.census = *census;
    std::this_thread::sleep_for(10ms);
  }
  return dropped;
}

class Drops : public ::testing::TestWithParam<const char*> {};

TEST_P(Drops, GoOnWhereTheDeadStopped) {
  EXPECT_EQ(drop(GetParam(), 0).census.other, 0u);
  // Most of what there is comes after it.
  const Dropped early = drop(GetParam(), 5);
  EXPECT_TRUE(early.died);
  EXPECT_TRUE(early.census.twice.empty());
  EXPECT_LT(early.census.other, 600u << 10) << "of some 1.2 MiB";
  // In the leaves. What the dead one had freed it may not have told of.
  EXPECT_TRUE(drop(GetParam(), 40).census.twice.empty());
}

INSTANTIATE_TEST_SUITE_P(All, Drops, ::testing::Values("sherman:keys=bytes", "chime:keys=bytes"),
                         [](const auto& info) { return std::string(info.param, 5); });

}  // namespace
}  // namespace pando::index
