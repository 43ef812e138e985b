#include "task/worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pando::task {
namespace {

using std::chrono::milliseconds;

class FakeClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{};
};

Task<void> append(std::string& log, char name) {
  log.push_back(name);
  co_return;
}

Task<void> append_twice(Worker& worker, std::string& log, char name) {
  log.push_back(name);
  co_await worker.yield();
  log.push_back(name);
}

Task<void> sleep_and_append(Worker& worker, Duration duration, std::string& log, char name) {
  co_await worker.sleep_for(duration);
  log.push_back(name);
}

// Suspends, and hands its handle out: for those who wake by hand.
struct Parked {
  std::coroutine_handle<>& slot;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiter) const noexcept { slot = waiter; }
  void await_resume() const noexcept {}
};

Task<void> hold_while_parked(std::shared_ptr<int> held, std::coroutine_handle<>& slot) {
  co_await Parked{slot};
  ++*held;
}

TEST(Worker, SpawnedTasksStartWithTheNextStep) {
  Worker worker;
  std::string log;
  worker.spawn(append(log, 'a'));
  EXPECT_EQ(log, "");
  EXPECT_EQ(worker.spawned(), 1u);
  worker.run();
  EXPECT_EQ(log, "a");
  EXPECT_EQ(worker.spawned(), 0u);
}

TEST(Worker, TasksTakeTurnsInOrder) {
  Worker worker;
  std::string log;
  for (const char name : {'a', 'b', 'c'}) worker.spawn(append_twice(worker, log, name));
  worker.run();
  EXPECT_EQ(log, "abcabc");
}

TEST(Worker, RunsALoneTaskAtOnceWithoutQueueing) {
  Worker worker;
  std::string log;
  const Task<void> task = append(log, 'a');
  worker.start(task.handle());
  EXPECT_TRUE(task.done());
  EXPECT_FALSE(worker.run_ready());
}

TEST(Worker, OthersMakeProgressWhileATaskIsRun) {
  Worker worker;
  std::string log;
  worker.spawn(append_twice(worker, log, 'a'));
  worker.run(append_twice(worker, log, 'b'));
  EXPECT_EQ(log.substr(0, 3), "bab");
  worker.run();
  EXPECT_EQ(log, "baba");
}

Task<void> note_crowded(Worker& worker, std::vector<bool>& seen) {
  seen.push_back(worker.crowded());
  co_await worker.yield();
  seen.push_back(worker.crowded());
}

TEST(Worker, IsCrowdedByManyTasksAndNotByOne) {
  Worker worker;
  std::vector<bool> seen;
  worker.run(note_crowded(worker, seen));
  EXPECT_EQ(seen, (std::vector<bool>{false, false}));

  seen.clear();
  worker.spawn(note_crowded(worker, seen));
  worker.run();
  EXPECT_EQ(seen, (std::vector<bool>{false, false}));

  seen.clear();
  for (int i = 0; i < 8; ++i) worker.spawn(note_crowded(worker, seen));
  for (int i = 0; i < 2; ++i) worker.run_ready();
  ASSERT_EQ(seen.size(), 16u);
  for (int i = 0; i < 15; ++i) EXPECT_TRUE(seen[static_cast<std::size_t>(i)]) << i;
  EXPECT_FALSE(seen.back());  // the last has the worker to itself
  EXPECT_EQ(worker.spawned(), 0u);
}

TEST(Worker, ManyTasksOutgrowTheReadyQueue) {
  Worker worker;
  std::string log;
  for (int i = 0; i < 1000; ++i) {
    worker.spawn(append_twice(worker, log, static_cast<char>('a' + i % 26)));
    if (i % 100 == 0) worker.run_ready();
  }
  worker.run();
  EXPECT_EQ(log.size(), 2000u);
}

TEST(Worker, TimersFireInOrderOfTimeThenOfSetting) {
  FakeClock clock;
  Worker worker(clock);
  std::string log;
  EXPECT_EQ(worker.next_timer(), TimePoint::max());
  worker.spawn(sleep_and_append(worker, milliseconds(30), log, 'd'));
  worker.spawn(sleep_and_append(worker, milliseconds(10), log, 'a'));
  worker.spawn(sleep_and_append(worker, milliseconds(20), log, 'b'));
  worker.spawn(sleep_and_append(worker, milliseconds(20), log, 'c'));
  EXPECT_TRUE(worker.run_ready());
  EXPECT_EQ(worker.next_timer(), TimePoint{} + milliseconds(10));
  EXPECT_FALSE(worker.run_ready());
  EXPECT_EQ(log, "");

  clock.advance(milliseconds(10));
  EXPECT_TRUE(worker.run_ready());
  EXPECT_EQ(log, "a");
  EXPECT_FALSE(worker.run_ready());
  clock.advance(milliseconds(100));
  EXPECT_TRUE(worker.run_ready());
  EXPECT_EQ(log, "abcd");
  EXPECT_EQ(worker.spawned(), 0u);
  EXPECT_EQ(worker.next_timer(), TimePoint::max());
}

TEST(Worker, SleepingForNoTimeDoesNotSuspend) {
  FakeClock clock;
  Worker worker(clock);
  std::string log;
  const Task<void> task = sleep_and_append(worker, Duration{0}, log, 'a');
  worker.start(task.handle());
  EXPECT_TRUE(task.done());
}

