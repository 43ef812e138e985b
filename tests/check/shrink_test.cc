// Shrinking, with runs that fail by a rule: the smallest plan is known.
#include "lab/check/shrink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "lab/check/report.h"

namespace pando::lab::check {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Rule = std::function<bool(const CheckPlan&)>;

RunCheck failing_where(Rule rule, unsigned* runs = nullptr) {
  return [rule = std::move(rule), runs](const CheckPlan& plan) {
    if (runs != nullptr) ++*runs;
    CheckOutcome outcome;
    if (rule(plan)) outcome.problems.push_back("fails with " + plan.describe());
    return outcome;
  };
}

CheckFailure big_failure(const RunCheck& run) {
  const CheckPlan plan = draw_plan(77, "sherman", FaultSet::all(),
                                   {.memory_nodes = 3,
                                    .compute_nodes = 4,
                                    .clients = 3,
                                    .tasks = 3,
                                    .operations = 150,
                                    .keys = 250})
                             .value();
  return {plan, run(plan)};
}

Shrunk shrink_quietly(const CheckFailure& failure, const RunCheck& run,
                      const ShrinkOptions& options = {}) {
  Progress silent(Progress::Style::kNone);
  return shrink(failure, run, options, silent);
}

TEST(Shrink, FindsTheSmallestPlanThatFails) {
  const RunCheck run = failing_where([](const CheckPlan& plan) {
    return plan.compute_nodes >= 2 && plan.operations >= 13 && plan.keys >= 3;
  });
  const Shrunk shrunk = shrink_quietly(big_failure(run), run);
  const CheckPlan& plan = shrunk.smallest.plan;
  EXPECT_EQ(plan.seed, 77u);
  EXPECT_TRUE(plan.faults.empty()) << plan.faults.to_string();
  EXPECT_EQ(plan.memory_nodes, 1u);
  EXPECT_EQ(plan.compute_nodes, 2u);
  EXPECT_EQ(plan.clients, 1u);
  EXPECT_EQ(plan.tasks, 1u);
  EXPECT_EQ(plan.operations, 13u);
  EXPECT_EQ(plan.keys, 3u);
  EXPECT_TRUE(shrunk.smallest.outcome.failed());
}

TEST(Shrink, KeepsTheFaultsThatItTakes) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const CheckPlan plan = draw_plan(seed, "sherman", FaultSet::all(), {}).value();
    if (!plan.faults.has(Fault::kKill) || !plan.faults.has(Fault::kTear)) continue;
    const RunCheck run = failing_where([](const CheckPlan& tried) {
      return tried.faults.has(Fault::kKill) && tried.faults.has(Fault::kTear);
    });
    const Shrunk shrunk = shrink_quietly({plan, run(plan)}, run);
    EXPECT_EQ(shrunk.smallest.plan.faults.to_string(), "tear,kill");
    EXPECT_EQ(shrunk.smallest.plan.operations, 1u);
  }
}

TEST(Shrink, IsBoundedAndMakesNoRunTwice) {
  unsigned runs = 0;
  std::set<std::string> tried;
  const RunCheck run = failing_where(
      [&](const CheckPlan& plan) {
        const bool fresh = tried.insert(plan.command()).second;
        EXPECT_TRUE(fresh || runs <= 2) << plan.command();
        return plan.operations % 2 == 0 || runs == 1;
      },
      &runs);
  const CheckFailure failure = big_failure(run);
  const Shrunk shrunk = shrink_quietly(failure, run, {.most_runs = 5});
  EXPECT_EQ(shrunk.runs, 5u);
  EXPECT_EQ(runs, 6u);
  EXPECT_TRUE(shrunk.smallest.outcome.failed());
}

TEST(Shrink, GivesTheFailureBackWhereNothingSmallerFails) {
  unsigned runs = 0;
  const RunCheck run = failing_where([&](const CheckPlan&) { return runs == 1; }, &runs);
  const CheckFailure failure = big_failure(run);
  const Shrunk shrunk = shrink_quietly(failure, run);
  EXPECT_EQ(shrunk.smallest.plan.command(), failure.plan.command());
  EXPECT_EQ(shrunk.smallest.outcome.problems, failure.outcome.problems);
}

