// Campaigns of made-up runs: what is reported does not depend on threads.
#include "lab/check/campaign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "lab/check/report.h"

namespace pando::lab::check {
namespace {

using ::testing::HasSubstr;

// Runs that take any time, some of which fail.
class FakeRuns {
 public:
  explicit FakeRuns(std::set<std::uint64_t> failing = {}) : failing_(std::move(failing)) {}

  CheckOutcome run(const CheckPlan& plan) {
    ++begun;
    std::this_thread::sleep_for(std::chrono::microseconds(plan.seed * 7919 % 500));
    CheckOutcome outcome;
    outcome.digest = plan.seed * 1000 + plan.index_words.size();
    outcome.coverage.runs = 1;
    outcome.coverage.operations = plan.seed;
    if (failing_.contains(plan.seed)) outcome.problems.emplace_back("so it is");
    return outcome;
  }

  CampaignReport campaign(const CampaignOptions& options) {
    Progress silent(Progress::Style::kNone);
    return run_campaign(options, [this](const CheckPlan& plan) { return run(plan); }, silent);
  }

  std::atomic<std::uint64_t> begun{0};

 private:
  const std::set<std::uint64_t> failing_;
};

CampaignOptions seeds(std::uint64_t first, std::uint64_t last, unsigned jobs = 1) {
  return {.indexes = {"sherman"}, .first_seed = first, .last_seed = last, .jobs = jobs};
}

std::vector<std::uint64_t> failed_seeds(const CampaignReport& report) {
  std::vector<std::uint64_t> failed;
  for (const CheckFailure& failure : report.failures) failed.push_back(failure.plan.seed);
  return failed;
}

TEST(Campaign, RunsEachSeedOnceWithEachIndex) {
  FakeRuns runs;
  CampaignOptions options = seeds(3, 12, 4);
  options.indexes = {"sherman", "sherman:cache=off"};
  const CampaignReport report = runs.campaign(options);
  EXPECT_EQ(report.runs, 20u);
  EXPECT_EQ(runs.begun, 20u);
  EXPECT_EQ(report.last_seed, 12u);
  ASSERT_EQ(report.coverage.size(), 2u);
  for (const CheckCoverage& coverage : report.coverage) {
    EXPECT_EQ(coverage.runs, 10u);
    EXPECT_EQ(coverage.operations, 75u);
  }
  EXPECT_FALSE(report.interrupted);
}

TEST(Campaign, ReportsTheSameWithAnyNumberOfThreads) {
  std::string expected;
  for (const unsigned jobs : {1u, 2u, 3u, 8u, 100u}) {
    for (const bool keep_going : {false, true}) {
      FakeRuns runs({17, 23, 24, 25, 60});
      CampaignOptions options = seeds(1, 70, jobs);
      options.keep_going = keep_going;
      const CampaignReport report = runs.campaign(options);
      using ::testing::ElementsAre;
      if (keep_going) {
        EXPECT_THAT(failed_seeds(report), ElementsAre(17, 23, 24, 25, 60));
        EXPECT_EQ(report.runs, 70u);
        continue;
      }
      EXPECT_THAT(failed_seeds(report), ElementsAre(17));
      EXPECT_EQ(report.last_seed, 17u);
      const std::string text = format_coverage(options, report);
      if (expected.empty()) expected = text;
      EXPECT_EQ(text, expected);
    }
  }
}

TEST(Campaign, DigestTellsSeedsAndTheirOrder) {
  FakeRuns runs;
  std::set<std::uint64_t> digests;
  for (const auto& [first, last] : {std::pair(1, 5), {1, 6}, {2, 6}, {2, 7}}) {
    digests.insert(
        runs.campaign(seeds(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(last)))
            .digest);
  }
  EXPECT_EQ(digests.size(), 4u);
}

TEST(Campaign, GoesOnUntilItsTimeIsOver) {
  FakeRuns runs;
  CampaignOptions options = seeds(1, 3, 2);
  options.lasts = std::chrono::milliseconds(50);
  const CampaignReport report = runs.campaign(options);
  EXPECT_GE(report.runs, 3u);
  EXPECT_EQ(report.runs, report.last_seed);
  EXPECT_EQ(report.runs, runs.begun);

  options.lasts = std::chrono::nanoseconds(1);
  EXPECT_EQ(runs.campaign(options).runs, 3u) << "the range is run in any case";
}

TEST(Campaign, EndsWhereItIsInterrupted) {
  std::atomic<bool> interrupted{false};
  CampaignOptions options = seeds(1, 1'000'000, 3);
  options.interrupted = &interrupted;
  Progress silent(Progress::Style::kNone);
  const CampaignReport report = run_campaign(
      options,
      [&](const CheckPlan& plan) {
        if (plan.seed == 20) interrupted = true;
        return CheckOutcome{.digest = plan.seed};
      },
      silent);
  EXPECT_TRUE(report.interrupted);
  EXPECT_GE(report.runs, 20u);
  EXPECT_EQ(report.runs, report.last_seed);
}

TEST(Campaign, RefusesWhatHasNoPlan) {
  const auto refused = [](CampaignOptions options) {
    const Status status = validate(options);
    return status ? "" : status.error().message();
  };
  EXPECT_EQ(refused(seeds(1, 2)), "");
  CampaignOptions options = seeds(1, 2);
  options.indexes.emplace_back("oak");
  EXPECT_THAT(refused(options), HasSubstr("'oak'"));
  options = seeds(1, 2);
  options.sizes.compute_nodes = 65;
  EXPECT_THAT(refused(options), HasSubstr("--compute-nodes: 65"));
}

// A key type that is drawn may not go with settings that were given.
TEST(Campaign, GivenSettingsHaveAPlanWithEverySeed) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const auto plan = draw_plan(seed, "sherman:inline_value=16", FaultSet::all(), {});
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_EQ(plan->index.settings.at("inline_value"), "16");
  }
}

}  // namespace
}  // namespace pando::lab::check
