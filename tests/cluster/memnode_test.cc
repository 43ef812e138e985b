// `pando memnode` as a process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "cluster/daemon.h"
#include "fabric/wire/socket.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

#ifndef PANDO_BINARY
#define PANDO_BINARY "pando"
#endif

std::string failure_of(std::vector<std::string> words, std::chrono::seconds patience = 30s) {
  try {
    const Daemon daemon(std::move(words), patience);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "it serves";
}

TEST(Memnode, ServesAndEndsInOrder) {
  Daemon daemon({"--size", "64MiB", "--log-format", "json"});
  {
    auto pool = Pool::open("tcp:" + daemon.place()).value();
    auto index = pool.create_index("users").value();
    ASSERT_TRUE(index.put(42, "Ada"));
    EXPECT_EQ(index.get(42).value(), "Ada");
  }
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0);
  EXPECT_THAT(daemon.log(), HasSubstr(R"("event":"serving","detail":"127.0.0.1:)"));
  EXPECT_THAT(daemon.log(), HasSubstr(R"("event":"stopping","detail":"SIGTERM")"));
}

TEST(Memnode, ServesAnIndexByTlsAndNothingWithout) {
  const std::string key = ::testing::TempDir() + "pando-memnode-key-" + std::to_string(getpid());
  std::ofstream(key) << "a key of the tests\n";
  chmod(key.c_str(), 0600);
  const Daemon daemon({"--size", "64MiB", "--key-file", key, "--tls", "on"});
  const std::string url = "tcp:" + daemon.place() + "?key_file=" + key;
  {
    auto pool = Pool::open(url + "&tls=on").value();
    auto index = pool.create_index("users").value();
    const std::string large(1 << 20, 'x');  // many records of TLS
    ASSERT_TRUE(index.put(1, large));
    for (std::uint64_t i = 2; i < 1000; ++i) ASSERT_TRUE(index.put(i, std::to_string(i)));
    EXPECT_EQ(index.get(1).value(), large);
    EXPECT_EQ(index.get(999).value(), "999");
  }
  const auto plain = Pool::open(url);
  ASSERT_FALSE(plain);
  EXPECT_EQ(plain.error().code(), ErrorCode::kDenied);
  EXPECT_THAT(plain.error().detail(), HasSubstr("?tls=on"));
  EXPECT_THAT(daemon.log(), HasSubstr("refused: denied: this memory node lets clients in by TLS"));
  unlink(key.c_str());
}

TEST(Memnode, TurnsAwayThoseItHasNoDescriptorsFor) {
  const Daemon daemon({"--size", "2MiB"});
  rlimit few = {.rlim_cur = 16, .rlim_max = 16};
  ASSERT_EQ(prlimit(daemon.process(), RLIMIT_NOFILE, &few, nullptr), 0);
  const auto place = fabric::wire::parse_place(daemon.place()).value();
  std::vector<fabric::wire::Socket> all;
  for (int i = 0; i < 32; ++i) all.push_back(fabric::wire::begin_connect(place).value());
  // Those are closed at once, and all others once they have said nothing for a while.
  std::byte byte{};
  for (const auto& socket : all) {
    pollfd wait = {.fd = socket.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&wait, 1, 30'000), 1);
    EXPECT_FALSE(socket.receive({&byte, 1}));
  }
  EXPECT_THAT(daemon.log(), HasSubstr("no descriptors are left"));
  EXPECT_TRUE(Pool::open("tcp:" + daemon.place()));
}

TEST(Memnode, SaysWhatIsWrong) {
  const Daemon first({"--size", "2MiB"});
  EXPECT_THAT(failure_of({"--size", "2MiB", "--listen", first.place()}),
              HasSubstr("Address already in use; choose another port"));
  EXPECT_THAT(failure_of({"--size", "2KiB"}), HasSubstr("size: 2KiB is not between 1MiB and"));
  EXPECT_THAT(failure_of({"--size", "many"}), HasSubstr("--size: 'many' is not a size"));
  EXPECT_THAT(failure_of({}), HasSubstr("--size is required"));
  EXPECT_THAT(failure_of({"--size", "2MiB", "--key-file", "/no/such/key"}),
              HasSubstr("--key-file: key file '/no/such/key': No such file"));
  EXPECT_THAT(failure_of({"--size", "2MiB", "--tls", "on"}),
              HasSubstr("--tls: it is made with the cluster's key; give a --key-file, too"));
  EXPECT_THAT(failure_of({"--size", "2MiB", "--tls", "maybe"}), HasSubstr("--tls: 'maybe'"));
  EXPECT_THAT(failure_of({"--size", "2MiB", "--log-file", "/no/such/log"}),
              HasSubstr("--log-file: '/no/such/log'"));
  EXPECT_THAT(failure_of({"--size", "2MiB", "--huge", "maybe"}), HasSubstr("--huge: 'maybe'"));
  EXPECT_THAT(failure_of({"--size", "2MiB", "--onchip-in", "chip"}),
              HasSubstr("--onchip-in: 'chip' is none of auto, card and host"));
  EXPECT_THAT(failure_of({"--size", "2MiB", "--onchip-in", "card"}), HasSubstr("give --rdma"));
  EXPECT_THAT(failure_of({"--size", "2MiB", "--file", "/no/such/file"}),
              HasSubstr("'/no/such/file' cannot be opened"));
  EXPECT_THAT(failure_of({"--size", "2MiB", "--listen", "somewhere"}),
              HasSubstr("--listen: 'somewhere' is no address"));
}

TEST(Memnode, MoreThanTheMachineHasIsRefused) {
  const std::string failure = failure_of({"--size", "60TiB", "--prefault"});
  EXPECT_THAT(failure, HasSubstr("size: 60TiB can never fit"));
  EXPECT_THAT(failure, HasSubstr("of memory; give less than that"));
}

// Shared memory of the test's own, removed at its end.
class SharedName {
 public:
  explicit SharedName(const char* word)
      : name_("pando-" + std::string(word) + "-" + std::to_string(getpid())) {}
  ~SharedName() { shm_unlink(("/" + name_).c_str()); }
  SharedName(const SharedName&) = delete;
  SharedName& operator=(const SharedName&) = delete;
  const std::string& get() const { return name_; }
  bool exists() const { return access(("/dev/shm/" + name_).c_str(), F_OK) == 0; }

 private:
  std::string name_;
};

// The signal is there before the program is: it is heard within the first step.
TEST(Memnode, IsStoppedWhileItPrefaults) {
  const SharedName name("prefault");
  std::string log = ::testing::TempDir() + "pando-prefault-XXXXXX";
  const int file = mkstemp(log.data());
  ASSERT_GE(file, 0);
  const pid_t process = fork();
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(file, STDERR_FILENO);
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGTERM);
    sigprocmask(SIG_BLOCK, &held, nullptr);
    kill(getpid(), SIGTERM);
    execlp(PANDO_BINARY, PANDO_BINARY, "memnode", "--size", "256MiB", "--prefault", "--listen",
           "127.0.0.1:0", "--shm", name.get().c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(file);
  int status = 0;
  ASSERT_EQ(waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  std::ifstream said(log);
  const std::string events((std::istreambuf_iterator<char>(said)), {});
  EXPECT_THAT(events, HasSubstr("stopping: SIGTERM"));
  EXPECT_THAT(events, Not(HasSubstr("serving")));
  EXPECT_FALSE(name.exists());
  unlink(log.c_str());
}

// As the table in docs/operations.md has it: each time, not only the first.
TEST(Memnode, FreshItDoesNotServeWithoutItsEtcdHoweverOften) {
  const SharedName name("no-etcd");
  const std::vector<std::string> words = {"--size",    "2MiB", "--shm",  name.get(),
                                          "--cluster", "test", "--etcd", "http://127.0.0.1:1"};
  for (int start = 0; start < 2; ++start) {
    EXPECT_THAT(failure_of(words), HasSubstr("etcd at http://127.0.0.1:1")) << start;
    EXPECT_FALSE(name.exists()) << start;
  }
}

TEST(Memnode, WithMemoryOfOldItServesWithoutItsEtcd) {
  const SharedName name("old");
  {
    const Daemon first({"--size", "2MiB", "--shm", name.get(), "--cluster", "test"});
  }
  ASSERT_TRUE(name.exists());
  const Daemon second(
      {"--size", "2MiB", "--shm", name.get(), "--cluster", "test", "--etcd", "http://127.0.0.1:1"});
  EXPECT_THAT(second.log(), HasSubstr("taken over as it was"));
}

TEST(Memnode, ThatCannotListenLeavesNothing) {
  const SharedName name("no-port");
  const Daemon first({"--size", "2MiB"});
  EXPECT_THAT(failure_of({"--size", "2MiB", "--shm", name.get(), "--listen", first.place()}),
              HasSubstr("Address already in use"));
  EXPECT_FALSE(name.exists());
}

TEST(Memnode, AFullDiskForLogsCostsEventsNotService) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full here";
  // It serves, but cannot say where.
  EXPECT_THAT(failure_of({"--size", "2MiB", "--log-file", "/dev/full"}, 2s),
              HasSubstr("the log '/dev/full' cannot be written: No space left on device"));
}

TEST(Memnode, SharedMemoryOutlivesAKilledProcess) {
  const std::string name = "pando-outlives-" + std::to_string(getpid());
  Daemon daemon({"--size", "64MiB", "--shm", name});
  auto pool = Pool::open("tcp:" + daemon.place()).value();
  auto index = pool.create_index("users").value();
  for (std::uint64_t key = 0; key < 1000; ++key) {
    ASSERT_TRUE(index.put(key, std::to_string(key)));
  }
  daemon.signal(SIGKILL);
  EXPECT_EQ(daemon.wait(), 128 + SIGKILL);
  const auto begun = std::chrono::steady_clock::now();
  const auto gone = index.get(1);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), ErrorCode::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 30s);
  daemon.start_again();
  EXPECT_THAT(daemon.log(), HasSubstr("taken over as it was"));
  Result<std::string> back = index.get(1);
  for (int i = 0; i < 100 && !back; ++i) {
    std::this_thread::sleep_for(50ms);
    back = index.get(1);
  }
  ASSERT_TRUE(back) << back.error().message();
  for (std::uint64_t key = 0; key < 1000; ++key) {
    EXPECT_EQ(index.get(key).value_or("nothing"), std::to_string(key));
  }
  EXPECT_TRUE(index.put(5, "new"));
  shm_unlink(("/" + name).c_str());
}

TEST(Memnode, WithoutItsMemoryThePoolIsLost) {
  Daemon daemon({"--size", "64MiB"});
  auto pool = Pool::open("tcp:" + daemon.place()).value();
  auto index = pool.create_index("users").value();
  ASSERT_TRUE(index.put(1, "one"));
  daemon.signal(SIGKILL);
  daemon.wait();
  daemon.start_again();
  Result<std::string> lost = index.get(1);
  for (int i = 0; i < 100 && !lost && lost.error().code() != ErrorCode::kDataLost; ++i) {
    std::this_thread::sleep_for(50ms);
    lost = index.get(1);
  }
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code(), ErrorCode::kDataLost);
}

}  // namespace
}  // namespace pando::testing
