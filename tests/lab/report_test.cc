#include "lab/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/pool_size.h"
#include "lab/progress.h"

namespace pando::lab {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

RunReport report_of(std::string target, bool is_peer, std::uint64_t nanoseconds) {
  RunReport report{.target = std::move(target),
                   .fabric = is_peer ? "local" : "embedded",
                   .is_peer = is_peer,
                   .workload = "A",
                   .keys = 1000,
                   .seconds_ns = nanoseconds,
                   .memory = {.compute_bytes = 1 << 20, .remote_bytes = is_peer ? 0u : 1u << 21}};
  report.result.operations = 100;
  for (int i = 0; i < 100; ++i) report.result.latency.record(2000);
  CallResult& search = report.result.calls_of(CallKind::kSearch);
  search.count = 60;
  search.cost = {.round_trips = 60, .bytes_read = 61'440};
  CallResult& update = report.result.calls_of(CallKind::kUpdate);
  update.count = 40;
  update.cost = {.round_trips = 100, .bytes_written = 320};
  return report;
}

TEST(Report, JsonHasEveryField) {
  const auto json = to_json({report_of("sherman", false, 50'000)}, RunnerOptions{});
  EXPECT_EQ(json["version"], 1);
  const auto& run = json["runs"][0];
  EXPECT_EQ(run["index"], "sherman");
  EXPECT_EQ(run["workload"], "A");
  EXPECT_EQ(run["fabric"], "embedded");
  EXPECT_EQ(run["keys"], 1000);
  EXPECT_EQ(run["ops"], 100);
  EXPECT_EQ(run["compute_nodes"], 1);
  EXPECT_EQ(run["clients"], 1);
  EXPECT_DOUBLE_EQ(run["mops"], 2.0);
  EXPECT_NEAR(run["p50_us"], 2.0, 0.01);
  EXPECT_NEAR(run["p99_us"], 2.0, 0.01);
  EXPECT_DOUBLE_EQ(run["round_trips_per_op"], 1.6);
  EXPECT_DOUBLE_EQ(run["bytes_per_op"]["read"], 614.4);
  EXPECT_DOUBLE_EQ(run["bytes_per_op"]["write"], 3.2);
  EXPECT_EQ(run["compute_bytes"], 1 << 20);
  EXPECT_EQ(run["remote_bytes"], 1 << 21);
  EXPECT_EQ(run["operations"]["search"]["count"], 60);
  EXPECT_DOUBLE_EQ(run["operations"]["update"]["round_trips"], 2.5);
  EXPECT_FALSE(run["operations"].contains("scan"));
}

TEST(Report, TableHasHumanUnits) {
  const std::string table = format_table({report_of("sherman", false, 50'000)});
  for (const char* text : {"Mops/s", "2.000", "2 us", "1.60", "614 B", "1.0 MiB", "2.0 MiB",
                           "search 1.00, update 2.50"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
}

RunReport simulated_report(unsigned clients, double memory_out) {
  RunReport report = report_of("sherman", false, 50'000);
  report.fabric = "sim";
  report.clients = clients;
  report.network = NetworkUse{
      .preset = "connectx6-100g",
      .memory_nodes = {{"memory 0", {.verbs = 0.25, .out = memory_out / 2, .served = 70}},
                       {"memory 1", {.verbs = 0.25, .out = memory_out, .served = 30}}},
      .compute_nodes = {{"compute 0", {.verbs = 0.1, .in = 0.3, .served = 100}}}};
  return report;
}

TEST(Report, SaysWhatBoundsASimulatedRun) {
  const auto json = to_json({simulated_report(8, 0.95), simulated_report(2, 0.4)}, RunnerOptions{});
  const auto& run = json["runs"][0];
  EXPECT_EQ(run["clients"], 8);
  EXPECT_EQ(run["virtual_time"], true);
  EXPECT_EQ(run["preset"], "connectx6-100g");
  ASSERT_EQ(run["nics"].size(), 3u);
  EXPECT_EQ(run["nics"][1]["node"], "memory 1");
  EXPECT_DOUBLE_EQ(run["nics"][1]["out"], 0.95);
  EXPECT_EQ(run["nics"][2]["node"], "compute 0");
  EXPECT_EQ(run["nics"][2]["served"], 100);
  EXPECT_EQ(run["bound_by"], "memory 1 out");
  EXPECT_DOUBLE_EQ(run["ceiling_mops"], 2.0 / 0.95);
  EXPECT_EQ(json["runs"][1]["bound_by"], "latency");
  EXPECT_DOUBLE_EQ(json["runs"][1]["ceiling_mops"], 2.0 / 0.4);
}

TEST(Report, TablesOfASweepHaveItsClients) {
  const std::vector<RunReport> sweep = {simulated_report(2, 0.4), simulated_report(8, 0.95)};
  EXPECT_THAT(format_table(sweep), AllOf(HasSubstr("clients"), HasSubstr("bound by"),
                                         HasSubstr("latency"), HasSubstr("memory 1 out")));
  EXPECT_THAT(format_network(sweep), AllOf(HasSubstr("clients"), HasSubstr("memory 1"),
                                           HasSubstr("95.0%"), HasSubstr("2.105")));
  const std::vector<RunReport> alone = {report_of("sherman", false, 50'000)};
  EXPECT_THAT(format_table(alone), Not(AnyOf(HasSubstr("clients"), HasSubstr("bound by"))));
  EXPECT_EQ(format_network(alone), "");
}

TEST(Report, RatiosAreOfTheSameNumberOfClients) {
  RunReport slow_peer = report_of("lmdb", true, 200'000);
  RunReport fast_peer = report_of("lmdb", true, 100'000);
  RunReport index = report_of("sherman", false, 50'000);
  fast_peer.clients = index.clients = 2;
  EXPECT_THAT(format_ratios({slow_peer, fast_peer, index}), HasSubstr("2.00x"));
}

TEST(Report, RatiosNeedPeers) {
  const std::vector<RunReport> alone = {report_of("sherman", false, 50'000)};
  EXPECT_EQ(format_ratios(alone), "");
  const std::string ratios =
      format_ratios({report_of("sherman", false, 50'000), report_of("lmdb", true, 100'000)});
  EXPECT_THAT(ratios, HasSubstr("ratio to lmdb"));
  EXPECT_THAT(ratios, HasSubstr("2.00x"));
}

TEST(Report, Units) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(200.0 * 1024 * 1024), "200 MiB");
  EXPECT_EQ(human_time(850), "850 ns");
  EXPECT_EQ(human_time(12'340), "12.3 us");
  EXPECT_EQ(human_time(1.2e6), "1.2 ms");
  EXPECT_EQ(human_count(1'000'000), "1 M");
  EXPECT_EQ(human_count(100'000), "100 k");
  EXPECT_EQ(human_count(1'234'567), "1234567");
}

TEST(Progress, LineHasRateAndTimeLeft) {
  const std::string line = progress_line("sherman A", 500'000, 1'000'000, std::chrono::seconds(2));
  EXPECT_THAT(line, HasSubstr("sherman A"));
  EXPECT_THAT(line, HasSubstr("50%"));
  EXPECT_THAT(line, HasSubstr("0.25 Mops/s"));
  EXPECT_THAT(line, HasSubstr("00:02 left"));
  EXPECT_LE(line.size(), 80u);
}

TEST(Progress, KnowsNothingAtTheStart) {
  EXPECT_THAT(progress_line("x", 0, 10, {}), HasSubstr("--:-- left"));
}

TEST(PoolSize, HasRoomToSpareWithinTheMachine) {
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  const DataSize data{.items = 1'000'000, .key_bytes = 8, .value_bytes = 8};
  const auto ample = choose_pool_size(data, 16 * kGiB, 1);
  ASSERT_TRUE(ample);
  EXPECT_GT(*ample, 3 * data.bytes());
  const auto tight = choose_pool_size(data, kGiB / 2, 1);
  ASSERT_TRUE(tight);
  EXPECT_LT(*tight, kGiB / 2);
  const auto none = choose_pool_size(data, kGiB / 2, 10);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().detail(), HasSubstr("1000000 keys"));
}

TEST(PoolSize, GoesIntoTheUrl) {
  EXPECT_TRUE(lacks_size("embedded"));
  EXPECT_TRUE(lacks_size("embedded?nodes=2"));
  EXPECT_FALSE(lacks_size("embedded:1GiB"));
  EXPECT_FALSE(lacks_size("tcp://host:1"));
  EXPECT_EQ(with_size("embedded?nodes=2", std::uint64_t{1} << 30), "embedded:1GiB?nodes=2");
}

}  // namespace
}  // namespace pando::lab
