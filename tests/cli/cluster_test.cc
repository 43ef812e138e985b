// `pando cluster` and `pando top`: what they start, print and leave behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/program.h"
#include "fabric/node/process.h"

namespace pando::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(
    ClusterWords, BadWords,
    ::testing::Values(BadWord{"cluster", "up, add, down or status", "--help"},
                      BadWord{"cluster sideways", "sideways", "--help"},
                      BadWord{"cluster up --nodes 0", "--nodes", "1 to 64"},
                      BadWord{"cluster up --size lots", "'lots'", "--size"},
                      BadWord{"cluster up --size 60TiB", "--size: 60TiB can never fit",
                              "give less"},
                      BadWord{"cluster up --nodes 64 --size 1TiB", "1TiB", "of memory; give less"},
                      BadWord{"memnode --size 60TiB", "size: 60TiB can never fit", "give less"},
                      BadWord{"memnode --size 2MiB --tls on", "--tls", "--key-file"},
                      BadWord{"memnode --size 2MiB --tls yes", "'yes'", "on"},
                      BadWord{"top nowhere", "nowhere", "HOST:PORT"},
                      BadWord{"top --every 0", "--every", "0.1"},
                      BadWord{"top --dir /no/such/folder", "/no/such/folder", "cluster up"}));

// Ends its cluster whatever becomes of the test.
class ClusterCommand : public Program {
 protected:
  void TearDown() override { (void)cluster("down"); }

  Outcome cluster(const std::string& words) const {
    return run_pando("cluster " + words + " --dir '" + folder() + "'");
  }
  std::string folder() const { return folder_.path() / "cluster"; }
  static std::string pool_in(const std::string& output) {
    const std::size_t begin = output.find("PANDO_POOL='") + 12;
    return output.substr(begin, output.find('\'', begin) - begin);
  }

 private:
  Folder folder_;
};

TEST_F(ClusterCommand, GoesUpIsUsedAndGoesDown) {
  const Outcome up = cluster("up --nodes 2 --size 64MiB");
  ASSERT_EQ(up.code, 0) << up.output;
  EXPECT_THAT(up.output, HasSubstr("export PANDO_POOL='tcp:127.0.0.1:"));

  const Outcome again = cluster("up");
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.output, HasSubstr("a cluster runs in '" + folder()));
  EXPECT_EQ(cluster("status").code, 0);

  // Two indexes in one pool at the same time, by a URL and by the environment.
  const std::string bench = "bench --index 'sherman;chime' --keys 1k --ops 1k --workload A ";
  const Outcome by_url = run_pando(bench + "--pool '" + pool_in(up.output) + "'");
  EXPECT_EQ(by_url.code, 0) << by_url.output;
  EXPECT_THAT(by_url.output, AllOf(HasSubstr("sherman  A"), HasSubstr("chime    A")));
  setenv("PANDO_POOL", "tcp:127.0.0.1:1", 1);
  const Outcome wrong = run_pando(bench);
  const Outcome embedded = run_pando(bench + "--fabric embedded");
  unsetenv("PANDO_POOL");
  EXPECT_THAT(wrong.output, HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(embedded.code, 0) << embedded.output;

  const Outcome top = run_pando("top --count 1 --every 0.1 --json --dir '" + folder() + "'");
  ASSERT_EQ(top.code, 0) << top.output;
  const auto rows = nlohmann::json::parse(top.output);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["memory_bytes"], 64 << 20);
  EXPECT_EQ(rows[0]["clients"], 0);

  const Outcome down = cluster("down");
  EXPECT_EQ(down.code, 0) << down.output;
  EXPECT_FALSE(std::filesystem::exists(folder()));
  EXPECT_EQ(cluster("down").code, 1);
  EXPECT_NE(run_pando(bench + "--pool '" + pool_in(up.output) + "'").code, 0);
}

TEST_F(ClusterCommand, GoesUpWithTls) {
  const Outcome up = cluster("up --nodes 1 --size 16MiB --tls");
  ASSERT_EQ(up.code, 0) << up.output;
  const std::string pool = pool_in(up.output);
  EXPECT_THAT(pool, HasSubstr("&tls=on"));
  EXPECT_THAT(cluster("status").output, HasSubstr(pool));
  const std::string bench = "bench --index chime --keys 1k --ops 1k --workload A --pool '";
  const Outcome by_tls = run_pando(bench + pool + "'");
  EXPECT_EQ(by_tls.code, 0) << by_tls.output;
  const Outcome plain = run_pando(bench + pool.substr(0, pool.find("&tls=on")) + "'");
  EXPECT_NE(plain.code, 0);
  EXPECT_THAT(plain.output, HasSubstr("give tls=on"));
}

