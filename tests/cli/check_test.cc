// `pando check`: what it prints, and what it exits with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/program.h"

namespace pando::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::size_t files_in(const Folder& folder) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

INSTANTIATE_TEST_SUITE_P(
    CheckOptions, BadWords,
    ::testing::Values(
        BadWord{"check --frob", "--frob", "--help"},
        BadWord{"check --index oak", "'oak'", "sherman"},
        BadWord{"check --index 'sherman,oak:cache=off'", "'oak'", "sherman"},
        BadWord{"check --index sherman:frob=1", "'frob'", "cache"},
        BadWord{"check --index sherman:cache=maybe", "maybe", "cache"},
        BadWord{"check --index ''", "--index", "names no index"},
        BadWord{"check --faults tear,frob", "'frob'", "tear, delay, kill"},
        BadWord{"check --faults ''", "--faults", "none"},
        BadWord{"check --seeds 5..2", "'5..2'", "1..1000"},
        BadWord{"check --seeds x", "'x'", "1..1000"},
        BadWord{"check --seeds 1..x", "'x'", "--seeds"},
        BadWord{"check --seeds 1..2..3", "2..3", "--seeds"},
        BadWord{"check --seed -1", "'-1'", "--seed"}, BadWord{"check --seed x", "'x'", "--seed"},
        BadWord{"check --seed 1 --seeds 1..2", "--seeds", "one of them"},
        BadWord{"check --clients-per-node 0", "--clients-per-node: 0", "1 and 64"},
        BadWord{"check --clients-per-node some", "--clients-per-node", "some"},
        BadWord{"check --clients 2", "--clients", "it is called --clients-per-node"},
        BadWord{"check --tasks 0", "--tasks: 0", "1 and 64"},
        BadWord{"check --ops-per-task 0", "--ops-per-task: 0", "between 1 and"},
        BadWord{"check --ops 10", "--ops", "it is called --ops-per-task"},
        BadWord{"check --keys 0", "--keys: 0", "between 1 and"},
        BadWord{"check --memory-nodes 0", "--memory-nodes: 0", "1 and 64"},
        BadWord{"check --memory-nodes 65", "--memory-nodes: 65", "1 and 64"},
        BadWord{"check --compute-nodes 1000", "--compute-nodes: 1000", "1 and 64"},
        BadWord{"check --minutes 0", "--minutes: 0", "more than 0"},
        BadWord{"check --minutes soon", "--minutes", "soon"},
        BadWord{"check --jobs 5000", "--jobs: 5000", "1024"},
        BadWord{"check --json /no/such/folder/x.json", "--json", "/no/such/folder/x.json"},
        BadWord{"check --index sherman --seed 1 --trace /no/such/folder/x", "--trace",
                "/no/such/folder/x.txt"},
        BadWord{"check --seeds 1..2 --trace x", "--trace", "one --seed"},
        BadWord{"check --seed 1 --minutes 1 --trace x", "--trace", "no --minutes"},
        BadWord{"check --seed 1 --index 'sherman;sherman' --trace x", "--trace", "one --index"},
        BadWord{"check --index sherman --seed 1 --trace x --json x.json", "'x.json'", "trace"}));

TEST_F(Program, CheckHelpHasExamples) {
  const Outcome outcome = run_pando("check --help");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("--faults"), HasSubstr("Examples:")));
}

TEST_F(Program, CheckPrintsWhatWasCoveredTheSameWithAnyNumberOfJobs) {
  const Outcome outcome = run_pando("check --quiet --index sherman --seeds 1..12 --jobs 1");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  for (const char* name : {"operations", "verbs", "torn_verbs", "kills", "retries", "splits",
                           "merges", "lock_takeovers"}) {
    EXPECT_THAT(outcome.output, HasSubstr(name));
  }
  EXPECT_THAT(outcome.output, MatchesRegex("(.|\n)*seeds 1\\.\\.12, faults all: 12 runs, 0 failed, "
                                           "digest [0-9a-f]+\n"));
  EXPECT_EQ(run_pando("check --quiet --index sherman --seeds 1..12 --jobs 3").output,
            outcome.output);
}

TEST_F(Program, CheckWritesASummary) {
  const Folder folder;
  const std::string file = folder.path() / "out.json";
  const Outcome outcome = run_pando(
      "check --quiet --seeds 3..7 --faults tear,kill --index 'sherman,sherman:cache=off' "
      "--ops-per-task 10 "
      "--json '" +
      file + "'");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const auto json = nlohmann::json::parse(std::ifstream(file));
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["runs"], 10);
  EXPECT_EQ(json["faults"], "tear,kill");
  EXPECT_EQ(json["seeds"]["first"], 3);
  EXPECT_EQ(json["seeds"]["last"], 7);
  EXPECT_EQ(json["interrupted"], false);
  EXPECT_TRUE(json["failures"].empty());
  ASSERT_EQ(json["coverage"].size(), 2u);
  EXPECT_EQ(json["coverage"][1]["index"], "sherman:cache=off");
  EXPECT_GT(json["coverage"][0]["counts"]["operations"], 0);
  EXPECT_THAT(outcome.output, HasSubstr(json["digest"].get<std::string>()));
  EXPECT_EQ(files_in(folder), 1u);
}

TEST_F(Program, CheckWritesATrace) {
  const Folder folder;
  const std::string prefix = folder.path() / "trace";
  const Outcome outcome =
      run_pando("check --quiet --index sherman --seed 4 --ops-per-task 5 --trace '" + prefix + "'");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  std::ifstream text(prefix + ".txt");
  const std::string all((std::istreambuf_iterator<char>(text)), {});
  EXPECT_THAT(all, AllOf(HasSubstr("# seed 4: sherman"), HasSubstr("# ./pando check --index"),
                         HasSubstr(" READ "), HasSubstr(" begins "), HasSubstr(" ends ")));
  const auto json = nlohmann::json::parse(std::ifstream(prefix + ".json"));
  EXPECT_GT(json["traceEvents"].size(), 20u);
  EXPECT_EQ(files_in(folder), 2u);
}

// Before anything is run, and without anything left behind.
TEST_F(Program, CheckLeavesNoTraceWhereOneFileCannotBeWritten) {
  const Folder folder;
  std::filesystem::create_directory(folder.path() / "trace.json");
  const Outcome outcome = run_pando("check --index sherman --seed 4 --trace '" +
                                    (folder.path() / "trace").string() + "'");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("trace.json"));
  EXPECT_EQ(files_in(folder), 1u);
}

}  // namespace
}  // namespace pando::cli
