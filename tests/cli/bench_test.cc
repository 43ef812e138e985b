// `pando bench`: what it prints, and what it exits with.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/program.h"

namespace pando::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(Program, SaysItsVersion) {
  const Outcome outcome = run_pando("version");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("pando "));
}

TEST_F(Program, HelpHasExamples) {
  const Outcome outcome = run_pando("bench --help");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("--workload"), HasSubstr("Examples:")));
}

INSTANTIATE_TEST_SUITE_P(
    Options, BadWords,
    ::testing::Values(
        BadWord{"", "no command", "bench"}, BadWord{"frobnicate", "frobnicate", "bench"},
        BadWord{"bench --frob", "--frob", "--help"},
        BadWord{"bench --workload A,Z", "'Z'", "LOAD, A, B, C"},
        BadWord{"bench --index oak", "oak", "sherman"},
        BadWord{"bench --index 'sherman:leaf_bytes=2048,oak'", "oak", "sherman"},
        BadWord{"bench --index sherman:frob=1", "frob", "frob"},
        BadWord{"bench --peers oak", "'oak'", "lmdb, rocksdb"},
        BadWord{"bench --peers redis", "'redis' has no order", "--workload C,A"},
        BadWord{"bench --keys many", "'many'", "integer, string"},
        BadWord{"bench --keys 0", "--keys", "number of keys"},
        BadWord{"bench --keys 100G", "100", "take fewer keys"},
        BadWord{"bench --order sorted", "'sorted'", "random, sequential"},
        BadWord{"bench --key-space full", "'full'", "scattered, dense"},
        BadWord{"bench --key-space dense --keys string", "--key-space", "integer"},
        BadWord{"bench --distribution normal", "'normal'", "zipf, uniform, latest"},
        BadWord{"bench --theta -1", "--theta", "between 0 and 100"},
        BadWord{"bench --ops 1x", "'1x'", "10M"}, BadWord{"bench --ops 0", "--ops", "at least 1"},
        BadWord{"bench --value-size 2MiB", "--value-size", "1MiB"},
        BadWord{"bench --value-size big", "--value-size", "big"},
        BadWord{"bench --budget lots", "--budget", "lots"},
        BadWord{"bench --clients some", "--clients", "some"},
        BadWord{"bench --clients 5000", "--clients", "1 to 1024"},
        BadWord{"bench --clients 1 --compute-nodes 2", "--clients", "idle"},
        BadWord{"bench --tasks 0", "--tasks", "1 to 1024"},
        BadWord{"bench --coroutines 4", "--coroutines", "it is called --tasks"},
        BadWord{"bench --clients 4,0", "--clients", "1 to 1024"},
        BadWord{"bench --clients 4,2 --compute-nodes 3", "--clients", "2 leave some of 3"},
        BadWord{"bench --clients ,", "--clients", "names no number"},
        BadWord{"bench --pool cloud:1GiB", "cloud", "embedded"},
        BadWord{"bench --pool sim:1GiB", "--pool", "--fabric sim"},
        BadWord{"bench --pool embedded:1GiB --memory-nodes 2", "--pool", "leave out"},
        BadWord{"bench --fabric mars", "'mars'", "embedded, sim"},
        BadWord{"bench --preset cxl", "--preset", "--fabric sim"},
        BadWord{"bench --fabric sim --preset token-ring", "'token-ring'", "connectx6-100g"},
        BadWord{"bench --fabric sim --memory-nodes 0", "--memory-nodes", "1 to 1024"},
        BadWord{"bench --fabric sim --memory-nodes 2000", "--memory-nodes", "1 to 1024"},
        BadWord{"bench --fabric sim --compute-nodes 4 --clients 3", "--clients", "idle"},
        BadWord{"bench --fabric sim --keys 100G", "100", "take fewer keys"},
        BadWord{"bench --fabric sim --peers lmdb", "--peers", "leave out --fabric sim"},
        BadWord{"bench --json /no/such/folder/x.json", "--json", "/no/such/folder/x.json"}));

