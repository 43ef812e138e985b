// Pause: waiting for somebody else's progress, within a deadline.
//
// The first wait yields; later ones sleep, twice as long each time up to kLongest. Sleeping lets a
// simulated clock move on, and a real core do something else.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>

#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

class Pause {
 public:
  static constexpr task::Duration kLongest = std::chrono::milliseconds(1);

  // Within an operation, and its deadline. It keeps the epoch from moving, so this is not for what
  // may wait for memory.
  explicit Pause(const Operation& op) : worker_(op.worker()), op_(&op) {}
  // Between operations.
  Pause(task::Worker& worker, task::TimePoint deadline) : worker_(worker), deadline_(deadline) {}

  // kTimeout, naming what was waited for, once the deadline has passed.
  Task<Status> wait(std::string_view what) {
    if (op_ != nullptr ? op_->expired() : worker_.now() >= deadline_) {
      co_return fail(ErrorCode::kTimeout, std::string("waiting for ").append(what));
    }
    if (!yielded_) {
      yielded_ = true;
      co_await worker_.yield();
      co_return Status{};
    }
    co_await worker_.sleep_for(length_);
    length_ = std::min(length_ * 2, kLongest);
    co_return Status{};
  }

 private:
  task::Worker& worker_;
  const Operation* op_ = nullptr;
  task::TimePoint deadline_{};
  task::Duration length_ = std::chrono::microseconds(1);
  bool yielded_ = false;
};

}  // namespace pando::pool
