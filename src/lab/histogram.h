// Histogram: latencies in nanoseconds, log-linear, of fixed size.
//
// Values below 256 are kept exactly; above, each power of two has 128 equal buckets, so that a
// quantile is off by less than 0.4 %. Values from 2^42 (over an hour) on count as 2^42 - 1.
// Recording is a few instructions; histograms of several threads are merged afterwards.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pando::lab {

class Histogram {
 public:
  void record(std::uint64_t value) {
    value = std::min(value, kMaxValue);
    ++buckets_[bucket_of(value)];
    ++count_;
  }

  void merge(const Histogram& other) {
    for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
  }

  std::uint64_t count() const { return count_; }

  // The value that a share `q` of the recorded ones do not exceed; 0 where there are none.
  // REQUIRES 0 <= q <= 1.
  double quantile(double q) const {
    assert(0 <= q && q <= 1);
    if (count_ == 0) return 0;
    const double exact = q * static_cast<double>(count_);
    const auto wanted = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(exact + 0.999999));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      seen += buckets_[i];
      if (seen >= wanted) return middle_of(i);
    }
    return middle_of(buckets_.size() - 1);
  }

 private:
  static constexpr int kSubBits = 7;
  static constexpr std::uint64_t kSub = std::uint64_t{1} << kSubBits;
  static constexpr int kMaxBits = 42;
  static constexpr std::uint64_t kMaxValue = (std::uint64_t{1} << kMaxBits) - 1;

  // The highest 8 bits of the value and how far they were shifted; shift 0 covers 0..255.
  static std::size_t bucket_of(std::uint64_t value) {
    const int shift = std::max(0, 64 - std::countl_zero(value) - kSubBits - 1);
    return static_cast<std::size_t>(static_cast<std::uint64_t>(shift) * kSub + (value >> shift));
  }

  static double middle_of(std::size_t bucket) {
    if (bucket < 2 * kSub) return static_cast<double>(bucket);
    const std::uint64_t shift = bucket / kSub - 1;
    const std::uint64_t low = (bucket - shift * kSub) << shift;
    const std::uint64_t width = std::uint64_t{1} << shift;
    return static_cast<double>(low) + static_cast<double>(width - 1) / 2;
  }

  std::vector<std::uint64_t> buckets_ =
      std::vector<std::uint64_t>(static_cast<std::size_t>(kMaxBits - kSubBits + 1) * kSub);
  std::uint64_t count_ = 0;
};

}  // namespace pando::lab
