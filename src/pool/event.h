// Event: one coroutine waits, any thread sets. Set while nobody waits, the next wait returns at
// once.
//
// The state is "idle", "set", or the handle of the waiter. Whoever takes the handle out resumes it,
// so it is resumed once; and since the waiter cannot go on before, its worker is still there.
#pragma once

#include <atomic>
#include <cassert>
#include <coroutine>
#include <cstdint>

#include "task/worker.h"

namespace pando::pool {

class Event {
 public:
  void set() {
    const std::uintptr_t before = state_.exchange(kSet, std::memory_order_acq_rel);
    if (before == kIdle || before == kSet) return;
    worker_->wake(std::coroutine_handle<>::from_address(reinterpret_cast<void*>(before)));
  }

  struct [[nodiscard]] Wait {
    Event& event;
    std::uintptr_t waiter = kIdle;

    Wait(Event& on, task::Worker& worker) : event(on) { on.worker_ = &worker; }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    // A waiter that is destroyed while it waits must not be resumed.
    ~Wait() {
      std::uintptr_t expected = waiter;
      if (waiter != kIdle) event.state_.compare_exchange_strong(expected, kIdle);
    }
    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> handle) {
      waiter = reinterpret_cast<std::uintptr_t>(handle.address());
      std::uintptr_t expected = kIdle;
      const bool waits =
          event.state_.compare_exchange_strong(expected, waiter, std::memory_order_acq_rel);
      assert(waits || expected == kSet);  // nobody else waits
      return waits;
    }
    void await_resume() noexcept {
      waiter = kIdle;
      event.state_.exchange(kIdle, std::memory_order_acq_rel);
    }
  };
  // co_await event.wait(worker). REQUIRES: nobody else waits; `worker` runs the caller.
  Wait wait(task::Worker& worker) { return {*this, worker}; }

 private:
  static constexpr std::uintptr_t kIdle = 0;
  static constexpr std::uintptr_t kSet = 1;
  std::atomic<std::uintptr_t> state_{kIdle};
  task::Worker* worker_ = nullptr;  // published by the waiter's handle
};

}  // namespace pando::pool
