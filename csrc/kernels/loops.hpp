// The loops of all kernels, compiled for one set of instructions and dtypes, which CMakeLists.txt names LAYERWISE_SET; with
// LAYERWISE_LOW they are for p and g of bfloat16, with LAYERWISE_NARROW for float32 alone.
//
// Everything is in an unnamed namespace, and only C functions of the standard library are used. An inline function that several
// files share exists once in the program, and might be the copy with instructions that not every machine has.
#pragma once

#include <float.h>
#include <math.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "../compiler.hpp"
#include "../layer.hpp"
#include "../runs.hpp"

namespace layerwise {

// Conversions of storage formats, which belong to no rule: shared.cpp has them once for each instruction set.
#define LAYERWISE_STORED(T)                                                                                    \
  void LAYERWISE_NAME(LAYERWISE_SET, load_format)(const Layer&, const int64_t* off, int64_t n, Operand, T* to); \
  void LAYERWISE_NAME(LAYERWISE_SET, store_format)(const Layer&, const int64_t* off, int64_t n, Operand, const T* from);
LAYERWISE_STORED(float)
LAYERWISE_STORED(double)
void LAYERWISE_NAME(LAYERWISE_SET, store_both)(const Layer&, const int64_t* off, int64_t n, const float*, const float*);

namespace {

#include "../numbers.hpp"
#include "convert.hpp"
#include "../printed/storage.hpp"
#include "draws.hpp"
#include "formats.hpp"
#include "runs.hpp"
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
