// Memory nodes of another machine, by RDMA. Runs where the environment tells of them, as in the
// guests of tests/guest:
//   PANDO_TEST_RDMA_POOL  URL of nodes for a pool
//   PANDO_TEST_RDMA_RAW   URL of a node that nothing else uses
//   PEERIP                its address, to which this machine may cut the wire

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "fabric/conformance.h"
#include "fabric/open.h"
#include "index/registry.h"
#include "support/conformance.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;
using fabric::Address;
using fabric::Batch;
using fabric::Outcome;
using SteadyClock = std::chrono::steady_clock;

struct RdmaCase {
  std::string name;
  std::string url;
};

std::string name_of(const ::testing::TestParamInfo<RdmaCase>& info) { return info.param.name; }
void PrintTo(const RdmaCase& rdma, std::ostream* out) { *out << rdma.name; }

// One for each index.
std::vector<RdmaCase> pools() {
  std::vector<RdmaCase> cases;
  const char* const url = std::getenv("PANDO_TEST_RDMA_POOL");
  if (url == nullptr) return cases;
  for (const index::Kind* kind : index::kinds()) cases.push_back({std::string(kind->name()), url});
  return cases;
}

std::vector<RdmaCase> raw_nodes() {
  const char* const url = std::getenv("PANDO_TEST_RDMA_RAW");
  return url == nullptr ? std::vector<RdmaCase>() : std::vector<RdmaCase>{{"raw", url}};
}

class RdmaPool : public ::testing::TestWithParam<RdmaCase> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RdmaPool);
INSTANTIATE_TEST_SUITE_P(Indexes, RdmaPool, ::testing::ValuesIn(pools()), name_of);

class RdmaWire : public ::testing::TestWithParam<RdmaCase> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RdmaWire);
INSTANTIATE_TEST_SUITE_P(Nodes, RdmaWire, ::testing::ValuesIn(raw_nodes()), name_of);

// Half gets, half puts, from three compute nodes, each with caches of its own; some keys come and
// go. What everyone saw must have an order.
TEST_P(RdmaPool, WorkloadAIsLinearizable) {
  constexpr std::uint64_t kKeys = 200;
  constexpr std::uint64_t kSteps = 500;
  // Guests are slow: nobody is to be taken for dead, nor to give up.
  const PoolOptions options{.deadline = 60s, .lease = 30s};
  auto pool = must(Pool::open(GetParam().url, options));
  Index index =
      must(pool.create_index(GetParam().name, must(IndexOptions::parse(GetParam().name))));
  HistoryRecorder recorder;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const std::string value = "first of " + std::to_string(key);
    must(index.put(key, value));
    recorder.set_initial(key, value);
  }
  std::vector<Index> views = open_on_nodes(pool, 2, GetParam().name, options);
  views.push_back(index);
  run_threads(views.size(), [&](std::size_t thread) {
    RecordedIndex client(views[thread], recorder);
    std::mt19937_64 random(thread);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const std::uint64_t key = random() % kKeys;
      const std::uint64_t dice = random() % 20;
      if (dice < 10) {
        client.get(key);
      } else if (dice < 19) {
        client.put(key, std::to_string(thread) + "." + std::to_string(step));
      } else {
        client.erase(key);
      }
    }
  });
  EXPECT_TRUE(linearizable(recorder));
  const Status sound = index.check();
  EXPECT_TRUE(sound) << sound.error().message();
}

// ---- Clients that are killed ----

constexpr std::uint64_t kHotKeys = 8;
constexpr std::uint64_t kFirstSign = 1'000;  // keys from here on tell that a victim is at work
constexpr const char* kVictim = "PANDO_TEST_RDMA_VICTIM";
const PoolOptions kMortal{.deadline = 60s, .lease = 2s};

std::string mortal_name(const RdmaCase& rdma) { return rdma.name + "-mortal"; }

// Another process, which the test below starts and kills.
class RdmaVictim : public ::testing::TestWithParam<RdmaCase> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RdmaVictim);
INSTANTIATE_TEST_SUITE_P(Indexes, RdmaVictim,
                         ::testing::ValuesIn(std::getenv(kVictim) != nullptr
                                                 ? pools()
                                                 : std::vector<RdmaCase>()),
                         name_of);

TEST_P(RdmaVictim, PutsUntilItIsKilled) {
  auto pool = must(Pool::open(GetParam().url, kMortal));
  const Index index = must(pool.open_index(mortal_name(GetParam())));
  must(index.put(kFirstSign + std::stoull(std::getenv(kVictim)), "at work"));
  for (std::uint64_t step = 0;; ++step) must(index.put(step % kHotKeys, std::to_string(step)));
}

