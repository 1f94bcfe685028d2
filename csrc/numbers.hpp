// Functions of numbers that printed code calls. No `pragma once`: each file with kernels has its own. Those of <math.h> are
// C's, which no file can have in a version of its own.

inline float root(float x) { return sqrtf(x); }
inline double root(double x) { return sqrt(x); }
inline float absolute(float x) { return fabsf(x); }
inline double absolute(double x) { return fabs(x); }
inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float float_of(uint32_t u) { return __builtin_bit_cast(float, u); }

// In this order, so that nan stays nan.
template <class T>
inline T at_least(T x, decltype(T() + T()) low) { return x < T(low) ? T(low) : x; }
template <class T>
inline T at_most(T x, decltype(T() + T()) high) { return x > T(high) ? T(high) : x; }
