#include "fabric/sim/engine.h"

#include <stdexcept>
#include <utility>

namespace pando::fabric::sim {
namespace {

// Engine's own events, told apart by their subject being null and by `detail`.
constexpr std::uint64_t kActionMark = std::uint64_t{1} << 63;
constexpr std::uint64_t kTurnMark = std::uint64_t{1} << 62;

}  // namespace

void Engine::at(Time when, std::function<void()> action) {
  std::size_t place = actions_.size();
  if (free_actions_.empty()) {
    actions_.push_back(std::move(action));
  } else {
    place = free_actions_.back();
    free_actions_.pop_back();
    actions_[place] = std::move(action);
  }
  queue_.push(when, {.handler = this, .detail = kActionMark | place});
}

void Engine::happen(const Event& event) {
  if ((event.detail & kActionMark) != 0) {
    const std::size_t place = event.detail & ~kActionMark;
    const std::function<void()> action = std::exchange(actions_[place], nullptr);
    free_actions_.push_back(place);
    action();
    return;
  }
  const bool turn = (event.detail & kTurnMark) != 0;
  const auto seat = static_cast<Seat>(event.detail);
  if (seats_[seat].serial != event.serial) return;
  if (turn) seats_[seat].turning = false;
  ready(seat);
}

bool Engine::advance() {
  if (next_ < runnable_.size()) {
    const Seat seat = runnable_[next_++];
    if (next_ == runnable_.size()) {
      runnable_.clear();
      next_ = 0;
    }
    run(seat);
    return true;
  }
  if (queue_.empty()) return false;
  if (const Time at = queue_.next_at(); at > now_) now_ = at;
  const Event event = queue_.pop();
  ++happened_;
  event.handler->happen(event);
  return true;
}

void Engine::run(Seat seat) {
  Place& place = seats_[seat];
  place.queued = false;
  if (place.worker == nullptr) return;
  if (place.held || (alone_ && seat != caller_)) {
    place.waiting = true;
    return;
  }
  const task::Resuming mark;  // what its tasks postpone is run when the turn is over
  running_ = seat;
  place.worker->run_ready();
  running_ = kNobody;
  Place& after = seats_[seat];  // others may have joined meanwhile
  ++after.turns;
  if (after.worker->has_ready() && !after.turning) {
    after.turning = true;
    queue_.push(now_ + kTurn,
                {.handler = this, .serial = after.serial, .detail = kTurnMark | seat});
  }
}

void Engine::release(Seat seat) {
  seats_[seat].held = false;
  if (std::exchange(seats_[seat].waiting, false)) ready(seat);
}

void Engine::set_alone(bool alone) {
  alone_ = alone;
  for (Seat seat = 0; !alone && seat < seats_.size(); ++seat) {
    if (!seats_[seat].held && std::exchange(seats_[seat].waiting, false)) ready(seat);
  }
}

task::Simulator::Seat Engine::join(task::Worker& worker) {
  Seat seat = 0;
  if (free_seats_.empty()) {
    seat = static_cast<Seat>(seats_.size());
    seats_.emplace_back();
  } else {
    seat = free_seats_.back();
    free_seats_.pop_back();
  }
  Place& place = seats_[seat];
  const std::uint64_t serial = place.serial + 1;
  const bool queued = place.queued;  // its place in runnable_ stays, and finds nothing to do
  place = {.worker = &worker, .serial = serial, .queued = queued};
  return seat;
}

void Engine::leave(Seat seat) {
  seats_[seat].worker = nullptr;
  ++seats_[seat].serial;
  free_seats_.push_back(seat);
}

void Engine::ready_at(Seat seat, task::TimePoint when) {
  // Rounded down by now(): a timer set for this very nanosecond is due.
  const Time at = static_cast<Time>(when.time_since_epoch().count()) * kNanosecond;
  queue_.push(at > now_ ? at : now_,
              {.handler = this, .serial = seats_[seat].serial, .detail = seat});
}

void Engine::pass_time(Seat seat) {
  if (running_ != kNobody) {
    throw std::logic_error("a plain call from within a simulated task: use the coroutine form");
  }
  const std::uint64_t before = seats_[seat].turns;
  const Time limit = now_ + kLongestCall;
  caller_ = seat;
  while (seats_[seat].turns == before) {
    if (!advance() || now_ > limit) {
      throw std::logic_error("a simulated task waits for something that will never happen");
    }
  }
}

}  // namespace pando::fabric::sim
