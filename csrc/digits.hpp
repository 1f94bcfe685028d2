// Exact sums in digits of 40 bits, which add up to the same in any order (src/layerwise/drive/digits.py).
#pragma once

#include <cstdint>

namespace layerwise {

inline constexpr int DIGIT = 40;

// The first digit counts multiples of 2^(40·low).
struct Window {
  int low, digits;
};

// Of an ordinary number, which is its one digit; of numbers of float32, of their squares, and of numbers of float64.
inline constexpr Window ORDINARY{0, 1}, NUMBERS_OF{-4, 8}, SQUARES_OF{-8, 15}, WIDE{-27, 52};

constexpr Window window_of(bool wide, bool plain) { return wide ? WIDE : plain ? NUMBERS_OF : SQUARES_OF; }

// Sums in digits: the first digit of all n sums, then the second. Functions take the first sums, as many as they are given.
struct Digits {
  double* at;
  int64_t n;
  Window window;

  bool exact() const { return window.digits > 1; }
  double* operator[](int i) const { return at + i * n; }
  int last() const { return window.digits - 1; }
  int64_t size() const { return n * window.digits; }
  Digits from(int64_t first) const { return {at + first, n, window}; }
};

}  // namespace layerwise
