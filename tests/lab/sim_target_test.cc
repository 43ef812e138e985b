#include "lab/targets/sim_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/report.h"
#include "lab/runner.h"

namespace pando::lab {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

fabric::sim::SimOptions cluster(unsigned memory_nodes = 1) {
  return {.bytes = std::uint64_t{64} << 20, .nodes = memory_nodes, .huge_pages = false};
}

std::unique_ptr<Target> open(unsigned compute_nodes, const std::string& index = "sherman",
                             const fabric::sim::SimOptions& on = cluster()) {
  return open_sim_target(on, {.index_text = index,
                              .index = IndexOptions::parse(index).value(),
                              .compute_nodes = compute_nodes})
      .value();
}

class SimTargetTest : public ::testing::Test {
 protected:
  SimTargetTest() {
    options.keys = 20'000;
    options.operations = 40'000;
    options.tasks = 1;
  }
  Runner runner(Target& target) { return {target, options, progress}; }

  RunnerOptions options;
  Progress progress{Progress::Style::kNone};
};

TEST_F(SimTargetTest, RunsEveryWorkloadWithSoundAnswers) {
  options.operations = 10'000;
  options.tasks = 3;
  const auto target = open(3, "sherman", cluster(2));
  Runner runs = runner(*target);
  const auto loaded = runs.load(7);
  ASSERT_TRUE(loaded) << loaded.error();
  EXPECT_EQ(loaded->result.operations, 20'000u);
  EXPECT_GT(loaded->mops(), 0);
  for (const Mix& mix : all_mixes()) {
    if (mix.is_load()) continue;
    const auto report = runs.run(mix, 7);
    ASSERT_TRUE(report) << report.error();
    EXPECT_EQ(report->result.operations, 10'000u);
    ASSERT_TRUE(report->network);
    EXPECT_EQ(report->network->memory_nodes.size(), 2u);
    EXPECT_EQ(report->network->compute_nodes.size(), 3u);
    for (const auto* cards : {&report->network->memory_nodes, &report->network->compute_nodes}) {
      for (const CardUse& card : *cards) {
        EXPECT_GT(card.use.served, 0u) << card.node;
        EXPECT_THAT(busiest_limit(card).use, AllOf(Ge(0), Le(1))) << card.node;
      }
    }
  }
}

TEST_F(SimTargetTest, ALoneSearchTakesOneRoundTrip) {
  const auto target = open(1);
  Runner runs = runner(*target);
  ASSERT_TRUE(runs.populate(1));
  const auto report = runs.run(*find_mix("C"), 1);
  ASSERT_TRUE(report) << report.error();
  // 2 us, and 1 KiB on its way through two links and a bus.
  EXPECT_NEAR(report->result.latency.quantile(0.5), 2'200, 10);
  EXPECT_EQ(report->network->bound_by(), "latency");
}

TEST_F(SimTargetTest, ManySearchersFillTheMemoryNodesLink) {
  // Each search has a READ of its own: those that combine would pass the limit.
  const auto target = open(10, "sherman:combine=off");
  Runner runs = runner(*target);
  ASSERT_TRUE(runs.populate(640));
  const auto report = runs.run(*find_mix("C"), 640);
  ASSERT_TRUE(report) << report.error();
  EXPECT_THAT(report->network->memory_nodes[0].use.out, AllOf(Ge(0.95), Le(1)));
  EXPECT_EQ(report->network->bound_by(), "memory 0 out");
  // A leaf and the headers of its packet, at 12.5 GB/s.
  const double limit = 12'500.0 / (1024 + 86);
  EXPECT_NEAR(report->ceiling_mops(), limit, 0.05 * limit);
  EXPECT_NEAR(report->mops(), limit, 0.05 * limit);
}

TEST_F(SimTargetTest, TwiceTheLeafIsHalfTheThroughput) {
  std::vector<double> mops;
  for (const char* index : {"sherman:leaf_bytes=1024", "sherman:leaf_bytes=2048"}) {
    const auto target = open(4, index);
    Runner runs = runner(*target);
    ASSERT_TRUE(runs.populate(200));
    const auto report = runs.run(*find_mix("C"), 200);
    ASSERT_TRUE(report) << report.error();
    mops.push_back(report->mops());
  }
  EXPECT_NEAR(mops[0] / mops[1], (2048.0 + 86) / (1024 + 86), 0.05);
}

TEST_F(SimTargetTest, PopulatingLeavesTheCachesOfThoseMeasuredCold) {
  const auto target = open(1);
  options.warm_up = 0;
  options.operations = 1;
  Runner runs = runner(*target);
  ASSERT_TRUE(runs.populate(1));
  const auto report = runs.run(*find_mix("C"), 1);
  ASSERT_TRUE(report) << report.error();
  EXPECT_GT(report->cost().round_trips, 1u);
}

TEST_F(SimTargetTest, GivesTheSameReportEveryTime) {
  options.operations = 5'000;
  const auto run = [this] {
    const auto target = open(2, "sherman", cluster(2));
    Runner runs = runner(*target);
    std::vector<RunReport> reports = {runs.load(6).value()};
    for (const char* workload : {"A", "D", "E"}) {
      for (const unsigned clients : {2u, 6u}) {
        reports.push_back(runs.run(*find_mix(workload), clients).value());
      }
    }
    return to_json(reports, options).dump() + format_table(reports) + format_network(reports);
  };
  const std::string first = run();
  EXPECT_EQ(first, run());
  options.seed = 2;
  EXPECT_NE(first, run());
}

TEST_F(SimTargetTest, AnInterruptEndsIt) {
  const std::atomic<bool> interrupted{true};
  options.interrupted = &interrupted;
  options.keys = 10'000'000;
  const auto populated = runner(*open(2)).populate(2);
  ASSERT_FALSE(populated);
  EXPECT_THAT(populated.error(), HasSubstr("interrupted"));
  const auto loaded = runner(*open(2)).load(2);
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error(), HasSubstr("interrupted"));
}

TEST(SimTarget, SaysWhatIsWrongWithTheCluster) {
  fabric::sim::SimOptions unknown = cluster();
  unknown.preset = "pigeon";
  const auto target = open_sim_target(unknown, {.index_text = "sherman"});
  ASSERT_FALSE(target);
  EXPECT_EQ(target.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(target.error().detail(), AllOf(HasSubstr("'pigeon'"), HasSubstr("connectx6-100g")));
  EXPECT_FALSE(open_sim_target(cluster(0), {.index_text = "sherman"}));
}

}  // namespace
}  // namespace pando::lab
