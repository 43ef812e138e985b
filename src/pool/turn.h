// Turn: one at a time; who does not get its turn does without. The flag is given back even if the
// coroutine that holds it is destroyed while it waits.
#pragma once

#include <atomic>

namespace pando::pool {

class Turn {
 public:
  explicit Turn(std::atomic<bool>& taken, bool wanted = true)
      : taken_(taken), mine_(wanted && !taken.exchange(true)) {}
  ~Turn() {
    if (mine_) taken_.store(false);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return mine_; }

 private:
  std::atomic<bool>& taken_;
  const bool mine_;
};

}  // namespace pando::pool
