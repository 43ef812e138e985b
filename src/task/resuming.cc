#include "task/resuming.h"

#include <memory>
#include <utility>

namespace pando::task {

thread_local constinit Resuming::Thread Resuming::this_thread;

// An action may resume coroutines itself, and those may postpone more: that is run within it.
void Resuming::run_postponed() {
  const std::unique_ptr<Actions> actions(std::exchange(this_thread.postponed, nullptr));
  for (const std::function<void()>& action : *actions) action();
}

void run_outside_tasks(std::function<void()> action) {
  if (!inside_task()) {
    action();
    return;
  }
  if (Resuming::this_thread.postponed == nullptr) {
    Resuming::this_thread.postponed = new Resuming::Actions;
  }
  Resuming::this_thread.postponed->push_back(std::move(action));
}

}  // namespace pando::task
