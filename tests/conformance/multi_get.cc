// multi_get: one answer a key, in the order asked.
#include "support/conformance.h"

namespace pando::testing {
namespace {

class MultiGet : public ConformanceTest {
 protected:
  // Asks for the numbers and compares each answer with get's.
  void expect_same_as_get(const Index& index, const std::vector<std::uint64_t>& numbers) const {
    std::vector<OwnedKey> owned;
    for (const std::uint64_t n : numbers) owned.push_back(key(n));
    const std::vector<Key> keys(owned.begin(), owned.end());
    const auto answers = index.multi_get(keys);
    ASSERT_TRUE(succeeded(answers));
    ASSERT_EQ(answers->size(), numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto single = index.get(keys[i]);
      ASSERT_EQ(single.has_value(), (*answers)[i].has_value()) << "key " << numbers[i];
      if (single) ASSERT_EQ(*single, *(*answers)[i]) << "key " << numbers[i];
    }
  }
};

TEST_P(MultiGet, NoKeys) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  EXPECT_TRUE(must(index.multi_get({})).empty());
}

TEST_P(MultiGet, PresentAbsentAndRepeated) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  for (std::uint64_t n = 0; n < 1'000; n += 2) {
    ASSERT_TRUE(succeeded(index.put(key(n), numbered_value(n))));
  }
  expect_same_as_get(index, {4});
  expect_same_as_get(index, {5});
  expect_same_as_get(index, {998, 4, 4, 5, 4, 0, 2'000, 5, 998});
}

TEST_P(MultiGet, ThousandsOfKeysInAnyOrder) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(4'000, 1'200);
  for (std::uint64_t n = 0; n < count; n += 3) {
    ASSERT_TRUE(succeeded(index.put(key(n), numbered_value(n))));
  }
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = 0; i < count; ++i) numbers.push_back(i * 7919 % count);
  expect_same_as_get(index, numbers);
}

TEST_P(MultiGet, ValuesOfAllSizes) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  std::vector<std::uint64_t> numbers;
  for (const std::size_t size : value_sizes()) {
    ASSERT_TRUE(succeeded(index.put(key(size), patterned_value(size, size))));
    numbers.push_back(size);
  }
  expect_same_as_get(index, numbers);
}

TEST_P(MultiGet, ThroughAStaleCacheAndWithoutOne) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(4'000, 600);
  fill(index, 0, 10);
  const Index stale = must(must(pool.attach({})).open_index("index"));
  const Index uncached = must(must(pool.attach({.compute_budget = 0})).open_index("index"));
  expect_same_as_get(stale, {1, 2, 3});
  fill(index, 10, count);
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t n = 0; n < count + 10; n += 5) numbers.push_back(n);
  expect_same_as_get(stale, numbers);
  expect_same_as_get(uncached, numbers);
}

// The keys travel together: far fewer round trips than keys.
TEST_P(MultiGet, SharesRoundTrips) {
  if (GetParam().variant) GTEST_SKIP() << "the costs are for the default settings";
  Pool pool = open_pool();
  const Index index = create_index(pool);
  fill(index, 0, 2'000);
  std::vector<OwnedKey> owned;
  for (std::uint64_t n = 0; n < 2'000; n += 20) owned.push_back(key(n));
  const std::vector<Key> keys(owned.begin(), owned.end());
  for (const Key& one : keys) ASSERT_TRUE(succeeded(index.get(one)));
  Counters cost;
  ASSERT_TRUE(succeeded(index.multi_get(keys, &cost)));
  EXPECT_LT(cost.round_trips, keys.size() / 4);
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(MultiGet);

}  // namespace
}  // namespace pando::testing
