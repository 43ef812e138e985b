// How big tests are: full size in plain builds, less where each step costs more.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "base/sanitizers.h"

namespace pando::testing {

inline constexpr double kSanitizerSlowdown =
    PANDO_THREAD_SANITIZER ? 12.0 : (PANDO_ADDRESS_SANITIZER ? 6.0 : 1.0);

// What a round trip of the fabric under test costs beside one in memory; set by the suite that
// knows it. Tests on sockets do less in the same time.
inline double fabric_slowdown = 1.0;

// `n` steps in a plain build, fewer (but at least `least`) under sanitizers and on slow fabrics.
// PANDO_TEST_SCALE in the environment, a number such as 0.1 or 10, multiplies all sizes: soaks use
// it.
inline std::size_t scaled(std::size_t n, std::size_t least = 1) {
  static const double kScale = [] {
    const char* text = std::getenv("PANDO_TEST_SCALE");
    const double asked = text != nullptr ? std::strtod(text, nullptr) : 1.0;
    return (asked > 0 ? asked : 1.0) / kSanitizerSlowdown;
  }();
  const auto floor = static_cast<double>(least) / std::min(fabric_slowdown, 5.0);
  return static_cast<std::size_t>(
      std::max({1.0, floor, static_cast<double>(n) * kScale / fabric_slowdown}));
}

}  // namespace pando::testing
