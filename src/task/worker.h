// Worker: one thread's scheduler of coroutines. Clock: where time comes from.
//
// Contract
//  1. A worker and what runs on it belong to one thread; wake() alone may be called from others.
//  2. Ready coroutines run in the order they became ready. Between them, pollers (endpoints) are
//     asked for completions; with nothing to do the worker spins briefly, then blocks until wake()
//     or the next timer. While a poller says that work is under way, it blocks only where that
//     poller's descriptors would end the wait.
//  3. Waiting yields: no call in this class blocks the thread but run() and step().
//  4. Time comes from the Clock given at construction: the system's, or a simulation's. A
//     simulation runs all workers on its clock, on one thread; instead of blocking, step() lets it
//     move on.
//  5. Tasks that have not ended when the worker is destroyed are destroyed with it. They may hold
//     buffers and batches of endpoints, and endpoints are destroyed before their worker: whoever
//     owns both calls drop_tasks() first.
//  6. While it resumes or destroys coroutines its thread is marked (task/resuming.h), so that those
//     who would block there can refuse.
#pragma once

#include <poll.h>

#include <atomic>
#include <cassert>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "task/resuming.h"
#include <pando/task.h>

namespace pando::task {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Worker;

// What moves a simulated clock, and runs the workers on it by run_ready(). Each has a seat.
class Simulator {
 public:
  using Seat = std::uint32_t;

  virtual ~Simulator() = default;
  virtual Seat join(Worker& worker) = 0;
  virtual void leave(Seat seat) = 0;
  // The worker has something to run: now, or from `when` on.
  virtual void ready(Seat seat) = 0;
  virtual void ready_at(Seat seat, TimePoint when) = 0;
  // Lets simulated time pass until the worker has been run.
  virtual void pass_time(Seat seat) = 0;
};

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual Simulator* simulator() { return nullptr; }
  bool simulated() { return simulator() != nullptr; }
  static Clock& system();
};

// Something that completes work for a worker's coroutines: an endpoint.
class Poller {
 public:
  virtual ~Poller() = default;
  // Schedules (Worker::schedule) what has completed. True where anything had.
  virtual bool poll() = 0;
  // Work is under way that poll() will complete.
  virtual bool pending() const = 0;
  // Adds the descriptors without whose events poll() will find nothing, and returns true; false
  // where it can only be asked again and again.
  virtual bool add_descriptors(std::vector<pollfd>& /*to*/) const { return false; }
  // Forgets the work under way, and returns when it touches no memory of the caller's any more:
  // those who waited for it are about to be destroyed.
  virtual void abandon() {}
};

// A first-in-first-out queue that allocates only when it grows.
class ReadyQueue {
 public:
  bool empty() const { return head_ == tail_; }
  std::size_t size() const { return tail_ - head_; }
  void push_back(std::coroutine_handle<> ready) {
    if (size() == capacity_) grow();
    slots_[tail_++ & (capacity_ - 1)] = ready;
  }
  // REQUIRES: !empty().
  std::coroutine_handle<> pop_front() {
    assert(!empty());
    return slots_[head_++ & (capacity_ - 1)];
  }
  void clear() { head_ = tail_; }

 private:
  void grow();

  std::unique_ptr<std::coroutine_handle<>[]> slots_;
  std::size_t capacity_ = 0;  // a power of two, or 0
  std::size_t head_ = 0;      // head and tail count on for ever; the slot is their low bits
  std::size_t tail_ = 0;
};

class Worker {
 public:
  explicit Worker(Clock& clock = Clock::system());
  ~Worker();  // drops tasks that have not ended
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Takes the task over; it starts with the next step.
  void spawn(Task<void> task);
  // Runs until every spawned task has ended.
  void run();
  // Runs the task to its end, others making progress meanwhile. The task starts at once, without
  // queueing: on a fabric that completes inline a lone task never suspends.
  template <class T>
  T run(Task<T> task) {
    start(task.handle());
    while (!task.done()) step();
    return task.handle().promise().take();
  }

