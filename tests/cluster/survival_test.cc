// A cluster under fire: three memory nodes, eight client processes over tcp; clients are killed all
// the time, one memory node is stopped and goes on. Every answer is recorded in memory that
// outlives the clients, and the whole history must be linearizable.
//
// PANDO_SURVIVAL_SECONDS: how long (default 10).

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <thread>

#include "base/random.h"
#include "cluster/daemon.h"
#include "lab/check/linearizability.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;
using lab::check::KeyedHistory;
using lab::check::Operation;
using lab::check::OperationKind;
using lab::check::OperationResult;

constexpr std::size_t kClients = 8;
constexpr std::uint64_t kKeys = 400;
constexpr std::size_t kMaxCalls = 200'000;  // of one client process
constexpr std::size_t kMaxProcesses = 128;

struct Call {
  std::uint64_t key;
  std::uint64_t value;  // written, or found
  std::uint64_t invoked;
  std::uint64_t responded;  // 0: never
  OperationKind kind;
  OperationResult result;
  bool learnt;  // false: an error that tells nothing
};

// In memory that all processes share.
struct Log {
  std::atomic<std::uint64_t> calls;
  std::atomic<std::uint64_t> errors;
  Call call[kMaxCalls];
};
struct Board {
  std::atomic<bool> stop;
  std::atomic<std::uint64_t> unexpected;
  char first_unexpected[256];
  Log logs[kMaxProcesses];
};

std::uint64_t now() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

bool excused(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kIndeterminate ||
         code == ErrorCode::kTimeout || code == ErrorCode::kFenced;
}

// Workload A, until it is killed or told to stop.
void work(const std::string& url, Board& board, std::size_t number) {
  Log& log = board.logs[number];
  base::Random random(number + 1);
  std::uint64_t written = 0;
  while (!board.stop) {
    auto pool = Pool::open(url);
    auto index = pool ? pool->open_index("kv") : Result<Index>(fail(pool.error()));
    if (!index) {
      ++log.errors;
      std::this_thread::sleep_for(20ms);
      continue;
    }
    bool fenced = false;
    while (!board.stop && !fenced) {
      const std::uint64_t place = log.calls.load();
      if (place == kMaxCalls) return;
      Call& call = log.call[place];
      call.key = random.next() % kKeys;
      call.kind = random.next() % 2 == 0 ? OperationKind::kGet : OperationKind::kPut;
      call.value = (std::uint64_t{number} + 1) << 32 | ++written;
      call.result = OperationResult::kUnknown;
      call.learnt = true;
      call.invoked = now();
      log.calls.store(place + 1);
      Status status;
      if (call.kind == OperationKind::kGet) {
        const Result<std::string> found = index->get(call.key);
        if (found) call.value = std::stoull(*found);
        status = found ? Status{} : Status(fail(found.error()));
      } else {
        status = index->put(call.key, std::to_string(call.value));
      }
      const std::uint64_t responded = now();
      if (status) {
        call.result = OperationResult::kDone;
      } else if (status.error().code() == ErrorCode::kNotFound) {
        call.result = OperationResult::kNotFound;
      } else {
        ++log.errors;
        call.learnt = call.kind != OperationKind::kGet;
        fenced = status.error().code() == ErrorCode::kFenced;
        if (!excused(status.error().code()) && board.unexpected++ == 0) {
          status.error().message().copy(board.first_unexpected, sizeof(board.first_unexpected) - 1);
        }
      }
      call.responded = responded;
    }
  }
}

class Survival : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Indexes, Survival, ::testing::Values("sherman", "chime"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Survival, NothingIsLostAndNothingIsWrong) {
  const char* const asked = std::getenv("PANDO_SURVIVAL_SECONDS");
  const std::chrono::seconds duration(asked != nullptr ? std::atoi(asked) : 10);

