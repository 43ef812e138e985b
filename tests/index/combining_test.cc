// Combined: operations on one key share executions, and none that began before they were asked for.
#include "index/common/combining.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "../pool/cluster.h"
#include "index/registry.h"
#include "support/conformance.h"
#include "support/memory_nodes.h"
#include "support/outcome.h"
#include "support/scale.h"
#include <pando/pando.h>

namespace pando::index {
namespace {

// An index that says when each execution begins, and ends it when told.
class Slow final : public Tree {
 public:
  Task<Result<std::string>> get(Operation& op, Key key) override {
    const std::optional<std::string> seen = value(key.integer());  // as of its beginning
    begun.push_back("get");
    co_await turn(op.worker());
    if (!failure) co_return fail(failure.error());
    if (!seen) co_return fail(ErrorCode::kNotFound);
    co_return *seen;
  }
  Task<Status> put(Operation& op, Key key, std::string_view text, PutMode mode) override {
    begun.push_back("put " + std::string(text));
    co_await turn(op.worker());
    if (!failure) co_return failure;
    if (text == "too large") co_return fail(ErrorCode::kOutOfMemory);
    if (mode == PutMode::kUpdate && !value(key.integer())) co_return fail(ErrorCode::kNotFound);
    values[key.integer()] = std::string(text);
    co_return Status{};
  }
  Task<Status> erase(Operation&, Key) override { co_return Status{}; }
  Task<Status> scan(Operation&, Key, std::size_t, std::vector<Entry>&) override {
    co_return Status{};
  }
  Task<Status> multi_get(Operation&, std::span<const Key>,
                         std::span<std::optional<std::string>>) override {
    co_return Status{};
  }
  Task<Status> create(Operation&) override { co_return Status{}; }
  Task<Status> destroy(pool::Session&) override { co_return Status{}; }
  Task<Status> check(Operation&) override { co_return Status{}; }
  IndexStats stats() const override { return {}; }

  std::map<std::uint64_t, std::string> values;
  std::vector<std::string> begun;
  Status failure;
  std::size_t allowed = 0;  // executions that may end

 private:
  std::optional<std::string> value(std::uint64_t key) const {
    const auto at = values.find(key);
    return at == values.end() ? std::nullopt : std::optional(at->second);
  }
  Task<void> turn(task::Worker& worker) {
    const std::size_t mine = started_++;
    while (allowed <= mine) co_await worker.yield();
  }
  std::size_t started_ = 0;
};

class CombiningTest : public ::testing::Test {
 protected:
  CombiningTest() {
    auto slow = std::make_unique<Slow>();
    slow_ = slow.get();
    index_ = std::make_unique<Combined>(*member_.node, std::move(slow));
  }
  ~CombiningTest() override { member_.worker->drop_tasks(); }

  // Outcomes by name: the value, "ok", or the error's name.
  void get(const std::string& name, std::uint64_t key = 7) {
    member_.worker->spawn(reader(*member_.session, name, key));
  }
  Task<void> reader(pool::Session& session, std::string name, std::uint64_t key) {
    Operation op(session);
    Result<std::string> got = co_await index_->get(op, key);
    outcomes_[name] = got ? *got : std::string(to_string(got.error().code()));
  }
  void put(const std::string& name, std::string value, PutMode mode = PutMode::kPut,
           std::uint64_t key = 7) {
    member_.worker->spawn(writer(*member_.session, name, std::move(value), mode, key));
  }
  Task<void> writer(pool::Session& session, std::string name, std::string value, PutMode mode,
                    std::uint64_t key) {
    Operation op(session);
    const Status done = co_await index_->put(op, key, value, mode);
    outcomes_[name] = done ? "ok" : std::string(to_string(done.error().code()));
  }
  void run() {
    for (int i = 0; i < 20; ++i) member_.worker->run_ready();
  }
  void let_all_end() {
    run();  // whoever was asked gathers
    slow_->allowed = 1000;
    member_.worker->run();
  }

