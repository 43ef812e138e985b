#include "lab/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace pando::lab {

namespace {

using Seconds = std::chrono::duration<double>;

std::string eta(double seconds) {
  if (!std::isfinite(seconds) || seconds > 359'999) return "--:--";
  const auto whole = static_cast<std::uint64_t>(std::ceil(seconds));
  if (whole >= 3600) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
}

}  // namespace

std::string progress_line(std::string_view label, std::uint64_t done, std::uint64_t total,
                          std::chrono::nanoseconds elapsed, RateUnit unit) {
  constexpr std::size_t kWidth = 24;
  const double share = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
  const double seconds = Seconds(elapsed).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const auto filled = std::min(kWidth, static_cast<std::size_t>(share * kWidth));
  return fmt::format("{:<22.22} [{}{}] {:3.0f}% {:6.2f} {}, {} left", label,
                     std::string(filled, '#'), std::string(kWidth - filled, '.'), share * 100,
                     rate / unit.size, unit.name, eta(static_cast<double>(total - done) / rate));
}

Progress::Style Progress::style_for_stderr() {
  return isatty(STDERR_FILENO) != 0 ? Style::kBar : Style::kLines;
}

void Progress::show(std::string_view label, std::uint64_t done, std::uint64_t total,
                    std::chrono::nanoseconds elapsed) {
  if (style_ == Style::kNone) return;
  if (style_ == Style::kBar) {
    fmt::print(out_, "\r{}\x1b[K", progress_line(label, done, total, elapsed, unit_));
    std::fflush(out_);
    return;
  }
  constexpr std::chrono::seconds kBetweenLines{10};
  if (label != label_) {
    label_ = label;
    last_line_ = {};
  }
  if (elapsed - last_line_ < kBetweenLines) return;
  last_line_ = elapsed;
  fmt::print(out_, "{}\n", progress_line(label, done, total, elapsed, unit_));
  std::fflush(out_);
}

void Progress::clear() {
  label_.clear();
  if (style_ != Style::kBar) return;
  fmt::print(out_, "\r\x1b[K");
  std::fflush(out_);
}

}  // namespace pando::lab
