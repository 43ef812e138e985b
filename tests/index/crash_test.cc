// What is left when a compute node dies at any verb of an operation: sherman, and whatever does not
// depend on the index.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "index/crash_sweep.h"

namespace pando::testing {
namespace {

TEST(CrashSweep, PutIntoAnEmptyTree) {
  sweep({"integer", KeyNames::kInteger, 12, {}, {{Step::kPut, 5, "new"}}});
  sweep({"bytes", KeyNames::kShortBytes, 12, {}, {{Step::kPut, 5, "new"}}});
}

TEST(CrashSweep, UpdateOfAValueOutOfLine) {
  const std::string old_value(100, 'o');
  const std::string new_value(300, 'n');
  sweep({"update",
         KeyNames::kInteger,
         24,
         ascending(10, old_value),
         {{Step::kUpdate, 6, new_value}, {Step::kPut, 7, new_value}, {Step::kErase, 6, {}}}});
}

TEST(CrashSweep, FirstLeafSplits) {
  sweep({"integer", KeyNames::kInteger, 20, ascending(9), {{Step::kInsert, 7, "new"}}});
  sweep({"bytes", KeyNames::kLongBytes, 14, ascending(6), {{Step::kInsert, 5, "new"}}});
}

TEST(CrashSweep, LeafSplits) {
  sweep(
      {"into the left half", KeyNames::kInteger, 56, ascending(27), {{Step::kInsert, 19, "new"}}});
  sweep(
      {"into the right half", KeyNames::kInteger, 56, ascending(27), {{Step::kInsert, 35, "new"}}});
  sweep({"by appending", KeyNames::kInteger, 60, ascending(27), {{Step::kInsert, 55, "new"}}});
}

TEST(CrashSweep, LeafOfLongKeysSplits) {
  sweep({"long separators", KeyNames::kLongBytes, 40, ascending(18), {{Step::kInsert, 15, "new"}}});
}

TEST(CrashSweep, LeafAndInnerNodeSplitAndTheRootGrows) {
  sweep({"integer", KeyNames::kInteger, 164, ascending(81), {{Step::kInsert, 75, "new"}}});
}

TEST(CrashSweep, LongKeysSplitLeafAndInnerNodeAndTheRootGrows) {
  sweep({"long separators", KeyNames::kLongBytes, 52, ascending(24), {{Step::kInsert, 21, "new"}}});
}

TEST(CrashSweep, NodesThatShareLocks) {
  sweep({"split", KeyNames::kInteger, 56, ascending(27), {{Step::kInsert, 19, "new"}}, true});
  sweep(around_costliest("merge", KeyNames::kInteger, ascending(27), erase_all(27, false), true));
  sweep(around_costliest("long merge", KeyNames::kLongBytes, ascending(18), erase_all(18, true),
                         true));
}

TEST(CrashSweep, RepairersOfSplits) {
  sweep_repairs({"split", KeyNames::kInteger, 56, ascending(27), {{Step::kInsert, 19, "new"}}});
  sweep_repairs(
      {"long split", KeyNames::kLongBytes, 52, ascending(24), {{Step::kInsert, 21, "new"}}});
}

TEST(CrashSweep, RepairersOfMerges) {
  sweep_repairs(
      around_costliest("leaves", KeyNames::kInteger, ascending(27), erase_all(27, false)));
  sweep_repairs(
      around_costliest("inner nodes", KeyNames::kLongBytes, ascending(48), erase_all(48, false)));
}

TEST(CrashSweep, LeavesMerge) {
  sweep(around_costliest("integer", KeyNames::kInteger, ascending(27), erase_all(27, false)));
}

TEST(CrashSweep, LeavesOfLongKeysMerge) {
  sweep(around_costliest("long separators", KeyNames::kLongBytes, ascending(18),
                         erase_all(18, false)));
}

TEST(CrashSweep, InnerNodesMerge) {
  sweep(around_costliest("ascending", KeyNames::kInteger, ascending(110), erase_all(110, false)));
  sweep(around_costliest("descending", KeyNames::kInteger, ascending(110), erase_all(110, true)));
}

TEST(CrashSweep, InnerNodesOfLongKeysMerge) {
  sweep(around_costliest("long separators", KeyNames::kLongBytes, ascending(48),
                         erase_all(48, false)));
}

// Some have the right node in their caches when it dies, and do not come to its entry above.
TEST(CrashSweep, InnerNodesOfLongKeysMergeUnderAParentThatNamesTheDead) {
  for (const std::uint64_t keys : {49u, 73u, 84u}) {
    Script script{.name = fmt::format("inner merge, {} keys", keys),
                  .names = KeyNames::kLongBytes,
                  .before = ascending(keys)};
    ASSERT_TRUE(choose_first(script, erase_ascending(keys), {kTwoMerges}));
    sweep(script);
  }
}

// ---- Victims that stop while others wait

// A put into a leaf that is known: CAS and READ, then WRITE and unlock.
constexpr std::uint64_t kBetweenLockAndWrite = 2;

class Crash : public ::testing::TestWithParam<const char*> {};

TEST_P(Crash, ThoseWhoWaitForTheDeadGoOn) {
  const CrashCluster cluster({.index = GetParam()});
  Survivor survivor(cluster, 10s);
  survivor.create(cluster);
  for (std::uint64_t key = 0; key < 30; ++key) {
    ASSERT_TRUE(survivor.apply({Step::kPut, key, "before"}));
  }
  auto victim = std::make_unique<Victim>(cluster, survivor.index());
  ASSERT_TRUE(victim->get(4));
  victim->faults->count_from_here();
  victim->faults->hold_up_at(kBetweenLockAndWrite);
  std::thread dying([&] {
    EXPECT_FALSE(victim->apply({Step::kPut, 4, "victim"}));
    victim.reset();
  });
  const std::shared_ptr<Faults> faults = victim->faults;
  ASSERT_TRUE(faults->wait_until_held_up(5s));

  std::vector<std::thread> waiting;
  waiting.reserve(4);
  std::atomic<int> failures{0};
  for (std::uint64_t i = 0; i < 4; ++i) {
    waiting.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        if (!survivor.apply({Step::kPut, i, std::to_string(round)})) ++failures;
      }
    });
  }
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(survivor.get(4).value(), "before") << "reading needs no lock";
  faults->die_now();
  dying.join();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(survivor.count("lock_takeovers"), 1);
  EXPECT_EQ(survivor.get(4).value(), "before");
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(survivor.get(i).value(), "19");
  const Status checked = survivor.check();
  EXPECT_TRUE(checked) << checked.error().message();
}

