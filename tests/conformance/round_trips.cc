// What operations cost with all inner nodes cached: exact counts, the same on every machine.
#include "support/conformance.h"

namespace pando::testing {
namespace {

class RoundTrips : public ConformanceTest {
 protected:
  static constexpr std::uint64_t kOperations = 1'000;

  void SetUp() override {
    ConformanceTest::SetUp();
    if (key_type() != KeyType::kInteger) GTEST_SKIP() << "the counts are for 8-byte keys";
    if (GetParam().variant) GTEST_SKIP() << "the counts are for the default settings";
    count_ = scaled(100'000, 10'000);
    pool_.emplace(open_pool("512MiB"));
    index_.emplace(create_index(*pool_));
    // Steps of two leave absent keys between the present ones.
    for (std::uint64_t n = 0; n < count_; ++n) must(index_->insert(number(n), eight_bytes(n)));
    // Every leaf is visited, so every inner node above one is cached.
    for (std::uint64_t n = 0; n < count_; ++n) must(index_->get(number(n)));
  }
  void TearDown() override {
    index_.reset();
    ConformanceTest::TearDown();
  }

  static std::uint64_t number(std::uint64_t n) { return 2 * n; }
  static std::string eight_bytes(std::uint64_t n) { return patterned_value(8, n); }
  // Spread over the whole tree.
  std::uint64_t sample(std::uint64_t i) const { return i * 7919 % count_; }

  const Index& index() const { return *index_; }

  static ::testing::AssertionResult exactly(const Counters& cost, std::uint64_t operations,
                                            std::uint64_t each) {
    if (cost.round_trips == operations * each) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << cost.round_trips << " round trips for " << operations << " operations, not " << each
           << " each (" << cost.retries << " retries)";
  }

