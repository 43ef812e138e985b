// What may come late at the lock of a node that is free, and what may not.
#include "lab/check/late_lock.h"

#include <gtest/gtest.h>

#include <vector>

namespace pando::lab::check {
namespace {

using fabric::Address;
using fabric::Verb;
using fabric::VerbKind;
using pool::BlockKind;
using pool::OwnerId;

constexpr OwnerId kSelf = 7;
constexpr OwnerId kOther = 8;
constexpr OwnerId kDead = 9;
constexpr Address kPlace{1, 4096};

constexpr std::uint64_t word_of(OwnerId owner) { return std::uint64_t{owner} << 32 | 5; }

bool harmless(std::uint64_t before, std::uint64_t after, VerbKind kind = VerbKind::kCompareSwap,
              std::uint32_t length = 8) {
  const Verb verb{.kind = kind, .target = kPlace};
  return locks_harmlessly(
      {.verb = &verb, .at = kPlace, .length = length, .before = before, .after = after}, kSelf,
      [](OwnerId owner) { return owner != kDead; });
}

TEST(LateLock, MayBeTakenWhereNobodyHasIt) {
  EXPECT_TRUE(harmless(0, word_of(kSelf)));
  EXPECT_TRUE(harmless(0, word_of(kSelf), VerbKind::kMaskedCompareSwap));
  EXPECT_TRUE(harmless(5, word_of(kSelf)));  // with a note
  EXPECT_TRUE(harmless(word_of(kDead), word_of(kSelf)));
  EXPECT_FALSE(harmless(word_of(kOther), word_of(kSelf)));
  EXPECT_FALSE(harmless(0, word_of(kOther)));
}

TEST(LateLock, MayBeGivenBackByItsHolder) {
  EXPECT_TRUE(harmless(word_of(kSelf), 0));
  EXPECT_FALSE(harmless(word_of(kOther), 0));
  EXPECT_FALSE(harmless(word_of(kDead), 0));
}

TEST(LateLock, MayBeMissedByACompareSwapButNotByAWrite) {
  EXPECT_TRUE(harmless(word_of(kOther), word_of(kOther)));
  EXPECT_TRUE(harmless(word_of(kSelf), 0, VerbKind::kWrite));
  EXPECT_FALSE(harmless(0, 0, VerbKind::kWrite));
  EXPECT_FALSE(harmless(word_of(kOther), 0, VerbKind::kWrite));
  EXPECT_FALSE(harmless(0, word_of(kSelf), VerbKind::kWrite));
}

TEST(LateLock, IsChangedByNothingElse) {
  EXPECT_FALSE(harmless(0, word_of(kSelf), VerbKind::kFetchAdd));
  EXPECT_FALSE(harmless(word_of(kSelf), 0, VerbKind::kWrite, 16));
}

TEST(LateLock, IsTheFirstWordOfAFreeNode) {
  const auto at_lock = [](std::uint64_t distance, BlockKind kind) {
    std::uint8_t of_256 = 0;
    while (pool::class_bytes(of_256) < 256) ++of_256;
    const std::vector<pool::FreeRun> free{
        {.block = {.address = kPlace, .kind = kind, .size_class = of_256}, .count = 2}};
    return at_free_lock(kPlace + distance, free);
  };
  EXPECT_TRUE(at_lock(0, BlockKind::kNode));
  EXPECT_TRUE(at_lock(256, BlockKind::kNotedNode));
  EXPECT_FALSE(at_lock(8, BlockKind::kNode));
  EXPECT_FALSE(at_lock(512, BlockKind::kNode));
  EXPECT_FALSE(at_lock(0, BlockKind::kItem));
  EXPECT_FALSE(at_free_lock(kPlace, {}));
}

// A note is left in a block that nobody else may have: its WRITEs are held back.
TEST(LateLock, DoesNotCoverNotes) { EXPECT_FALSE(harmless(0, 5)); }

}  // namespace
}  // namespace pando::lab::check
