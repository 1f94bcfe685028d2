// Row and column statistics: from the chunks' sums to R, C and what u is divided by.
#pragma once

#include "layer.hpp"

namespace layerwise {

void clear_factors(const Layer& layer);
void add_up_factors(const Layer& layer);
// Makes the factors of u; stores R and C as well with `write`, which otherwise `store_factors` does later.
void answer_factors(const Layer& layer, bool write);
void store_factors(const Layer& layer);

// Moves the sums of R, C and the matrices to where they are completed, or back.
void exchange_rows(const Layer& layer, double* to, bool back);
void exchange_cols(const Layer& layer, double* to, bool back);
void exchange_totals(const Layer& layer, double* G, double* R, bool back);

}  // namespace layerwise
