// Combined: operations on one key share executions, and none that began before they were asked for.
#include "index/common/combining.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../pool/cluster.h"

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
  Task<Status> destroy(Operation&) override { co_return Status{}; }
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
    member_.worker->spawn(writer(name, std::move(value), mode, key));
  }
  Task<void> writer(std::string name, std::string value, PutMode mode, std::uint64_t key) {
    Operation op(*member_.session);
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

// Coroutines that go in the middle: of a leader, those it serves go on; of the others, nobody
// notices.
TEST_F(CombiningTest, ADestroyedLeaderLeavesItsPlaceToAnother) {
  slow_->values[7] = "x";
  task::Worker other;
  auto session = member_.node->make_session(other).value();
  other.spawn(reader(*session, "leader", 7));
  other.run_ready();
  get("b");
  run();
  other.spawn(reader(*session, "gone", 7));
  other.run_ready();
  get("c");
  run();
  other.run_ready();
  run();
  EXPECT_EQ(slow_->begun, Begun({"get"}));
  other.drop_tasks();  // the leader that executes, and one that waits
  let_all_end();
  EXPECT_EQ(outcomes_, (Outcomes{{"b", "x"}, {"c", "x"}}));
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

}  // namespace
}  // namespace pando::index