  pool::Cluster cluster_{16 << 20};
  pool::Member member_ = cluster_.join();
  Slow* slow_ = nullptr;
  std::unique_ptr<Combined> index_;
  std::map<std::string, std::string> outcomes_;
};

using Outcomes = std::map<std::string, std::string>;
using Begun = std::vector<std::string>;

TEST_F(CombiningTest, OneReadServesThoseWhoGathered) {
  slow_->values[7] = "x";
  for (const char* name : {"a", "b", "c", "d"}) get(name);
  run();
  EXPECT_EQ(slow_->begun, Begun({"get"})) << "the first begins at once, alone";
  let_all_end();
  EXPECT_EQ(slow_->begun, Begun({"get", "get"})) << "b, c and d share";
  EXPECT_EQ(outcomes_, (Outcomes{{"a", "x"}, {"b", "x"}, {"c", "x"}, {"d", "x"}}));
}

TEST_F(CombiningTest, AReadIsNotServedByAnExecutionThatBeganBeforeIt) {
  slow_->values[7] = "old";
  get("early");
  run();
  slow_->values[7] = "new";  // another compute node's, before the next read is asked for
  get("late");
  let_all_end();
  EXPECT_EQ(outcomes_, (Outcomes{{"early", "old"}, {"late", "new"}}));
}

TEST_F(CombiningTest, OneWriteServesAllOfTheLastValueAndReadsGetIt) {
  put("a", "1");
  run();
  put("b", "2");
  get("r");
  put("c", "3");
  let_all_end();
  EXPECT_EQ(slow_->begun, Begun({"put 1", "put 3"}));
  EXPECT_EQ(outcomes_, (Outcomes{{"a", "ok"}, {"b", "ok"}, {"c", "ok"}, {"r", "3"}}));
  EXPECT_EQ(slow_->values[7], "3");
}

TEST_F(CombiningTest, AReadThatLeadsWritesForTheOthers) {
  put("a", "1");
  run();
  get("r");
  put("b", "2");
  let_all_end();
  EXPECT_EQ(slow_->begun, Begun({"put 1", "put 2"}));
  EXPECT_EQ(outcomes_, (Outcomes{{"a", "ok"}, {"b", "ok"}, {"r", "2"}}));
}

TEST_F(CombiningTest, UpdatesOfWhatIsNotThereFailTogether) {
  put("a", "1", PutMode::kUpdate);
  run();
  put("b", "2", PutMode::kUpdate);
  get("r");
  let_all_end();
  EXPECT_EQ(outcomes_, (Outcomes{{"a", "not found"}, {"b", "not found"}, {"r", "not found"}}));
}

TEST_F(CombiningTest, PutsAndUpdatesDoNotMix) {
  get("a");
  run();
  put("b", "1", PutMode::kPut);
  put("c", "2", PutMode::kUpdate);
  put("d", "3", PutMode::kInsert);
  run();
  EXPECT_EQ(slow_->begun, Begun({"get", "put 2", "put 3"})) << "c and d go by themselves";
  let_all_end();
  EXPECT_EQ(outcomes_.at("b"), "ok");
}

TEST_F(CombiningTest, OtherKeysDoNotWait) {
  slow_->values = {{7, "x"}, {8, "y"}};
  get("a", 7);
  get("b", 8);
  run();
  EXPECT_EQ(slow_->begun.size(), 2u);
  let_all_end();
  EXPECT_EQ(outcomes_, (Outcomes{{"a", "x"}, {"b", "y"}}));
}

TEST_F(CombiningTest, AnErrorIsEveryonesWhomTheExecutionServes) {
  get("a");
  run();
  slow_->failure = fail(ErrorCode::kUnavailable, "gone");
  get("b");
  put("c", "1");
  let_all_end();
  EXPECT_EQ(outcomes_,
            (Outcomes{{"a", "unavailable"}, {"b", "unavailable"}, {"c", "unavailable"}}));
}

// It is the error of the one whose value did not fit: the others are executed by themselves.
TEST_F(CombiningTest, AWriteThatFailsFailsNoOther) {
  get("a");
  run();
  put("small", "1");
  get("r");
  put("large", "too large");
  let_all_end();
  EXPECT_EQ(slow_->begun, Begun({"get", "put too large", "put 1", "get"}));
  EXPECT_EQ(outcomes_.at("large"), "out of memory");
  EXPECT_EQ(outcomes_.at("small"), "ok");
  EXPECT_EQ(outcomes_.at("r"), "1");
}

TEST_F(CombiningTest, AReadThatLeadsDoesNotHearOfAWriteThatFails) {
  slow_->values[7] = "x";
  get("a");
  run();
  get("r");
  put("large", "too large");
  let_all_end();
  EXPECT_EQ(slow_->begun, Begun({"get", "put too large", "get"}));
  EXPECT_EQ(outcomes_, (Outcomes{{"a", "x"}, {"r", "x"}, {"large", "out of memory"}}));
}

// Coroutines that go in the middle: of a leader, those it serves go on; of the others, nobody
// notices.
class DroppedTest : public CombiningTest {
 protected:
  ~DroppedTest() override { other_.drop_tasks(); }