class Victim {
 public:
  Victim(const std::string& index, std::uint64_t number) {
    setenv(kVictim, std::to_string(number).c_str(), 1);
    std::string program = "/proc/self/exe";
    std::string filter = "--gtest_filter=Indexes/RdmaVictim.*/" + index;
    std::string brief = "--gtest_brief=1";
    std::array<char*, 4> words = {program.data(), filter.data(), brief.data(), nullptr};
    EXPECT_EQ(posix_spawn(&process_, "/proc/self/exe", nullptr, nullptr, words.data(), environ), 0);
    unsetenv(kVictim);
  }
  ~Victim() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

 private:
  pid_t process_ = 0;
};

TEST_P(RdmaPool, AKilledClientBlocksNobody) {
  auto pool = must(Pool::open(GetParam().url, kMortal));
  const Index index =
      must(pool.create_index(mortal_name(GetParam()), must(IndexOptions::parse(GetParam().name))));
  for (std::uint64_t round = 0; round < 3; ++round) {
    {
      const Victim victim(GetParam().name, round);
      ASSERT_TRUE(eventually([&] { return index.get(kFirstSign + round).has_value(); }));
      std::this_thread::sleep_for(std::chrono::milliseconds(50 + 37 * round));
    }
    for (std::uint64_t key = 0; key < kHotKeys; ++key) {
      const Status put = index.put(key, "still here");
      EXPECT_TRUE(put) << put.error().message();
      EXPECT_EQ(must(index.get(key)), "still here") << "nothing late";
    }
  }
  EXPECT_TRUE(eventually([&] { return index.check().has_value(); }));
}

// ---- A wire that is cut ----

// Frames go to nobody, until they are let through again.
class CutWire {
 public:
  CutWire() { run("replace " + peer() + " lladdr 02:00:00:00:00:99 nud permanent dev eth0"); }
  ~CutWire() { run("del " + peer() + " dev eth0"); }
  CutWire(const CutWire&) = delete;
  CutWire& operator=(const CutWire&) = delete;

 private:
  static std::string peer() { return std::getenv("PEERIP"); }
  static void run(const std::string& words) {
    EXPECT_EQ(std::system(("ip neigh " + words).c_str()), 0) << words;
  }
};

TEST_P(RdmaWire, WhatIsUnderWayWhenItIsCutEndsInTimeAndItComesBack) {
  constexpr Address kAdded(0, 4096);
  constexpr Address kWritten(0, 8192);
  const std::string url =
      GetParam().url + (GetParam().url.contains('?') ? "&" : "?") + "timeout=1500";
  fabric::Client client(fabric::open_fabric(url).value());
  client.write_word(kAdded, 0);
  client.write_word(kWritten, 0);
  std::uint64_t sure = 0;
  std::uint64_t open = 0;
  const auto add = [&] {
    Batch batch;
    batch.fetch_add(kAdded, 1);
    const Status added = client.submit(batch);
    sure += added ? 1 : 0;
    if (added) return added;
    const bool unknown = batch[0].outcome == Outcome::kIndeterminate;
    open += unknown ? 1 : 0;
    EXPECT_EQ(added.error().code(), unknown ? ErrorCode::kIndeterminate : ErrorCode::kUnavailable);
    return added;
  };
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(add());
  {
    const CutWire cut;
    const auto begun = SteadyClock::now();
    EXPECT_FALSE(add());
    EXPECT_EQ(open, 1u) << "it was under way";
    const std::uint64_t one = 1;
    Batch write;
    write.write_word(kWritten, &one);
    const Status written = client.submit(write);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code(), ErrorCode::kUnavailable);
    EXPECT_EQ(write[0].outcome, Outcome::kNotExecuted) << "there was no connection to send it by";
    EXPECT_LT(SteadyClock::now() - begun, 15s);
  }
  Status back = add();
  const auto patience = SteadyClock::now() + 20s;
  while (!back && SteadyClock::now() < patience) back = add();
  ASSERT_TRUE(back) << back.error().message();
  // Nothing twice, nothing late.
  const std::uint64_t sum = client.read_word(kAdded);
  EXPECT_GE(sum, sure);
  EXPECT_LE(sum, sure + open);
  EXPECT_EQ(client.read_word(kWritten), 0u);
}

}  // namespace
}  // namespace pando::testing