TEST_F(ClusterCommand, GrowsWithEtcd) {
  const Outcome up = cluster("up --nodes 1 --size 16MiB --etcd");
  if (up.output.contains("'etcd' is not on this machine")) {
    GTEST_SKIP() << "etcd is not on this machine: clusters that grow are NOT tested";
  }
  ASSERT_EQ(up.code, 0) << up.output;
  EXPECT_THAT(up.output, HasSubstr("export PANDO_POOL='tcp:?etcd=http://127.0.0.1:"));
  const Outcome more = cluster("add --size 32MiB");
  ASSERT_EQ(more.code, 0) << more.output;
  EXPECT_THAT(more.output, HasSubstr("the new one of 32MiB"));
  const Outcome same = cluster("add");
  ASSERT_EQ(same.code, 0) << same.output;
  EXPECT_THAT(same.output, HasSubstr("the new one of 16MiB"));
  const Outcome status = cluster("status");
  EXPECT_EQ(status.code, 0) << status.output;
  EXPECT_THAT(status.output, HasSubstr("etcd http://127.0.0.1:"));
  const Outcome bench = run_pando("bench --index chime --keys 1k --ops 1k --workload A --pool '" +
                                  pool_in(up.output) + "'");
  EXPECT_EQ(bench.code, 0) << bench.output;
  const Outcome top = run_pando("top --count 1 --every 0.1 --json --dir '" + folder() + "'");
  EXPECT_EQ(nlohmann::json::parse(top.output).size(), 3u);
  EXPECT_EQ(cluster("down").code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder()));
}

TEST_F(ClusterCommand, DoesNotGrowWithoutEtcd) {
  ASSERT_EQ(cluster("up --nodes 1 --size 16MiB").code, 0);
  const Outcome more = cluster("add");
  EXPECT_EQ(more.code, 2);
  EXPECT_THAT(more.output, HasSubstr("cluster up --etcd"));
}

TEST_F(ClusterCommand, LeavesNothingWhereANodeCannotStart) {
  const Outcome up = cluster("up --size 1KiB");
  EXPECT_EQ(up.code, 1);
  EXPECT_THAT(up.output, HasSubstr("size: 1KiB is not between"));
  EXPECT_FALSE(std::filesystem::exists(folder()));
}

TEST_F(ClusterCommand, DoesNotBelieveAFileOfSomethingElse) {
  std::filesystem::create_directories(folder());
  std::ofstream(folder() + "/cluster.json") << R"({"nodes": [{"process": "none"}, 3]})";
  const Outcome down = cluster("down");
  EXPECT_EQ(down.code, 1);
  EXPECT_THAT(down.output, HasSubstr("cluster.json' is not a cluster's"));
  std::ofstream(folder() + "/cluster.json") << "not json";
  EXPECT_THAT(cluster("down").output, HasSubstr("cluster.json' is not a cluster's"));
}

TEST_F(ClusterCommand, IsFoundAgainByTheWordsThatItPrints) {
  const Outcome up = cluster("up --nodes 1 --size 16MiB");
  ASSERT_EQ(up.code, 0) << up.output;
  EXPECT_THAT(up.output, HasSubstr("pando top --dir '" + folder() + "'"));
  EXPECT_THAT(up.output, HasSubstr("pando cluster down --dir '" + folder() + "'"));
  // By another way there, too.
  const Outcome down = run_pando("cluster down --dir '" + folder() + "/../cluster/'");
  EXPECT_EQ(down.code, 0) << down.output;
  EXPECT_THAT(down.output, HasSubstr("1 memory nodes ended"));
  EXPECT_FALSE(std::filesystem::exists(folder()));
}

// What is in it may be a stranger's.
class UntrustedFolder : public ClusterCommand {
 protected:
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::permissions(folder(), std::filesystem::perms::owner_all, ignored);
    if (geteuid() == 0) (void)!chown(folder().c_str(), 0, 0);
    ClusterCommand::TearDown();
  }
  // Files as a cluster has them, with a process of the test's own.
  void make_folder(const std::string& state) const {
    std::filesystem::create_directories(folder());
    std::filesystem::permissions(folder(), std::filesystem::perms::owner_all);
    std::ofstream(folder() + "/cluster.json") << state;
  }
  void expect_refused(const std::string& why) const {
    for (const std::string& command :
         {std::string("cluster up --nodes 1 --size 16MiB"), std::string("cluster down"),
          std::string("cluster status"), std::string("cluster add"),
          std::string("top --count 1 --every 0.1")}) {
      const Outcome refused = run_pando(command + " --dir '" + folder() + "'");
      EXPECT_NE(refused.code, 0) << command;
      EXPECT_THAT(refused.output, HasSubstr(why)) << command;
    }
    EXPECT_FALSE(std::filesystem::exists(folder() + "/key")) << "it was given the key";
  }
};

