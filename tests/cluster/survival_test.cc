// A cluster under fire: three memory nodes, eight client processes over tcp, and a network between
// them that cuts, holds back and delays (support/proxy.h). Clients are killed, stopped and go on,
// leave and come back; memory nodes are stopped and go on. Every answer is recorded in memory that
// outlives the clients. The whole history must be linearizable, every call must end in time, and
// nobody may be taken for dead who was not stopped for longer than a lease.
//
// PANDO_SURVIVAL_SECONDS: how long (default 10). PANDO_SURVIVAL_SEED: of all that is drawn.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/random.h"
#include "cluster/client_process.h"
#include "cluster/daemon.h"
#include "lab/check/linearizability.h"
#include "support/proxy.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using namespace std::chrono_literals;
using lab::check::KeyedHistory;
using lab::check::Operation;
using lab::check::OperationKind;
using lab::check::OperationResult;
using std::chrono::milliseconds;

constexpr std::size_t kClients = 8;
constexpr std::size_t kNodes = 3;
constexpr std::uint64_t kKeys = 400;
constexpr std::size_t kMaxCalls = 200'000;  // of one client process
constexpr std::size_t kMaxProcesses = 256;
constexpr PoolOptions kSurvivalOptions = {.deadline = 5'000ms, .lease = 1'000ms};
// What a client may be stopped for without being taken for dead, and what it may not.
constexpr milliseconds kShortStop = 300ms;
constexpr milliseconds kLongStop = 2'500ms;
// A call's deadline; a batch that is under way may take 2 s beyond it, the process may be stopped,
// and all of it shares a machine that has other things to do.
constexpr milliseconds kLongestCall = kSurvivalOptions.deadline + 2s + kLongStop + 6s;
// To come in, and to leave, is several of them.
constexpr milliseconds kLongestOpen = 2 * kLongestCall;

struct Call {
  std::uint64_t key;
  std::uint64_t value;  // written, or found
  std::uint64_t invoked;
  std::uint64_t responded;  // 0: never
  OperationKind kind;
  OperationResult result;
};

// What one client process has done, in memory that all share.
struct ClientLog {
  std::atomic<std::uint64_t> calls;
  std::atomic<std::uint64_t> errors;
  std::atomic<std::uint64_t> leaves;
  std::atomic<std::uint64_t> fenced;
  std::atomic<std::uint64_t> slowest_open;
  std::atomic<std::uint64_t> slowest_close;
  // Until when it was stopped for longer than a lease, last; ~0 while it is.
  std::atomic<std::uint64_t> stopped_until;
  Call call[kMaxCalls];
};

struct Complaints {
  std::atomic<std::uint64_t> count;
  char first[256];

  void add(const std::string& text) {
    if (count++ == 0) text.copy(first, sizeof(first) - 1);
  }
};

struct SurvivalBoard {
  std::atomic<bool> stop;
  Complaints unexpected;
  Complaints healthy_but_fenced;
  ClientLog logs[kMaxProcesses];
};

std::uint64_t now() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

void raise_to(std::atomic<std::uint64_t>& slowest, std::uint64_t time) {
  if (time > slowest) slowest = time;
}

// ---- A client ----

class SurvivingClient {
 public:
  SurvivingClient(std::string url, SurvivalBoard& board, std::size_t number)
      : url_(std::move(url)),
        board_(board),
        log_(board.logs[number]),
        number_(number),
        random_(number + 1) {}

  // Comes, works and leaves, until it is killed or told to stop.
  void run() {
    while (!board_.stop && log_.calls < kMaxCalls) {
      opened_ = now();
      Result<Pool> pool = Pool::open(url_, kSurvivalOptions);
      Result<Index> index = pool ? pool->open_index("kv") : fail(pool.error());
      raise_to(log_.slowest_open, now() - opened_);
      if (!index) {
        note(index.error(), true);
        std::this_thread::sleep_for(20ms);
      } else {
        work(*index, 50 + random_.below(800));
      }
      const std::uint64_t closing = now();
      index = fail(ErrorCode::kNotFound);
      pool = fail(ErrorCode::kNotFound);
      raise_to(log_.slowest_close, now() - closing);
      ++log_.leaves;
    }
  }

