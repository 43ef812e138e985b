// Workers: many tasks on one thread, tasks in tasks, workers on many threads.
#include <algorithm>
#include <memory>

#include "support/conformance.h"

namespace pando::testing {
namespace {

class Workers : public ConformanceTest {
 protected:
  // Puts its own keys, reads them back, erases every second one.
  Task<void> client(Worker& worker, Index index, std::uint64_t id, std::uint64_t keys) const {
    for (std::uint64_t i = 0; i < keys; ++i) {
      const OwnedKey own = key(id * keys + i);
      const std::string value = numbered_value(id, i);
      EXPECT_TRUE(succeeded(co_await index.insert(worker, own, value)));
      EXPECT_TRUE(holds(co_await index.get(worker, own), value));
      if (i % 2 == 1) EXPECT_TRUE(succeeded(co_await index.erase(worker, own)));
    }
  }
  static Task<void> count_down(Worker& worker, int& running, int& most) {
    most = std::max(most, ++running);
    for (int i = 0; i < 10; ++i) co_await worker.yield();
    --running;
  }
};

TEST_P(Workers, HundredsOfTasks) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Worker worker = must(pool.make_worker());
  const std::uint64_t tasks = 500;
  const std::uint64_t keys = scaled(20, 6);
  for (std::uint64_t id = 0; id < tasks; ++id) worker.spawn(client(worker, index, id, keys));
  worker.run();
  EXPECT_EQ(must(index.scan(smallest(), tasks * keys)).size(), tasks * ((keys + 1) / 2));
  EXPECT_GT(worker.counters().round_trips, 0u);
}

TEST_P(Workers, ManyThreadsWithManyTasks) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  const Index index = create_index(pool);
  constexpr std::size_t kThreads = 4;
  constexpr std::uint64_t kTasks = 50;
  const std::uint64_t keys = scaled(40, 6);
  run_threads(kThreads, [&](std::size_t thread) {
    Worker worker = must(pool.make_worker());
    for (std::uint64_t i = 0; i < kTasks; ++i) {
      worker.spawn(client(worker, index, thread * kTasks + i, keys));
    }
    worker.run();
  });
  EXPECT_EQ(must(index.scan(smallest(), kThreads * kTasks * keys)).size(),
            kThreads * kTasks * ((keys + 1) / 2));
}

TEST_P(Workers, SpawnedTasksTakeTurns) {
  Pool pool = open_pool();
  Worker worker = must(pool.make_worker());
  int running = 0;
  int most = 0;
  for (int i = 0; i < 8; ++i) worker.spawn(count_down(worker, running, most));
  EXPECT_EQ(most, 0) << "a task started before run()";
  worker.run();
  EXPECT_EQ(running, 0);
  EXPECT_EQ(most, 8) << "tasks ran one after the other";
}

TEST_P(Workers, RunAgainAfterTheLastTaskEnded) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Worker worker = must(pool.make_worker());
  worker.run();
  for (std::uint64_t round = 0; round < 3; ++round) {
    worker.spawn(client(worker, index, round, 10));
    worker.run();
    EXPECT_TRUE(holds(worker.run(index.get(worker, key(round * 10))), numbered_value(round, 0)));
  }
}

TEST_P(Workers, UnfinishedTasksAreDestroyed) {
  Pool pool = open_pool();
  const auto witness = std::make_shared<int>(1);
  {
    Worker worker = must(pool.make_worker());
    worker.spawn([](Worker& on, std::shared_ptr<int> held) -> Task<void> {
      co_await on.yield();
      *held = 2;
    }(worker, witness));
    EXPECT_EQ(witness.use_count(), 2);
  }
  EXPECT_EQ(witness.use_count(), 1);
  EXPECT_EQ(*witness, 1);
}

TEST_P(Workers, OutliveTheirPoolHandle) {
  std::unique_ptr<Worker> worker;
  std::unique_ptr<Index> index;
  {
    Pool pool = open_pool();
    index = std::make_unique<Index>(create_index(pool));
    worker = std::make_unique<Worker>(must(pool.make_worker()));
  }
  EXPECT_TRUE(succeeded(worker->run(index->put(*worker, key(1), "one"))));
  EXPECT_TRUE(holds(worker->run(index->get(*worker, key(1))), "one"));
}

PANDO_FOR_ALL_CASES(Workers);

}  // namespace
}  // namespace pando::testing
