#include "lab/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "lab/map_target.h"

namespace pando::lab {
namespace {

using ::testing::HasSubstr;

RunnerOptions small(KeyType type = KeyType::kInteger) {
  RunnerOptions options;
  options.keys = 2'000;
  options.operations = 10'000;
  options.key_space = KeySpace(type, Order::kRandom);
  return options;
}

class EveryWorkload : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryWorkload, RunsAndCountsExactly) {
  for (const KeyType type : {KeyType::kInteger, KeyType::kBytes}) {
    for (const unsigned clients : {1u, 3u}) {
      MapTarget target(Fault::kNone, type);
      Progress progress(Progress::Style::kNone);
      Runner runner(target, small(type), progress);
      const auto loaded = runner.load(clients);
      ASSERT_TRUE(loaded) << loaded.error();
      EXPECT_EQ(loaded->result.operations, 2'000u);
      EXPECT_EQ(target.size(), 2'000u);
      const auto report = runner.run(*find_mix(GetParam()), clients);
      ASSERT_TRUE(report) << report.error();
      EXPECT_EQ(report->clients, clients);
      EXPECT_EQ(report->result.operations, 10'000u);
      EXPECT_EQ(report->result.latency.count(), 10'000u);
      EXPECT_GT(report->mops(), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ycsb, EveryWorkload, ::testing::Values("A", "B", "C", "D", "E", "F"));

TEST(Runner, ReadModifyWriteIsOneOperationOfTwoParts) {
  MapTarget target;
  Progress progress(Progress::Style::kNone);
  Runner runner(target, small(), progress);
  ASSERT_TRUE(runner.populate(1));
  const auto report = runner.run(*find_mix("F"), 1);
  ASSERT_TRUE(report) << report.error();
  EXPECT_EQ(report->result.calls_of(CallKind::kSearch).count, 10'000u);
  EXPECT_NEAR(static_cast<double>(report->result.calls_of(CallKind::kUpdate).count), 5'000, 300);
}

TEST(Runner, WarmUpIsNotCounted) {
  MapTarget target;
  Progress progress(Progress::Style::kNone);
  RunnerOptions options = small();
  options.warm_up = 5'000;
  Runner runner(target, options, progress);
  ASSERT_TRUE(runner.populate(1));
  const auto report = runner.run(*find_mix("D"), 1);
  ASSERT_TRUE(report) << report.error();
  EXPECT_EQ(report->result.operations, 10'000u);
  EXPECT_GT(target.size(), 2'000 + report->result.calls_of(CallKind::kInsert).count);
}

TEST(Runner, TakesTimeFromTheTargetsClock) {
  MapTarget target;
  std::atomic<std::int64_t> time{0};
  target.set_clock([&time] { return std::chrono::nanoseconds(time += 1000); });
  Progress progress(Progress::Style::kNone);
  Runner runner(target, small(), progress);
  const auto report = runner.load(1);
  ASSERT_TRUE(report);
  // Asked twice an operation, and at the end.
  EXPECT_EQ(report->seconds_ns, (2 * 2'000 + 1) * 1'000u);
  EXPECT_NEAR(report->result.latency.quantile(0.5), 1000, 10);
}

TEST(Runner, RunsAnyNumberOfClientsOnTheSameData) {
  MapTarget target;
  Progress progress(Progress::Style::kNone);
  Runner runner(target, small(), progress);
  ASSERT_TRUE(runner.populate(3));
  EXPECT_EQ(target.size(), 2'000u);
  for (const unsigned clients : {4u, 1u, 7u}) {
    const auto report = runner.run(*find_mix("C"), clients);
    ASSERT_TRUE(report) << report.error();
    EXPECT_EQ(report->clients, clients);
    EXPECT_EQ(report->result.operations, 10'000u);
  }
}

TEST(Runner, ValuesOfAnySize) {
  for (const std::size_t size : {0u, 1u, 8u, 100u, 5000u}) {
    MapTarget target;
    Progress progress(Progress::Style::kNone);
    RunnerOptions options = small();
    options.value_size = size;
    Runner runner(target, options, progress);
    ASSERT_TRUE(runner.populate(1));
    for (const char* workload : {"A", "E", "F"}) {
      const auto report = runner.run(*find_mix(workload), 1);
      EXPECT_TRUE(report) << report.error();
    }
  }
}

struct Wrong {
  Fault fault;
  const char* workload;
  const char* message;
};

class WrongTargets : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongTargets, AreFoundOut) {
  MapTarget target(GetParam().fault);
  Progress progress(Progress::Style::kNone);
  Runner runner(target, small(), progress);
  Runner::Outcome outcome = runner.load(2);
  if (outcome) outcome = runner.run(*find_mix(GetParam().workload), 2);
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error(), HasSubstr("map, workload "));
  EXPECT_THAT(outcome.error(), HasSubstr("of key 0x"));
  EXPECT_THAT(outcome.error(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Faults, WrongTargets,
    ::testing::Values(Wrong{Fault::kLosesKey, "C", "not found, though it was inserted"},
                      Wrong{Fault::kOtherKeysValue, "C", "wrong value, 8 bytes"},
                      Wrong{Fault::kOtherKeysValue, "F", "wrong value, 8 bytes"},
                      Wrong{Fault::kTruncatedValue, "B", "wrong value, 7 bytes"},
                      Wrong{Fault::kUnorderedScan, "E", "out of order"},
                      Wrong{Fault::kDuplicateInScan, "E", "out of order"},
                      Wrong{Fault::kScanBelowFrom, "E", "begins with key"},
                      Wrong{Fault::kShortScan, "E", "follows"},
                      Wrong{Fault::kInsertFails, "A", "out of memory: no room"},
                      Wrong{Fault::kUpdateFails, "A", "not found"}));

TEST(Runner, AnInterruptEndsIt) {
  MapTarget target;
  Progress progress(Progress::Style::kNone);
  RunnerOptions options = small();
  options.operations = 20'000'000;
  const std::atomic<bool> interrupted{true};
  options.interrupted = &interrupted;
  Runner runner(target, options, progress);
  Runner::Outcome outcome = runner.load(1);
  if (outcome) outcome = runner.run(*find_mix("C"), 1);
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error(), HasSubstr("interrupted"));
}

}  // namespace
}  // namespace pando::lab