 private:
  void work(const Index& index, std::uint64_t calls) {
    bool fenced = false;
    for (std::uint64_t i = 0; i < calls && !fenced && !board_.stop; ++i) {
      const std::uint64_t place = log_.calls.load();
      if (place == kMaxCalls) return;
      Call& call = log_.call[place];
      const std::uint64_t dice = random_.below(20);
      call.key = random_.below(kKeys);
      call.kind = dice < 9    ? OperationKind::kGet
                  : dice < 18 ? OperationKind::kPut
                              : OperationKind::kErase;
      call.value = (std::uint64_t{number_} + 1) << 32 | ++written_;
      call.result = OperationResult::kUnknown;
      call.invoked = now();
      log_.calls.store(place + 1);
      const Status status = execute(index, call);
      const std::uint64_t responded = now();
      if (status) {
        call.result = OperationResult::kDone;
      } else if (status.error().code() == ErrorCode::kNotFound) {
        call.result = OperationResult::kNotFound;
      } else {
        fenced = status.error().code() == ErrorCode::kFenced;
        note(status.error(), false);
      }
      call.responded = responded;
    }
  }

  static Status execute(const Index& index, Call& call) {
    if (call.kind == OperationKind::kPut) return index.put(call.key, std::to_string(call.value));
    if (call.kind == OperationKind::kErase) return index.erase(call.key);
    const Result<std::string> found = index.get(call.key);
    if (!found) return fail(found.error());
    call.value = std::stoull(*found);
    return {};
  }

  void note(const Error& error, bool opening) {
    ++log_.errors;
    switch (error.code()) {
      case ErrorCode::kUnavailable:
      case ErrorCode::kIndeterminate:
      case ErrorCode::kTimeout:
        return;
      case ErrorCode::kFenced:
        ++log_.fenced;
        if (log_.stopped_until < opened_) {
          board_.healthy_but_fenced.add("client process " + std::to_string(number_) +
                                        (opening ? ", coming in: " : ": ") + error.message());
        }
        return;
      default:
        board_.unexpected.add(error.message());
    }
  }

  const std::string url_;
  SurvivalBoard& board_;
  ClientLog& log_;
  const std::size_t number_;
  base::Random random_;
  std::uint64_t opened_ = 0;
  std::uint64_t written_ = 0;
};

// ---- Those who make it hard ----

class Fire {
 public:
  Fire(std::vector<std::unique_ptr<Daemon>>& nodes, std::vector<std::unique_ptr<Proxy>>& networks,
       SurvivalBoard& board, std::uint64_t seed)
      : nodes_(nodes), networks_(networks), board_(board), random_(seed) {
    std::string url = "tcp:";
    for (const auto& network : networks) url += network->place() + ",";
    url.pop_back();
    url_ = url;
    for (std::size_t i = 0; i < kClients; ++i) start(i);
  }