TEST(Worker, SleepsOnTheSystemClock) {
  Worker worker;
  std::string log;
  const TimePoint begin = worker.now();
  worker.run(sleep_and_append(worker, milliseconds(5), log, 'a'));
  EXPECT_GE(worker.now() - begin, milliseconds(5));
}

TEST(Worker, IsWokenFromAnotherThread) {
  Worker worker;
  std::atomic<void*> parked{nullptr};
  struct Park {
    std::atomic<void*>& slot;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> waiter) const { slot.store(waiter.address()); }
    void await_resume() const noexcept {}
  };
  const auto wait_often = [&](int times) -> Task<int> {
    for (int i = 0; i < times; ++i) co_await Park{parked};
    co_return times;
  };
  constexpr int kTimes = 200;
  std::thread waker([&] {
    for (int i = 0; i < kTimes; ++i) {
      void* address = nullptr;
      while ((address = parked.exchange(nullptr)) == nullptr) std::this_thread::yield();
      // Now and then long enough for the worker to have gone to sleep.
      if (i % 50 == 0) std::this_thread::sleep_for(milliseconds(5));
      worker.wake(std::coroutine_handle<>::from_address(address));
    }
  });
  EXPECT_EQ(worker.run(wait_often(kTimes)), kTimes);
  waker.join();
}

TEST(Worker, ManyThreadsWakeManyTasks) {
  Worker worker;
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kTasks = 200;
  std::vector<std::coroutine_handle<>> slots(kThreads * kTasks);
  const auto held = std::make_shared<int>(0);
  for (auto& slot : slots) worker.spawn(hold_while_parked(held, slot));
  worker.run_ready();
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < kTasks; ++i) worker.wake(slots[t * kTasks + i]);
    });
  }
  worker.run();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(*held, static_cast<int>(kThreads * kTasks));
  EXPECT_EQ(held.use_count(), 1);
}

class FakePoller final : public Poller {
 public:
  explicit FakePoller(Worker& worker) : worker_(worker) { worker_.add_poller(this); }
  ~FakePoller() override { worker_.remove_poller(this); }
  FakePoller(const FakePoller&) = delete;
  FakePoller& operator=(const FakePoller&) = delete;

  bool poll() override {
    ++polls;
    if (!waiter || polls < ready_at) return false;
    worker_.schedule(std::exchange(waiter, nullptr));
    return true;
  }
  bool pending() const override { return waiter != nullptr; }
  void abandon() override {
    abandoned = pending();
    waiter = nullptr;
  }

  std::coroutine_handle<> waiter;
  int polls = 0;
  int ready_at = 0;
  bool abandoned = false;

 private:
  Worker& worker_;
};

TEST(Worker, NeverBlocksWhileAPollerIsAtWork) {
  Worker worker;
  FakePoller poller(worker);
  poller.ready_at = 3000;  // well beyond the rounds after which an idle worker goes to sleep
  const auto held = std::make_shared<int>(0);
  worker.run(hold_while_parked(held, poller.waiter));
  EXPECT_EQ(*held, 1);
  EXPECT_GE(poller.polls, 3000);
}

TEST(Worker, UnfinishedTasksAreDestroyed) {
  const auto held = std::make_shared<int>(0);
  std::coroutine_handle<> slot;
  {
    Worker worker;
    std::string log;
    worker.spawn(hold_while_parked(held, slot));
    worker.run_ready();
    worker.spawn(hold_while_parked(held, slot));  // never started
    worker.spawn(sleep_and_append(worker, std::chrono::hours(1), log, 'a'));
    worker.run_ready();
    worker.wake(slot);  // in the inbox, never taken
    EXPECT_EQ(held.use_count(), 3);
  }
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(*held, 0);
}

// A task whose end hands on to a task that is destroyed as well, as a lock does.
TEST(Worker, DestroyedTasksMaySchedule) {
  struct HandOn {
    Worker& worker;
    std::coroutine_handle<>& next;
    ~HandOn() {
      if (next) worker.schedule(std::exchange(next, nullptr));
    }
  };
  const auto hand_on = [](Worker& worker, std::coroutine_handle<>& next,
                          std::coroutine_handle<>& own) -> Task<void> {
    const HandOn at_end{worker, next};
    co_await Parked{own};
  };
  const auto held = std::make_shared<int>(0);
  Worker worker;
  std::coroutine_handle<> next;
  std::coroutine_handle<> own;
  worker.spawn(hold_while_parked(held, next));
  worker.spawn(hand_on(worker, next, own));
  worker.run_ready();
  worker.drop_tasks();
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(*held, 0);
  EXPECT_FALSE(worker.run_ready());

  std::string log;  // still usable
  worker.spawn(append(log, 'a'));
  worker.run();
  EXPECT_EQ(log, "a");
}

TEST(Worker, DroppingTasksMakesPollersAbandonTheirWork) {
  Worker worker;
  FakePoller poller(worker);
  poller.ready_at = 1 << 30;
  const auto held = std::make_shared<int>(0);
  worker.spawn(hold_while_parked(held, poller.waiter));
  worker.run_ready();
  worker.drop_tasks();
  EXPECT_TRUE(poller.abandoned);
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace pando::task