TEST_F(UntrustedFolder, OfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make another user's folder";
  make_folder("{}");
  ASSERT_EQ(chown(folder().c_str(), 12345, 12345), 0);
  expect_refused("belongs to user 12345, not to user 0 who runs this");
}

TEST_F(UntrustedFolder, ThatOthersMayWriteIsRefused) {
  make_folder("{}");
  std::filesystem::permissions(folder(), std::filesystem::perms::all);
  expect_refused("may be written by others (mode 777)");
}

TEST_F(UntrustedFolder, WithAnotherUsersFileIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make another user's file";
  make_folder("{}");
  ASSERT_EQ(chown((folder() + "/cluster.json").c_str(), 12345, 12345), 0);
  expect_refused("cluster.json' belongs to user 12345");
}

TEST_F(UntrustedFolder, LinksAreNotFollowed) {
  const std::string elsewhere = folder() + "-elsewhere";
  std::filesystem::create_directories(elsewhere);
  std::filesystem::create_symlink(elsewhere, folder());
  const Outcome linked = cluster("up --nodes 1 --size 16MiB");
  EXPECT_EQ(linked.code, 1);
  EXPECT_THAT(linked.output, HasSubstr("symbolic links"));
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere));
  std::filesystem::remove(folder());

  // Where its files should be, neither.
  make_folder("{}");
  const std::string victim = elsewhere + "/victim";
  std::ofstream(victim) << "precious";
  for (const char* name : {"/0.log", "/key", "/cluster.json.new"}) {
    std::filesystem::create_symlink(victim, folder() + name);
  }
  const Outcome up = cluster("up --nodes 1 --size 16MiB");
  EXPECT_EQ(up.code, 0) << up.output;
  std::string left;
  std::getline(std::ifstream(victim), left);
  EXPECT_EQ(left, "precious");
  EXPECT_EQ(cluster("down").code, 0);

  make_folder("{}");
  std::filesystem::remove(folder() + "/cluster.json");
  std::filesystem::create_symlink(victim, folder() + "/cluster.json");
  EXPECT_THAT(cluster("down").output, HasSubstr("symbolic links"));
}

// The file names a process that runs, and when it began, but it is no memory node of this cluster.
TEST_F(UntrustedFolder, OtherProcessesAreNotEnded) {
  const pid_t other = fork();
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execlp("sleep", "sleep", "1000", static_cast<char*>(nullptr));
    _exit(127);
  }
  const auto words = [&] {
    std::ifstream file("/proc/" + std::to_string(other) + "/cmdline");
    return std::string((std::istreambuf_iterator<char>(file)), {});
  };
  while (!words().starts_with("sleep")) usleep(1000);
  const std::uint64_t started = fabric::node::process_started(other);
  make_folder(nlohmann::json{{"nodes",
                              {{{"process", other},
                                {"started", started},
                                {"place", "127.0.0.1:1"},
                                {"http", "127.0.0.1:2"}}}}}
                  .dump());
  const Outcome down = cluster("down");
  EXPECT_EQ(down.code, 1);
  EXPECT_THAT(down.output, HasSubstr("process " + std::to_string(other) + " may not be"));
  EXPECT_EQ(waitpid(other, nullptr, WNOHANG), 0) << "it was ended";
  EXPECT_TRUE(std::filesystem::exists(folder() + "/cluster.json"));
  // Where it began at another time, the id is simply used again.
  make_folder(nlohmann::json{{"nodes",
                              {{{"process", other},
                                {"started", started + 1},
                                {"place", "127.0.0.1:1"},
                                {"http", "127.0.0.1:2"}}}}}
                  .dump());
  EXPECT_EQ(cluster("down").code, 0);
  EXPECT_EQ(waitpid(other, nullptr, WNOHANG), 0) << "it was ended";
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

TEST_F(Program, TopSaysWhoDoesNotAnswer) {
  const Outcome top = run_pando("top --count 1 --every 0.1 127.0.0.1:1");
  EXPECT_EQ(top.code, 1);
  EXPECT_THAT(top.output, HasSubstr("Connection refused"));
}

}  // namespace
}  // namespace pando::cli