  // Resumes `task` now; its owner steps the worker until it is done. Not counted by spawned() and
  // crowded(): a lone plain call has the worker to itself.
  void start(std::coroutine_handle<> task) {
    const Resuming mark;
    task.resume();
  }
  // One round: ready coroutines, pollers, timers; blocks when there is nothing to do.
  void step();
  // One round that never blocks. True where anything ran.
  bool run_ready();
  // Tasks spawned and not ended.
  std::size_t spawned() const { return detached_.size(); }
  // Destroys the spawned tasks that have not ended; makes pollers abandon their work, and forgets
  // timers and whatever else was to be resumed. The worker can be used again after it.
  // REQUIRES: not called from a coroutine; started tasks are done or will never be resumed; no
  // thread will wake() a coroutine that is destroyed here.
  void drop_tasks();

  // Resume later, on this worker. Owner thread only.
  void schedule(std::coroutine_handle<> ready) {
    ready_.push_back(ready);
    if (simulator_ != nullptr) simulator_->ready(seat_);
  }
  // Resume later, on this worker. Any thread.
  void wake(std::coroutine_handle<> ready);

  // Several tasks share the worker, so hiding latency by suspending is worth it. One spawned task
  // does not make a crowd: it may be a timer's, beside plain calls.
  bool crowded() const { return detached_.size() > 1 || !ready_.empty(); }

  struct Yield {
    Worker& worker;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> waiter) const { worker.schedule(waiter); }
    void await_resume() const noexcept {}
  };
  // co_await worker.yield(): to the back of the ready queue.
  Yield yield() { return {*this}; }

  struct Sleep {
    Worker& worker;
    TimePoint until;
    bool await_ready() const { return worker.now() >= until; }
    void await_suspend(std::coroutine_handle<> waiter) const { worker.add_timer(until, waiter); }
    void await_resume() const noexcept {}
  };
  Sleep sleep_for(Duration duration) { return {*this, now() + duration}; }

  TimePoint now() const { return clock_.now(); }
  Clock& clock() const { return clock_; }

  void add_poller(Poller* poller);
  void remove_poller(Poller* poller);

  // The earliest timer; TimePoint::max() where none.
  TimePoint next_timer() const;
  // For simulations.
  bool has_ready() const {
    return !ready_.empty() || inbox_signal_.load(std::memory_order_relaxed);
  }
  Simulator::Seat seat() const { return seat_; }

 private:
  struct Detached;  // the coroutine that drives a spawned task and signs it off
  struct Timer {
    TimePoint when;
    std::uint64_t order;  // timers of one moment fire in the order they were set
    std::coroutine_handle<> waiter;
  };
  static bool fires_later(const Timer& a, const Timer& b);
  void add_timer(TimePoint when, std::coroutine_handle<> waiter);
  static Detached drive(Worker& worker, Task<void> task);
  void take_inbox();
  void fire_timers();
  void idle();
  void block();
  bool block_on_descriptors();

  Clock& clock_;
  Simulator* const simulator_;
  const Simulator::Seat seat_;
  ReadyQueue ready_;
  std::vector<Poller*> pollers_;
  std::vector<Timer> timers_;  // a binary heap, the earliest first
  std::uint64_t timers_set_ = 0;
  std::vector<std::coroutine_handle<>> detached_;  // each frame knows its place here
  std::uint32_t idle_rounds_ = 0;                  // rounds since anything ran
  TimePoint idle_since_;

  base::Mutex inbox_mutex_;
  base::CondVar inbox_filled_;
  std::vector<std::coroutine_handle<>> inbox_ PANDO_GUARDED_BY(inbox_mutex_);
  bool blocked_ PANDO_GUARDED_BY(inbox_mutex_) = false;
  bool polling_ PANDO_GUARDED_BY(inbox_mutex_) = false;  // blocked on descriptors
  int wakeup_ = -1;                                      // an eventfd, made when first needed
  std::vector<pollfd> descriptors_;
  std::atomic<bool> inbox_signal_{false};  // the inbox may hold something
};

}  // namespace pando::task
