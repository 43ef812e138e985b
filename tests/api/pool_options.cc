// PoolOptions that cannot work are refused when a pool is opened.
#include <gmock/gmock.h>

#include <chrono>
#include <limits>

#include "pool/compute_node.h"
#include "support/outcome.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

struct BadOption {
  PoolOptions options;
  const char* named;  // the option, its value and what would do
};

const BadOption kBad[] = {
    {{.lease = 0ms}, "lease: 0 ms is too short"},
    {{.lease = -1ms}, "lease: -1 ms is too short"},
    {{.lease = 20ms}, "lease: 20 ms is too short"},
    {{.lease = 249ms}, "between 250 ms and 3600000 ms"},
    {{.lease = 1h + 1ms}, "lease: 3600001 ms is too long"},
    {{.lease = milliseconds::max()}, "is too long"},
    {{.lease = milliseconds::min()}, "is too short"},
    {{.deadline = 0ms}, "deadline: 0 ms is too short"},
    {{.deadline = -5ms}, "deadline: -5 ms is too short"},
    {{.deadline = 9ms}, "between 10 ms and 86400000 ms"},
    {{.deadline = milliseconds::max()}, "is too long"},
    {{.compute_budget = std::numeric_limits<std::uint64_t>::max()}, "compute_budget: "},
};

TEST(PoolOptions, ThatCannotWorkAreRefusedAndNamed) {
  const Pool pool = must(Pool::open("embedded:16MiB"));
  for (const BadOption& bad : kBad) {
    EXPECT_TRUE(failed_with(Pool::open("embedded:16MiB", bad.options), ErrorCode::kInvalidArgument,
                            bad.named));
    EXPECT_TRUE(failed_with(pool.attach(bad.options), ErrorCode::kInvalidArgument, bad.named));
  }
}

// Before anything is connected, made or formatted.
TEST(PoolOptions, AreLookedAtFirst) {
  EXPECT_TRUE(failed_with(Pool::open("tcp:127.0.0.1:1", {.lease = 1ms}),
                          ErrorCode::kInvalidArgument, "lease"));
}

TEST(PoolOptions, AtTheirBoundsAreTaken) {
  for (const PoolOptions& options : {
           PoolOptions{.compute_budget = 0},
           PoolOptions{.deadline = PoolOptions::kMinDeadline},
           PoolOptions{.deadline = PoolOptions::kMaxDeadline},
           PoolOptions{.lease = PoolOptions::kMinLease},
           PoolOptions{.lease = PoolOptions::kMaxLease},
       }) {
    Pool pool = must(Pool::open("embedded:16MiB", options));
    const Index index = must(pool.create_index("index"));
    EXPECT_TRUE(succeeded(index.put(1, "one")));
  }
}

// The shortest lease is many beats of whoever is judged by it, whatever lease that one has.
TEST(PoolOptions, TheShortestLeaseIsManyBeats) {
  EXPECT_GE(PoolOptions::kMinLease, 20 * pool::ComputeNode::kBeat);
  EXPECT_LE(pool::ComputeNode::kBeat, task::Duration(PoolOptions::kMinLease) / 8)
      << "compute nodes with that lease would beat faster than others expect";
}

TEST(PoolOptions, SizesBeyondTheMachineAreRefused) {
  EXPECT_TRUE(failed_with(Pool::open("embedded:60TiB"), ErrorCode::kInvalidArgument,
                          "size: 60TiB can never fit"));
}

TEST(PoolOptions, TimeoutsOfUrlsHaveBounds) {
  for (const char* fabric : {"tcp:127.0.0.1:1", "mapped:unix:/nowhere", "rdma:127.0.0.1:1"}) {
    for (const char* timeout : {"0", "9", "3600001"}) {
      EXPECT_TRUE(failed_with(Pool::open(std::string(fabric) + "?timeout=" + timeout),
                              ErrorCode::kInvalidArgument, "is not between 10 and 3600000"))
          << fabric;
    }
  }
}

}  // namespace
}  // namespace pando::testing
