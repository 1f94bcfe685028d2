// The loops of all kernels, compiled for one set of instructions and dtypes, which CMakeLists.txt names LAYERWISE_SET; with
// LAYERWISE_LOW they are for p and g of bfloat16, with LAYERWISE_NARROW for float32 alone, with LAYERWISE_EXACT for exact
// sums: it names the set whose functions read and write other dtypes and formats for it.
//
// Everything is in a namespace without a name, and of the standard libraries only C's functions are used: an inline function
// that several files share exists once in the program, and might then be the one with instructions not every machine has.
#pragma once

#include <float.h>
#include <math.h>
#include <string.h>

#include <type_traits>

#include "../compiler.hpp"
#include "../digits.hpp"
#include "../layer.hpp"
#include "../runs.hpp"

namespace layerwise {

#ifdef LAYERWISE_EXACT
#define LAYERWISE_FORMATS LAYERWISE_EXACT
constexpr bool EXACT = true;
#else
#define LAYERWISE_FORMATS LAYERWISE_SET
constexpr bool EXACT = false;
#endif

// Numbers in storage formats, which belong to no rule: shared.cpp has them once for a set.
#define LAYERWISE_STORED(T)                                                                                        \
  void LAYERWISE_NAME(LAYERWISE_FORMATS, load_format)(const Layer&, const int64_t* off, int64_t n, Operand, T* to); \
  void LAYERWISE_NAME(LAYERWISE_FORMATS, store_format)(const Layer&, const int64_t* off, int64_t n, Operand, const T* from);
LAYERWISE_STORED(float)
LAYERWISE_STORED(double)

namespace {

#include "../numbers.hpp"
#include "convert.hpp"
#include "../printed/storage.hpp"
#include "formats.hpp"
#include "runs.hpp"
#include "digits.hpp"
#include "gradient.hpp"
#include "passes.hpp"

#if defined(LAYERWISE_LOW)
#define LAYERWISE_CALL(function, ...) return function(float, uint16_t)(layer, chunk __VA_OPT__(, ) __VA_ARGS__)
#elif defined(LAYERWISE_NARROW)
#define LAYERWISE_CALL(function, ...) return function(float, float)(layer, chunk __VA_OPT__(, ) __VA_ARGS__)
#else
#define LAYERWISE_CALL(function, ...)                                                             \
  if (layer.wide) return function(double, double)(layer, chunk __VA_OPT__(, ) __VA_ARGS__); \
  return function(float, float)(layer, chunk __VA_OPT__(, ) __VA_ARGS__)
#endif

}  // namespace
}  // namespace layerwise
