// Memory nodes and clients that find each other through a real etcd.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>

#include "cluster/daemon.h"
#include "cluster/etcd_server.h"
#include "support/memory_nodes.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class Etcd : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdServer::installed()) {
      GTEST_SKIP() << "ETCD IS NOT INSTALLED: nothing of membership through etcd is tested. "
                      "Install Debian's etcd-server.";
    }
    etcd.emplace();
  }

  // By RDMA where there is a device for tests.
  static std::string scheme() { return rdma_address() != nullptr ? "rdma:" : "tcp:"; }
  std::string url(const std::string& cluster = "test") const {
    return scheme() + "?etcd=" + etcd->url() + "&cluster=" + cluster;
  }
  std::unique_ptr<Daemon> node(const std::string& size, std::vector<std::string> more = {},
                               const std::string& cluster = "test") const {
    std::vector<std::string> words = {"--size", size, "--etcd", etcd->url(), "--cluster", cluster};
    if (rdma_address() != nullptr) words.insert(words.end(), {"--rdma", rdma_address()});
    words.insert(words.end(), more.begin(), more.end());
    return std::make_unique<Daemon>(words);
  }
  // Has shared memory of its own, gone with the test.
  std::string shm_name(const std::string& word) {
    names_.push_back("pando-etcd-" + word + "-" + std::to_string(getpid()));
    return names_.back();
  }
  void TearDown() override {
    for (const std::string& name : names_) shm_unlink(("/" + name).c_str());
  }

  std::optional<EtcdServer> etcd;

 private:
  std::vector<std::string> names_;
};

bool within(std::chrono::seconds time, const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
    if (holds()) return true;
    std::this_thread::sleep_for(20ms);
  }
  return holds();
}

std::uint64_t reserved_at(const Pool& pool, std::uint16_t id) {
  const auto stats = pool.stats();
  if (!stats) return 0;
  for (const MemoryNodeStats& node : stats->memory_nodes) {
    if (node.id == id) return node.reserved;
  }
  return 0;
}

std::string value_of(std::uint64_t key) { return std::to_string(key) + std::string(4000, 'v'); }

class Growth : public Etcd, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Etcd, Growth, ::testing::Values("sherman", "chime"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Growth, AFullPoolGoesOnWithAFourthNode) {
  std::vector<std::unique_ptr<Daemon>> nodes;
  for (int i = 0; i < 3; ++i) {
    nodes.push_back(node("6MiB"));
    EXPECT_THAT(nodes.back()->log(),
                HasSubstr("registered: memory node " + std::to_string(i) + " of cluster 'test'"));
  }
  auto pool = Pool::open(url()).value();
  auto other = Pool::open(url()).value();
  EXPECT_EQ(pool.stats()->memory_nodes.size(), 3u);
  auto index = pool.create_index("kv", IndexOptions::parse(GetParam()).value()).value();
  auto others = other.open_index("kv").value();

  std::uint64_t written = 0;
  Status put;
  while ((put = index.put(written, value_of(written)))) ++written;
  ASSERT_EQ(put.error().code(), ErrorCode::kOutOfMemory) << put.error().message();
  EXPECT_GT(written, 1000u);
  const std::uint64_t full = written;

