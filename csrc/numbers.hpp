// Functions of numbers that printed code calls. No `pragma once`: each file with kernels has its own.

inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }
inline float absolute(float x) { return __builtin_fabsf(x); }
inline double absolute(double x) { return __builtin_fabs(x); }

// In this order, so that nan stays nan.
template <class T>
inline T at_least(T x, decltype(T() + T()) low) { return x < T(low) ? T(low) : x; }
template <class T>
inline T at_most(T x, decltype(T() + T()) high) { return x > T(high) ? T(high) : x; }
