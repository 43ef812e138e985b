// Proof that the checker can fail: each deliberate fault is found within so many seeds.
//
// The number is what was needed, with room for the schedules that later changes will give; a mutant
// that needs more is either harmless by now or no longer looked for, and both are news.
#include "base/mutants.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "lab/check/plan.h"
#include "lab/check/scenario.h"

namespace pando::lab::check {
namespace {

using base::Mutant;

struct Case {
  const char* name;
  Mutant mutant;
  std::uint64_t seeds;
  const char* faults = "all";
  // Where the fault needs a certain crowd to show.
  const char* index = "sherman";
  CheckSizes sizes = {};
  CheckedFabric fabric = CheckedFabric::kSim;
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

Case over_tcp(const char* name, Mutant mutant, std::uint64_t seeds) {
  return {name, mutant, seeds, "all", "sherman", {}, CheckedFabric::kTcp};
}

class Mutants : public testing::TestWithParam<Case> {
 protected:
  ~Mutants() override { base::active_mutant = Mutant::kNone; }

  static CheckOutcome run(std::uint64_t seed, const Case& given) {
    const FaultSet faults = FaultSet::parse(given.faults).value();
    return run_check(draw_plan(seed, given.index, faults, given.sizes, given.fabric).value());
  }
  static std::uint64_t lost(Mutant mutant, const Case& given) {
    base::active_mutant = mutant;
    std::uint64_t bytes = 0;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) bytes += run(seed, given).coverage.lost_bytes;
    return bytes;
  }
};

TEST_P(Mutants, IsFound) {
  const Case& given = GetParam();
  base::active_mutant = given.mutant;
  for (std::uint64_t seed = 1; seed <= given.seeds; ++seed) {
    const CheckOutcome outcome = run(seed, given);
    if (!outcome.failed()) continue;
    RecordProperty("seed", std::to_string(seed));
    RecordProperty("problem", outcome.problems.front());
    std::printf("found with seed %s: %.300s\n", std::to_string(seed).c_str(),
                outcome.problems.front().c_str());
    return;
  }
  FAIL() << "not found within " << given.seeds << " seeds";
}

// What the others are held against: this copy without a mutant is right.
TEST_F(Mutants, NoneIsFoundWithoutOne) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const CheckOutcome outcome = run(seed, Case{"none", Mutant::kNone, 0});
    ASSERT_FALSE(outcome.failed()) << "seed " << seed << ": " << outcome.problems.front();
  }
}

TEST_F(Mutants, NoneIsFoundOverTcpWithoutOne) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const CheckOutcome outcome = run(seed, over_tcp("none", Mutant::kNone, 0));
    ASSERT_FALSE(outcome.failed()) << "seed " << seed << ": " << outcome.problems.front();
  }
}

// No answer is wrong and nothing is in use twice where the dead's memory is lost: the sum tells.
TEST_F(Mutants, MemoryIsLostWithoutLedgers) {
  const Case deaths{"deaths", Mutant::kNone, 0, "tear,delay,kill,pause"};
  EXPECT_GT(lost(Mutant::kNothingListed, deaths), 2 * lost(Mutant::kNone, deaths));
}

// Any dropped task may lose a block, to its last WRITE: that more do, the sum tells.
TEST_F(Mutants, MemoryIsLostByDroppedTasks) {
  const Case drops{"drops", Mutant::kNone, 0, "tear,delay,leave,drop"};
  EXPECT_GT(lost(Mutant::kDroppedBlock, drops), 2 * lost(Mutant::kNone, drops));
}

// Most need a handful; those that need a death or a READ at a certain moment, hundreds.
constexpr std::uint64_t kFew = 200;
constexpr std::uint64_t kMany = 10'000;

