#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "lab/zipf.h"

namespace pando::lab {
namespace {

std::vector<double> zipf_formula(std::uint64_t size, double theta) {
  std::vector<double> shares(size);
  for (std::uint64_t i = 0; i < size; ++i) {
    shares[i] = std::pow(static_cast<double>(i + 1), -theta);
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

class ZipfFrequencies : public ::testing::TestWithParam<double> {};

// Each rank's count is binomial: within 6 standard deviations of the formula, or the generator is
// wrong (chance of a false alarm below 1e-6 for all ranks together).
TEST_P(ZipfFrequencies, FollowTheFormula) {
  constexpr std::uint64_t kSize = 200;
  constexpr std::uint64_t kDraws = 2'000'000;
  const Zipf zipf(kSize, GetParam());
  base::Random random(7);
  std::vector<std::uint64_t> counts(kSize);
  for (std::uint64_t i = 0; i < kDraws; ++i) ++counts.at(zipf(random));
  const std::vector<double> shares = zipf_formula(kSize, GetParam());
  for (std::uint64_t rank = 0; rank < kSize; ++rank) {
    const double expected = shares[rank] * kDraws;
    const double deviation = std::sqrt(expected * (1 - shares[rank]));
    EXPECT_NEAR(static_cast<double>(counts[rank]), expected, 6 * deviation + 1) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Thetas, ZipfFrequencies,
                         ::testing::Values(0.0, 0.5, 0.99, 1.0, 1.2, 1.74));

TEST(Zipf, HandlesManyItems) {
  constexpr std::uint64_t kSize = 1'000'000'000;
  const Zipf zipf(kSize, 0.99);
  base::Random random(1);
  std::uint64_t firsts = 0;
  std::uint64_t upper_half = 0;
  constexpr std::uint64_t kDraws = 1'000'000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const std::uint64_t rank = zipf(random);
    ASSERT_LT(rank, kSize);
    firsts += rank == 0 ? 1 : 0;
    upper_half += rank >= kSize / 2 ? 1 : 0;
  }
  // By the integral, zeta(1e9, 0.99) is 23.60; the upper half has 0.0360 of the weight.
  EXPECT_NEAR(static_cast<double>(firsts) / kDraws, 1 / 23.60, 0.001);
  EXPECT_NEAR(static_cast<double>(upper_half) / kDraws, 0.0360, 0.001);
}

TEST(Zipf, OneItem) {
  const Zipf zipf(1, 0.99);
  base::Random random(1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(zipf(random), 0u);
}

TEST(Permutation, IsABijectionAtAnySize) {
  for (const unsigned size : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 100u, 1000u, 65536u, 65537u}) {
    const base::Permutation permutation(size, 42);
    std::vector<bool> seen(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t image = permutation(i);
      ASSERT_LT(image, size);
      ASSERT_FALSE(seen[image]) << size;
      seen[image] = true;
    }
  }
}

TEST(Permutation, SeedsDiffer) {
  const base::Permutation one(1000, 1);
  const base::Permutation two(1000, 2);
  int same = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) same += one(i) == two(i) ? 1 : 0;
  EXPECT_LT(same, 20);
}

TEST(Random, BelowIsUniform) {
  base::Random random(3);
  std::vector<int> counts(10);
  for (int i = 0; i < 1'000'000; ++i) ++counts.at(random.below(10));
  for (const int count : counts) EXPECT_NEAR(count, 100'000, 2000);
}

}  // namespace
}  // namespace pando::lab