// What is wrong with a key's history is not given up for what says less.
TEST(Shrink, KeepsToHistories) {
  const RunCheck run = [](const CheckPlan& plan) {
    CheckOutcome outcome;
    outcome.problems.emplace_back("always something");
    if (plan.operations >= 10) outcome.suspect.emplace("key", KeyHistory{});
    return outcome;
  };
  const Shrunk shrunk = shrink_quietly(big_failure(run), run);
  EXPECT_EQ(shrunk.smallest.plan.operations, 10u);
  EXPECT_TRUE(shrunk.smallest.outcome.suspect);
}

TEST(Shrink, StopsWhenInterrupted) {
  unsigned runs = 0;
  const RunCheck run = failing_where([](const CheckPlan&) { return true; }, &runs);
  const CheckFailure failure = big_failure(run);
  const std::atomic<bool> interrupted{true};
  EXPECT_EQ(shrink_quietly(failure, run, {.interrupted = &interrupted}).runs, 0u);
  EXPECT_EQ(runs, 1u);
}

// The drawn faults, given as the allowed ones, are drawn again; and sizes that are given do not
// change what else is drawn.
TEST(Shrink, PlansAreDrawnAgainFromWhatTheirCommandSays) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const CheckPlan plan = draw_plan(seed, "sherman", FaultSet::all(), {}).value();
    const CheckPlan again = draw_plan(seed, "sherman", plan.faults,
                                      {.memory_nodes = plan.memory_nodes,
                                       .compute_nodes = plan.compute_nodes,
                                       .clients = plan.clients,
                                       .tasks = plan.tasks,
                                       .operations = plan.operations,
                                       .keys = plan.keys})
                                .value();
    ASSERT_EQ(again.describe(), plan.describe());
    ASSERT_EQ(again.command(), plan.command());
    ASSERT_EQ(again.weights, plan.weights);
    ASSERT_EQ(again.adversary.tear, plan.adversary.tear);
    ASSERT_EQ(again.adversary.delay, plan.adversary.delay);
    ASSERT_EQ(again.adversary.spread, plan.adversary.spread);
    if (seed <= 10) {
      ASSERT_EQ(run_check(again).digest, run_check(plan).digest);
    }
  }
}

// ---- What is printed of a failure

CheckFailure with_history(std::size_t operations) {
  CheckFailure failure;
  failure.plan = draw_plan(5, "sherman:keys=integer", FaultSet::all(), {}).value();
  failure.outcome.problems = {"first line\nsecond line", "another problem"};
  KeyHistory history;
  // Writes without an answer cannot be left out; then a value from nowhere.
  for (std::uint64_t i = 0; i < operations; ++i) {
    history.operations.push_back(
        {.kind = OperationKind::kPut, .value = "v" + std::to_string(i), .invoked = i});
  }
  history.operations.push_back({.kind = OperationKind::kGet,
                                .result = OperationResult::kDone,
                                .value = "from nowhere",
                                .invoked = operations,
                                .responded = operations + 1});
  failure.outcome.suspect.emplace(std::string("\0\0\0\0\0\0\0\x2a", 8), std::move(history));
  return failure;
}

TEST(FailureReport, HasProblemsHistoryAndCommand) {
  const CheckFailure failure = with_history(3);
  const std::string text = format_failure(failure, {.smallest = failure, .runs = 9});
  EXPECT_THAT(text, AllOf(HasSubstr("FAILED: seed 5 of sherman:keys=integer\n"),
                          HasSubstr("  first line\n  second line\n  another problem\n"),
                          HasSubstr("of 10 plans"), HasSubstr(failure.plan.describe())));
  EXPECT_THAT(text, AllOf(HasSubstr("Key 0x000000000000002a: 4 of its 4 operations"),
                          HasSubstr("client 0: get 'from nowhere' -> done\n")));
  EXPECT_TRUE(text.ends_with("Replay:\n  " + failure.plan.command() + "\n")) << text;
}

TEST(FailureReport, ShowsTheEndOfALongHistory) {
  const CheckFailure failure = with_history(100);
  const std::string text = format_failure(failure, {.smallest = failure});
  EXPECT_THAT(text, AllOf(HasSubstr("(41 earlier ones are not shown)"), HasSubstr("'v99'"),
                          HasSubstr("from nowhere"), Not(HasSubstr("'v40'"))));
}

}  // namespace
}  // namespace pando::lab::check
