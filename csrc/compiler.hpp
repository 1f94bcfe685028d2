// The differences between compilers. LAYERWISE_MSVC means cl only: clang-cl knows the attributes and pragmas of GCC and Clang.
// `__restrict` and `__builtin_bit_cast` are the same everywhere.
#pragma once

#if defined(_MSC_VER) && !defined(__clang__)
#define LAYERWISE_MSVC
#endif

#if defined(__x86_64__) || defined(_M_X64)
#define LAYERWISE_X86
#endif

#ifdef LAYERWISE_MSVC
#define LAYERWISE_INLINE __forceinline
#define LAYERWISE_RARE __declspec(noinline)
#define LAYERWISE_UNREACHABLE() __assume(0)
// A type of numbers at any address, in memory of any type. MSVC always allows this on these processors.
#define LAYERWISE_ANYWHERE(T) T
// Written before a loop that may be vectorized, with its reductions named. MSVC's own pragma does not name them.
#define LAYERWISE_SIMD(...) __pragma(loop(ivdep))
#else
#define LAYERWISE_PRAGMA(text) _Pragma(#text)
#define LAYERWISE_INLINE inline __attribute__((always_inline))
#define LAYERWISE_RARE __attribute__((noinline, cold))
#define LAYERWISE_UNREACHABLE() __builtin_unreachable()
#define LAYERWISE_ANYWHERE(T) T __attribute__((aligned(1), may_alias))
#define LAYERWISE_SIMD(...) LAYERWISE_PRAGMA(omp simd __VA_ARGS__)
#endif

#ifdef __AVX512F__
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false, in GCC's own header
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#elif defined(__AVX2__)
#include <immintrin.h>
#endif

#define LAYERWISE_TEXT_OF(x) #x
#define LAYERWISE_TEXT(x) LAYERWISE_TEXT_OF(x)
#if defined(__clang__)
#define LAYERWISE_COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define LAYERWISE_COMPILER "gcc " __VERSION__
#elif defined(_MSC_VER)
#define LAYERWISE_COMPILER "msvc " LAYERWISE_TEXT(_MSC_FULL_VER)
#else
#define LAYERWISE_COMPILER "unknown compiler"
#endif