  void rage(std::chrono::seconds duration) {
    using Clock = std::chrono::steady_clock;
    for (std::size_t i = 0; i < kNodes; ++i) {
      // Heartbeats go to memory node 0: held up for longer, a client would rightly be dead.
      networks_[i]->begin_trouble(
          {.seed = random_.next(), .every = 300ms, .longest = i == 0 ? 100ms : 3'000ms});
    }
    const auto begun = Clock::now();
    auto next_strike = begun + 500ms;
    auto next_node_stop = begun + duration / 3;
    while (Clock::now() - begun < duration) {
      std::this_thread::sleep_for(10ms);
      const auto current = Clock::now();
      std::erase_if(later_, [&](const Later& each) {
        if (each.due > current) return false;
        each.act();
        return true;
      });
      if (current >= next_strike) {
        next_strike = current + milliseconds(300 + random_.below(600));
        strike(current);
      }
      if (current >= next_node_stop) {
        next_node_stop = current + 12s;
        stop_memory_node(current);
      }
    }
    for (const Later& each : later_) each.act();
    later_.clear();
    for (const auto& network : networks_) network->end_trouble();
  }

  // All clients end by themselves.
  void die_down() {
    board_.stop = true;
    for (const auto& client : clients_) {
      const std::optional<int> status = client->wait(kLongestCall + kLongestOpen);
      ASSERT_TRUE(status) << "a client hangs";
      EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << "a client died by itself";
    }
  }

  std::size_t started() const { return started_; }
  std::size_t kills = 0;
  std::size_t short_stops = 0;
  std::size_t long_stops = 0;
  std::size_t node_stops = 0;

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Later {
    TimePoint due;
    std::function<void()> act;
  };

  void start(std::size_t place) {
    const std::size_t number = started_++;
    numbers_[place] = number;
    busy_until_[place] = {};
    clients_[place] =
        std::make_unique<ClientProcess>([&] { SurvivingClient(url_, board_, number).run(); });
  }

  void strike(TimePoint current) {
    const std::size_t victim = random_.below(kClients);
    const std::uint64_t dice = random_.below(8);
    if (dice == 0) {
      networks_[random_.below(kNodes)]->cut_all();
    } else if (dice < 4 && started_ < kMaxProcesses) {
      clients_[victim]->kill();
      ++kills;
      start(victim);
    } else if (busy_until_[victim] < current) {
      stop(victim, current, dice < 6);
    }
  }

  void stop(std::size_t victim, TimePoint current, bool briefly) {
    const milliseconds time =
        briefly ? milliseconds(random_.below(kShortStop.count()))
                : kLongStop -
                      milliseconds(random_.below((kLongStop - kSurvivalOptions.lease).count() / 2));
    ++(briefly ? short_stops : long_stops);
    ClientLog& log = board_.logs[numbers_[victim]];
    if (!briefly) log.stopped_until = ~std::uint64_t{0};
    clients_[victim]->signal(SIGSTOP);
    busy_until_[victim] = current + time;
    later_.push_back({current + time, [this, victim, briefly, number = numbers_[victim]] {
                        if (!briefly) board_.logs[number].stopped_until = now();
                        if (numbers_[victim] == number) clients_[victim]->signal(SIGCONT);
                      }});
  }

  void stop_memory_node(TimePoint current) {
    Daemon* const node = nodes_[(kNodes - 1) - node_stops % kNodes].get();
    ++node_stops;
    node->signal(SIGSTOP);
    later_.push_back({current + 3s, [node] { node->signal(SIGCONT); }});
  }

  std::vector<std::unique_ptr<Daemon>>& nodes_;
  std::vector<std::unique_ptr<Proxy>>& networks_;
  SurvivalBoard& board_;
  base::Random random_;
  std::string url_;
  std::size_t started_ = 0;
  std::array<std::unique_ptr<ClientProcess>, kClients> clients_;
  std::array<std::size_t, kClients> numbers_{};  // of the processes
  std::array<TimePoint, kClients> busy_until_{};
  std::vector<Later> later_;
};

// ---- What they have seen ----

struct Seen {
  KeyedHistory history;
  std::uint64_t answered = 0;
  std::uint64_t errors = 0;
  std::uint64_t leaves = 0;
  std::uint64_t fenced = 0;
  std::uint64_t slowest = 0;
  std::uint64_t slowest_open = 0;
  std::uint64_t slowest_close = 0;

  void add(const ClientLog& log, std::size_t client) {
    errors += log.errors;
    leaves += log.leaves;
    fenced += log.fenced;
    slowest_open = std::max<std::uint64_t>(slowest_open, log.slowest_open);
    slowest_close = std::max<std::uint64_t>(slowest_close, log.slowest_close);
    for (std::uint64_t place = 0; place < log.calls; ++place) {
      const Call& call = log.call[place];
      if (call.responded != 0) slowest = std::max(slowest, call.responded - call.invoked);
      const bool known = call.responded != 0 && call.result != OperationResult::kUnknown;
      if (known) ++answered;
      if (!known && call.kind == OperationKind::kGet) continue;
      const bool has_value =
          call.result != OperationResult::kNotFound && call.kind != OperationKind::kErase;
      history.add(std::to_string(call.key),
                  {.kind = call.kind,
                   .result = known ? call.result : OperationResult::kUnknown,
                   .value = has_value ? std::to_string(call.value) : std::string(),
                   .invoked = call.invoked,
                   .responded = known ? call.responded : Operation::kNever,
                   .client = static_cast<std::uint32_t>(client)});
    }
  }

  // What is there when all is over: whatever was acknowledged last, and nothing that was
  // overwritten before.
  void add_last_look(const Index& index, std::size_t client) {
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      const std::uint64_t invoked = now();
      const Result<std::string> found = index.get(key);
      ASSERT_TRUE(found || found.error().code() == ErrorCode::kNotFound) << found.error().message();
      history.add(std::to_string(key),
                  {.kind = OperationKind::kGet,
                   .result = found ? OperationResult::kDone : OperationResult::kNotFound,
                   .value = found.value_or(""),
                   .invoked = invoked,
                   .responded = now(),
                   .client = static_cast<std::uint32_t>(client)});
    }
  }
};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

double seconds(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

class Survival : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Indexes, Survival, ::testing::Values("sherman", "chime"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Survival, NothingIsLostAndNothingIsWrong) {
  const std::chrono::seconds duration(from_environment("PANDO_SURVIVAL_SECONDS", 10));
  const std::uint64_t seed = from_environment("PANDO_SURVIVAL_SEED", 1);
  std::printf("%s: PANDO_SURVIVAL_SEED=%lu\n", GetParam(), seed);

  std::vector<std::unique_ptr<Daemon>> nodes;
  std::string direct = "tcp:";
  for (std::size_t i = 0; i < kNodes; ++i) {
    nodes.push_back(std::make_unique<Daemon>(std::vector<std::string>{"--size", "256MiB"}));
    direct += nodes.back()->place() + ",";
  }
  direct.pop_back();
  ASSERT_TRUE(
      Pool::open(direct).value().create_index("kv", IndexOptions::parse(GetParam()).value()));
  std::vector<std::unique_ptr<Proxy>> networks;
  for (const auto& node : nodes) networks.push_back(std::make_unique<Proxy>(node->place()));

  const Shared<SurvivalBoard> board;
  Fire fire(nodes, networks, *board, seed);
  fire.rage(duration);
  fire.die_down();

  Seen seen;
  for (std::size_t i = 0; i < fire.started(); ++i) seen.add(board->logs[i], i);
  auto pool = Pool::open(direct).value();
  const auto index = pool.open_index("kv").value();
  seen.add_last_look(index, fire.started());

  Proxy::Counts counts;
  for (const auto& network : networks) counts += network->counts();
  std::printf("%s: %zu kills, %zu short stops, %zu long stops, %zu of memory nodes, %lu leaves\n",
              GetParam(), fire.kills, fire.short_stops, fire.long_stops, fire.node_stops,
              seen.leaves);
  std::printf(
      "%s: %lu connections; %lu cuts, %lu half closed, %lu holds, %lu delays, %lu shut "
      "entrances\n",
      GetParam(), counts.connections, counts.cut, counts.ended, counts.held, counts.delayed,
      counts.hung + counts.refused);
  std::printf(
      "%s: %lu answers, %lu errors, %lu times fenced; the slowest call %.1f s, open %.1f "
      "s, close %.1f s\n",
      GetParam(), seen.answered, seen.errors, seen.fenced, seconds(seen.slowest),
      seconds(seen.slowest_open), seconds(seen.slowest_close));
  EXPECT_GT(fire.kills, 0u);
  EXPECT_GT(fire.short_stops + fire.long_stops, 0u);
  EXPECT_GT(fire.node_stops, 0u);
  EXPECT_GT(seen.leaves, 0u);
  EXPECT_GT(counts.cut, 0u);
  EXPECT_GT(seen.answered, 1000u);

  EXPECT_EQ(board->unexpected.count, 0u) << board->unexpected.first;
  EXPECT_EQ(board->healthy_but_fenced.count, 0u) << board->healthy_but_fenced.first;
  EXPECT_LT(std::chrono::nanoseconds(seen.slowest), kLongestCall);
  EXPECT_LT(std::chrono::nanoseconds(seen.slowest_open), kLongestOpen);
  EXPECT_LT(std::chrono::nanoseconds(seen.slowest_close), kLongestOpen);
  const auto verdict = seen.history.check();
  EXPECT_TRUE(verdict.linearizable()) << "key " << verdict.key << ": " << verdict.explanation;
  // The last one killed may hold a lock, and counts as a writer until its lease is over.
  Status sound = index.check();
  const auto patience = std::chrono::steady_clock::now() + 10s;
  while (!sound && sound.error().detail().ends_with("locked") &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(50ms);
    sound = index.check();
  }
  EXPECT_TRUE(sound) << sound.error().message();
}

}  // namespace
}  // namespace pando::testing
