// Row and column statistics: from the stripes' sums to R, C and what u is divided by.
#pragma once

#include "layer.hpp"

namespace layerwise {

void clear_factors(const Layer& layer);
void answer_factors(const Layer& layer);

}  // namespace layerwise
