// Pause: waiting for somebody else's progress, within an operation's deadline.
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

  explicit Pause(Operation& op) : op_(op) {}

  // kTimeout, naming what was waited for, once the operation's deadline has passed.
  Task<Status> wait(std::string_view what) {
    if (op_.expired()) {
      co_return fail(ErrorCode::kTimeout, std::string("waiting for ").append(what));
    }
    if (!yielded_) {
      yielded_ = true;
      co_await op_.worker().yield();
      co_return Status{};
    }
    co_await op_.worker().sleep_for(length_);
    length_ = std::min(length_ * 2, kLongest);
    co_return Status{};
  }

 private:
  Operation& op_;
  task::Duration length_ = std::chrono::microseconds(1);
  bool yielded_ = false;
};

}  // namespace pando::pool
