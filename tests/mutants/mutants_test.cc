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
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

class Mutants : public testing::TestWithParam<Case> {
 protected:
  ~Mutants() override { base::active_mutant = Mutant::kNone; }

  static CheckOutcome run(std::uint64_t seed, const char* faults) {
    const auto plan = draw_plan(seed, "sherman", FaultSet::parse(faults).value(), {});
    return run_check(plan.value());
  }
};

TEST_P(Mutants, IsFound) {
  const Case& given = GetParam();
  base::active_mutant = given.mutant;
  for (std::uint64_t seed = 1; seed <= given.seeds; ++seed) {
    const CheckOutcome outcome = run(seed, given.faults);
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
    const CheckOutcome outcome = run(seed, "all");
    ASSERT_FALSE(outcome.failed()) << "seed " << seed << ": " << outcome.problems.front();
  }
}

constexpr std::uint64_t kSeeds = 2000;

INSTANTIATE_TEST_SUITE_P(All, Mutants,
                         testing::Values(Case{"no_version_check", Mutant::kNoVersionCheck, kSeeds},
                                         Case{"bookend_versions", Mutant::kBookendVersions, kSeeds},
                                         Case{"no_birth_check", Mutant::kNoBirthCheck, kSeeds},
                                         Case{"no_fence_check", Mutant::kNoFenceCheck, kSeeds},
                                         Case{"scan_with_gaps", Mutant::kScanWithGaps, kSeeds},
                                         Case{"scan_twice", Mutant::kScanTwice, kSeeds},
                                         Case{"unlock_first", Mutant::kUnlockFirst, kSeeds},
                                         Case{"key_before_value", Mutant::kKeyBeforeValue, kSeeds},
                                         Case{"lines_before_header", Mutant::kLinesBeforeHeader,
                                              kSeeds},
                                         Case{"lost_sibling", Mutant::kLostSibling, kSeeds},
                                         Case{"no_floor", Mutant::kNoFloor, kSeeds},
                                         Case{"no_lock", Mutant::kNoLock, kSeeds},
                                         Case{"no_epochs", Mutant::kNoEpochs, kSeeds},
                                         Case{"update_keeps_old", Mutant::kUpdateKeepsOld, kSeeds},
                                         Case{"no_takeover", Mutant::kNoTakeover, kSeeds},
                                         Case{"no_fence", Mutant::kNoFence, kSeeds},
                                         Case{"no_repair", Mutant::kNoRepair, kSeeds},
                                         Case{"no_leaving", Mutant::kNoLeaving, kSeeds},
                                         Case{"forgotten_lock", Mutant::kForgottenLock, kSeeds}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace pando::lab::check