  // The first on the key is the other worker's, or is followed by it.
  void other_gets(const std::string& name) {
    other_.spawn(reader(*session_, name, 7));
    other_.run_ready();
  }
  void other_puts(const std::string& name, const std::string& value) {
    other_.spawn(writer(*session_, name, value, PutMode::kPut, 7));
    other_.run_ready();
  }

  task::Worker other_;
  std::unique_ptr<pool::Session> session_ = member_.node->make_session(other_).value();
};

TEST_F(DroppedTest, ADestroyedLeaderLeavesItsPlaceToAnother) {
  slow_->values[7] = "x";
  other_gets("leader");
  get("b");
  run();
  other_gets("gone");
  get("c");
  run();
  other_.run_ready();
  run();
  EXPECT_EQ(slow_->begun, Begun({"get"}));
  other_.drop_tasks();  // the leader that executes, and one that waits
  let_all_end();
  EXPECT_EQ(outcomes_, (Outcomes{{"b", "x"}, {"c", "x"}}));
}

// Of those whom a destroyed leader served, the one whose value it was writing does not know: it is
// not written again, as it may have been written, and overwritten since. The others have not been
// touched.
TEST_F(DroppedTest, AWriteWhoseLeaderIsDestroyedIsOfUnknownOutcome) {
  slow_->values[7] = "x";
  get("a");
  run();
  other_gets("leader");
  put("b", "1");
  get("r");
  put("c", "2");
  run();
  slow_->allowed = 1;
  run();               // "a" ends,
  other_.run_ready();  // and the leader begins to write for all
  ASSERT_EQ(slow_->begun, Begun({"get", "put 2"}));
  other_.drop_tasks();
  let_all_end();
  EXPECT_EQ(outcomes_.at("c"), "indeterminate");
  EXPECT_EQ(outcomes_.at("b"), "ok");
  EXPECT_TRUE(outcomes_.at("r") == "x" || outcomes_.at("r") == "1") << outcomes_.at("r");
  EXPECT_EQ(slow_->begun, Begun({"get", "put 2", "put 1", "get"}));
}

TEST_F(DroppedTest, NothingIsUnknownBeforeTheLeaderHasBegun) {
  get("a");
  run();
  other_puts("leader", "0");
  put("b", "1");
  run();
  slow_->allowed = 1;
  run();  // "a" ends; the leader is to go on, and its worker does not run
  other_.drop_tasks();
  let_all_end();
  EXPECT_EQ(slow_->begun, Begun({"get", "put 1"}));
  EXPECT_EQ(outcomes_.at("b"), "ok");
}

TEST_F(DroppedTest, WhoIsServedMayGo) {
  get("a");
  run();
  get("leader");
  run();
  other_puts("gone", "1");
  put("c", "2");
  run();
  other_puts("gone too", "3");
  run();
  slow_->allowed = 1;
  run();
  ASSERT_EQ(slow_->begun, Begun({"get", "put 3"}));
  other_.drop_tasks();  // also the one whose value is being written
  let_all_end();
  EXPECT_EQ(outcomes_.at("c"), "ok");
  EXPECT_EQ(outcomes_.at("leader"), "3");
}

TEST_F(CombiningTest, CountsWhatWasShared) {
  slow_->values[7] = "x";
  for (const char* name : {"a", "b", "c"}) get(name);
  put("w", "1");
  let_all_end();
  const auto stats = index_->stats();
  std::map<std::string, std::uint64_t> counts(stats.counts.begin(), stats.counts.end());
  EXPECT_EQ(counts.at("combined_reads") + counts.at("combined_writes"), 2u);
}

// ---- Threads ----

// Workers of several threads on one key of a real tree, each dropped in the middle of its tasks
// again and again. Every value is written by one put: so nobody may see a value come back that he
// has seen overwritten.
class HotKey {
 public:
  static constexpr std::uint64_t kKey = 7;