TEST_F(Program, BenchPrintsATableAndWritesJson) {
  const Folder folder;
  const std::string file = folder.path() / "out.json";
  const Outcome outcome = run_pando("bench --quiet --keys 5k --ops 2k --json '" + file + "'");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("Mops/s"), HasSubstr("sherman  LOAD"), HasSubstr("chime    LOAD")));

  const auto json = nlohmann::json::parse(std::ifstream(file));
  EXPECT_EQ(json["version"], 1);
  ASSERT_EQ(json["runs"].size(), 14u);
  for (const auto& run : json["runs"]) {
    for (const char* field :
         {"index", "workload", "fabric", "keys", "key_space", "ops", "compute_nodes", "clients",
          "mops", "p50_us", "p99_us", "round_trips_per_op", "bytes_per_op", "compute_bytes",
          "remote_bytes", "operations"}) {
      EXPECT_TRUE(run.contains(field)) << field;
    }
    EXPECT_TRUE(run["index"] == "sherman" || run["index"] == "chime") << run["index"];
    EXPECT_EQ(run["fabric"], "embedded");
    EXPECT_GT(run["mops"], 0.0);
    EXPECT_GT(run["round_trips_per_op"], 0.0);
    EXPECT_GT(run["remote_bytes"], 5'000 * 16);
    for (const auto& [kind, operation] : run["operations"].items()) {
      EXPECT_GT(operation["count"], 0) << kind;
      EXPECT_TRUE(operation.contains("round_trips")) << kind;
    }
  }
  // Nothing but the file itself is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST_F(Program, BenchRunsOnSeveralComputeNodesWithStrings) {
  const Outcome outcome = run_pando(
      "bench --quiet --keys 5k,string --value-size 100 --ops 2k --compute-nodes 2 --clients 4 "
      "--tasks 4 --pool 'embedded?nodes=2'");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
}

TEST_F(Program, BenchHasDenseKeys) {
  const Folder folder;
  const std::string file = folder.path() / "out.json";
  const Outcome outcome =
      run_pando("bench --quiet --keys 5k --key-space dense --ops 2k --json '" + file + "'");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const auto json = nlohmann::json::parse(std::ifstream(file));
  for (const auto& run : json["runs"]) EXPECT_EQ(run["key_space"], "dense");
}

TEST_F(Program, BenchSweepsClientsInSimulatedTime) {
  const Folder folder;
  const auto sweep = [&folder](const char* name) {
    return run_pando(fmt::format(
        "bench --quiet --index sherman --fabric sim --keys 20k --ops 20k --workload C,A "
        "--compute-nodes 2 --memory-nodes 2 --clients 2,8,200 --json '{}'",
        (folder.path() / name).string()));
  };
  const Outcome outcome = sweep("first.json");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("clients"), HasSubstr("bound by"),
                                    HasSubstr("ceiling Mops/s"), HasSubstr("latency")));
  const auto json = nlohmann::json::parse(std::ifstream(folder.path() / "first.json"));
  ASSERT_EQ(json["runs"].size(), 6u);
  const auto& one = json["runs"][0];
  const auto& many = json["runs"][2];
  EXPECT_EQ(one["clients"], 2);
  EXPECT_EQ(many["clients"], 200);
  EXPECT_EQ(one["fabric"], "sim");
  EXPECT_EQ(one["virtual_time"], true);
  EXPECT_EQ(one["preset"], "connectx6-100g");
  EXPECT_EQ(one["coroutines"], 1);
  EXPECT_EQ(one["nics"].size(), 4u);
  EXPECT_EQ(one["bound_by"], "latency");
  EXPECT_GT(many["mops"], 2 * one["mops"].get<double>());
  EXPECT_GT(many["p50_us"], one["p50_us"]);
  EXPECT_GE(many["ceiling_mops"], many["mops"]);

  const Outcome again = sweep("second.json");
  EXPECT_EQ(outcome.output, again.output);
  EXPECT_EQ(json, nlohmann::json::parse(std::ifstream(folder.path() / "second.json")));
}

TEST_F(Program, BenchLoadsAnewForEachNumberOfClients) {
  const Folder folder;
  const std::string file = folder.path() / "out.json";
  for (const char* fabric : {"sim", "embedded"}) {
    const Outcome outcome =
        run_pando(fmt::format("bench --quiet --index sherman --keys 5k --ops 2k --workload LOAD,C "
                              "--clients 1,3 --fabric {} "
                              "--json '{}'",
                              fabric, file));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const auto json = nlohmann::json::parse(std::ifstream(file));
    ASSERT_EQ(json["runs"].size(), 4u);
    EXPECT_EQ(json["runs"][2]["workload"], "LOAD");
    EXPECT_EQ(json["runs"][2]["clients"], 3);
    EXPECT_EQ(json["runs"][2]["ops"], 5'000);
  }
}

TEST_F(Program, BenchPrintsRatiosToPeers) {
  const Outcome outcome =
      run_pando("bench --quiet --keys 5k --ops 2k --workload C,A --peers lmdb,rocksdb");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("ratio to lmdb"), HasSubstr("ratio to rocksdb")));
}

}  // namespace
}  // namespace pando::cli