TEST_P(Crash, ThePausedAreNotTakenForDead) {
  const CrashCluster cluster({.index = GetParam()});
  Survivor survivor(cluster, 300ms);
  survivor.create(cluster);
  for (std::uint64_t key = 0; key < 30; ++key) {
    ASSERT_TRUE(survivor.apply({Step::kPut, key, "before"}));
  }
  Victim victim(cluster, survivor.index());
  ASSERT_TRUE(victim.get(4));
  victim.faults->count_from_here();
  victim.faults->hold_up_at(kBetweenLockAndWrite);
  std::thread paused([&] { EXPECT_TRUE(victim.apply({Step::kPut, 4, "victim"})); });
  ASSERT_TRUE(victim.faults->wait_until_held_up(5s));

  std::vector<std::thread> waiting;
  waiting.reserve(4);
  for (std::uint64_t i = 0; i < 3; ++i) {
    waiting.emplace_back([&, i] {
      const auto start = std::chrono::steady_clock::now();
      const Status put = survivor.apply({Step::kPut, i, "too late"});
      const auto took = std::chrono::steady_clock::now() - start;
      ASSERT_FALSE(put);
      EXPECT_EQ(put.error().code(), ErrorCode::kTimeout) << put.error().message();
      EXPECT_GE(took, 300ms);
      EXPECT_LT(took, 3s);
    });
  }
  for (std::uint64_t key = 20; key < 30; ++key) {
    EXPECT_TRUE(survivor.apply({Step::kPut, key, "meanwhile"})) << "another leaf";
  }
  EXPECT_EQ(survivor.get(4).value(), "before");
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(survivor.count("lock_takeovers"), 0);

  victim.faults->go_on();
  paused.join();
  EXPECT_EQ(survivor.get(4).value(), "victim");
  for (std::uint64_t key = 0; key < 3; ++key) {
    EXPECT_EQ(survivor.get(key).value(), "before") << "a timeout before the lock changes nothing";
    EXPECT_TRUE(survivor.apply({Step::kPut, key, "after"}));
  }
  const Status checked = survivor.check();
  EXPECT_TRUE(checked) << checked.error().message();
}

INSTANTIATE_TEST_SUITE_P(All, Crash, ::testing::Values(kSmallSherman, kSmallChime),
                         [](const auto& info) {
                           const std::string_view text = info.param;
                           return std::string(text.substr(0, text.find(':')));
                         });

}  // namespace
}  // namespace pando::testing
