// Tasks that are destroyed in the middle, and handles that come and go, leave nothing behind.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "support/outcome.h"
#include "support/scale.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

Task<void> put_one(Worker& worker, const Index& index, std::uint64_t key) {
  (void)co_await index.put(worker, key, "new");
}

Task<void> yield_some(Worker& worker, std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) co_await worker.yield();
}

// All tasks want the same leaf: when the worker goes, one holds its lock and the others wait for
// it.
TEST(AbandonedWork, LocksOfDestroyedTasksAreFreed) {
  Pool pool = must(Pool::open("embedded:64MiB"));
  const Index index = must(pool.create_index("index"));
  Pool other = must(pool.attach({}));
  const Index elsewhere = must(other.open_index("index"));
  for (std::uint64_t key = 0; key < 20; ++key) must(index.put(key, "old"));
  for (std::size_t steps = 0; steps < 12; ++steps) {
    {
      Worker worker = must(pool.make_worker());
      for (std::uint64_t key = 0; key < 8; ++key) worker.spawn(put_one(worker, index, key));
      worker.run(yield_some(worker, steps));
    }
    for (std::uint64_t key = 0; key < 20; ++key) {
      ASSERT_TRUE(succeeded(index.put(key, "here"))) << "after " << steps << " steps";
      ASSERT_TRUE(succeeded(elsewhere.put(key, "there"))) << "after " << steps << " steps";
    }
  }
  EXPECT_TRUE(succeeded(index.check()));
}

// The tasks of one worker wait for those of another, on two threads, when one of them goes.
TEST(AbandonedWork, WaitersMayGoWhileOthersHold) {
  Pool pool = must(Pool::open("embedded:64MiB"));
  const Index index = must(pool.create_index("index"));
  const std::size_t rounds = scaled(300, 50);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (std::size_t round = 0; round < rounds; ++round) {
        Worker worker = must(pool.make_worker());
        for (std::uint64_t key = 0; key < 8; ++key) worker.spawn(put_one(worker, index, key));
        worker.run(yield_some(worker, round % 9));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::uint64_t key = 0; key < 8; ++key) EXPECT_TRUE(succeeded(index.put(key, "after")));
  EXPECT_TRUE(succeeded(index.check()));
}

// Whoever closes the last handle while another opens the index must not leave it in use for ever.
TEST(AbandonedWork, OpeningAndClosingAtOnceLeavesNoUser) {
  Pool pool = must(Pool::open("embedded:64MiB"));
  must(pool.create_index("index"));
  const std::size_t rounds = scaled(2'000, 200);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (std::size_t round = 0; round < rounds; ++round) must(pool.open_index("index"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(succeeded(pool.drop_index("index")));
}

}  // namespace
}  // namespace pando::testing
