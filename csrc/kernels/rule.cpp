// The kernels of the programs of one rule, which CMakeLists.txt names.
#include "loops.hpp"

namespace layerwise {
namespace {

#include LAYERWISE_HEADER

#define LAYERWISE_MEASURE(T, S) measure_program<R<T>, ROUND, T, S>
#define LAYERWISE_APPLY(T, S) apply_program<R<T>, T, S>

template <template <class> class R, int ROUND>
void measure(const Layer& layer, int64_t chunk, double* sums) { LAYERWISE_CALL(LAYERWISE_MEASURE, sums); }
template <template <class> class R>
void apply(const Layer& layer, int64_t chunk) { LAYERWISE_CALL(LAYERWISE_APPLY); }

template <template <class> class R>
constexpr Passes passes_of() {
  Passes found{};
  if constexpr (R<float>::ROUNDS > 0) found.measure[0] = measure<R, 0>;
  if constexpr (R<float>::ROUNDS > 1) found.measure[1] = measure<R, 1>;
  if constexpr (R<float>::ROUNDS > 2) found.measure[2] = measure<R, 2>;
  found.apply = apply<R>;
  return found;
}

#define LAYERWISE_PASSES(R) passes_of<R>(),

}  // namespace

#define LAYERWISE_TABLE LAYERWISE_NAME(LAYERWISE_RULE, LAYERWISE_SET)
extern const Passes LAYERWISE_TABLE[];
const Passes LAYERWISE_TABLE[] = {LAYERWISE_PROGRAMS(LAYERWISE_PASSES)};

}  // namespace layerwise