  std::uint64_t count_ = 0;
  std::optional<Pool> pool_;
  std::optional<Index> index_;
};

TEST_P(RoundTrips, GetTakesOne) {
  Counters cost;
  for (std::uint64_t i = 0; i < kOperations; ++i) {
    ASSERT_TRUE(holds(index().get(number(sample(i)), &cost), eight_bytes(sample(i))));
  }
  EXPECT_TRUE(exactly(cost, kOperations, 1));
}

TEST_P(RoundTrips, GetOfAnAbsentKeyTakesOne) {
  Counters cost;
  for (std::uint64_t i = 0; i < kOperations; ++i) {
    ASSERT_TRUE(failed_with(index().get(number(sample(i)) + 1, &cost), ErrorCode::kNotFound));
  }
  EXPECT_TRUE(exactly(cost, kOperations, 1));
}

TEST_P(RoundTrips, UpdateTakesTwo) {
  Counters cost;
  for (std::uint64_t i = 0; i < kOperations; ++i) {
    ASSERT_TRUE(succeeded(index().update(number(sample(i)), eight_bytes(i), &cost)));
  }
  EXPECT_TRUE(exactly(cost, kOperations, 2));
}

TEST_P(RoundTrips, PutOfAPresentKeyTakesTwo) {
  Counters cost;
  for (std::uint64_t i = 0; i < kOperations; ++i) {
    ASSERT_TRUE(succeeded(index().put(number(sample(i)), eight_bytes(i), &cost)));
  }
  EXPECT_TRUE(exactly(cost, kOperations, 2));
}

// Each insert goes where an erase has just made room, so that none splits.
TEST_P(RoundTrips, EraseAndInsertTakeTwoEach) {
  Counters erase_cost;
  Counters insert_cost;
  for (std::uint64_t i = 0; i < kOperations; ++i) {
    const std::uint64_t n = number(sample(i));
    ASSERT_TRUE(succeeded(index().erase(n, &erase_cost)));
    ASSERT_TRUE(succeeded(index().insert(n, eight_bytes(i), &insert_cost)));
  }
  EXPECT_TRUE(exactly(erase_cost, kOperations, 2));
  EXPECT_TRUE(exactly(insert_cost, kOperations, 2));
}

TEST_P(RoundTrips, ScanOfAHundredTakesAtMostTwo) {
  for (std::uint64_t i = 0; i < kOperations; ++i) {
    const std::uint64_t first = sample(i) % (count_ - 100);
    Counters cost;
    const auto scanned = must(index().scan(number(first), 100, &cost));
    ASSERT_EQ(scanned.size(), 100u);
    ASSERT_EQ(scanned.back().key.integer(), number(first + 99));
    ASSERT_LE(cost.round_trips, 2u) << "from " << number(first);
  }
}

TEST_P(RoundTrips, MultiGetTakesOne) {
  Counters cost;
  for (std::uint64_t i = 0; i < 100; ++i) {
    std::vector<Key> keys;
    for (std::uint64_t j = 0; j < 16; ++j) {
      keys.emplace_back(number(sample(16 * i + j)));
      keys.emplace_back(number(sample(16 * i + j)) + 1);
    }
    const auto values = must(index().multi_get(keys, &cost));
    ASSERT_EQ(values.size(), keys.size());
    for (std::uint64_t j = 0; j < 16; ++j) {
      ASSERT_EQ(values[2 * j], eight_bytes(sample(16 * i + j)));
      ASSERT_EQ(values[2 * j + 1], std::nullopt);
    }
  }
  EXPECT_TRUE(exactly(cost, 100, 1));
}

// Point operations of chime read part of a leaf; what exactly, tests/index/chime_costs_test.cc
// tells.
TEST_P(RoundTrips, ChimeReadsFewBytes) {
  if (GetParam().options().kind != "chime") GTEST_SKIP() << "others read whole leaves";
  constexpr std::uint64_t kNeighbourhood = 192;
  constexpr std::uint64_t kEntry = 32;
  const auto bytes_of = [&](auto operation) {
    Counters cost;
    operation(&cost);
    return cost.bytes_read;
  };
  const std::vector<Index> cold = open_on_nodes(*pool_, 1);
  ASSERT_EQ(must(cold[0].scan(0, count_ + 1)).size(), count_);  // knows the inner nodes now
  for (std::uint64_t i = 0; i < kOperations; ++i) {
    const std::uint64_t n = number(sample(i));
    const auto get = [&](Counters* cost) { must(cold[0].get(n, cost)); };
    const auto get_absent = [&](Counters* cost) { (void)cold[0].get(n + 1, cost); };
    const auto update = [&](Counters* cost) { must(cold[0].update(n, eight_bytes(i), cost)); };
    ASSERT_LE(bytes_of(get_absent), kNeighbourhood);
    ASSERT_LE(bytes_of(update), kNeighbourhood);
    ASSERT_LE(bytes_of(get), kNeighbourhood);
    ASSERT_LE(bytes_of(get), kEntry) << "now it knows where the key stands";
    ASSERT_LE(bytes_of(update), kEntry);
  }
}

// Costs are added to what the caller's counters hold, and to the compute node's own.
TEST_P(RoundTrips, CountsAddUp) {
  // Asking for the numbers is an operation too, and may cost something itself.
  const std::uint64_t earlier = must(pool_->stats()).operations.round_trips;
  const std::uint64_t before = must(pool_->stats()).operations.round_trips;
  const std::uint64_t asking = before - earlier;
  Counters cost;
  cost.round_trips = 100;
  for (std::uint64_t i = 0; i < 10; ++i) must(index().get(number(i), &cost));
  EXPECT_EQ(cost.round_trips, 110u);
  EXPECT_EQ(must(pool_->stats()).operations.round_trips, before + 10 + asking);
}

TEST_P(RoundTrips, CoroutineFormsCostTheSame) {
  Worker worker = must(pool_->make_worker());
  Counters get_cost;
  Counters update_cost;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const std::string value = eight_bytes(i);
    ASSERT_TRUE(succeeded(worker.run(index().get(worker, number(sample(i)), &get_cost))));
    ASSERT_TRUE(
        succeeded(worker.run(index().update(worker, number(sample(i)), value, &update_cost))));
  }
  EXPECT_TRUE(exactly(get_cost, 100, 1));
  EXPECT_TRUE(exactly(update_cost, 100, 2));
  EXPECT_EQ(worker.counters().round_trips, 300u);
}

PANDO_FOR_ALL_CASES(RoundTrips);

}  // namespace
}  // namespace pando::testing
