#include "lab/client_work.h"

namespace pando::lab {

Now steady_now() {
  return [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
  };
}

std::string_view to_string(CallKind kind) {
  switch (kind) {
    case CallKind::kSearch:
      return "search";
    case CallKind::kInsert:
      return "insert";
    case CallKind::kUpdate:
      return "update";
    case CallKind::kScan:
      return "scan";
  }
  return "?";
}

void Failures::add(std::string message) {
  constexpr std::size_t kKept = 5;
  const base::MutexLock lock(mutex_);
  if (messages_.size() < kKept) messages_.push_back(std::move(message));
  ++count_;
}

std::vector<std::string> Failures::messages() const {
  const base::MutexLock lock(mutex_);
  return messages_;
}

}  // namespace pando::lab
