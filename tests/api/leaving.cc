// Compute nodes that close their pool leave nothing behind.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "api/state.h"
#include "pool/memory/census.h"
#include "support/conformance.h"
#include "support/outcome.h"
#include "support/scale.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

// Bytes in use or lost. REQUIRES: no other compute node is there.
std::uint64_t not_free(const Pool& pool) {
  const std::vector<const pool::Allocator*> living = {
      &api::Internals::of(pool).compute_node.allocator()};
  const auto census = api::Internals::of(pool).run(
      [&](pool::Operation& op) { return pool::take_census(op, living); });
  return must(census).other;
}

// A peer's operation is under way for as long as the compute node that closes lives: until it has
// ended, nothing that was retired meanwhile is safe to use again.
TEST(Leaving, NothingIsLostThoughAPeerIsInAnOperation) {
  Pool stays = must(Pool::open("embedded:256MiB"));
  const Index of_stays = must(stays.create_index("kv"));
  const std::uint64_t keys = scaled(2'000, 200);
  const std::string value(1'000, 'x');
  for (std::uint64_t key = 0; key < keys; ++key) must(of_stays.put(key, value));
  const std::uint64_t before = not_free(stays);
  for (int cycle = 0; cycle < 10; ++cycle) {
    const std::unique_ptr<api::Lane> lane = must(api::Internals::of(stays).make_lane());
    const pool::Operation long_scan(*lane->session);
    Pool leaves = must(stays.attach({}));
    const Index of_leaves = must(leaves.open_index("kv"));
    for (std::uint64_t key = 0; key < keys; ++key) must(of_leaves.put(key, value));
  }
  EXPECT_TRUE(eventually([&] { return not_free(stays) <= before; }))
      << not_free(stays) - before << " bytes are lost";
}

}  // namespace
}  // namespace pando::testing