  // While a client reads, and this one tries to write on.
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> wrong{0};
  std::thread reader([&] {
    for (std::uint64_t key = 0; !stop; key = (key + 1) % full) {
      if (others.get(key).value_or("nothing") != value_of(key)) ++wrong;
    }
  });
  nodes.push_back(node("6MiB"));
  EXPECT_TRUE(within(10s, [&] { return index.put(written, value_of(written)).has_value(); }));
  for (++written; written < full + 800; ++written) {
    ASSERT_TRUE(index.put(written, value_of(written)));
  }
  EXPECT_GT(reserved_at(pool, 3), 2u << 20);
  EXPECT_EQ(reserved_at(pool, 3), reserved_at(other, 3));
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, 0u);

  // Those who were there, and who comes now, read what lies there.
  auto third = Pool::open(url()).value();
  auto thirds = third.open_index("kv").value();
  EXPECT_EQ(third.stats()->memory_nodes.size(), 4u);
  for (std::uint64_t key = full; key < written; ++key) {
    ASSERT_EQ(others.get(key).value_or("nothing"), value_of(key));
    ASSERT_EQ(thirds.get(key).value_or("nothing"), value_of(key));
  }
  // A list of the nodes works too, if it has all of them.
  std::string list = scheme();
  for (const auto& each : nodes) list += each->place() + (each == nodes.back() ? "" : ",");
  EXPECT_TRUE(Pool::open(list + "?cluster=test"));
  list.resize(list.rfind(','));
  EXPECT_EQ(Pool::open(list + "?cluster=test").error().code(), ErrorCode::kIncompatible);
}

