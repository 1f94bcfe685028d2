// Exact sums: what is added to digits (digits.hpp) is split into their units, and nothing is rounded but a total. Adding
// 1.5·2^(52+e) to a number, and taking it away again, leaves multiples of 2^e.
//
// The sum of a block is that of what is above some 2^e of each term, and that of what this leaves. Both are exact in
// float64 unless some terms are much smaller than the largest: those blocks are taken in more rounds.

inline constexpr double UNIT = 0x1p40, FULL = 0x1p52;  // a full digit has room for a unit
inline constexpr double ABOVE = 0x1.8p92;              // rounds to units
inline constexpr int ROOM = 9;                         // a block has up to 2^9 terms
inline constexpr double MOST_NUMBER = 0x1p1011;        // from here on rounding would leave the dtype
static_assert(BLOCK == 1 << ROOM);

inline double power(int e) { return e < -1022 ? ldexp(1, e) : __builtin_bit_cast(double, uint64_t(e + 1023) << 52); }
inline double scaled(double x, int e) { return x * power(e / 2) * power(e - e / 2); }  // a single factor may be no number
inline int digit_below(int exponent) { return (exponent - 1 + 64 * DIGIT) / DIGIT - 64; }

// Leaves each digit at most 2^39 in size, and the last with what comes up to it.
inline void carry(const Digits& digits, int64_t count) {
  for (int i = 0; i < digits.last(); i++) {
    double *low = digits[i], *high = digits[i + 1];
    LAYERWISE_SIMD()
    for (int64_t j = 0; j < count; j++) {
      const double up = (low[j] + ABOVE) - ABOVE;
      low[j] -= up, high[j] += up / UNIT;
    }
  }
}

// Adds sums to others, whose window may be wider; both have been carried.
inline void add_digits(const Digits& from, const Digits& to, int64_t count) {
  for (int i = 0; i < from.window.digits; i++) {
    const double* one = from[i];
    double* sum = to[i + from.window.low - to.window.low];
    LAYERWISE_SIMD()
    for (int64_t j = 0; j < count; j++) sum[j] += one[j];
  }
  carry(to, count);
}

// Adds a finite number to the first sum.
inline void add_number(double x, const Digits& digits) {
  const int exponent = int(__builtin_bit_cast(uint64_t, x) >> 52 & 0x7ff) - 1022, last = digits.window.low + digits.last();
  for (int k = digit_below(exponent) < last ? digit_below(exponent) : last; x != 0; k--) {
    const double shift = 1.5 * power(52 + DIGIT * k), most = (x + shift) - shift;
    double& digit = *digits[k - digits.window.low];
    digit += scaled(most, -DIGIT * k), x -= most;
    if (fabs(digit) > FULL) carry(digits, 1);
  }
}

// What is no number, or nearly none, goes to the last digit as it is, where it stays.
template <class T>
void widen(const T* x, int64_t n, bool squares, double* terms, const Digits& digits, bool each) {
  for (int64_t i = 0; i < n; i++) {
    terms[i] = squares ? double(x[i]) * double(x[i]) : double(x[i]);
    if (fabs(terms[i]) < MOST_NUMBER) continue;
    digits[digits.last()][each ? i : 0] += scaled(terms[i], -DIGIT * (digits.window.low + digits.last()));
    terms[i] = 0;
  }
}

inline double largest_of(const double* x, int64_t n) {
  double largest = 0;
  LAYERWISE_SIMD(reduction(max : largest))
  for (int64_t i = 0; i < n; i++) largest = fabs(x[i]) > largest ? fabs(x[i]) : largest;
  return largest;
}

// Takes a block in rounds, the highest bits first.
template <class T>
LAYERWISE_RARE void add_in_rounds(const T* x, int64_t n, bool squares, const Digits& digits) {
  double terms[BLOCK];
  widen(x, n, squares, terms, digits, false);
  while (const double largest = largest_of(terms, n)) {
    int exponent;
    frexp(largest, &exponent);
    const double shift = ldexp(1.5, exponent + ROOM);
    double sum = 0;
    LAYERWISE_SIMD(reduction(+ : sum))
    for (int64_t i = 0; i < n; i++) {
      const double high = (terms[i] + shift) - shift;
      terms[i] -= high, sum += high;
    }
    add_number(sum, digits);
  }
}

// The powers of 2 that numbers are less than, and multiples of.
struct Powers {
  int above, unit;
};

template <class T>
inline Powers powers_of(const T* x, int64_t n) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr int fraction = sizeof(T) == 4 ? 23 : 52, bias = sizeof(T) == 4 ? 127 : 1023;
  Bits most = 0, least = ~Bits(0);  // in the order of sizes: nan is the largest, and so is 0 less 1
  LAYERWISE_SIMD(reduction(max : most) reduction(min : least))
  for (int64_t i = 0; i < n; i++) {
    const Bits size = __builtin_bit_cast(Bits, x[i]) & (~Bits(0) >> 1), less = size - 1;
    most = size > most ? size : most, least = less < least ? less : least;
  }
  const auto exponent = [](Bits size) { return (size >> fraction ? int(size >> fraction) : 1) - bias; };
  return {exponent(most) + 1, most == 0 ? 0 : exponent(least + 1) - fraction};
}

template <class T>
inline constexpr int most_above = sizeof(T) == 4 ? 128 : 1011;

