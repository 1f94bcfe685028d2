// All kernels for one instruction set. The file that includes this is compiled for it, and names its table
// LAYERWISE_TABLE; with LAYERWISE_LOW they are those for p and g of bfloat16, with LAYERWISE_NARROW those of float32 alone.
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

namespace layerwise {
namespace {

#include "../numbers.hpp"
#include "../printed/programs.hpp"
#include "convert.hpp"
#include "../printed/storage.hpp"
#include "formats.hpp"
#include "runs.hpp"
#include "gradient.hpp"
#include "digits.hpp"
#include "passes.hpp"
#include "adafactor.hpp"

#if defined(LAYERWISE_LOW)
#define LAYERWISE_CALL(function, ...) return function(float, uint16_t)(layer, chunk __VA_OPT__(, ) __VA_ARGS__)
#elif defined(LAYERWISE_NARROW)
#define LAYERWISE_CALL(function, ...) return function(float, float)(layer, chunk __VA_OPT__(, ) __VA_ARGS__)
#else
#define LAYERWISE_CALL(function, ...)                                                             \
  if (layer.wide) return function(double, double)(layer, chunk __VA_OPT__(, ) __VA_ARGS__); \
  return function(float, float)(layer, chunk __VA_OPT__(, ) __VA_ARGS__)
#endif

#define LAYERWISE_SQUARE(T, S) square_of<T, S>
#define LAYERWISE_ROWS(T, S) measure_factored<T, S>
#define LAYERWISE_UPDATE(T, S) measure_update<T, S>
#define LAYERWISE_MEASURE(T, S) measure_program<R<T>, ROUND, T, S>
#define LAYERWISE_APPLY(T, S) apply_program<R<T>, T, S>
#define LAYERWISE_FACTORED(T, S) apply_factored<R<T>, T, S>

void square(const Layer& layer, int64_t chunk, double* sums) { LAYERWISE_CALL(LAYERWISE_SQUARE, sums); }
void rows_and_columns(const Layer& layer, int64_t chunk, double* sums) { LAYERWISE_CALL(LAYERWISE_ROWS, sums); }
void update_of_factors(const Layer& layer, int64_t chunk, double* sums) { LAYERWISE_CALL(LAYERWISE_UPDATE, sums); }

template <template <class> class R, int ROUND>
void measure(const Layer& layer, int64_t chunk, double* sums) { LAYERWISE_CALL(LAYERWISE_MEASURE, sums); }
template <template <class> class R>
void apply(const Layer& layer, int64_t chunk) { LAYERWISE_CALL(LAYERWISE_APPLY); }
template <template <class> class R>
void apply_by_factors(const Layer& layer, int64_t chunk) { LAYERWISE_CALL(LAYERWISE_FACTORED); }

template <template <class> class R>
constexpr Passes passes_of() {
  Passes found{};
  if constexpr (R<float>::ROUNDS > 0) found.measure[0] = measure<R, 0>;
  if constexpr (R<float>::ROUNDS > 1) found.measure[1] = measure<R, 1>;
  if constexpr (R<float>::ROUNDS > 2) found.measure[2] = measure<R, 2>;
  found.apply = apply<R>;
  return found;
}

template <template <class> class R>
constexpr Passes factored_passes_of() {
  Passes found{};
  if constexpr (is_factorable<typename R<float>::Numbers>)
    found = {{rows_and_columns, update_of_factors}, apply_by_factors<R>};
  return found;
}

#define LAYERWISE_PASSES(R) passes_of<R>(),
#define LAYERWISE_FACTORED_PASSES(R) factored_passes_of<R>(),
constexpr Passes passes[] = {LAYERWISE_PROGRAMS(LAYERWISE_PASSES)};
constexpr Passes factored_passes[] = {LAYERWISE_PROGRAMS(LAYERWISE_FACTORED_PASSES)};

}  // namespace

extern const Functions LAYERWISE_TABLE;
const Functions LAYERWISE_TABLE = {square, add_to_digits, passes, factored_passes};

}  // namespace layerwise
