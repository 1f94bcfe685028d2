// The kernels that belong to no rule.
#include "loops.hpp"

namespace layerwise {
namespace {

#include "digits.hpp"

#define LAYERWISE_SQUARE(T, S) square_of<T, S>
void square(const Layer& layer, int64_t chunk, double* sums) { LAYERWISE_CALL(LAYERWISE_SQUARE, sums); }

}  // namespace

extern const Functions LAYERWISE_NAME(LAYERWISE_SET, functions);
const Functions LAYERWISE_NAME(LAYERWISE_SET, functions) = {square, add_to_digits, LAYERWISE_SET};

}  // namespace layerwise
