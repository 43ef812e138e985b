// What `pando check` prints of a failure: the command at its end gives the same failure again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <ostream>
#include <string>

#include "base/mutants.h"
#include "cli/command.h"

namespace pando::cli {
namespace {

using base::Mutant;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Printed {
  int code = -1;
  std::string output;
};

Printed run(const std::string& words) {
  CLI::App app("pando");
  const Command command = add_check(app);
  app.parse(words);
  ::testing::internal::CaptureStdout();
  const int code = command.run();
  return {code, ::testing::internal::GetCapturedStdout()};
}

// What stands between the two, without them.
std::string between(const std::string& text, const std::string& from, const std::string& to) {
  const std::size_t begin = text.find(from);
  if (begin == std::string::npos) return "no '" + from + "' in " + text;
  const std::size_t end = text.find(to, begin + from.size());
  return text.substr(begin + from.size(), end - begin - from.size());
}

struct Case {
  const char* name;
  Mutant mutant;
  bool history;  // it shows in the history of a key
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

class Replay : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { base::active_mutant = GetParam().mutant; }
  void TearDown() override { base::active_mutant = Mutant::kNone; }
};

TEST_P(Replay, GivesTheSameFailure) {
  const Printed first = run("check --quiet --seeds 1..200");
  ASSERT_EQ(first.code, kFailure) << first.output;
  ASSERT_THAT(first.output, HasSubstr("FAILED: seed "));
  if (GetParam().history) {
    EXPECT_THAT(first.output,
                AllOf(HasSubstr("Key "), HasSubstr("  at first: "), HasSubstr("client ")));
  }
  // The description of the plan is one line, the problems follow.
  const std::string smallest = between(first.output, "plans that fails:\n", "\n\n");
  const std::string problems = smallest.substr(smallest.find('\n') + 1);
  const std::string words = between(first.output, "Replay:\n  ./pando ", "\n");

  const Printed again = run(words + " --quiet");
  EXPECT_EQ(again.code, kFailure) << again.output;
  EXPECT_EQ(between(again.output, "FAILED: seed ", "  ./pando "),
            between(first.output, "FAILED: seed ", "\n") + "\n" + problems + "\n");
  EXPECT_EQ(run(words + " --quiet").output, again.output);

  base::active_mutant = Mutant::kNone;
  const Printed healthy = run(words + " --quiet");
  EXPECT_EQ(healthy.code, kSuccess) << healthy.output;
  EXPECT_THAT(healthy.output, AllOf(HasSubstr("0 failed"), Not(HasSubstr("FAILED"))));
}

INSTANTIATE_TEST_SUITE_P(Mutants, Replay,
                         ::testing::Values(Case{"no_epochs", Mutant::kNoEpochs, true},
                                           Case{"unlock_first", Mutant::kUnlockFirst, false},
                                           Case{"lost_sibling", Mutant::kLostSibling, false},
                                           Case{"recovered_twice", Mutant::kRecoveredTwice, false},
                                           Case{"keeps_old", Mutant::kUpdateKeepsOld, false}),
                         [](const auto& info) { return info.param.name; });

TEST_P(Replay, DoesNotDependOnJobs) {
  EXPECT_EQ(run("check --quiet --seeds 1..200 --jobs 3").output,
            run("check --quiet --seeds 1..200 --jobs 1").output);
}

}  // namespace
}  // namespace pando::cli
