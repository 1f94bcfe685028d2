// Adds numbers, or their squares, to digits (src/layerwise/drive/digits.py) without rounding anything.
//
// Adding 1.5·2^(52+40k) and taking it away again rounds to a multiple of 2^(40k), and what that leaves is exact. Three
// digits below the largest number hold all of most blocks, whose numbers differ by less than 2^32; the others are taken
// digit by digit.

inline constexpr int64_t DIGIT_BLOCK = 512;      // elements whose digits are added up before any is carried
inline constexpr int64_t MOST_BLOCKS = 1 << 12;  // that digits take before they are carried
inline constexpr double MOST_NUMBER = 0x1p1011;  // from here on the first rounding would leave the dtype

inline double rounder(int k) { return ldexp(1.5, 52 + DIGIT * k); }
inline int digit_of(double largest) {
  int exponent;
  frexp(largest, &exponent);
  return exponent > 0 ? (exponent - 1) / DIGIT : -((DIGIT - exponent) / DIGIT);
}

// Adds units of 2^(40k), at most 2^52, to the digits.
inline void put_digit(double* digits, Window window, int k, double units) {
  const int at = k - window.low;
  if (at < 0) return;  // there are none so small
  const double up = at + 1 < window.digits ? round(units / DIGIT_UNIT) : 0;
  digits[at] += units - up * DIGIT_UNIT;
  if (up != 0) digits[at + 1] += up;
}

inline void carry_digits(double* digits, Window window) {
  double up = 0;
  for (int i = 0; i < window.digits - 1; i++) {
    digits[i] += up, up = round(digits[i] / DIGIT_UNIT);
    digits[i] -= up * DIGIT_UNIT;
  }
  digits[window.digits - 1] += up;
}

// Takes a block digit by digit; the numbers are used up.
LAYERWISE_RARE void add_each_digit(double* x, int64_t n, double* digits, Window window) {
  const int last = window.low + window.digits - 1;
  for (int64_t i = 0; i < n; i++)
    if (!(fabs(x[i]) < MOST_NUMBER))  // neither are these numbers of the last digit, nor do they leave it
      digits[window.digits - 1] += ldexp(x[i], -DIGIT * last), x[i] = 0;
  for (;;) {
    double largest = 0;
    LAYERWISE_SIMD(reduction(max : largest))
    for (int64_t i = 0; i < n; i++) largest = fabs(x[i]) > largest ? fabs(x[i]) : largest;
    if (largest == 0) return;
    const int found = digit_of(largest), k = found < last ? found : last;
    const double shift = rounder(k);
    double sum = 0;
    LAYERWISE_SIMD(reduction(+ : sum))
    for (int64_t i = 0; i < n; i++) {
      const double rounded = (x[i] + shift) - shift;
      x[i] -= rounded, sum += rounded;
    }
    put_digit(digits, window, k, ldexp(sum, -DIGIT * k));
  }
}

template <bool SQUARES, class T>
void add_slowly(const T* x, int64_t n, double* digits, Window window) {
  double wide[DIGIT_BLOCK];
  for (int64_t i = 0; i < n; i++) wide[i] = SQUARES ? double(x[i]) * double(x[i]) : double(x[i]);
  add_each_digit(wide, n, digits, window);
}

template <bool SQUARES>
void add_block_to_digits(const float* x, int64_t n, double* digits, Window window) {
  uint32_t bits = 0;  // of the largest, which are in the order of sizes; nan comes last
  LAYERWISE_SIMD(reduction(max : bits))
  for (int64_t i = 0; i < n; i++) {
    const uint32_t size = bits_of(x[i]) & 0x7fffffffu;
    bits = size > bits ? size : bits;
  }
  if (bits == 0) return;
  if (bits >= 0x7f800000u) return add_slowly<SQUARES>(x, n, digits, window);
  const double largest = float_of(bits);
  const int k = digit_of(SQUARES ? largest * largest : largest);
  const double first = rounder(k), second = rounder(k - 1), third = rounder(k - 2);
  double a = 0, b = 0, c = 0, left = 0;
  LAYERWISE_SIMD(reduction(+ : a, b, c) reduction(max : left))
  for (int64_t i = 0; i < n; i++) {
    const double wide = x[i];
    double rest = SQUARES ? wide * wide : wide;  // exact, and so it is when a multiplication and an addition are one
    const double a_ = (rest + first) - first;
    rest -= a_, a += a_;
    const double b_ = (rest + second) - second;
    rest -= b_, b += b_;
    const double c_ = (rest + third) - third;
    rest -= c_, c += c_;
    left = fabs(rest) > left ? fabs(rest) : left;
  }
  if (left != 0) return add_slowly<SQUARES>(x, n, digits, window);
  put_digit(digits, window, k, ldexp(a, -DIGIT * k));
  put_digit(digits, window, k - 1, ldexp(b, -DIGIT * (k - 1)));
  put_digit(digits, window, k - 2, ldexp(c, -DIGIT * (k - 2)));
}

template <bool SQUARES>
void add_block_to_digits(const double* x, int64_t n, double* digits, Window window) {
  add_slowly<SQUARES>(x, n, digits, window);
}

template <class T>
void add_line_to_digits(const T* x, int64_t n, bool squares, double* digits, Window window) {
  for (int64_t from = 0, blocks = 0; from < n; from += DIGIT_BLOCK) {
    const int64_t size = n - from < DIGIT_BLOCK ? n - from : DIGIT_BLOCK;
    if (squares) add_block_to_digits<true>(x + from, size, digits, window);
    else add_block_to_digits<false>(x + from, size, digits, window);
    if (++blocks % MOST_BLOCKS == 0) carry_digits(digits, window);
  }
  carry_digits(digits, window);
}

void add_to_digits(const void* x, bool wide, bool squares, int64_t n, double* digits, Window window) {
  if (wide) add_line_to_digits((const double*)x, n, squares, digits, window);
  else add_line_to_digits((const float*)x, n, squares, digits, window);
}
