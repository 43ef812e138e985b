// Zipf: ranks 0..size-1 with P(rank) proportional to 1 / (rank + 1)^theta, exactly.
//
// Rejection-inversion after Hörmann and Derflinger (1996): constant time to set up and to draw,
// for any theta >= 0 (1 and above included; 0 is uniform), and no table.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace pando::lab {

class Zipf {
 public:
  // REQUIRES size > 0, theta >= 0.
  Zipf(std::uint64_t size, double theta);

  std::uint64_t operator()(base::Random& random) const;

 private:
  double integral(double x) const;  // of x^-theta, up to a constant
  double inverse_integral(double y) const;
  double density(double x) const;

  std::uint64_t size_;
  double theta_;
  double integral_first_;  // where the area of rank 1 begins
  double integral_last_;   // where that of the last rank ends
  double squeeze_;         // this close to the rank's right edge nothing is rejected
};

}  // namespace pando::lab