template <bool SQUARES, class T>
void add_block(const T* x, int64_t n, const Digits& digits) {
  constexpr bool exact = sizeof(T) == 4 || !SQUARES;  // each term
  const Powers powers = powers_of(x, n);
  const int above = SQUARES ? 2 * powers.above : powers.above, unit = SQUARES ? 2 * powers.unit : powers.unit;
  if (!exact || above - unit > 106 - 2 * ROOM || powers.above > most_above<T> || above < -1000)
    return add_in_rounds(x, n, SQUARES, digits);
  const double shift = 1.5 * power(above + ROOM);
  double highs = 0, lows = 0;
  LAYERWISE_SIMD(reduction(+ : highs, lows))
  for (int64_t i = 0; i < n; i++) {
    const double wide = x[i], term = SQUARES ? wide * wide : wide, high = (term + shift) - shift;
    highs += high, lows += term - high;
  }
  add_number(highs, digits);
  add_number(lows, digits);
}

// Adds numbers, or their squares, to the first sum.
template <class T>
LAYERWISE_NOINLINE void add_exactly(const T* x, int64_t n, bool squares, const Digits& digits) {
  for (int64_t from = 0; from < n; from += BLOCK) {
    const int64_t size = n - from < BLOCK ? n - from : BLOCK;
    squares ? add_block<true>(x + from, size, digits) : add_block<false>(x + from, size, digits);
  }
}

// The digit in a place of each of n sums.
struct Place {
  double* to;
  double shift, half, other;

  Place(const Digits& digits, int k)
      : to(digits[k - digits.window.low]), shift(1.5 * power(52 + DIGIT * k)), half(power(-DIGIT * k / 2)),
        other(power(DIGIT * k / 2 - DIGIT * k)) {}
  double rounded(double x) const { return (x + shift) - shift; }
  void add(double units, int64_t i) const { to[i] += units * half * other; }
};

// Adds each of n numbers to a digit of its own sum and to the one below, which hold all of it.
template <class T>
void add_to_two(const T* x, int64_t n, const Digits& digits, int k) {
  const Place high(digits, k), low(digits, k - 1);
  LAYERWISE_SIMD()
  for (int64_t i = 0; i < n; i++) {
    const double wide = x[i], most = high.rounded(wide);
    high.add(most, i), low.add(wide - most, i);
  }
}

// Adds each of up to BLOCK numbers to a sum of its own, and carries the digits, as they have to be after 2^12 times.
template <class T>
void add_each(const T* x, int64_t n, const Digits& digits, bool carries) {
  if (carries) carry(digits, n);
  const int lowest = digits.window.low + 1, last = digits.window.low + digits.last();
  const Powers powers = powers_of(x, n);
  const bool fine = powers.above <= most_above<T>;
  int k = fine ? digit_below(powers.above) : last;
  k = k > last ? last : k < lowest ? lowest : k;
  if (fine && powers.unit >= DIGIT * (k - 1)) return add_to_two(x, n, digits, k);
  alignas(64) double rest[BLOCK];
  if (!fine) widen(x, n, false, rest, digits, true);
  LAYERWISE_SIMD()
  for (int64_t i = 0; i < (fine ? n : 0); i++) rest[i] = x[i];
  for (; powers.unit < DIGIT * (k - 1); k--) {
    const Place high(digits, k);
    LAYERWISE_SIMD()
    for (int64_t i = 0; i < n; i++) {
      const double most = high.rounded(rest[i]);
      high.add(most, i), rest[i] -= most;
    }
  }
  add_to_two(rest, n, digits, k);
}

// Writes the numbers that digits make, which depend on their value alone, and brings these to the one form that a value
// has: from 0 to 2^40 − 1, and the last as it comes out; where that is negative, the digits of its size. `to` may be the
// first of them.
inline void make_totals(const Digits& digits, int64_t count, double* to) {
  const int last = digits.last();
  for (int64_t from = 0; from < count; from += BLOCK) {
    const int64_t n = count - from < BLOCK ? count - from : BLOCK;
    double up[BLOCK], sign[BLOCK];
    const auto canonical = [&] {
      LAYERWISE_SIMD()
      for (int64_t j = 0; j < n; j++) up[j] = 0;
      for (int i = 0; i < last; i++) {
        double* digit = digits[i] + from;
        LAYERWISE_SIMD()
        for (int64_t j = 0; j < n; j++) {
          const double x = digit[j] + up[j], near = (x + ABOVE) - ABOVE, below = near > x ? near - UNIT : near;
          digit[j] = x - below, up[j] = below / UNIT;
        }
      }
      LAYERWISE_SIMD()
      for (int64_t j = 0; j < n; j++) digits[last][from + j] += up[j];
    };
    canonical();
    LAYERWISE_SIMD()
    for (int64_t j = 0; j < n; j++) sign[j] = digits[last][from + j] < 0 ? -1 : 1;
    for (int i = 0; i <= last; i++)
      LAYERWISE_SIMD()
      for (int64_t j = 0; j < n; j++) digits[i][from + j] *= sign[j];
    canonical();
    LAYERWISE_SIMD()
    for (int64_t j = 0; j < n; j++) up[j] = 0;  // now the sizes
    for (int i = 0, e = DIGIT * digits.window.low; i <= last; i++, e += DIGIT)
      LAYERWISE_SIMD()
      for (int64_t j = 0; j < n; j++) up[j] += scaled(digits[i][from + j], e);
    LAYERWISE_SIMD()
    for (int64_t j = 0; j < n; j++) to[from + j] = sign[j] * up[j];
  }
}
