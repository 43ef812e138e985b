#include "lab/targets/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lab/runner.h"
#include "lab/targets/peer_files.h"

namespace pando::lab {
namespace {

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PANDO_UNDER_TSAN 1
#endif
#endif

class Peers : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#ifdef PANDO_UNDER_TSAN
    GTEST_SKIP() << "the peers' libraries are not instrumented";
#endif
  }
  static bool is_server() { return !peer_scans(GetParam()); }
};

TEST_P(Peers, RunEveryWorkloadWithSoundAnswers) {
  for (const KeyType type : {KeyType::kInteger, KeyType::kBytes}) {
    RunnerOptions options;
    options.keys = 5'000;
    options.operations = 5'000;
    options.key_space = KeySpace(type, Order::kRandom);
    options.value_size = type == KeyType::kInteger ? 8 : 100;
    const auto target = open_peer(GetParam(), {.key_type = type, .data_bytes = 1 << 20});
    if (is_server() && !target && target.error().message().contains("is not on this machine")) {
      GTEST_SKIP() << target.error().message() << ": the comparison with it is NOT tested";
    }
    ASSERT_TRUE(target) << target.error().message();
    Progress progress(Progress::Style::kNone);
    Runner runner(**target, options, progress);
    const auto loaded = runner.load(2);
    ASSERT_TRUE(loaded) << loaded.error();
    EXPECT_GT(loaded->memory.compute_bytes + loaded->memory.remote_bytes, 5'000u * 16);
    for (const Mix& mix : all_mixes()) {
      if (mix.is_load() || (is_server() && mix.scan > 0)) continue;
      const auto report = runner.run(mix, 2);
      ASSERT_TRUE(report) << report.error();
      EXPECT_EQ(report->result.operations, 5'000u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Libraries, Peers, ::testing::Values("lmdb", "rocksdb"));
INSTANTIATE_TEST_SUITE_P(Servers, Peers, ::testing::Values("redis", "memcached"));

TEST(Peer, UnknownNamesTheKnown) {
  const auto target = open_peer("oak", {});
  ASSERT_FALSE(target);
  EXPECT_EQ(target.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(target.error().detail(), "no peer 'oak'; there are lmdb, rocksdb, redis, memcached");
}

TEST(ScratchFolder, IsRemovedWithItsContent) {
  std::string path;
  {
    const auto folder = ScratchFolder::make("test");
    ASSERT_TRUE(folder);
    path = folder->path();
    EXPECT_TRUE(std::filesystem::create_directory(std::filesystem::path(path) / "inner"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace pando::lab