  explicit HotKey(Index index) : index_(std::move(index)) {}

  // One thread's: what it has seen, over all its workers.
  struct Seen {
    std::set<std::string> before;
    std::string last;
    std::vector<std::string> problems;
    std::uint64_t unknown = 0;
    std::uint64_t ended = 0;  // operations
  };

  Task<void> read(Worker& worker, Seen& seen) {
    for (;;) {
      const Result<std::string> got = co_await index_.get(worker, kKey);
      note(seen, got);
      ++seen.ended;
      co_await worker.yield();  // whoever leads at once never suspends
    }
  }
  Task<void> write(Worker& worker, Seen& seen, PutMode mode) {
    for (;;) {
      const std::string value = std::to_string(next_.fetch_add(1));
      Status done = mode == PutMode::kPut ? co_await index_.put(worker, kKey, value)
                                          : co_await index_.update(worker, kKey, value);
      if (!done && done.error().code() == ErrorCode::kIndeterminate) {
        ++seen.unknown;
      } else if (!done) {
        seen.problems.push_back(done.error().message());
      }
      ++seen.ended;
      co_await worker.yield();
    }
  }
  // What is dropped leaves locks, which the housekeeper frees: so one waits for others to end.
  static Task<void> wait_for(Worker& worker, const Seen& seen, std::uint64_t more) {
    const std::uint64_t until = seen.ended + more;
    while (seen.ended < until) co_await worker.yield();
  }

 private:
  // One reader a worker, so what it sees comes one after the other.
  static void note(Seen& seen, const Result<std::string>& got) {
    if (!got) {
      seen.problems.push_back(got.error().message());
    } else if (*got != seen.last) {
      if (!seen.before.insert(*got).second) seen.problems.push_back(*got + " came back");
      seen.last = *got;
    }
  }

