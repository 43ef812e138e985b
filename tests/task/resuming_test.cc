#include "task/resuming.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "task/worker.h"

namespace pando::task {
namespace {

Task<void> look(Worker& worker, bool& first, bool& second) {
  first = inside_task();
  co_await worker.yield();
  second = inside_task();
}

TEST(Resuming, MarksTheThreadOfAWorkerThatRunsCoroutines) {
  Worker worker;
  bool first = false;
  bool second = false;
  EXPECT_FALSE(inside_task());
  worker.run(look(worker, first, second));
  EXPECT_TRUE(first) << "started";
  EXPECT_TRUE(second) << "resumed";
  first = second = false;
  worker.spawn(look(worker, first, second));
  EXPECT_FALSE(inside_task());
  worker.run();
  EXPECT_TRUE(first && second);
  EXPECT_FALSE(inside_task());
}

TEST(Resuming, MarksNoOtherThread) {
  Worker worker;
  bool other = true;
  worker.run([](bool& seen) -> Task<void> {
    std::thread([&] { seen = inside_task(); }).join();
    co_return;
  }(other));
  EXPECT_FALSE(other);
}

TEST(Resuming, OutsideNothingIsPostponed) {
  int ran = 0;
  run_outside_tasks([&] { ++ran; });
  EXPECT_EQ(ran, 1);
}

// What is postponed runs in order, outside, and before the worker's run() returns; so does what
// tasks postpone that it runs itself.
TEST(Resuming, WhatIsPostponedRunsOutside) {
  Worker worker;
  Worker other;
  std::string log;
  const auto note = [&](char name) {
    EXPECT_FALSE(inside_task()) << name;
    log += name;
  };
  worker.spawn([](Worker& on, Worker& second, std::string& seen, auto noted) -> Task<void> {
    run_outside_tasks([noted] { noted('a'); });
    run_outside_tasks([noted, &second] {
      noted('b');
      second.run([](auto inner) -> Task<void> {
        run_outside_tasks([inner] { inner('c'); });
        co_return;
      }(noted));
    });
    seen += '1';
    co_await on.yield();
    seen += '2';
    run_outside_tasks([noted] { noted('d'); });
  }(worker, other, log, note));
  worker.run();
  EXPECT_EQ(log, "1abc2d");
}

}  // namespace
}  // namespace pando::task
