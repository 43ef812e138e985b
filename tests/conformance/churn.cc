// Deletes are real: whatever comes and goes, remote memory stays bounded.
#include <algorithm>
#include <random>
#include <vector>

#include "support/conformance.h"

namespace pando::testing {
namespace {

// Memory is handed out in chunks; a few may be half used in each size class.
constexpr std::uint64_t kSlack = 2 << 20;

class Churn : public ConformanceTest {
 protected:
  static ::testing::AssertionResult bounded(const Pool& pool, std::uint64_t before) {
    const std::uint64_t now = remote_bytes(pool);
    if (now * 10 <= before * 12 + kSlack * 10) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << before << " bytes became " << now;
  }

  // Puts and erases of random keys, half of `keys` present on average.
  void churn(const Index& index, std::uint64_t keys, std::uint64_t steps,
             std::uint64_t seed) const {
    std::mt19937_64 random(seed);
    for (std::uint64_t step = 0; step < steps; ++step) {
      const OwnedKey target = key(random() % keys);
      const Status status =
          step % 2 == 0 ? index.put(target, numbered_value(step)) : index.erase(target);
      if (!status) ASSERT_TRUE(failed_with(status, ErrorCode::kNotFound));
    }
  }
};

// The million live keys and ten million operations, at a size for every day.
TEST_P(Churn, RandomPutsAndErases) {
  Pool pool = open_pool("1GiB");
  const Index index = create_index(pool);
  const std::uint64_t live = scaled(50'000, 5'000);
  fill(index, 0, live);
  const std::uint64_t after_fill = remote_bytes(pool);
  churn(index, 2 * live, 10 * live, 21);
  EXPECT_TRUE(bounded(pool, after_fill));
}

TEST_P(Churn, FillAndEmptyManyTimes) {
  Pool pool = open_pool("1GiB");
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(10'000, 1'000);
  fill(index, 0, count);
  const std::uint64_t after_fill = remote_bytes(pool);
  for (std::uint64_t round = 0; round < 10; ++round) {
    erase_all(index, 0, count);
    ASSERT_TRUE(must(index.scan(smallest(), 1)).empty()) << "round " << round;
    ASSERT_TRUE(succeeded(index.check())) << "round " << round;
    fill(index, 0, count, round);
    ASSERT_TRUE(bounded(pool, after_fill)) << "round " << round;
  }
  EXPECT_TRUE(holds_numbers(index, 0, count, 9));
}

// New keys are always the largest, old ones the smallest: leaves empty on one side and fill on the
// other, for ever.
TEST_P(Churn, SlidingWindow) {
  Pool pool = open_pool("1GiB");
  const Index index = create_index(pool);
  const std::uint64_t window = scaled(10'000, 1'000);
  fill(index, 0, window);
  const std::uint64_t after_fill = remote_bytes(pool);
  const std::uint64_t end = 12 * window;
  for (std::uint64_t n = window; n < end; ++n) {
    ASSERT_TRUE(succeeded(index.insert(key(n), numbered_value(n)))) << n;
    ASSERT_TRUE(succeeded(index.erase(key(n - window)))) << n;
  }
  EXPECT_TRUE(holds_numbers(index, end - window, end));
  EXPECT_TRUE(bounded(pool, after_fill));
}

TEST_P(Churn, SlidingWindowDownwards) {
  Pool pool = open_pool("1GiB");
  const Index index = create_index(pool);
  const std::uint64_t window = scaled(5'000, 500);
  const std::uint64_t top = 12 * window;
  fill(index, top - window, top);
  const std::uint64_t after_fill = remote_bytes(pool);
  for (std::uint64_t n = top - window; n-- > 0;) {
    ASSERT_TRUE(succeeded(index.insert(key(n), numbered_value(n)))) << n;
    ASSERT_TRUE(succeeded(index.erase(key(n + window)))) << n;
  }
  EXPECT_TRUE(holds_numbers(index, 0, window));
  EXPECT_TRUE(bounded(pool, after_fill));
}

// Values out of line are freed with their keys, and with each replacement.
TEST_P(Churn, BigValues) {
  Pool pool = open_pool("1GiB");
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(1'000, 100);
  const auto put_all = [&](std::uint64_t round) {
    for (std::uint64_t n = 0; n < count; ++n) {
      ASSERT_TRUE(succeeded(index.put(key(n), patterned_value(3'000, n + round))));
    }
  };
  put_all(0);
  const std::uint64_t after_fill = remote_bytes(pool);
  for (std::uint64_t round = 1; round <= 10; ++round) {
    put_all(round);
    if (round % 3 == 0) {
      erase_all(index, 0, count);
      put_all(round);
    }
    // Freed blocks wait for the readers of their time: as much again may be on its way back.
    ASSERT_TRUE(bounded(pool, 2 * after_fill)) << "round " << round;
  }
}

// What one compute node frees, another one can use; or this pool would be full soon.
TEST_P(Churn, MemoryMovesBetweenComputeNodes) {
  Pool pool = open_pool("64MiB");
  const Index index = create_index(pool);
  const Index other = must(must(pool.attach({})).open_index("index"));
  const std::uint64_t count = scaled(4'000, 1'500);
  const std::string value = patterned_value(4'000, 1);
  for (int round = 0; round < 12; ++round) {
    const Index& filler = round % 2 == 0 ? index : other;
    const Index& eraser = round % 2 == 0 ? other : index;
    for (std::uint64_t n = 0; n < count; ++n) {
      ASSERT_TRUE(succeeded(filler.put(key(n), value))) << "round " << round << ", key " << n;
    }
    erase_all(eraser, 0, count);
  }
}

// A compute node that closes leaves its free memory to the others.
TEST_P(Churn, MemoryOfClosedComputeNodes) {
  Pool pool = open_pool("64MiB");
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(4'000, 1'500);
  const std::string value = patterned_value(4'000, 2);
  for (int round = 0; round < 10; ++round) {
    const Index passing = must(must(pool.attach({})).open_index("index"));
    for (std::uint64_t n = 0; n < count; ++n) {
      ASSERT_TRUE(succeeded(passing.put(key(n), value))) << "round " << round << ", key " << n;
    }
    erase_all(passing, 0, count);
  }
  EXPECT_TRUE(must(index.scan(smallest(), 1)).empty());
}

// A million live keys of eight bytes with values of eight bytes, loaded in random order as
// benchmarks do, then ten million puts and erases.
TEST(ChurnFullSize, MillionKeysTenMillionOperations) {
  const std::uint64_t live = scaled(1'000'000, 10'000);
  Pool pool = must(Pool::open("embedded:1GiB"));
  const Index index = must(pool.create_index("index"));
  std::mt19937_64 random(22);
  std::vector<std::uint64_t> numbers(live);
  for (std::uint64_t n = 0; n < live; ++n) numbers[n] = 2 * n;
  std::ranges::shuffle(numbers, random);
  for (const std::uint64_t n : numbers) must(index.put(n, "8 bytes!"));
  const std::uint64_t after_fill = remote_bytes(pool);

  for (std::uint64_t step = 0; step < 10 * live; ++step) {
    const std::uint64_t target = random() % (2 * live);
    if (step % 2 == 0) {
      must(index.put(target, "8 bytes!"));
    } else if (const Status erased = index.erase(target); !erased) {
      ASSERT_TRUE(failed_with(erased, ErrorCode::kNotFound));
    }
  }
  const std::uint64_t at_end = remote_bytes(pool);
  RecordProperty("remote_bytes_after_fill", std::to_string(after_fill));
  RecordProperty("remote_bytes_at_end", std::to_string(at_end));
  // Memory comes in chunks, which count at a small scale.
  EXPECT_LE(at_end, after_fill * 12 / 10 + (live < 1'000'000 ? (1 << 20) : 0));
  EXPECT_TRUE(succeeded(index.check()));
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(Churn);

}  // namespace
}  // namespace pando::testing
