// All kernels for one instruction set. The file that includes this is compiled for it, and names its table
// LAYERWISE_TABLE; with LAYERWISE_LOW they are those for p and g of bfloat16.
//
// Everything is in a namespace without a name, and nothing of the standard library is used: an inline function that
// several files share exists once in the program, and might then be the one with instructions not every machine has.
#pragma once

#include "../layer.hpp"

namespace layerwise {
namespace {

#include "convert.hpp"
#include "runs.hpp"
#include "gradient.hpp"
#include "lamb.hpp"
#include "lars.hpp"
#include "adafactor.hpp"

template <class T, class S>
void measure_by(const Layer& layer, int64_t chunk, double* sums) {
  if (layer.o->method == LAMB) measure_lamb<T, S>(layer, chunk, sums);
  else if (layer.o->method == LARS) measure_lars<T, S>(layer, chunk, sums);
  else if (layer.f) measure_factored<T, S>(layer, chunk, sums);
  else measure_unfactored<T>(layer, chunk, sums);
}

template <class T, class S>
void measure_update_by(const Layer& layer, int64_t chunk, double* sums) {
  if (layer.o->clamp) measure_update_with<T, S, true>(layer, chunk, sums);
  else measure_update_with<T, S, false>(layer, chunk, sums);
}

template <class T, class S>
void apply_by(const Layer& layer, int64_t chunk) {
  if (layer.o->method == LAMB) apply_lamb<T, S>(layer, chunk);
  else if (layer.o->method == LARS) apply_lars<T, S>(layer, chunk);
  else if (layer.f) apply_factored<T, S>(layer, chunk);
  else apply_unfactored<T>(layer, chunk);
}

#ifdef LAYERWISE_LOW
#define LAYERWISE_CALL(function, ...) return function<float, uint16_t>(layer, chunk __VA_OPT__(, ) __VA_ARGS__)
#else
#define LAYERWISE_CALL(function, ...)                                                     \
  if (layer.wide) return function<double, double>(layer, chunk __VA_OPT__(, ) __VA_ARGS__); \
  return function<float, float>(layer, chunk __VA_OPT__(, ) __VA_ARGS__)
#endif

void square(const Layer& layer, int64_t chunk, double* sums) { LAYERWISE_CALL(square_of, sums); }
void measure(const Layer& layer, int64_t chunk, double* sums) { LAYERWISE_CALL(measure_by, sums); }
void measure_update(const Layer& layer, int64_t chunk, double* sums) { LAYERWISE_CALL(measure_update_by, sums); }
void apply(const Layer& layer, int64_t chunk) { LAYERWISE_CALL(apply_by); }

}  // namespace

extern const Functions LAYERWISE_TABLE;
const Functions LAYERWISE_TABLE = {square, measure, measure_update, apply};

}  // namespace layerwise
