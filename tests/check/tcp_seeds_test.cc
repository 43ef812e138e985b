// The same seeds and the same judge, with the real tcp client and memory-node server on simulated
// sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/state.h"
#include "fabric/sim/tcp_simulation.h"
#include "index/registry.h"
#include "lab/check/campaign.h"
#include "lab/check/report.h"
#include "lab/check/scenario.h"
#include "support/scale.h"

namespace pando::lab::check {
namespace {

CampaignReport run_over_tcp(CampaignOptions options) {
  options.fabric = CheckedFabric::kTcp;
  Progress progress(Progress::Style::kNone);
  return run_campaign(options, [](const CheckPlan& plan) { return run_check(plan); }, progress);
}

std::string failures_of(const CampaignReport& report) {
  std::string text;
  for (const CheckFailure& failure : report.failures) text += format_further_failure(failure);
  return text;
}

std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const index::Kind* kind : index::kinds()) names.emplace_back(kind->name());
  return names;
}

class TcpSeeds : public ::testing::TestWithParam<std::string> {};

TEST_P(TcpSeeds, Pass) {
  const std::uint64_t count = testing::scaled(400, 15);
  const CampaignReport report = run_over_tcp(
      {.indexes = {GetParam()}, .first_seed = 1, .last_seed = count, .keep_going = true});
  EXPECT_EQ(report.runs, count);
  EXPECT_TRUE(report.failures.empty()) << failures_of(report);
  EXPECT_EQ(report.coverage.front().runs, count);
  EXPECT_LE(report.coverage.front().undecided, 1 + count / 50);
}

INSTANTIATE_TEST_SUITE_P(Kinds, TcpSeeds, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param; });

TEST(SeedsOverTcp, PassWithoutFaults) {
  for (const char* faults : {"none", "tear,delay"}) {
    const CampaignReport report = run_over_tcp({.indexes = kinds(),
                                                .first_seed = 20'001,
                                                .last_seed = 20'000 + testing::scaled(100, 10),
                                                .faults = FaultSet::parse(faults).value(),
                                                .keep_going = true});
    EXPECT_TRUE(report.failures.empty()) << failures_of(report);
  }
}

TEST(SeedsOverTcp, GiveTheSameRunAgainAndOnOtherThreads) {
  const CampaignOptions options{
      .indexes = kinds(), .first_seed = 1, .last_seed = testing::scaled(40, 8)};
  const CampaignReport once = run_over_tcp(options);
  CampaignOptions many_threads = options;
  many_threads.jobs = 3;
  const CampaignReport again = run_over_tcp(many_threads);
  EXPECT_EQ(once.digest, again.digest);
  EXPECT_EQ(format_coverage(options, once), format_coverage(many_threads, again));
}

// A memory node that is told too late, or never, would have no room for others some day.
TEST(SeedsOverTcp, WhoClosesWhileLinksBreakIsForgotten) {
  using fabric::sim::kMillisecond;
  const auto open = [](fabric::sim::Simulation& simulation) {
    auto fabric = simulation.open_client().value();
    const fabric::ClientId client = fabric->client();
    PoolOptions options;
    options.lease = std::chrono::milliseconds(4);
    return std::pair(api::PoolState::open_pool(std::move(fabric), options).value(), client);
  };
  for (std::uint64_t seed = 1; seed <= testing::scaled(100, 20); ++seed) {
    const auto simulation =
        fabric::sim::make_tcp_simulation({.node_bytes = 4 << 20,
                                          .nodes = 2,
                                          .sockets = {.seed = seed},
                                          .timeout = std::chrono::milliseconds(2)})
            .value();
    {
      const auto [stays, peer] = open(*simulation);
      {
        const auto [leaves, client] = open(*simulation);
        simulation->cut_link(client, 1, (1 + seed % 8) * 2 * kMillisecond);
      }
      simulation->engine().run_until([] { return false; }, simulation->time() + 100 * kMillisecond);
    }
    EXPECT_THAT(simulation->left_behind(), ::testing::IsEmpty()) << "seed " << seed;
  }
}

// Nothing may silently stop being tried.
TEST(SeedsOverTcp, CoverEverythingThatCanBecomeOfAConnection) {
  CampaignOptions options{.indexes = {"sherman"}, .first_seed = 1, .last_seed = 400};
  options.jobs = std::max(2u, std::thread::hardware_concurrency());
  const CampaignReport report = run_over_tcp(options);
  ASSERT_EQ(report.runs, 400u) << failures_of(report);
  const CheckCoverage& covered = report.coverage.front();
  const fabric::sim::SocketCoverage& sockets = covered.fabric.sockets;
  const std::vector<std::pair<const char*, std::uint64_t>> counts = {
      {"operations", covered.operations},
      {"verbs", covered.fabric.verbs},
      {"connections", sockets.connections},
      {"held", sockets.held_segments},
      {"hung", sockets.hung_connects},
      {"resets", sockets.resets},
      {"half closes", sockets.half_closes},
      {"silent ends", sockets.silent_ends},
      {"generations", covered.fabric.generations},
      {"outdated", covered.fabric.outdated},
      {"fenced", covered.fabric.fenced},
      {"forgotten", covered.fabric.forgotten},
      {"failed", covered.fabric.failed},
      {"unknown atomics", covered.fabric.unknown_atomics},
      {"ended unknown", covered.ended_unknown},
      {"kills", covered.kills},
      {"recoverers killed", covered.recoverers_killed},
      {"leaves", covered.leaves},
      {"drops", covered.drops},
      {"side indexes", covered.side_indexes},
      {"pauses", covered.pauses},
      {"cuts", covered.cuts},
      {"restarts", covered.restarts},
      {"losses", covered.losses},
  };
  for (const auto& [name, count] : counts) EXPECT_GT(count, 0u) << name;
}

}  // namespace
}  // namespace pando::lab::check
