#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/sanitizers.h"
#include "task/worker.h"
#include <pando/task.h>

namespace pando::task {
namespace {

Task<int> answer(bool& ran, int value) {
  ran = true;
  co_return value;
}

Task<int> sum_of(int a, int b) {
  bool ran = false;
  const int first = co_await answer(ran, a);
  const int second = co_await answer(ran, b);
  co_return first + second;
}

Task<std::unique_ptr<std::string>> move_only(std::string text) {
  co_return std::make_unique<std::string>(std::move(text));
}

Task<std::size_t> depth_of(std::size_t levels) {
  if (levels == 0) co_return 0;
  co_return 1 + co_await depth_of(levels - 1);
}

Task<std::size_t> one() { co_return 1; }

Task<std::size_t> count_to(std::size_t limit) {
  std::size_t sum = 0;
  while (sum < limit) sum += co_await one();
  co_return sum;
}

TEST(Task, IsLazy) {
  bool ran = false;
  {
    const Task<int> never = answer(ran, 1);
    EXPECT_FALSE(never.done());
  }
  EXPECT_FALSE(ran);

  Worker worker;
  Task<int> task = answer(ran, 42);
  EXPECT_FALSE(ran);
  EXPECT_EQ(worker.run(std::move(task)), 42);
  EXPECT_TRUE(ran);
}

TEST(Task, ReturnsValues) {
  Worker worker;
  EXPECT_EQ(worker.run(sum_of(40, 2)), 42);
  EXPECT_EQ(*worker.run(move_only("moved")), "moved");
}

TEST(Task, MoveAssignmentDestroysTheOldFrame) {
  const auto held = std::make_shared<int>(1);
  const auto hold = [](std::shared_ptr<int> arg) -> Task<void> {
    static_cast<void>(arg);
    co_return;
  };
  Task<void> task = hold(held);
  EXPECT_EQ(held.use_count(), 2);
  task = hold(nullptr);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Task, DeepChainsUseNoStack) {
  Worker worker;
  constexpr std::size_t kDepth = 1'000'000;
  EXPECT_EQ(worker.run(depth_of(kDepth)), kDepth);
}

TEST(Task, LongLoopsOfAwaitsUseNoStack) {
  Worker worker;
  constexpr std::size_t kAwaits = 1'000'000;
  EXPECT_EQ(worker.run(count_to(kAwaits)), kAwaits);
}

template <std::size_t kBytes>
Task<std::size_t> with_locals(Worker& worker) {
  std::array<unsigned char, kBytes> local;
  local.fill(static_cast<unsigned char>(kBytes));
  co_await worker.yield();
  std::size_t same = 0;
  for (const unsigned char c : local) same += c == static_cast<unsigned char>(kBytes) ? 1 : 0;
  co_return same;
}

TEST(FramePool, ServesFramesOfEverySize) {
  Worker worker;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(worker.run(with_locals<1>(worker)), 1u);
    EXPECT_EQ(worker.run(with_locals<100>(worker)), 100u);
    EXPECT_EQ(worker.run(with_locals<1000>(worker)), 1000u);
    EXPECT_EQ(worker.run(with_locals<3900>(worker)), 3900u);
    EXPECT_EQ(worker.run(with_locals<5000>(worker)), 5000u);
    EXPECT_EQ(worker.run(with_locals<100'000>(worker)), 100'000u);
  }
}

#if !PANDO_ADDRESS_SANITIZER  // under which frames are not pooled
TEST(FramePool, ReusesWhatWasFreed) {
  void* const first = allocate_frame(200);
  free_frame(first, 200);
  void* const second = allocate_frame(193);  // the same class of 64 bytes
  EXPECT_EQ(first, second);
  free_frame(second, 193);
}
#endif

// Frames made here and destroyed there, more of them than a list holds, and threads that end while
// their lists are full.
TEST(FramePool, FramesMayBeFreedOnOtherThreads) {
  constexpr std::size_t kFrames = 5000;
  for (int round = 0; round < 3; ++round) {
    std::vector<Task<std::size_t>> tasks;
    tasks.reserve(kFrames);
    for (std::size_t i = 0; i < kFrames; ++i) tasks.push_back(one());
    std::thread other([tasks = std::move(tasks)]() mutable { tasks.clear(); });
    other.join();
  }
}

}  // namespace
}  // namespace pando::task