  std::array<std::unique_ptr<Daemon>, 3> nodes;
  std::string url = "tcp:";
  for (auto& node : nodes) {
    node = std::make_unique<Daemon>(std::vector<std::string>{"--size", "256MiB"});
    url += node->place() + ",";
  }
  url.pop_back();
  {
    auto pool = Pool::open(url).value();
    ASSERT_TRUE(pool.create_index("kv", IndexOptions::parse(GetParam()).value()));
  }
  auto* const board = static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                                               MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(board, MAP_FAILED);
  std::size_t started = 0;
  std::array<pid_t, kClients> clients{};
  const auto start = [&](std::size_t place) {
    const std::size_t number = started++;
    clients[place] = fork();
    if (clients[place] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      work(url, *board, number);
      _exit(0);
    }
  };
  for (std::size_t i = 0; i < kClients; ++i) start(i);

  const auto begun = std::chrono::steady_clock::now();
  std::size_t kills = 0;
  bool stopped = false;
  bool went_on = false;
  while (std::chrono::steady_clock::now() - begun < duration) {
    std::this_thread::sleep_for(1s);
    if (started < kMaxProcesses) {
      const std::size_t victim = kills++ % kClients;
      kill(clients[victim], SIGKILL);
      waitpid(clients[victim], nullptr, 0);
      start(victim);
    }
    const auto elapsed = std::chrono::steady_clock::now() - begun;
    if (!stopped && elapsed > duration / 3) {
      nodes[2]->signal(SIGSTOP);
      stopped = true;
    } else if (stopped && !went_on && elapsed > duration / 3 + 3s) {
      nodes[2]->signal(SIGCONT);
      went_on = true;
    }
  }
  nodes[2]->signal(SIGCONT);
  board->stop = true;
  for (const pid_t client : clients) {
    int status = 0;
    waitpid(client, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "a client died by itself";
  }

  KeyedHistory history;
  std::uint64_t answered = 0;
  std::uint64_t errors = 0;
  std::uint64_t slowest = 0;
  for (std::size_t i = 0; i < started; ++i) {
    const Log& log = board->logs[i];
    errors += log.errors;
    for (std::uint64_t place = 0; place < log.calls; ++place) {
      const Call& call = log.call[place];
      if (call.responded != 0) slowest = std::max(slowest, call.responded - call.invoked);
      const bool known = call.responded != 0 && call.result != OperationResult::kUnknown;
      if (known) ++answered;
      if (!known && call.kind == OperationKind::kGet) continue;
      history.add(std::to_string(call.key),
                  {.kind = call.kind,
                   .result = known ? call.result : OperationResult::kUnknown,
                   .value = call.result == OperationResult::kNotFound ? std::string()
                                                                      : std::to_string(call.value),
                   .invoked = call.invoked,
                   .responded = known ? call.responded : Operation::kNever,
                   .client = static_cast<std::uint32_t>(i)});
    }
  }
  std::printf("%s: %zu kills, %lu answers, %lu errors, the slowest call %.1f s\n", GetParam(),
              kills, answered, errors, static_cast<double>(slowest) / 1e9);
  EXPECT_EQ(board->unexpected, 0u) << board->first_unexpected;
  EXPECT_GT(answered, 1000u);
  // An operation's deadline is 10 s, and a batch under way may take its 2 s beyond it.
  EXPECT_LT(slowest, 20'000'000'000u);
  const auto verdict = history.check();
  EXPECT_TRUE(verdict.linearizable()) << "key " << verdict.key << ": " << verdict.explanation;
  auto pool = Pool::open(url).value();
  const auto index = pool.open_index("kv").value();
  // The last one killed may hold a lock, and counts as a writer until its lease is over.
  Status sound = index.check();
  const auto patience = std::chrono::steady_clock::now() + 10s;
  while (!sound && sound.error().detail().ends_with("locked") &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(50ms);
    sound = index.check();
  }
  EXPECT_TRUE(sound) << sound.error().message();
  munmap(board, sizeof(Board));
}

}  // namespace
}  // namespace pando::testing
