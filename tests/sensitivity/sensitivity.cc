// The conformance suite must be able to fail. It is run here on a reference, a std::map behind the
// public API, which passes; then on the same with one defect at a time, each of which must be
// caught by the test meant for it.
//
// The suite on the reference is a program of its own beside this one, conformance_on_reference.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <string>
#include <string_view>

#include "sensitivity/reference/faults.h"

namespace pando::testing {
namespace {

struct SuiteRun {
  int exit_code = -1;
  std::string output;
};

// Runs the suite with `fault` ("" for none) and only the tests of `filter`, on one fabric.
SuiteRun run_suite(std::string_view fault, std::string_view filter) {
  const auto program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "conformance_on_reference";
  const std::string command = "PANDO_REFERENCE_FAULT=" + std::string(fault) +
                              " PANDO_TEST_CASES=sherman+embedded2nodes PANDO_TEST_SCALE=0.3 '" +
                              program.string() + "' --gtest_brief=1 --gtest_filter='" +
                              std::string(filter) + "' 2>&1";
  SuiteRun run;
  FILE* pipe = popen(command.c_str(), "r");  // NOLINT: the command is ours
  if (pipe == nullptr) return run;
  std::array<char, 4096> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) run.output += buffer.data();
  const int status = pclose(pipe);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return run;
}

TEST(Sensitivity, ReferencePassesTheSuite) {
  const SuiteRun run = run_suite("", "*");
  EXPECT_EQ(run.exit_code, 0) << run.output;
}

// A defect and the tests of which each one, alone, must notice it.
struct Expectation {
  std::string_view fault;
  std::string_view caught_by;
};

std::ostream& operator<<(std::ostream& out, const Expectation& expectation) {
  return out << expectation.fault << " by " << expectation.caught_by;
}

constexpr Expectation kExpectations[] = {
    {"lost_update", "*ModelTest.ManyKeys/*"},
    {"lost_update", "*Concurrency.FewHotKeysOnOneComputeNode/*"},
    {"stale_read", "*ModelTest.ManyKeys/*"},
    {"stale_read", "*Concurrency.FewHotKeysOnSeveralComputeNodes/*"},
    {"stale_read", "*Concurrency.CoroutinesOnWorkers*"},
    {"torn_read", "*Concurrency.BigAndSmallValues*"},
    {"stale_cache", "*StaleCaches.OthersSeeEachWriteAtOnce/*"},
    {"stale_cache", "*StaleCaches.EverythingErased*"},
    {"stale_cache", "*Concurrency.FewHotKeysOnSeveralComputeNodes/*"},
    {"scan_repeats", "*Scans.EveryStart*"},
    {"scan_repeats", "*Scans.KeysPresentThroughout*"},
    {"scan_repeats", "*Scans.ValuesAndAbsences*"},
    {"scan_misses", "*Scans.EveryStart*"},
    {"scan_misses", "*Scans.KeysPresentThroughout*"},
    {"scan_misses", "*Scans.ValuesAndAbsences*"},
    {"scan_unordered", "*Scans.EveryStart*"},
    {"scan_unordered", "*Scans.ValuesAndAbsences*"},
    {"erase_resurrects", "*ModelTest.MostlyErasing/*"},
    {"erase_resurrects", "*Concurrency.HotKeysAmongSplitsAndMerges/*"},
    {"erase_resurrects", "*TinyTrees.EmptiedTree*"},
    {"insert_race", "*Concurrency.OfManyInserts*"},
    {"long_keys_cut", "*HostileKeys.ManyLongKeys*"},
    {"keys_end_at_zero", "*HostileKeys.AllTogether*"},
    {"signed_integers", "*HostileKeys.AllTogether*"},
    {"big_values_cut", "*Values.EverySizeComesBackWhole/*"},
    {"multi_get_drops_repeats", "*MultiGet.PresentAbsentAndRepeated/*"},
    {"memory_leak", "*Churn.SlidingWindow/*"},
    {"memory_leak", "*Catalogue.DropGivesMemoryBack/*"},
    {"over_budget", "*Budgets.OneMebibyte/*"},
    {"extra_round_trip", "*RoundTrips.GetTakesOne/*"},
    {"out_of_memory_loses_a_key", "*Errors.OutOfMemoryWithBigValues/*"},
    {"drop_in_use", "*Catalogue.DropInUseIsBusy/*"},
};

class CatchesFault : public ::testing::TestWithParam<Expectation> {};

TEST_P(CatchesFault, Caught) {
  const SuiteRun run = run_suite(GetParam().fault, GetParam().caught_by);
  EXPECT_EQ(run.exit_code, 1) << run.output;
  // Failed by a comparison, not because nothing ran or something crashed.
  EXPECT_TRUE(run.output.contains("[  FAILED  ]")) << run.output;
}

std::string expectation_name(const ::testing::TestParamInfo<Expectation>& info) {
  std::string name(info.param.fault);
  name += "_by_";
  for (const char c : info.param.caught_by) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Each, CatchesFault, ::testing::ValuesIn(kExpectations), expectation_name);

// Every defect that the reference knows is looked for.
TEST(Sensitivity, EveryFaultIsExpectedSomewhere) {
  for (const auto& [fault, name] : reference::kFaultNames) {
    const bool expected = std::ranges::any_of(
        kExpectations, [&](const Expectation& expectation) { return expectation.fault == name; });
    EXPECT_TRUE(expected) << name;
  }
}

}  // namespace
}  // namespace pando::testing
