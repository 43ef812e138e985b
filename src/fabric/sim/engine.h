// Engine: simulated time. One thread, one queue of events, and the workers on its clock.
//
// Contract
//  1. Nothing here asks the machine for the time or for randomness: the same calls give the same
//     run, everywhere.
//  2. Code of workers takes no time, with one exception: a worker whose coroutines are ready again
//     at once (they yielded) goes on a turn (kTurn) later, or when something else makes it run, so
//     that those who spin see time pass.
//     Figures in simulated time are therefore those of the network; a compute node's own work is
//     free.
//  3. Workers that are held (paused, or dead) are not run; what becomes ready meanwhile waits.
//  4. A plain call (Worker::run) lets time pass for all workers. It may not be made from within a
//     task, which is itself run by the engine: the public interface refuses that, as on every
//     fabric, before it comes here (task/resuming.h). One that waits for longer than kLongestCall,
//     where every operation has a deadline, will never end: both are std::logic_error.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fabric/sim/event_queue.h"
#include "task/worker.h"

namespace pando::fabric::sim {

class Engine final : public task::Clock, public task::Simulator, private EventHandler {
 public:
  // What a coroutine switch and a look around cost at least.
  static constexpr Time kTurn = 100 * kNanosecond;
  static constexpr Time kLongestCall = 1000 * kSecond;

  Time time() const { return now_; }
  std::uint64_t events() const { return happened_; }

  void at(Time when, const Event& event) { queue_.push(when, event); }
  // The same for a function.
  void at(Time when, std::function<void()> action);

  // One event, or one worker's turn. False: there is nothing to come.
  bool advance();
  // Until `done()`, or (false) until nothing comes before `limit`; then it is `limit`.
  template <class Done>
  bool run_until(Done done, Time limit) {
    while (!done()) {
      if (runnable_.empty() && (queue_.empty() || queue_.next_at() > limit)) {
        now_ = limit > now_ ? limit : now_;
        return false;
      }
      advance();
    }
    return true;
  }

  // Whether a worker's task is being run: nothing may block then.
  bool in_task() const { return running_ != kNobody; }
  // Only the worker whose plain call lets time pass is run; what becomes ready meanwhile waits.
  void set_alone(bool alone);

  // Not run any more until released.
  void hold(task::Simulator::Seat seat) { seats_[seat].held = true; }
  void release(task::Simulator::Seat seat);

  // ---- task::Clock and task::Simulator
  task::TimePoint now() const override {
    return task::TimePoint(task::Duration(static_cast<std::int64_t>(now_ / kNanosecond)));
  }
  task::Simulator* simulator() override { return this; }
  Seat join(task::Worker& worker) override;
  void leave(Seat seat) override;
  void ready(Seat seat) override {
    if (seat == running_ || seats_[seat].queued) return;
    seats_[seat].queued = true;
    runnable_.push_back(seat);
  }
  void ready_at(Seat seat, task::TimePoint when) override;
  void pass_time(Seat seat) override;

 private:
  static constexpr Seat kNobody = ~Seat{0};
  struct Place {
    task::Worker* worker = nullptr;
    std::uint64_t serial = 0;  // a worker's events do not reach its successor
    std::uint64_t turns = 0;
    bool queued = false;
    bool held = false;
    bool waiting = false;  // has something to run once released
    bool turning = false;  // its next turn is in the queue
  };

  void happen(const Event& event) override;
  void run(Seat seat);

  Time now_ = 0;
  EventQueue queue_;
  std::uint64_t happened_ = 0;
  std::vector<Place> seats_;
  std::vector<Seat> free_seats_;
  std::vector<Seat> runnable_;  // first in, first out: from next_
  std::size_t next_ = 0;
  Seat running_ = kNobody;
  bool alone_ = false;
  Seat caller_ = kNobody;  // of a plain call
  std::vector<std::function<void()>> actions_;
  std::vector<std::size_t> free_actions_;
};

}  // namespace pando::fabric::sim