  Index index_;
  std::atomic<std::uint64_t> next_{1};
};

TEST(CombiningThreads, WorkersAreDroppedInTheMiddle) {
  using namespace pando::testing;
  constexpr std::size_t kThreads = 4;
  Pool pool = must(Pool::open("embedded:64MiB"));
  const Index index =
      must(pool.create_index("hot", IndexOptions::parse("sherman:combine=on").value()));
  must(index.put(HotKey::kKey, "0"));
  HotKey key(index);
  std::vector<HotKey::Seen> seen(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t round = 0; round < scaled(100, 20); ++round) {
        Result<Worker> worker = pool.make_worker();
        if (!worker) {
          seen[i].problems.push_back(worker.error().message());
          return;
        }
        worker->spawn(key.read(*worker, seen[i]));
        worker->spawn(key.write(*worker, seen[i], PutMode::kPut));
        worker->spawn(key.write(*worker, seen[i], PutMode::kPut));
        if (round % 3 == 0) worker->spawn(key.write(*worker, seen[i], PutMode::kUpdate));
        worker->run(HotKey::wait_for(*worker, seen[i], 1 + (round * 7 + i) % 30));
      }  // and what its tasks were at is dropped
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t unknown = 0;
  for (const HotKey::Seen& each : seen) {
    EXPECT_GT(each.before.size(), 0u);
    unknown += each.unknown;
    for (const std::string& problem : each.problems) ADD_FAILURE() << problem;
  }
  RecordProperty("unknown", std::to_string(unknown));
  EXPECT_TRUE(succeeded(index.put(HotKey::kKey, "end")));  // behind whatever lock was left
  EXPECT_TRUE(succeeded(index.check()));
}

// ---- The setting, of every kind ----

std::uint64_t shared(const Index& index) {
  std::uint64_t sum = 0;
  for (const auto& [name, count] : index.stats().counts) {
    if (name == "combined_reads" || name == "combined_writes") sum += count;
  }
  return sum;
}

TEST(CombineSetting, EveryKindHasItAndItIsNotOfTheFormat) {
  for (const Kind* kind : kinds()) {
    const std::vector<Setting> settings = kind->settings();
    const auto at = std::ranges::find(settings, "combine", &Setting::name);
    ASSERT_NE(at, settings.end()) << kind->name();
    EXPECT_EQ(at->default_value, "auto");
    EXPECT_FALSE(at->format);
    for (const auto& [given, spelled] :
         {std::pair{"", "auto"}, {":combine=auto", "auto"}, {":combine=true", "on"}}) {
      const auto options = IndexOptions::parse(std::string(kind->name()) + given).value();
      EXPECT_EQ(kind->normalize(options).value().settings.at("combine"), spelled) << given;
    }
  }
}

TEST(CombineSetting, WhatIsWrongIsNamed) {
  using testing::failed_with;
  for (const Kind* kind : kinds()) {
    IndexOptions options{.kind = std::string(kind->name())};
    options.settings = {{"combine", "maybe"}};
    EXPECT_TRUE(failed_with(kind->normalize(options), ErrorCode::kInvalidArgument,
                            "combine: 'maybe' is not on, off or auto"));
    options.settings = {{"comb", "on"}};
    EXPECT_TRUE(failed_with(kind->normalize(options), ErrorCode::kInvalidArgument, " combine"));
    options.settings = {{"keys", "bytes"}};  // the key type has a place of its own
    EXPECT_TRUE(failed_with(kind->normalize(options), ErrorCode::kInvalidArgument, "'keys'"));
  }
}

struct Placing {
  std::string fabric;
  std::string combine;
  bool shares;
};
using PlacedKind = std::tuple<Placing, std::string>;

class CombineOn : public ::testing::TestWithParam<PlacedKind> {
 protected:
  static std::string url(const testing::MemoryNodes& nodes, const std::string& fabric) {
    if (fabric == "embedded") return "embedded:64MiB";
    return (fabric == "tcp" ? nodes.tcp_url() : nodes.mapped_url()) + "?timeout=60000";
  }
  static Task<void> client(testing::RecordedIndex& index, Worker& worker, std::uint64_t steps) {
    for (std::uint64_t step = 0; step < steps; ++step) {
      if ((step + index.client()) % 3 == 0) {
        co_await index.put(worker, OwnedKey(kKey), testing::numbered_value(index.client(), step));
      } else {
        co_await index.get(worker, OwnedKey(kKey));
      }
      co_await worker.yield();
    }
  }
  static constexpr std::uint64_t kKey = 7;
};

// Threads with several tasks each, all on one key.
TEST_P(CombineOn, ThreadsShareOneHotKeyWhereItIsOn) {
  using namespace pando::testing;
  const auto& [placing, kind] = GetParam();
  const MemoryNodes nodes({.bytes = 32 << 20});
  Pool pool = must(Pool::open(url(nodes, placing.fabric), kPatient));
  const std::string words = kind + ":combine=" + placing.combine;
  const Index index = must(pool.create_index("hot", IndexOptions::parse(words).value()));
  HistoryRecorder recorder;
  run_threads(3, [&](std::size_t) {
    constexpr std::size_t kTasks = 4;
    Worker worker = must(pool.make_worker());
    std::deque<RecordedIndex> clients;
    for (std::size_t i = 0; i < kTasks; ++i) {
      worker.spawn(client(clients.emplace_back(index, recorder), worker, scaled(400, 60)));
    }
    worker.run();
  });
  EXPECT_TRUE(linearizable(recorder));
  EXPECT_EQ(shared(index) > 0, placing.shares) << shared(index);
  EXPECT_TRUE(succeeded(index.check()));
}

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const Kind* kind : kinds()) names.emplace_back(kind->name());
  return names;
}

std::string placed_name(const ::testing::TestParamInfo<PlacedKind>& info) {
  const auto& [placing, kind] = info.param;
  return kind + "_" + placing.fabric + "_" + placing.combine;
}

const Placing kPlacings[] = {
    {"embedded", "on", true},  {"embedded", "auto", false}, {"mapped", "on", true},
    {"mapped", "auto", false}, {"tcp", "auto", true},       {"tcp", "off", false},
};

INSTANTIATE_TEST_SUITE_P(Fabrics, CombineOn,
                         ::testing::Combine(::testing::ValuesIn(kPlacings),
                                            ::testing::ValuesIn(kind_names())),
                         placed_name);

}  // namespace
}  // namespace pando::index
