// The toy index (support/toy_index.h), on the simulated cluster, with everything that can go wrong:
// whoever keeps to index/common/ and pool/ is safe from all of it.
#include <gtest/gtest.h>

#include <string>

#include "index/registry.h"
#include "lab/check/campaign.h"
#include "lab/check/report.h"
#include "lab/check/scenario.h"
#include "support/scale.h"
#include "support/toy_index.h"

namespace pando::lab::check {
namespace {

class ToySeeds : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(index::add_kind(testing::toy_kind())); }

  static CampaignReport run(std::uint64_t first, std::uint64_t count, const char* faults) {
    Progress silent(Progress::Style::kNone);
    const CampaignOptions options{.indexes = {"toy"},
                                  .first_seed = first,
                                  .last_seed = first + count - 1,
                                  .faults = FaultSet::parse(faults).value(),
                                  .keep_going = true};
    CampaignReport report =
        run_campaign(options, [](const CheckPlan& plan) { return run_check(plan); }, silent);
    std::string failures;
    for (const CheckFailure& failure : report.failures) failures += format_further_failure(failure);
    EXPECT_EQ(failures, "");
    EXPECT_EQ(report.coverage.front().runs, count);
    return report;
  }
};

TEST_F(ToySeeds, PassWithAllFaults) {
  const CampaignReport report = run(1, 200, "all");
  const CheckCoverage& covered = report.coverage.front();
  EXPECT_LE(covered.undecided, 2u);
  for (const auto& [name, count] : covered.index) EXPECT_GT(count, 0u) << name;
}

// No block may leak where nobody dies.
TEST_F(ToySeeds, PassWithoutFaults) {
  for (const char* faults : {"none", "tear,delay", "leave,drop"}) {
    run(10'001, testing::scaled(50, 10), faults);
  }
}

}  // namespace
}  // namespace pando::lab::check
