#include "task/worker.h"

namespace pando::task {
namespace {

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

Clock& Clock::system() {
  // Never destroyed: threads that outlive main() may still ask for the time.
  static SystemClock& clock = *new SystemClock;
  return clock;
}

}  // namespace pando::task
