#include "pool/memory/block.h"

#include <gtest/gtest.h>

namespace pando::pool {
namespace {

TEST(SizeClasses, GrowAndAreWholeLines) {
  for (std::size_t c = 0; c < kSizeClasses; ++c) {
    EXPECT_EQ(class_bytes(c) % 64, 0u);
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

}  // namespace
}  // namespace pando::pool
