// The kernels that belong to no rule.
#include "loops.hpp"

namespace layerwise {
namespace {

#include "stored.hpp"

#define LAYERWISE_SQUARE(T, S) square_of<T, S>
void square(const Layer& layer, int64_t chunk, double* sums) { LAYERWISE_CALL(LAYERWISE_SQUARE, sums); }

}  // namespace

#define LAYERWISE_OF_STORED(T)                                                                                       \
  void LAYERWISE_NAME(LAYERWISE_SET, load_format)(const Layer& l, const int64_t* off, int64_t n, Operand k, T* to) {  \
    load_stored(l, off, n, k, to);                                                                                   \
  }                                                                                                                  \
  void LAYERWISE_NAME(LAYERWISE_SET, store_format)(const Layer& l, const int64_t* off, int64_t n, Operand k, const T* from) { \
    store_stored(l, off, n, k, from);                                                                                \
  }
LAYERWISE_OF_STORED(float)
void LAYERWISE_NAME(LAYERWISE_SET, store_both)(const Layer& l, const int64_t* off, int64_t n, const float* a, const float* b) {
  store_both(l, off, n, a, b);
}
#if !defined(LAYERWISE_LOW) && !defined(LAYERWISE_NARROW)
LAYERWISE_OF_STORED(double)
#endif

extern const Functions LAYERWISE_NAME(LAYERWISE_SET, functions);
const Functions LAYERWISE_NAME(LAYERWISE_SET, functions){
    square, LAYERWISE_SET, LAYERWISE_NAME(LAYERWISE_SET, load_format), LAYERWISE_NAME(LAYERWISE_SET, store_format)};

}  // namespace layerwise
