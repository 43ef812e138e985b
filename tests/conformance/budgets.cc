// Compute-side memory: any budget works, and none is exceeded.
#include "support/conformance.h"

namespace pando::testing {
namespace {

constexpr std::uint64_t kFloor = 64 << 10;

class Budgets : public ConformanceTest {
 protected:
  // A hundredth above the budget is what counting in blocks may cost.
  static ::testing::AssertionResult within_budget(const ComputeMemory& memory,
                                                  std::uint64_t budget) {
    const std::uint64_t allowed = std::max(budget, kFloor);
    std::uint64_t sum = 0;
    std::string parts;
    for (const auto& [name, bytes] : memory.parts) {
      sum += bytes;
      parts += " " + name + "=" + std::to_string(bytes);
    }
    if (sum != memory.bytes) {
      return ::testing::AssertionFailure() << "parts sum to " << sum << ", not " << memory.bytes;
    }
    if (memory.bytes * 100 > allowed * 101) {
      return ::testing::AssertionFailure()
             << memory.bytes << " bytes for a budget of " << budget << ":" << parts;
    }
    return ::testing::AssertionSuccess();
  }

  // Fills, reads, scans, updates and erases, looking at the memory all along.
  void exercise(std::uint64_t budget, std::uint64_t count = scaled(60'000, 5'000)) {
    Pool pool = open_pool("512MiB", {.compute_budget = budget});
    const Index index = create_index(pool);
    const auto check_memory = [&](std::string_view when) {
      EXPECT_TRUE(within_budget(must(pool.stats()).compute, budget)) << when;
    };
    check_memory("empty");
    fill(index, 0, count);
    check_memory("filled");
    for (std::uint64_t n = 0; n < count; ++n) {
      ASSERT_TRUE(holds(index.get(key(n * 7919 % count)), numbered_value(n * 7919 % count)));
    }
    check_memory("read");
    EXPECT_TRUE(holds_numbers(index, 0, count));
    check_memory("scanned");
    for (std::uint64_t n = 0; n < count; n += 2) ASSERT_TRUE(succeeded(index.erase(key(n))));
    check_memory("half erased");
    fill(index, 0, count, 1);
    EXPECT_TRUE(holds_numbers(index, 0, count, 1));
    check_memory("refilled");
    EXPECT_EQ(must(pool.stats()).compute.budget, std::max(budget, kFloor));
  }
};

TEST_P(Budgets, Zero) { exercise(0); }
// Up to the floor all budgets are the floor: the same memory again, so few keys will do.
TEST_P(Budgets, OneByte) { exercise(1, scaled(3'000, 300)); }
TEST_P(Budgets, Floor) { exercise(kFloor, scaled(3'000, 300)); }
TEST_P(Budgets, OneMebibyte) { exercise(1 << 20); }
TEST_P(Budgets, SixtyFourMebibytes) { exercise(64 << 20); }

// Many indexes share one budget.
TEST_P(Budgets, ManyIndexes) {
  constexpr std::uint64_t kBudget = 1 << 20;
  Pool pool = open_pool("512MiB", {.compute_budget = kBudget});
  for (int i = 0; i < 12; ++i) {
    const Index index = create_index(pool, "index " + std::to_string(i));
    fill(index, 0, scaled(5'000, 500));
    ASSERT_TRUE(holds_numbers(index, 0, scaled(5'000, 500)));
    EXPECT_TRUE(within_budget(must(pool.stats()).compute, kBudget)) << i + 1 << " indexes";
  }
}

// Memory waiting to be reused is counted too: churn with the smallest budget.
TEST_P(Budgets, ChurnWithinTheFloor) {
  Pool pool = open_pool("256MiB", {.compute_budget = 0});
  const Index index = create_index(pool);
  const std::uint64_t window = scaled(2'000, 300);
  for (std::uint64_t n = 0; n < 10 * window; ++n) {
    ASSERT_TRUE(succeeded(index.put(key(n), patterned_value(200, n))));
    if (n >= window) ASSERT_TRUE(succeeded(index.erase(key(n - window))));
    if (n % 1'000 == 0) ASSERT_TRUE(within_budget(must(pool.stats()).compute, 0)) << n;
  }
}

TEST_P(Budgets, IndexShareIsPartOfThePool) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  fill(index, 0, scaled(20'000, 2'000));
  EXPECT_LE(index.stats().compute.bytes, must(pool.stats()).compute.bytes);
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(Budgets);

}  // namespace
}  // namespace pando::testing
