#include "lab/keys.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <unordered_set>

namespace pando::lab {
namespace {

std::string text_of(const KeySpace& keys, std::uint64_t item) {
  KeySpace::Buffer buffer;
  return std::string(keys.key(item, buffer).bytes());
}

TEST(KeySpace, IntegersAreDistinctAndInNoOrder) {
  const KeySpace keys(KeyType::kInteger, Order::kRandom);
  KeySpace::Buffer buffer;
  std::unordered_set<std::uint64_t> seen;
  std::uint64_t ascents = 0;
  std::uint64_t last = 0;
  for (std::uint64_t item = 0; item < 200'000; ++item) {
    const std::uint64_t key = keys.key(item, buffer).integer();
    EXPECT_TRUE(seen.insert(key).second);
    ascents += key > last ? 1 : 0;
    last = key;
  }
  EXPECT_NEAR(static_cast<double>(ascents), 100'000, 2000);
}

TEST(KeySpace, StringsAreMailAddressesWithTheHostFirst) {
  const KeySpace keys(KeyType::kBytes, Order::kRandom);
  std::set<std::string> seen;
  std::set<std::string> hosts;
  for (std::uint64_t item = 0; item < 100'000; ++item) {
    const std::string key = text_of(keys, item);
    ASSERT_EQ(key.size(), kStringKeyBytes);
    const std::size_t at = key.find('@');
    ASSERT_NE(at, std::string::npos) << key;
    hosts.insert(key.substr(0, at));
    EXPECT_TRUE(seen.insert(key).second) << key;
  }
  EXPECT_GT(hosts.size(), 10u);
  EXPECT_LT(hosts.size(), 100u);
}

TEST(KeySpace, SequentialKeysAscend) {
  for (const KeyType type : {KeyType::kInteger, KeyType::kBytes}) {
    const KeySpace keys(type, Order::kSequential);
    KeySpace::Buffer one;
    KeySpace::Buffer two;
    for (std::uint64_t item = 0; item < 100'000; ++item) {
      ASSERT_TRUE(key_less(keys.key(item, one), keys.key(item + 1, two)));
    }
  }
}

// Whatever the order, the keys of the first n items are 0 … n - 1, those of the next n follow.
TEST(KeySpace, DenseKeysAreConsecutive) {
  constexpr std::uint64_t kCount = 10'000;
  for (const Order order : {Order::kRandom, Order::kSequential}) {
    const KeySpace keys = KeySpace::dense(order, kCount);
    EXPECT_TRUE(keys.is_dense());
    KeySpace::Buffer buffer;
    for (const std::uint64_t first : {std::uint64_t{0}, kCount, 7 * kCount}) {
      std::set<std::uint64_t> seen;
      std::uint64_t ascents = 0;
      std::uint64_t last = first;
      for (std::uint64_t item = first; item < first + kCount; ++item) {
        const std::uint64_t key = keys.key(item, buffer).integer();
        seen.insert(key);
        ascents += key > last ? 1 : 0;
        last = key;
      }
      EXPECT_EQ(seen.size(), kCount);
      EXPECT_EQ(*seen.begin(), first);
      EXPECT_EQ(*seen.rbegin(), first + kCount - 1);
      if (order == Order::kRandom) EXPECT_NEAR(static_cast<double>(ascents), kCount / 2, 500);
    }
  }
}

TEST(Keys, BigEndianKeepsOrderAndComesBack) {
  const std::uint64_t numbers[] = {0, 1, 255, 256, 0x8000000000000000, 0xffffffffffffffff};
  std::string last;
  for (const std::uint64_t number : numbers) {
    const BigEndian bytes = big_endian(number);
    EXPECT_EQ(from_big_endian({bytes.data(), bytes.size()}), number);
    const std::string text(bytes.data(), bytes.size());
    EXPECT_LE(last, text);
    last = text;
  }
}

TEST(Keys, Describe) {
  EXPECT_EQ(describe(Key(255)), "0x00000000000000ff");
  EXPECT_EQ(describe(Key(std::string_view("a\0\"", 3))), "\"a\\x00\\x22\"");
}

}  // namespace
}  // namespace pando::lab
