// Progress: tells a person how far a phase is, on stderr.
//
// On a terminal, one line that is redrawn, with a bar, the rate and the time left; elsewhere a
// plain line now and then, so that a log shows that something is going on. Owner thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace pando::lab {

// What a rate is given in: so many of what is counted a second.
struct RateUnit {
  std::string_view name = "Mops/s";
  double size = 1e6;
};

class Progress {
 public:
  enum class Style : std::uint8_t { kNone, kLines, kBar };

  explicit Progress(Style style, RateUnit unit = {}, std::FILE* out = stderr)
      : style_(style), unit_(unit), out_(out) {}
  // A bar where stderr is a terminal, else lines.
  static Style style_for_stderr();

  // Called many times a second; `done` of `total` after `elapsed`.
  void show(std::string_view label, std::uint64_t done, std::uint64_t total,
            std::chrono::nanoseconds elapsed);
  // The phase is over: the bar goes away.
  void clear();

 private:
  Style style_;
  RateUnit unit_;
  std::FILE* out_;
  std::string label_;
  std::chrono::nanoseconds last_line_{};
};

// The bar's line, at most 79 columns wide.
std::string progress_line(std::string_view label, std::uint64_t done, std::uint64_t total,
                          std::chrono::nanoseconds elapsed, RateUnit unit = {});

}  // namespace pando::lab
