#include "lab/zipf.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace pando::lab {

namespace {

// log(1 + x) / x and (exp(x) - 1) / x, also where x is next to nothing (theta next to 1).
double log1p_over(double x) {
  return std::abs(x) > 1e-8 ? std::log1p(x) / x : 1 - x * (0.5 - x / 3);
}
double expm1_over(double x) {
  return std::abs(x) > 1e-8 ? std::expm1(x) / x : 1 + x * 0.5 * (1 + x / 3);
}

}  // namespace

Zipf::Zipf(std::uint64_t size, double theta)
    : size_(size),
      theta_(theta),
      integral_first_(integral(1.5) - 1),
      integral_last_(integral(static_cast<double>(size) + 0.5)),
      squeeze_(2 - inverse_integral(integral(2.5) - density(2))) {
  assert(size > 0 && theta >= 0);
}

std::uint64_t Zipf::operator()(base::Random& random) const {
  for (;;) {
    const double y = integral_last_ + random.unit() * (integral_first_ - integral_last_);
    const double x = inverse_integral(y);
    const double rank = std::clamp(std::floor(x + 0.5), 1.0, static_cast<double>(size_));
    if (rank - x <= squeeze_ || y >= integral(rank + 0.5) - density(rank)) {
      return static_cast<std::uint64_t>(rank) - 1;
    }
  }
}

double Zipf::integral(double x) const {
  const double log_x = std::log(x);
  return expm1_over((1 - theta_) * log_x) * log_x;
}

double Zipf::inverse_integral(double y) const {
  // Rounding may push the product just below -1, where the logarithm ends.
  const double t = std::max(y * (1 - theta_), -1.0);
  return std::exp(log1p_over(t) * y);
}

double Zipf::density(double x) const { return std::exp(-theta_ * std::log(x)); }

}  // namespace pando::lab