// A client that came before the node did is killed while it uses it; whoever buries it shuts it out
// there, too, and takes its locks.
TEST_F(Etcd, AKilledClientBlocksNobodyOnANodeThatWasAdded) {
  const auto first = node("8MiB");
  {
    auto pool = Pool::open(url()).value();
    ASSERT_TRUE(pool.create_index("kv"));
  }
  constexpr std::uint64_t kKeys = 40;
  const auto write_all = [](const Index& index, std::uint64_t round) {
    Status all;
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      if (Status put = index.put(key, value_of(round)); !put && all) all = put;
    }
    return all;
  };
  std::array<pid_t, 3> clients{};
  for (pid_t& client : clients) {
    client = fork();  // while this process has one thread
    if (client != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto pool = Pool::open(url());
    auto index = pool ? pool->open_index("kv") : Result<Index>(fail(pool.error()));
    for (std::uint64_t round = 0; index; ++round) (void)write_all(*index, round);
    _exit(1);
  }
  auto pool = Pool::open(url()).value();
  auto index = pool.open_index("kv").value();
  const auto second = node("64MiB");
  // Large values, so that there is soon no room but there.
  for (std::uint64_t key = 1000; key < 1000 + 2000; ++key) {
    ASSERT_TRUE(within(10s, [&] { return index.put(key, value_of(key)).has_value(); }));
  }
  EXPECT_GT(reserved_at(pool, 1), 1u << 20);
  for (const pid_t client : clients) {
    kill(client, SIGKILL);
    int status = 0;
    waitpid(client, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "a client ended by itself";
  }
  Status all;
  EXPECT_TRUE(within(15s, [&] { return (all = write_all(index, 7)).has_value(); }))
      << all.error().message();
  // Each was shut out, there as well.
  EXPECT_TRUE(within(10s, [&] { return second->log().find("fenced") != std::string::npos; }))
      << second->log();
  EXPECT_TRUE(index.check());
}

TEST_F(Etcd, ClustersDoNotSeeEachOther) {
  const auto one = node("4MiB", {}, "one");
  const auto two = node("4MiB", {}, "two");
  EXPECT_THAT(one->log(), HasSubstr("memory node 0 of cluster 'one'"));
  EXPECT_THAT(two->log(), HasSubstr("memory node 0 of cluster 'two'"));
  auto first = Pool::open(url("one")).value();
  ASSERT_TRUE(first.create_index("kv"));
  auto second = Pool::open(url("two")).value();
  EXPECT_EQ(second.stats()->memory_nodes.size(), 1u);
  EXPECT_TRUE(second.list_indexes()->empty());
  const auto none = Pool::open(url("thr"));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(none.error().detail(),
              HasSubstr("etcd knows no memory node of cluster 'thr' that is running; start some"));
}

TEST_F(Etcd, GoneItIsMissedByNewcomersOnly) {
  std::vector<std::unique_ptr<Daemon>> nodes;
  nodes.push_back(node("16MiB"));
  nodes.push_back(node("16MiB"));
  auto pool = Pool::open(url()).value();
  auto index = pool.create_index("kv").value();
  ASSERT_TRUE(index.put(1, "one"));
  etcd->kill();

  const auto until = std::chrono::steady_clock::now() + 2s;
  for (std::uint64_t key = 0; std::chrono::steady_clock::now() < until; ++key) {
    const Status put = index.put(key, std::to_string(key));
    ASSERT_TRUE(put) << put.error().message();
    ASSERT_EQ(index.get(key).value_or("nothing"), std::to_string(key));
  }
  const auto newcomer = Pool::open(url());
  ASSERT_FALSE(newcomer);
  EXPECT_EQ(newcomer.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(newcomer.error().detail(), HasSubstr("etcd at " + etcd->url()));
  EXPECT_THAT(newcomer.error().detail(), HasSubstr("start etcd, or name them, as in tcp:"));
  std::string refusal = "it serves";
  try {
    (void)node("4MiB");
  } catch (const std::exception& error) {
    refusal = error.what();
  }
  EXPECT_THAT(refusal, HasSubstr("etcd at " + etcd->url()));

  // Back, without its data: the nodes register with the ids that their memory knows.
  etcd->lose_data();
  etcd->start();
  EXPECT_TRUE(within(10s, [&] {
    const auto back = Pool::open(url());
    return back && back->stats()->memory_nodes.size() == 2;
  }));
  EXPECT_EQ(index.get(1).value_or("nothing"), "1");
  // And more can be added.
  const auto third = node("16MiB");
  EXPECT_THAT(third->log(), HasSubstr("memory node 2 of cluster"));
  EXPECT_TRUE(within(10s, [&] { return pool.stats()->memory_nodes.size() == 3; }));
}

TEST_F(Etcd, ANodeIsItsMemory) {
  const auto first = node("16MiB");
  const std::string name = shm_name("keeps");
  auto second = node("16MiB", {"--shm", name});
  auto pool = Pool::open(url()).value();
  auto index = pool.create_index("kv").value();
  for (std::uint64_t key = 0; key < 1000; ++key) ASSERT_TRUE(index.put(key, value_of(key)));
  ASSERT_GT(reserved_at(pool, 1), 1u << 20);

  // Stopped in order, it is gone from etcd at once, and its id is not given to another.
  second->signal(SIGTERM);
  EXPECT_EQ(second->wait(), 0);
  const auto missing = Pool::open(url());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(missing.error().detail(), HasSubstr("memory node 1 of the pool is not there; start "
                                                  "it with the memory that it had"));

  // At another address, with its memory: clients find it.
  const std::string before = second->place();
  second = node("16MiB", {"--shm", name});
  EXPECT_NE(second->place(), before);
  EXPECT_TRUE(within(5s, [&] { return second->log().contains("memory node 1 of cluster"); }));
  std::uint64_t found = 0;
  EXPECT_TRUE(within(10s, [&] {
    found = 0;
    while (found < 1000 && index.get(found).value_or("nothing") == value_of(found)) ++found;
    return found == 1000;
  })) << found;
  EXPECT_TRUE(Pool::open(url()));

  // Without its memory it is another one, and what was there is lost; it is never taken for it.
  second->signal(SIGKILL);
  second->wait();
  shm_unlink(("/" + name).c_str());
  second->start_again();
  EXPECT_THAT(second->log(), HasSubstr("memory node 2 of cluster"));
  ErrorCode code = ErrorCode::kExists;
  EXPECT_TRUE(within(10s, [&] {
    for (std::uint64_t key = 0; key < 1000; ++key) {
      const auto got = index.get(key);
      if (got) {
        EXPECT_EQ(*got, value_of(key));
        continue;
      }
      code = got.error().code();
      return code == ErrorCode::kDataLost;
    }
    return false;
  })) << to_string(code);
  EXPECT_TRUE(within(15s, [&] {
    const auto again = Pool::open(url());
    return !again && again.error().detail().contains("memory node 1 of the pool is not there");
  }));
}

}  // namespace
}  // namespace pando::testing
