// A client that is stopped while it holds a lock, is taken for dead, and wakes: what it still meant
// to write must not land.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "cluster/daemon.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kKey = 7;

// In memory that both processes share.
struct Board {
  std::atomic<std::uint64_t> writes;
  std::atomic<int> end;  // the ErrorCode + 1 with which its last write failed
};

void write_until_it_fails(const std::string& url, Board& board) {
  auto pool = Pool::open(url);
  auto index = pool ? pool->open_index("kv") : Result<Index>(fail(pool.error()));
  Status status = index ? Status{} : Status(fail(index.error()));
  while (status) {
    status = index->put(kKey, "the sleeper's " + std::to_string(++board.writes));
  }
  board.end = static_cast<int>(status.error().code()) + 1;
}

// Or until it has failed.
void sleep_until_written(const Board& board, std::uint64_t more) {
  const std::uint64_t before = board.writes;
  while (board.writes < before + more && board.end == 0) std::this_thread::sleep_for(100us);
}

class SplitBrain : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Indexes, SplitBrain, ::testing::Values("sherman", "chime"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(SplitBrain, LateWritesOfASleeperDoNotLand) {
  const Daemon first({"--size", "64MiB"});
  const Daemon second({"--size", "64MiB"});
  const std::string url = "tcp:" + first.place() + "," + second.place();
  ASSERT_TRUE(Pool::open(url).value().create_index("kv", IndexOptions::parse(GetParam()).value()));
  auto* const board = static_cast<Board*>(
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(board, MAP_FAILED);
  const pid_t sleeper = fork();
  if (sleeper == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    write_until_it_fails(url, *board);
    _exit(0);
  }

  auto pool = Pool::open(url).value();
  const Index index = pool.open_index("kv").value();
  // Stopped at any moment it may hold the key's lock or not. If it does, a write of ours waits for
  // its lease to end and has it fenced; if not, it writes on when it wakes.
  std::string ours;
  for (int attempt = 1; attempt <= 500 && board->end == 0; ++attempt) {
    sleep_until_written(*board, 3);
    kill(sleeper, SIGSTOP);
    ASSERT_EQ(waitpid(sleeper, nullptr, WUNTRACED), sleeper);
    ours = "ours " + std::to_string(attempt);
    ASSERT_TRUE(index.put(kKey, ours));
    EXPECT_EQ(index.get(kKey).value(), ours);
    kill(sleeper, SIGCONT);
    sleep_until_written(*board, 3);
  }
  if (board->end == 0) kill(sleeper, SIGKILL);  // never stopped with the lock in its hands
  ASSERT_EQ(waitpid(sleeper, nullptr, 0), sleeper);
  EXPECT_EQ(board->end, static_cast<int>(ErrorCode::kFenced) + 1);
  EXPECT_EQ(index.get(kKey).value(), ours);
  const Status sound = index.check();
  EXPECT_TRUE(sound) << sound.error().message();
  munmap(board, sizeof(Board));
}

}  // namespace
}  // namespace pando::testing
