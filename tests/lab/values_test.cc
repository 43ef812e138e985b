#include "lab/values.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace pando::lab {
namespace {

std::string value_of(const Key& key, std::uint64_t version, std::size_t size) {
  std::string value;
  make_value(key, version, size, value);
  return value;
}

class ValueSizes : public ::testing::TestWithParam<std::size_t> {};

TEST_P(ValueSizes, OwnValuesAreSound) {
  const std::size_t size = GetParam();
  for (std::uint64_t version = 0; version < 300; ++version) {
    EXPECT_TRUE(value_is_sound(Key(version * 7), value_of(Key(version * 7), version, size), size));
  }
  EXPECT_TRUE(value_is_sound(Key("mail"), value_of(Key("mail"), 1, size), size));
}

TEST_P(ValueSizes, OtherLengthsAreNot) {
  const std::size_t size = GetParam();
  const std::string value = value_of(Key(1), 5, size);
  EXPECT_FALSE(value_is_sound(Key(1), value + "x", size));
  if (size == 0) return;
  EXPECT_FALSE(value_is_sound(Key(1), std::string_view(value).substr(0, size - 1), size));
  EXPECT_FALSE(value_is_sound(Key(1), "", size));
}

TEST_P(ValueSizes, EveryFlippedBitIsFound) {
  const std::size_t size = GetParam();
  // Below 8 bytes the tag is short, and a few flips of the version go unseen by chance.
  if (size < 8) return;
  const std::string value = value_of(Key(9), 5, size);
  for (std::size_t bit = 0; bit < size * 8; bit += size > 100 ? 61 : 1) {
    std::string spoilt = value;
    spoilt[bit / 8] = static_cast<char>(spoilt[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(value_is_sound(Key(9), spoilt, size)) << bit;
  }
}

TEST_P(ValueSizes, OtherKeysValuesAreFound) {
  const std::size_t size = GetParam();
  if (size == 0) return;
  int missed = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    missed += value_is_sound(Key(i), value_of(Key(i + 1), 3, size), size) ? 1 : 0;
  }
  EXPECT_LE(missed, size >= 4 ? 0 : 20);  // a tag of 8 bits misses one in 256
}

INSTANTIATE_TEST_SUITE_P(Sizes, ValueSizes,
                         ::testing::Values(0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 100, 1000, 4097));

TEST(Values, TornBetweenVersionsIsFound) {
  const std::string one = value_of(Key(1), 1, 64);
  const std::string two = value_of(Key(1), 2, 64);
  EXPECT_FALSE(value_is_sound(Key(1), one.substr(0, 32) + two.substr(32), 64));
}

TEST(Values, VersionsDifferAndComeBack) {
  EXPECT_NE(value_of(Key(1), 1, 8), value_of(Key(1), 2, 8));
  EXPECT_EQ(version_of(value_of(Key(1), 4711, 8)), 4711u);
}

TEST(Values, IntegerAndStringKeysOfTheSameBytesDiffer) {
  EXPECT_FALSE(value_is_sound(Key("\x01"), value_of(Key(1), 0, 8), 8));
}

}  // namespace
}  // namespace pando::lab
