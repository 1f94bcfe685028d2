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

// The kernels of a program. Programs that apply a step, or measure a round, in the same way share a kernel.
template <template <class> class APPLIED, template <class> class... MEASURED>
constexpr Passes passes_of() {
  return []<size_t... ROUND>(std::index_sequence<ROUND...>) {
    return Passes{{measure<MEASURED, ROUND>...}, apply<APPLIED>};
  }(std::make_index_sequence<sizeof...(MEASURED)>());
}

#define LAYERWISE_PASSES(R, ...) passes_of<__VA_ARGS__>(),

}  // namespace

#define LAYERWISE_TABLE LAYERWISE_NAME(LAYERWISE_RULE, LAYERWISE_SET)
extern const Passes LAYERWISE_TABLE[];
const Passes LAYERWISE_TABLE[] = {LAYERWISE_PROGRAMS(LAYERWISE_PASSES)};

}  // namespace layerwise
