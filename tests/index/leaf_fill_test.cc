#include "index/blink/leaf_fill.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace pando::index {
namespace {

constexpr std::size_t kCapacity = 64;

TEST(LeafFill, LearnsThatConsecutiveKeysAreAllThere) {
  LeafFill fill(kCapacity);
  EXPECT_LT(fill.density(40, 40), 1.0);
  for (int i = 0; i < 500; ++i) fill.saw(40, 40, 40, 45);
  EXPECT_NEAR(fill.density(40, 45), 1.0, 1e-3);
  EXPECT_NEAR(fill.density(3, 100), 1.0, 1e-3);
  for (int i = 0; i < 500; ++i) fill.saw(10, 20, 40, 45);
  EXPECT_NEAR(fill.density(40, 45), 0.5, 1e-3);
  for (int i = 0; i < 500; ++i) fill.saw(0, 20, 40, 45);
  EXPECT_GT(fill.density(40, 45), 0.0);
}

TEST(LeafFill, LearnsHowFullLeavesAre) {
  LeafFill fill(kCapacity);
  EXPECT_DOUBLE_EQ(fill.density(1e6, 1e6) * 1e6, 40);
  for (int i = 0; i < 500; ++i) fill.saw(50, 1e6, 1e6, 1e6);
  EXPECT_NEAR(fill.density(1e6, 1e6) * 1e6, 50, 0.1);
  // A part of a leaf tells little of it.
  for (int i = 0; i < 500; ++i) fill.saw(1, 1e5, 1e6, 1e6);
  EXPECT_NEAR(fill.density(1e6, 1e6) * 1e6, 50, 0.1);
  // A wider leaf has more, a narrow one less; within limits.
  EXPECT_NEAR(fill.density(1.2e6, 1e6) * 1.2e6, 60, 0.1);
  EXPECT_DOUBLE_EQ(fill.density(1e12, 1e6) * 1e12, 64);
  EXPECT_DOUBLE_EQ(fill.density(1000, 1e6) * 1000, 24);
  EXPECT_DOUBLE_EQ(fill.density(3, 1e6) * 3, 3) << "no leaf has more keys than its range";
}

TEST(LeafForecast, AsksForNoMoreThanIsMissingWhereAllKeysAreThere) {
  LeafForecast forecast(100);
  EXPECT_EQ(forecast.look(30, 1), 30);
  EXPECT_FALSE(forecast.enough());
  EXPECT_EQ(forecast.look(45, 1), 45);
  EXPECT_FALSE(forecast.enough());
  EXPECT_EQ(forecast.look(40, 1), 25);
  EXPECT_TRUE(forecast.enough());
  LeafForecast one(1);
  EXPECT_EQ(one.look(30, 1), 1);
  EXPECT_TRUE(one.enough());
}

// One standard deviation more than is missing; the last leaf comes whole.
TEST(LeafForecast, SeldomFallsShortOfScatteredKeys) {
  base::Random random(1);
  int short_of = 0;
  double leaves = 0;
  constexpr int kScans = 10'000;
  for (int i = 0; i < kScans; ++i) {
    const std::uint64_t missing = 1 + random.below(100);
    LeafForecast forecast(missing);
    std::uint64_t keys = 0;
    while (!forecast.enough()) {
      const std::uint64_t width = 300 + random.below(400);
      (void)forecast.look(static_cast<double>(width), 0.1);
      for (std::uint64_t k = 0; k < width; ++k) keys += random.below(10) == 0 ? 1 : 0;
      ++leaves;
    }
    short_of += keys < missing ? 1 : 0;
  }
  EXPECT_LT(short_of, kScans / 50);
  EXPECT_LT(leaves / kScans, 50.5 / 50 + 1);
}

}  // namespace
}  // namespace pando::index
