// Exact sums in digits of 40 bits, which add up to the same in any order (src/layerwise/drive/digits.py).
#pragma once

#include <cmath>
#include <cstdint>

namespace layerwise {

inline constexpr int DIGIT = 40;
inline constexpr double DIGIT_UNIT = 1099511627776.0;  // 2^40

// The first digit counts multiples of 2^(40·low).
struct Window {
  int low, digits;
};

// Returns the number that digits make, which depends on their value alone. They are left in the one form that a value
// has: from 0 to 2^40 − 1, and the last as it comes out; or where that is negative, the digits of its size.
inline double total_of(double* digits, Window window) {
  const auto canonical = [&] {
    double up = 0;
    for (int i = 0; i < window.digits; i++) {
      digits[i] += up;
      if (i + 1 < window.digits) up = std::floor(digits[i] / DIGIT_UNIT), digits[i] -= up * DIGIT_UNIT;
    }
  };
  canonical();
  const bool negative = digits[window.digits - 1] < 0;
  if (negative) {
    for (int i = 0; i < window.digits; i++) digits[i] = -digits[i];
    canonical();
  }
  double size = 0;
  for (int i = 0; i < window.digits; i++) size += std::ldexp(digits[i], DIGIT * (window.low + i));
  return negative ? -size : size;
}

}  // namespace layerwise
