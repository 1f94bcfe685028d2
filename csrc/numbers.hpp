// Functions of numbers that printed code calls. No `pragma once`: each file with kernels has its own. Those of <math.h> are
// C's functions, which no file can have in a version of its own.

inline float root(float x) { return sqrtf(x); }
inline double root(double x) { return sqrt(x); }
inline float absolute(float x) { return fabsf(x); }
inline double absolute(double x) { return fabs(x); }
inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float float_of(uint32_t u) { return __builtin_bit_cast(float, u); }
inline int32_t as_int(float x) { return int32_t(x); }
inline float as_float(int32_t x) { return float(x); }

template <class A, class B>
struct Two { A first; B second; };

// Returns x, or 0 if the factor `a` is 0: an option that is off must not turn infinite numbers into nan. It works on bits,
// because compilers split a loop with such a condition into several, and vectorize none of them.
inline float unless_off(float a, float x) { return float_of(bits_of(x) & (0u - uint32_t(a != 0))); }
inline double unless_off(double a, double x) {
  return __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, x) & (uint64_t(0) - uint64_t(a != 0)));
}

// The operands are in this order so that nan stays nan.
template <class T>
inline T at_least(T x, decltype(T() + T()) low) { return x < T(low) ? T(low) : x; }
template <class T>
inline T at_most(T x, decltype(T() + T()) high) { return x > T(high) ? T(high) : x; }
