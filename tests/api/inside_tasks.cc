// Inside a coroutine nothing may block: plain calls are refused, and handles that go away there are
// closed outside.
#include <gmock/gmock.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <utility>

#include "support/conformance.h"

namespace pando::testing {
namespace {

using ::testing::HasSubstr;

class InsideTasks : public ConformanceTest {
 protected:
  // The demonstration: all want one leaf. Whoever blocks the thread waits for tasks that need it.
  Task<void> await_puts(Worker& worker, Index index, int puts) const {
    for (int i = 0; i < puts; ++i) {
      EXPECT_TRUE(succeeded(co_await index.put(worker, key(5), "awaited")));
    }
  }
  Task<void> plain_puts(Worker& worker, Index index, int puts) const {
    for (int i = 0; i < puts; ++i) {
      EXPECT_TRUE(failed_with(index.put(key(5), "plain"), ErrorCode::kInvalidArgument,
                              "co_await the form that takes the worker"));
      co_await worker.yield();
    }
  }
  Task<void> every_plain_call(Pool pool, Index index) const {
    constexpr ErrorCode kCode = ErrorCode::kInvalidArgument;
    const std::string await = "co_await";
    EXPECT_TRUE(failed_with(index.get(key(1)), kCode, await));
    EXPECT_TRUE(failed_with(index.put(key(1), "v"), kCode, await));
    EXPECT_TRUE(failed_with(index.insert(key(1), "v"), kCode, await));
    EXPECT_TRUE(failed_with(index.update(key(1), "v"), kCode, await));
    EXPECT_TRUE(failed_with(index.erase(key(1)), kCode, await));
    EXPECT_TRUE(failed_with(index.scan(smallest(), 10), kCode, await));
    const OwnedKey one = key(1);
    const std::array<Key, 1> keys = {one};
    EXPECT_TRUE(failed_with(index.multi_get(keys), kCode, await));
    Range range = index.range(smallest());
    for ([[maybe_unused]] const Entry& entry : range) ADD_FAILURE() << "a Range went on";
    EXPECT_TRUE(failed_with(range.status(), kCode, "co_await scan()"));

    const std::string elsewhere = "before the tasks run, or on another thread";
    EXPECT_TRUE(failed_with(index.check(), kCode, elsewhere));
    EXPECT_TRUE(failed_with(pool.create_index("other", GetParam().options()), kCode, elsewhere));
    EXPECT_TRUE(failed_with(pool.open_index("index"), kCode, elsewhere));
    EXPECT_TRUE(failed_with(pool.drop_index("index"), kCode, elsewhere));
    EXPECT_TRUE(failed_with(pool.list_indexes(), kCode, elsewhere));
    EXPECT_TRUE(failed_with(pool.stats(), kCode, elsewhere));
    EXPECT_TRUE(failed_with(pool.attach({}), kCode, elsewhere));
    EXPECT_TRUE(failed_with(Pool::open("embedded:16MiB"), kCode, elsewhere));
    co_return;
  }
  // What does not wait may be called anywhere.
  Task<void> every_other_call(Pool pool, Index index) const {
    EXPECT_EQ(index.info().name, "index");
    EXPECT_GT(index.stats().compute.budget, 0u);
    EXPECT_TRUE(succeeded(pool.make_worker()));
    co_return;
  }
  static Task<void> nothing() { co_return; }
  static Task<void> run_inside(Worker& worker) {
    const auto said = [](auto run) -> std::string {
      try {
        run();
      } catch (const std::logic_error& error) {
        return error.what();
      }
      return "it ran";
    };
    EXPECT_THAT(said([&] { worker.run(); }), HasSubstr("co_await the task, or spawn it"));
    EXPECT_THAT(said([&] { worker.run(nothing()); }), HasSubstr("co_await the task, or spawn it"));
    co_return;
  }
  // The parameters are gone when the task has ended; `also` goes in its middle.
  Task<void> hold_last(Worker& worker, std::unique_ptr<Index> index, std::unique_ptr<Index> also,
                       std::unique_ptr<Pool> pool) const {
    also.reset();
    EXPECT_TRUE(succeeded(co_await index->put(worker, key(1), "v")));
    co_await worker.yield();
    pool.reset();
  }
};

TEST_P(InsideTasks, APlainCallBesideThoseThatWaitForTheSameIsRefused) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Worker worker = must(pool.make_worker());
  for (int i = 0; i < 4; ++i) {
    worker.spawn(await_puts(worker, index, 3));
    worker.spawn(plain_puts(worker, index, 3));
  }
  worker.run();
  EXPECT_TRUE(holds(index.get(key(5)), "awaited"));
}

TEST_P(InsideTasks, EveryCallThatMayWaitIsRefused) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  must(index.put(key(1), "before"));
  Worker worker = must(pool.make_worker());
  worker.run(every_plain_call(pool, index));    // started
  worker.spawn(every_plain_call(pool, index));  // and resumed
  worker.run();
  worker.run(every_other_call(pool, index));
  EXPECT_TRUE(holds(index.get(key(1)), "before"));
}

TEST_P(InsideTasks, WorkersDoNotRunInEachOther) {
  Pool pool = open_pool();
  Worker worker = must(pool.make_worker());
  Worker other = must(pool.make_worker());
  worker.run(run_inside(worker));
  worker.spawn(run_inside(other));
  worker.run();
}

// The pool of the last handles is another compute node's, so that it goes with them.
TEST_P(InsideTasks, LastHandlesMayGoAwayThere) {
  Pool pool = open_pool();
  Worker worker = must(pool.make_worker());
  for (const bool spawned : {true, false}) {
    must(pool.create_index("first", GetParam().options()));
    must(pool.create_index("second", GetParam().options()));
    auto index = std::make_unique<Index>(must(pool.open_index("first")));
    auto leaving = std::make_unique<Pool>(must(pool.attach(kPatient)));
    auto also = std::make_unique<Index>(must(leaving->open_index("second")));
    Task<void> task = hold_last(worker, std::move(index), std::move(also), std::move(leaving));
    if (spawned) {
      worker.spawn(std::move(task));
      worker.run();
    } else {
      worker.run(std::move(task));
    }
    // Closed by then: whoever has an index open keeps it from being dropped.
    EXPECT_TRUE(succeeded(pool.drop_index("first")));
    EXPECT_TRUE(succeeded(pool.drop_index("second")));
  }
}

// Destroyed with its worker, outside, a task's handles are closed at once.
TEST_P(InsideTasks, HandlesOfUnfinishedTasksAreClosed) {
  Pool pool = open_pool();
  must(pool.create_index("first", GetParam().options()));
  {
    Worker worker = must(pool.make_worker());
    worker.spawn([](Worker& on, [[maybe_unused]] Index held) -> Task<void> {
      for (;;) co_await on.yield();
    }(worker, must(pool.open_index("first"))));
    worker.run(worker.yield());
  }
  EXPECT_TRUE(succeeded(pool.drop_index("first")));
}

PANDO_FOR_ALL_CASES(InsideTasks);

}  // namespace
}  // namespace pando::testing
