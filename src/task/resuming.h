// Resuming: the mark of a thread that is inside a coroutine, and what waits until it is not.
//
// Whoever blocks inside a coroutine stops its worker, and with it the very coroutines that it may
// be waiting for: it could hang for ever. Such calls ask inside_task() first and refuse. What may
// not refuse, because a destructor does it (the last handle of an index closes it), is postponed
// with run_outside_tasks() to the moment when the thread is back in its worker's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace pando::task {

// Held by whoever resumes or destroys coroutines, for as long as it does. They nest. When the last
// one of the thread goes, what was postponed is run, which may be calls that block: it goes where
// those do no harm.
class Resuming {
 public:
  Resuming() { ++this_thread.depth; }
  ~Resuming() {
    if (--this_thread.depth == 0 && this_thread.postponed != nullptr) run_postponed();
  }
  Resuming(const Resuming&) = delete;
  Resuming& operator=(const Resuming&) = delete;

 private:
  friend bool inside_task();
  friend void run_outside_tasks(std::function<void()> action);
  using Actions = std::vector<std::function<void()>>;
  struct Thread {
    std::uint32_t depth = 0;
    Actions* postponed = nullptr;  // owned; a plain pointer, so that looking at it costs nothing
  };
  static void run_postponed();

  static thread_local constinit Thread this_thread;
};

// This thread is inside a coroutine that a Worker has resumed, or is destroying.
inline bool inside_task() { return Resuming::this_thread.depth > 0; }

// Runs `action` on this thread: at once, or where it is inside a coroutine as soon as it is not.
void run_outside_tasks(std::function<void()> action);

}  // namespace pando::task
