// LeafFill: how many keys a scan may expect of leaves before it has read them. Integer keys: the
// separators above tell how wide a leaf is, in keys that its range has room for.
//
// Which part of these is there is learnt from the leaves that scans read, as two running means:
//   - dense ranges, where leaves are hardly wider than they have entries: keys there by width.
//     Consecutive keys give 1, whatever a split left in a leaf;
//   - others: keys of a leaf of the usual width. A wider leaf has more, as splits cut at keys; no
//     leaf is taken for emptier than three eighths, or fuller than full: widths mislead where keys
//     come in clusters.
//
// Falling short costs a round trip more, a leaf too many its bytes. LeafForecast asks for so many
// keys more than are missing as the sum scatters by (one standard deviation, each key of a range
// being there by chance): since the last leaf comes whole, one scan in fifty or fewer then falls
// short, for a sixth of a leaf more; where all keys are there, none, for nothing.
//
// Thread-safe; an update may get lost.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>

namespace pando::index {

class LeafFill {
 public:
  explicit LeafFill(std::size_t capacity)
      : capacity_(static_cast<double>(capacity)), usual_(capacity_ * 5 / 8) {}

  // The part of the keys in a leaf's range that is there. `usual_width`: of its parent's leaves.
  double density(double width, double usual_width) const {
    if (is_dense(usual_width)) return present_.load(std::memory_order_relaxed);
    const double keys = usual_.load(std::memory_order_relaxed) * width / usual_width;
    return std::min(1.0, std::clamp(keys, capacity_ * 3 / 8, capacity_) / width);
  }
  // So many keys were found in `looked_at` of a leaf's width.
  void saw(std::size_t keys, double looked_at, double width, double usual_width) {
    if (is_dense(usual_width)) {
      const double part = static_cast<double>(keys) / looked_at;
      learn(present_, std::clamp(part, kLeastPresent, 1.0));
    } else if (looked_at == width) {
      learn(usual_, std::max(capacity_ / 8, static_cast<double>(keys) * usual_width / width));
    }
  }

 private:
  static constexpr double kLeastPresent = 1.0 / 16;

  bool is_dense(double usual_width) const { return usual_width <= 2 * capacity_; }
  static void learn(std::atomic<double>& mean, double value) {
    const double old = mean.load(std::memory_order_relaxed);
    mean.store(old + (value - old) / 32, std::memory_order_relaxed);
  }

  const double capacity_;
  std::atomic<double> usual_;
  std::atomic<double> present_{5.0 / 8};
};

// The sum over the leaves of one batch.
class LeafForecast {
 public:
  explicit LeafForecast(std::size_t missing) : missing_(static_cast<double>(missing)) {}

  // How far into a range of `width` keys with that density one has to look. All of it, if it is not
  // enough: then it is added to the sum.
  double look(double width, double density) {
    const double need = std::max(0.0, missing_ - sum_);
    const double scatter = std::sqrt(variance_ + need * (1 - density));
    const double enough = std::round((missing_ + scatter - sum_) / density);
    if (enough <= width) {
      enough_ = true;
      return std::max(1.0, enough);
    }
    sum_ += width * density;
    variance_ += width * density * (1 - density);
    return width;
  }
  bool enough() const { return enough_; }

 private:
  double missing_;
  double sum_ = 0;
  double variance_ = 0;
  bool enough_ = false;
};

}  // namespace pando::index
