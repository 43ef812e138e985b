// Before chunks are recycled, every compute node forgets what it remembers of far memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "api/state.h"
#include "fabric/embedded/embedded.h"
#include "pool/memory/recycler.h"
#include <pando/pando.h>

namespace pando::index {
namespace {

using namespace std::chrono_literals;

std::uint64_t cached_bytes(const Index& index) {
  for (const auto& [part, bytes] : index.stats().compute.parts) {
    if (part == "node cache") return bytes;
  }
  return 0;
}

class Forgetting : public ::testing::TestWithParam<const char*> {};

TEST_P(Forgetting, EmptiesTheCachesOfAll) {
  const auto memory =
      fabric::open_embedded({.bytes = 16 << 20, .nodes = 1, .huge_pages = false}).value();
  const PoolOptions options{.lease = 200ms};
  Pool one = api::PoolState::open_pool(memory->attach().value(), options).value();
  Pool two = api::PoolState::open_pool(memory->attach().value(), options).value();
  const IndexOptions kind = IndexOptions::parse(GetParam()).value();
  Index index = one.create_index("kept", kind).value();
  {
    Index dropped = one.create_index("dropped", kind).value();
    const std::string value(1000, 'v');
    for (std::uint64_t n = 0; n < 2000; ++n) {
      ASSERT_TRUE(index.put(n, "v"));
      ASSERT_TRUE(dropped.put(n, value));
    }
  }
  ASSERT_TRUE(one.drop_index("dropped"));  // its chunks are free from end to end
  const Index seen = two.open_index("kept").value();
  ASSERT_TRUE(seen.get(1000));
  const std::uint64_t before = cached_bytes(seen);
  ASSERT_GT(before, 0u);

  pool::Recycler& recycler = api::Internals::of(one).compute_node.recycler();
  for (int i = 0; i < 1000 && recycler.chunks() == 0; ++i) {
    recycler.request();
    std::this_thread::sleep_for(10ms);
  }
  ASSERT_GT(recycler.chunks(), 0u);
  EXPECT_LT(cached_bytes(seen), before) << "of the one that did not recycle";
  EXPECT_EQ(seen.get(1000).value(), "v");
}

INSTANTIATE_TEST_SUITE_P(All, Forgetting, ::testing::Values("sherman", "chime"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace pando::index
