// Every index kind, on the simulated cluster, with everything that can go wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "index/registry.h"
#include "lab/check/campaign.h"
#include "lab/check/report.h"
#include "lab/check/scenario.h"
#include "support/scale.h"

namespace pando::lab::check {
namespace {

CheckOutcome run_plainly(const CheckPlan& plan) { return run_check(plan); }

CampaignReport run_seeds(CampaignOptions options) {
  Progress silent(Progress::Style::kNone);
  return run_campaign(options, run_plainly, silent);
}

std::string describe_failures(const CampaignReport& report) {
  std::string text;
  for (const CheckFailure& failure : report.failures) text += format_further_failure(failure);
  return text;
}

std::vector<std::string> all_kinds() {
  std::vector<std::string> names;
  for (const index::Kind* kind : index::kinds()) names.emplace_back(kind->name());
  return names;
}

// 2,000 seeds of each kind, in parts that run beside each other.
constexpr unsigned kParts = 4;

struct Part {
  std::string index;
  unsigned number = 0;
};

void PrintTo(const Part& part, std::ostream* out) { *out << part.index << " " << part.number; }

std::vector<Part> all_parts() {
  std::vector<Part> parts;
  for (const std::string& index : all_kinds()) {
    for (unsigned i = 0; i < kParts; ++i) parts.push_back({index, i});
  }
  return parts;
}

class AllFaults : public ::testing::TestWithParam<Part> {};

TEST_P(AllFaults, Pass) {
  const std::uint64_t count = testing::scaled(500, 20);
  const std::uint64_t first = 1 + GetParam().number * count;
  const CampaignReport report = run_seeds({.indexes = {GetParam().index},
                                           .first_seed = first,
                                           .last_seed = first + count - 1,
                                           .keep_going = true});
  EXPECT_EQ(report.runs, count);
  EXPECT_TRUE(report.failures.empty()) << describe_failures(report);
  // None was given up before it began, and next to none for being too hard to judge.
  EXPECT_EQ(report.coverage.front().runs, count);
  EXPECT_LE(report.coverage.front().undecided, count / 100);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AllFaults, ::testing::ValuesIn(all_parts()), [](const auto& info) {
  return info.param.index + "_" + std::to_string(info.param.number);
});

// The checks that only runs without deaths and broken links have: no block may leak.
TEST(Seeds, PassWithoutFaults) {
  const std::uint64_t count = testing::scaled(300, 20);
  for (const char* faults : {"none", "tear,delay"}) {
    const CampaignReport report = run_seeds({.indexes = all_kinds(),
                                             .first_seed = 10'001,
                                             .last_seed = 10'000 + count,
                                             .faults = FaultSet::parse(faults).value(),
                                             .keep_going = true});
    EXPECT_TRUE(report.failures.empty()) << describe_failures(report);
  }
}

// Each of these failed once; what it found has been mended. What faults there were then, by name:
// more have come since.
TEST(Seeds, ThatFailedOnce) {
  constexpr const char* kOldFaults = "tear,delay,kill,pause,cut,restart,lose";
  struct Found {
    std::uint64_t seed;
    const char* faults;
    CheckSizes sizes;
    const char* index = "sherman";
  };
  const std::vector<Found> all = {
      // No heartbeat while the housekeeper had much to collect: fenced, though it lived.
      {12, "none", {1, 1, 1, 1, 1, 4369}},
      // A page in the hands of who was leaving looked like a leak.
      {3012408, "leave", {1, 4, 1, 2, 30, 64}},
      // A split of an inner root whose link broke was never posted by those who met it.
      {36265, "tear,delay,cut", {2, 2, 3, 2, 36, 64}},
      {21614, kOldFaults, {}},
      {44964, kOldFaults, {}},
      // A catalogue lock that could not be given back was held for ever.
      {50023, kOldFaults, {}},
      // A cached inner node hid that its sibling was never posted: a root that stayed split.
      {114943, "tear,delay,kill,restart", {1, 3, 2, 1, 60, 128}},
      // Nobody took over the lock of a dead node's parent where there was no need to wait.
      {121522, "tear,delay,kill", {1, 2, 1, 2, 60, 32}},
      // A merge whose parent was out of reach forgot that the parent names a dead leaf.
      {10967, "tear,delay,kill,pause", {2, 3, 2, 3, 30, 16}, "chime"},
      {11210, "delay,cut", {2, 3, 1, 1, 120, 250}, "chime"},
      {44581, "delay,restart", {3, 2, 1, 1, 34, 32}, "chime"},
      {62432, "tear,delay,pause,cut,restart", {3, 4, 2, 2, 10, 64}, "chime"},
      // Readers of a leaf whose fence was in lost memory looked again until their time was up.
      {787192, "tear,delay,kill,lose", {2, 2, 3, 2, 8, 128}, "chime"},
      // Who left while it fenced another one was taken for dead: its heart had stopped.
      {4977, "all", {}, "chime"},
      // A drop of unknown outcome blocked the index's name.
      {2524, "all", {}},
      // Memory nodes that joined with smaller ids than others counted as lost.
      {3787, "all", {}, "chime"},
      // What was retired was lost at a close, where a full pool had no room to list it.
      {880, "tear,cut,restart,leave", {}},
      {880, "tear,cut,restart,leave", {}, "chime"},
      {2025144, "tear,pause,leave,drop,atomics", {1, 2, 3, 1, 60, 8}},
      {2030417, "tear,delay,leave,drop", {1, 4, 3, 3, 10, 128}, "chime"},
      {2052660, "tear,delay,kill,cut,leave", {1, 2, 2, 2, 300, 1}},
      // A split was finished for the dead after its new key had been seen to be missing.
      {2104514, "tear,kill,pause,leave", {3, 3, 1, 3, 17, 64}, "chime"},
      {2071694, "tear,delay,kill,leave,drop", {2, 2, 3, 3, 30, 64}, "chime"},
      {2056557, "tear,kill", {1, 2, 3, 2, 300, 64}, "chime"},
      // Who finished that split died as well, and the next one took keys out that had moved.
      {6032237, "tear,delay,kill,restart,drop", {1, 2, 2, 1, 10, 64}, "chime"},
      {6061610, "tear,kill,drop", {2, 4, 2, 2, 60, 64}, "chime"},
      // Pages of the dead were struck by a WRITE of unknown outcome, and what they listed was lost.
      {6031454, "tear,delay,cut,leave,drop,indexes", {2, 4, 1, 1, 60, 8}, "chime"},
      {6067896, "tear,delay,kill,cut,leave", {1, 2, 2, 2, 30, 64}, "chime"},
      // A recycled chunk whose taking had an unknown outcome was not among what faults may cost.
      {2007071, "pause,cut", {1, 4, 1, 3, 10, 64}, "chime"},
      // Who had been shut out of one memory node lived on, and never ended its recycling.
      {2055134, "tear,delay,pause,restart,drop", {2, 3, 1, 1, 300, 1}},
      // A lock that was taken, or taken back, late and by an old pointer, in a node that was free.
      {2005755, "tear,cut", {2, 4, 1, 1, 56, 64}},
      {2057395, "tear,delay,cut,restart,drop,atomics", {2, 3, 1, 1, 300, 128}},
      {2065479, "delay,pause,cut,drop", {3, 2, 2, 2, 60, 64}},
      {2085853, "tear,delay,cut", {2, 4, 1, 2, 60, 64}},
      {2097380, "cut,restart,drop,atomics", {2, 4, 1, 1, 300, 128}},
  };
  for (const Found& found : all) {
    const CampaignReport report = run_seeds({.indexes = {found.index},
                                             .first_seed = found.seed,
                                             .last_seed = found.seed,
                                             .faults = FaultSet::parse(found.faults).value(),
                                             .sizes = found.sizes});
    EXPECT_TRUE(report.failures.empty()) << describe_failures(report);
  }
}

TEST(Seeds, GiveTheSameRunAgainAndOnOtherThreads) {
  const CampaignOptions options{
      .indexes = all_kinds(), .first_seed = 1, .last_seed = testing::scaled(60, 12)};
  const CampaignReport once = run_seeds(options);
  CampaignOptions many_threads = options;
  many_threads.jobs = 3;
  const CampaignReport again = run_seeds(many_threads);
  EXPECT_EQ(once.digest, again.digest);
  EXPECT_EQ(format_coverage(options, once), format_coverage(many_threads, again));
  // For those who want to compare builds.
  ::testing::Test::RecordProperty("digest", std::to_string(once.digest));
}

// Nothing may silently stop being tried.
void expect_everything_covered(const std::string& index,
                               const std::vector<const char*>& structure_changes) {
  CampaignOptions options{.indexes = {index}, .first_seed = 1, .last_seed = 200};
  options.jobs = std::max(2u, std::thread::hardware_concurrency());
  const CampaignReport report = run_seeds(options);
  ASSERT_EQ(report.runs, 200u) << describe_failures(report);
  const CheckCoverage& covered = report.coverage.front();
  EXPECT_EQ(covered.runs, 200u);
  const std::vector<std::pair<const char*, std::uint64_t>> counts = {
      {"operations", covered.operations},
      {"batches", covered.fabric.batches},
      {"verbs", covered.fabric.verbs},
      {"torn", covered.fabric.torn},
      {"delayed", covered.fabric.delayed},
      {"failed", covered.fabric.failed},
      {"late", covered.fabric.late},
      {"fenced", covered.fabric.fenced},
      {"kills", covered.kills},
      {"pauses", covered.pauses},
      {"cuts", covered.cuts},
      {"restarts", covered.restarts},
      {"losses", covered.losses},
      {"leaves", covered.leaves},
      {"drops", covered.drops},
      {"joins", covered.joins},
      {"recoverers killed", covered.recoverers_killed},
      {"recyclers killed", covered.recyclers_killed},
      {"side indexes", covered.side_indexes},
      {"ended unknown", covered.ended_unknown},
      {"unfenced nodes", covered.fabric.unfenced},
      {"split atomics", covered.fabric.split_atomics},
      {"unknown atomics", covered.fabric.unknown_atomics},
      {"retries", covered.retries},
      {"recovered", covered.recovered_blocks},
      {"out of memory", covered.out_of_memory},
      {"recyclings", covered.recyclings},
      {"recycled chunks", covered.recycled_chunks},
  };
  for (const auto& [name, count] : counts) EXPECT_GT(count, 0u) << name;
  EXPECT_FALSE(covered.index.empty());
  for (const auto& [name, count] : covered.index) EXPECT_GT(count, 0u) << name;
  for (const char* name : structure_changes) {
    const auto named = [&](const auto& each) { return each.first == name; };
    EXPECT_EQ(std::ranges::count_if(covered.index, named), 1) << name;
  }
}

TEST(Seeds, CoverEverythingThatCanGoWrong) {
  expect_everything_covered("sherman", {"splits", "merges", "repairs"});
}

TEST(Seeds, CoverEverythingThatCanGoWrongWithChime) {
  expect_everything_covered(
      "chime", {"splits", "merges", "repairs", "hops", "wrong_speculations", "partial_leaf_scans"});
}

// Each fault alone does what it says, and nothing else does.
TEST(Seeds, HaveTheFaultsThatAreAllowedOnly) {
  struct Expectation {
    const char* fault;
    std::uint64_t CheckCoverage::* count;
  };
  const std::vector<Expectation> expectations = {{"kill", &CheckCoverage::kills},
                                                 {"pause", &CheckCoverage::pauses},
                                                 {"cut", &CheckCoverage::cuts},
                                                 {"restart", &CheckCoverage::restarts},
                                                 {"lose", &CheckCoverage::losses},
                                                 {"leave", &CheckCoverage::leaves},
                                                 {"drop", &CheckCoverage::drops},
                                                 {"join", &CheckCoverage::joins},
                                                 {"indexes", &CheckCoverage::side_indexes}};
  for (const Expectation& allowed : expectations) {
    const CampaignReport report = run_seeds({.indexes = {"sherman"},
                                             .first_seed = 1,
                                             .last_seed = 40,
                                             .faults = FaultSet::parse(allowed.fault).value(),
                                             .sizes = {.operations = 10}});
    EXPECT_TRUE(report.failures.empty()) << describe_failures(report);
    for (const Expectation& each : expectations) {
      const std::uint64_t count = report.coverage.front().*each.count;
      EXPECT_EQ(count > 0, each.fault == allowed.fault) << each.fault << " in " << allowed.fault;
    }
    EXPECT_EQ(report.coverage.front().fabric.torn, 0u);
    EXPECT_EQ(report.coverage.front().fabric.delayed, 0u);
    EXPECT_EQ(report.coverage.front().fabric.split_atomics, 0u);
  }
}

}  // namespace
}  // namespace pando::lab::check
