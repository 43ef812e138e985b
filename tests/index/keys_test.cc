// Key policies: separators and cells.
#include "index/common/keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace pando::index {
namespace {

// Short strings over few letters, zero and the largest byte among them: many common prefixes.
std::vector<std::string> many_strings() {
  std::vector<std::string> all{""};
  const std::string letters("\0a\xff", 3);
  for (std::size_t from = 0, length = 1; length <= 4; ++length) {
    const std::size_t until = all.size();
    for (; from < until; ++from) {
      for (const char letter : letters) all.push_back(all[from] + letter);
    }
  }
  std::ranges::sort(all);
  return all;
}

TEST(ByteSeparators, SeparateAndAreShortest) {
  const std::vector<std::string> all = many_strings();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      const std::string separator = ByteKeys::separator(all[i], all[j]);
      ASSERT_LT(all[i], separator);
      ASSERT_LE(separator, all[j]);
      // Anything that separates and is as short or shorter would be in the list as well.
      for (std::size_t k = i + 1; k <= j; ++k) ASSERT_GE(all[k].size(), separator.size());
    }
  }
}

TEST(ByteSeparators, OfLongKeysGoJustBeyondWhatIsCommon) {
  const std::string common(1000, 'c');
  EXPECT_EQ(ByteKeys::separator(common + "a", common + "bcdef"), common + "b");
  EXPECT_EQ(ByteKeys::separator(common, common + "bcdef"), common + "b");
  EXPECT_EQ(ByteKeys::separator("", std::string(1, '\0')), std::string(1, '\0'));
}

TEST(IntSeparators, AreTheUpperKey) {
  EXPECT_EQ(IntKeys::separator(3, 9), 9);
  EXPECT_EQ(IntKeys::separator(0, ~std::uint64_t{0}), ~std::uint64_t{0});
}

TEST(ByteCells, HoldShortKeys) {
  std::mt19937_64 random(1);
  for (std::size_t length = 0; length <= ByteKeys::kShort; ++length) {
    std::string key(length, '\0');
    for (char& letter : key) letter = static_cast<char>(random());
    ASSERT_TRUE(ByteKeys::fits_cell(key));
    const ByteKeys::Cell cell = ByteKeys::cell(key);
    EXPECT_FALSE(ByteKeys::is_long(cell));
    EXPECT_EQ(ByteKeys::short_key(cell), key);
  }
  EXPECT_FALSE(ByteKeys::fits_cell(std::string(ByteKeys::kShort + 1, 'x')));
}

TEST(ByteCells, OfKeysThatDifferInTrailingZerosDiffer) {
  std::vector<ByteKeys::Cell> cells;
  for (std::size_t length = 0; length <= ByteKeys::kShort; ++length) {
    cells.push_back(ByteKeys::cell(std::string(length, '\0')));
  }
  for (std::size_t i = 0; i < cells.size(); ++i) {
    for (std::size_t j = 0; j < cells.size(); ++j) EXPECT_EQ(cells[i] == cells[j], i == j);
  }
}

TEST(ByteCells, PointToLongKeys) {
  const auto item = pool::ItemPointer::from_raw(0x0c00'1234'5678'9abc);
  for (const std::size_t length :
       {std::size_t{17}, std::size_t{255}, std::size_t{256}, std::size_t{4096}}) {
    const ByteKeys::Cell cell = ByteKeys::long_cell(length, item, 0xfeed);
    EXPECT_TRUE(ByteKeys::is_long(cell));
    EXPECT_EQ(cell.size(), length);
    EXPECT_EQ(ByteKeys::item(cell), item);
    EXPECT_TRUE(cell == ByteKeys::long_cell(length, item, 0xfeed));
    EXPECT_FALSE(cell == ByteKeys::long_cell(length, item, 0xfeee));
    EXPECT_FALSE(cell == ByteKeys::long_cell(length + 1, item, 0xfeed));
  }
}

TEST(IntCells, HoldTheKey) {
  for (const std::uint64_t key : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
    EXPECT_EQ(IntKeys::short_key(IntKeys::cell(key)), key);
    EXPECT_FALSE(IntKeys::is_long(IntKeys::cell(key)));
  }
}

}  // namespace
}  // namespace pando::index
