#include "pool/memory/block.h"

#include <gtest/gtest.h>

namespace pando::pool {
namespace {

TEST(SizeClasses, GrowAndAreWholeLinesOrShareThemEvenly) {
  for (std::size_t c = 0; c < kSizeClasses; ++c) {
    EXPECT_TRUE(class_bytes(c) % 64 == 0 || 64 % class_bytes(c) == 0);
    if (c > 0) {
      EXPECT_GT(class_bytes(c), class_bytes(c - 1));
    }
  }
}

TEST(SizeClasses, EverySizeHasTheSmallestThatHoldsIt) {
  for (std::size_t bytes = 1; bytes <= class_bytes(kSizeClasses - 1); ++bytes) {
    const std::size_t c = class_of(bytes);
    ASSERT_LT(c, kSizeClasses);
    ASSERT_GE(class_bytes(c), bytes);
    if (c > 0) {
      ASSERT_LT(class_bytes(c - 1), bytes);
    }
  }
}

TEST(SizeClasses, WasteAQuarterAtMostBeyondTheFirstLines) {
  for (std::size_t bytes = 257; bytes <= class_bytes(kSizeClasses - 1); ++bytes) {
    ASSERT_LE(class_bytes(class_of(bytes)), bytes + bytes / 4 + 1);
  }
}

// What the pool writes into a free block never reaches its lock word or its incarnation.
TEST(Descriptions, KeepWhatOutlivesTheUser) {
  for (const BlockDescription& each : kDescriptions) {
    EXPECT_LE(each.incarnation_at + 4, each.smallest) << each.name;
    EXPECT_EQ(class_bytes(class_of(each.smallest)), each.smallest) << each.name;
    if (!each.lock_word_at) continue;
    EXPECT_TRUE(each.spare > 0 || each.writable_from >= *each.lock_word_at + 8) << each.name;
    EXPECT_TRUE(each.spare > 0 || each.writable_from >= each.incarnation_at + 4) << each.name;
  }
}

TEST(Births, AreToldApartAcrossTheirWrap) {
  EXPECT_FALSE(is_later(BlockKind::kItem, 5, 0xffff'fff0)) << "others never wrap";
  for (const unsigned bits : {31u, 32u}) {
    for (std::uint64_t epoch = (std::uint64_t{7} << bits) - 5;
         epoch < (std::uint64_t{7} << bits) + 5; ++epoch) {
      EXPECT_NE(birth_mark(epoch), 0u);
      EXPECT_TRUE(is_later(BlockKind::kBorn, birth_mark(epoch + 1), birth_mark(epoch)));
      EXPECT_FALSE(is_later(BlockKind::kBorn, birth_mark(epoch), birth_mark(epoch + 1)));
      for (const std::uint64_t near : {epoch - 3, epoch, epoch + 2}) {
        EXPECT_EQ(birth({.incarnation = birth_mark(near)}, epoch), near);
      }
    }
  }
}

TEST(ShortAddresses, LeaveSixteenBitsOfAWord) {
  const fabric::Address far(255, (std::uint64_t{1} << 44) - 16);
  ASSERT_TRUE(ShortAddress::fits(far));
  const ShortAddress made = ShortAddress::of(far);
  EXPECT_EQ(made.bits() >> ShortAddress::kBits, 0u);
  EXPECT_EQ(ShortAddress::from_bits(made.bits() | std::uint64_t{0xabcd} << 48).address(), far);
  EXPECT_FALSE(ShortAddress::fits({256, 0}));
  EXPECT_FALSE(ShortAddress::fits({0, std::uint64_t{1} << 44}));
  EXPECT_FALSE(ShortAddress::fits({0, 8}));
}

}  // namespace
}  // namespace pando::pool
