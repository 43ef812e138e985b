// What is left when a compute node dies at any verb of an operation: chime.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "index/crash_sweep.h"

namespace pando::testing {
namespace {

constexpr const char* kTinyChime = "chime:span=8,neighbourhood=4,inner_bytes=256";

Script chime_script(std::string name, KeyNames names, std::uint64_t keys) {
  return {.name = std::move(name), .names = names, .before = ascending(keys), .index = kSmallChime};
}

// Integer keys, and byte strings that have an item for every separator.
class ChimeCrashSweep : public ::testing::TestWithParam<KeyNames> {
 protected:
  static Script script(std::string name, std::uint64_t keys) {
    return chime_script(std::move(name), GetParam(), keys);
  }
  static bool integer() { return GetParam() == KeyNames::kInteger; }
};

TEST_P(ChimeCrashSweep, PutIntoAnEmptyTree) {
  Script empty = script("empty", 0);
  empty.by_victim = {{Step::kPut, 5, "new"}};
  empty.keys = 12;
  sweep(empty);
}

// The victim knows where the keys stand: it reads and writes one entry.
TEST_P(ChimeCrashSweep, Update) {
  Script update = script("update", 27);
  update.by_victim = {{Step::kUpdate, 20, "new"}, {Step::kPut, 22, "new"}};
  number_keys(update);
  sweep(update);
}

TEST_P(ChimeCrashSweep, EraseAndInsertInItsPlace) {
  Script erase = script("erase", 27);
  erase.by_victim = {{Step::kErase, 20, {}}, {Step::kErase, 22, {}}, {Step::kInsert, 20, "new"}};
  number_keys(erase);
  sweep(erase);
}

TEST_P(ChimeCrashSweep, InsertIntoAFreePlace) {
  sweep(with_first(script("insert", 12), between, {kNoSplit, kNoHop}));
}

TEST_P(ChimeCrashSweep, InsertWithHops) {
  sweep(with_first(script("one hop", 27), between, {kNoSplit, kOneHop}));
  sweep(with_first(script("several hops", 27), between, {kNoSplit, kSeveralHops}));
}

// Lock and whole leaf in one round trip.
TEST_P(ChimeCrashSweep, InsertThatReadsTheLeaf) {
  Script insert = script("whole leaf", 27);
  insert.index += ",vacancy=off";
  sweep(with_first(insert, between, {kNoSplit, kNoHop}));
  insert.name = "whole leaf, hops";
  sweep(with_first(insert, between, {kNoSplit, kSeveralHops}));
}

TEST_P(ChimeCrashSweep, LeafSplits) {
  sweep(with_first(script("split", 27), between, {kOneSplit}));
}

TEST_P(ChimeCrashSweep, LeafAndInnerNodeSplit) {
  Script both = script("both", integer() ? 60 : 30);
  both.index = kTinyChime;
  sweep(with_first(both, between, {kTwoSplits}));
}

INSTANTIATE_TEST_SUITE_P(All, ChimeCrashSweep,
                         ::testing::Values(KeyNames::kInteger, KeyNames::kLongBytes),
                         [](const auto& info) {
                           return info.param == KeyNames::kInteger ? "integer" : "bytes";
                         });

TEST(ChimeCrashes, UpdateOfAValueOutOfLine) {
  Script script = chime_script("long values", KeyNames::kInteger, 0);
  script.before = ascending(10, std::string(100, 'o'));
  script.by_victim = {{Step::kUpdate, 6, std::string(300, 'n')},
                      {Step::kPut, 7, std::string(300, 'n')},
                      {Step::kErase, 6, {}}};
  script.keys = 24;
  sweep(script);
}

TEST(ChimeCrashes, SplitsOfTheFirstLeafAndTheLast) {
  sweep(with_first(chime_script("first", KeyNames::kInteger, 10), between, {kOneSplit}));
  sweep(with_first(chime_script("last", KeyNames::kInteger, 27), beyond, {kOneSplit}));
}

// Every verb in a round trip of its own.
TEST(ChimeCrashes, WithoutCombinedRoundTrips) {
  Script script = chime_script("apart", KeyNames::kInteger, 27);
  script.index += ",lock_with_read=off,unlock_with_write=off";
  sweep(with_first(script, between, {kNoSplit, kSeveralHops}));
}

// Splits cut elsewhere.
TEST(ChimeCrashes, WithOrderedHomes) {
  Script script = chime_script("ordered", KeyNames::kInteger, 27);
  script.index += ",ordered_homes=on";
  sweep(with_first(script, between, {kOneSplit}));
  sweep(with_first(script, erase_ascending, {kOneMerge}));
}

// Replicas that hold fences.
TEST(ChimeCrashes, WithoutSiblingValidation) {
  Script script = chime_script("fences", KeyNames::kInteger, 27);
  script.index += ",sibling_validation=off";
  sweep(with_first(script, between, {kOneSplit}));
  sweep(with_first(script, erase_ascending, {kOneMerge}));
}

TEST(ChimeCrashes, EmulatedMaskedCas) {
  Script script = chime_script("emulated", KeyNames::kInteger, 27);
  script.native_masked_cas = false;
  sweep(with_first(script, between, {kNoSplit, kSeveralHops}));
  sweep(with_first(script, erase_ascending, {kOneMerge}));
}

TEST(ChimeCrashes, LeavesMerge) {
  sweep(with_first(chime_script("merge", KeyNames::kInteger, 40), erase_ascending, {kOneMerge}));
  sweep(
      with_first(chime_script("backwards", KeyNames::kInteger, 40), erase_descending, {kOneMerge}));
}

TEST(ChimeCrashes, InnerNodesMerge) {
  Script script = chime_script("inner merge", KeyNames::kInteger, 120);
  script.index = kTinyChime;
  sweep(with_first(script, erase_ascending, {kTwoMerges}));
}

TEST(ChimeCrashes, RepairersOfHops) {
  sweep_repairs(
      with_first(chime_script("hops", KeyNames::kInteger, 27), between, {kNoSplit, kSeveralHops}));
}

TEST(ChimeCrashes, RepairersOfSplits) {
  sweep_repairs(with_first(chime_script("split", KeyNames::kInteger, 27), between, {kOneSplit}));
  // Where parts of a leaf are small, some read as before the split, some as after it, and some as
  // the repairer left them.
  Script parts = chime_script("split in parts", KeyNames::kInteger, 20);
  parts.index = "chime:span=32,neighbourhood=2,inner_bytes=256";
  sweep_repairs(with_first(parts, between, {kOneSplit}));
}

TEST(ChimeCrashes, RepairersOfMerges) {
  sweep_repairs(
      with_first(chime_script("merge", KeyNames::kInteger, 40), erase_ascending, {kOneMerge}));
}

// Of two header lines, the second one has the low fence: a dead node keeps it.
TEST(ChimeCrashes, LeavesOfLongKeysMerge) {
  sweep(with_first(chime_script("merge", KeyNames::kLongBytes, 40), erase_ascending, {kOneMerge}));
}

TEST(ChimeCrashes, InnerNodesOfLongKeysMerge) {
  Script script = chime_script("inner merge", KeyNames::kLongBytes, 60);
  script.index = kTinyChime;
  sweep(with_first(script, erase_ascending, {kTwoMerges}));
}

// Some have the right node in their caches when it dies, and do not come to its entry above.
TEST(ChimeCrashes, InnerNodesOfLongKeysMergeUnderAParentThatNamesTheDead) {
  for (const std::uint64_t keys : {67u, 96u}) {
    Script script =
        chime_script(fmt::format("inner merge, {} keys", keys), KeyNames::kLongBytes, keys);
    script.index = kTinyChime;
    ASSERT_TRUE(choose_first(script, erase_ascending(keys), {kTwoMerges}));
    sweep(script);
  }
}

TEST(ChimeCrashes, RepairersOfMergesOfLongKeys) {
  sweep_repairs(
      with_first(chime_script("merge", KeyNames::kLongBytes, 40), erase_ascending, {kOneMerge}));
}

}  // namespace
}  // namespace pando::testing