INSTANTIATE_TEST_SUITE_P(
    All, Mutants,
    testing::Values(
        Case{"no_version_check", Mutant::kNoVersionCheck, kMany},
        Case{"bookend_versions", Mutant::kBookendVersions, kMany},
        Case{"no_birth_check",
             Mutant::kNoBirthCheck,
             kMany,
             "tear,delay",
             "sherman:keys=bytes,leaf_bytes=256,inner_bytes=512",
             {.compute_nodes = 3, .clients = 1, .tasks = 2, .operations = 300, .keys = 64}},
        Case{"no_fence_check", Mutant::kNoFenceCheck, kFew},
        Case{"scan_with_gaps", Mutant::kScanWithGaps, kFew},
        Case{"scan_twice",
             Mutant::kScanTwice,
             kMany,
             "tear",
             "sherman:keys=integer,leaf_bytes=512",
             {.compute_nodes = 3, .clients = 2, .tasks = 2, .operations = 300, .keys = 16}},
        Case{"unlock_first", Mutant::kUnlockFirst, kFew},
        Case{"key_before_value", Mutant::kKeyBeforeValue, kMany},
        Case{"lines_before_header", Mutant::kLinesBeforeHeader, kMany},
        Case{"lost_sibling", Mutant::kLostSibling, kFew}, Case{"no_floor", Mutant::kNoFloor, kMany},
        Case{"no_lock", Mutant::kNoLock, kFew}, Case{"no_epochs", Mutant::kNoEpochs, kFew},
        Case{"update_keeps_old", Mutant::kUpdateKeepsOld, kFew},
        Case{"dropped_fetch", Mutant::kDroppedFetch, kMany, "delay,leave,drop"},
        Case{"no_takeover", Mutant::kNoTakeover, kFew}, Case{"no_fence", Mutant::kNoFence, kMany},
        Case{"no_repair", Mutant::kNoRepair, kMany},
        Case{"no_leaving",
             Mutant::kNoLeaving,
             kMany,
             "kill",
             "sherman:keys=integer,leaf_bytes=256",
             {.compute_nodes = 3, .clients = 1, .tasks = 1, .operations = 300, .keys = 64}},
        Case{"forgotten_lock", Mutant::kForgottenLock, kFew},
        over_tcp("old_generation", Mutant::kOldGeneration, kMany),
        over_tcp("leave_closes_nothing", Mutant::kLeaveClosesNothing, kMany),
        over_tcp("early_fence", Mutant::kEarlyFence, kFew),
        over_tcp("never_forgotten", Mutant::kNeverForgotten, kFew),
        Case{"begun_is_free", Mutant::kBegunIsFree, kFew},
        Case{"given_while_listed",
             Mutant::kGivenWhileListed,
             kMany,
             "kill,pause",
             "chime:keys=bytes,span=16,neighbourhood=4",
             {.compute_nodes = 2, .clients = 1, .tasks = 2, .operations = 100, .keys = 64}},
        Case{"recovered_twice", Mutant::kRecoveredTwice, kFew},
        Case{"no_quiesce", Mutant::kNoQuiesce, kMany},
        Case{"in_doubt_is_over", Mutant::kInDoubtIsOver, kMany},
        Case{"written_twice",
             Mutant::kWrittenTwice,
             kMany,
             "tear,delay,drop",
             "sherman:combine=on,keys=integer",
             {.memory_nodes = 1,
              .compute_nodes = 2,
              .clients = 3,
              .tasks = 3,
              .operations = 60,
              .keys = 2}},
        Case{"half_fence", Mutant::kHalfFence, kMany},
        Case{"fence_stops_heart", Mutant::kFenceStopsHeart, kMany},
        Case{"closed_ledger", Mutant::kClosedLedger, kMany},
        Case{"given_twice", Mutant::kGivenTwice, kFew},
        Case{"chime_no_version_check", Mutant::kNoVersionCheck, kMany, "all", "chime"},
        Case{"chime_no_bitmap_check", Mutant::kNoBitmapCheck, kMany, "all", "chime"},
        Case{"late_delegation", Mutant::kLateDelegation, kMany, "all", "sherman:combine=on"},
        Case{"chime_no_replica_check", Mutant::kNoReplicaCheck, kFew, "all", "chime"},
        Case{"chime_no_part_check", Mutant::kNoPartCheck, kFew, "tear,delay", "chime:keys=integer"},
        Case{"chime_blind_speculation", Mutant::kBlindSpeculation, kFew, "all", "chime"},
        Case{"chime_unlock_first", Mutant::kUnlockFirst, kFew, "all", "chime"},
        Case{"chime_no_lock", Mutant::kNoLock, kFew, "all", "chime"},
        Case{"chime_lost_sibling", Mutant::kLostSibling, kFew, "all", "chime"},
        Case{"chime_no_repair", Mutant::kNoRepair, kMany, "all", "chime"},
        Case{"chime_no_leaving",
             Mutant::kNoLeaving,
             kMany,
             "kill",
             "chime:keys=integer,span=16,neighbourhood=4",
             {.compute_nodes = 3, .clients = 1, .tasks = 1, .operations = 300, .keys = 64}},
        Case{"chime_update_keeps_old", Mutant::kUpdateKeepsOld, kFew, "all", "chime"},
        Case{"chime_no_takeover", Mutant::kNoTakeover, kFew, "all", "chime"},
        Case{"chime_forgotten_lock", Mutant::kForgottenLock, kFew, "all", "chime"},
        Case{"chime_begun_is_free", Mutant::kBegunIsFree, kFew, "all", "chime"},
        Case{"chime_recovered_twice", Mutant::kRecoveredTwice, kFew, "all", "chime"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace pando::lab::check
