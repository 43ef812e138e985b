#include "lab/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/random.h"

namespace pando::lab {
namespace {

TEST(Histogram, EmptyHasNoQuantile) { EXPECT_EQ(Histogram().quantile(0.5), 0); }

TEST(Histogram, EverySingleValueIsWithinHalfAPercent) {
  for (std::uint64_t value = 0; value < std::uint64_t{1} << 41; value += 1 + value / 97) {
    Histogram histogram;
    histogram.record(value);
    const auto exact = static_cast<double>(value);
    ASSERT_NEAR(histogram.quantile(0.5), exact, exact * 0.005) << value;
  }
}

TEST(Histogram, QuantilesAreThoseOfTheSortedValues) {
  base::Random random(1);
  Histogram histogram;
  std::vector<std::uint64_t> values;
  for (int i = 0; i < 100'000; ++i) {
    values.push_back(random.below(std::uint64_t{1} << random.below(36)));
    histogram.record(values.back());
  }
  std::ranges::sort(values);
  for (const double q : {0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto position = static_cast<std::size_t>(q * 100'000);
    const auto exact = static_cast<double>(values[position == 0 ? 0 : position - 1]);
    EXPECT_NEAR(histogram.quantile(q), exact, exact * 0.005 + 1) << q;
  }
}

TEST(Histogram, MergeIsAsIfRecordedTogether) {
  base::Random random(2);
  Histogram one;
  Histogram two;
  Histogram both;
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t value = random.below(1'000'000);
    (i % 3 == 0 ? one : two).record(value);
    both.record(value);
  }
  one.merge(two);
  EXPECT_EQ(one.count(), both.count());
  for (const double q : {0.1, 0.5, 0.99}) EXPECT_EQ(one.quantile(q), both.quantile(q));
}

TEST(Histogram, EndlessValuesAreKept) {
  Histogram histogram;
  histogram.record(~std::uint64_t{0});
  EXPECT_EQ(histogram.count(), 1u);
  EXPECT_GT(histogram.quantile(1), 4e12);
}

}  // namespace
}  // namespace pando::lab
