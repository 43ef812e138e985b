// Waiting for another thread that will be done in a moment.
#pragma once

#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pando::base {

inline void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __builtin_arm_yield();
#endif
}

// Spins first; then gives the core away, as the other thread may be waiting for it.
class Backoff {
 public:
  void pause() {
    if (++rounds_ <= kSpins) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr std::uint32_t kSpins = 256;
  std::uint32_t rounds_ = 0;
};

}  // namespace pando::base
