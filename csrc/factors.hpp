// Row and column statistics of layers in a batch: from the chunks' sums to R, C and what u is divided by.
#pragma once

#include "batch.hpp"

namespace layerwise {

// Their layout; the most chunks, each with sums of its own, into which a dimension is cut; and their bytes, which begin `at`.
std::unique_ptr<Factors> make_factors(Layer& layer, const Tensor& tensor, const std::vector<Dim>& dims);
int64_t most_pieces(const Layer& layer, const Factors& factors, int dim);
int64_t place_factors(Layer& layer, char* at);

void clear_factors(const Layer& layer);
void add_up_factors(const Layer& layer);
// Makes the factors of u; stores R and C as well with `write`, which otherwise `store_factors` does later.
void answer_factors(const Layer& layer, bool write);
void store_factors(const Layer& layer);

// Sums of R, C and the matrices that others complete: their places and number, and how they move there, or back.
inline bool is_statistic(Sum sum) { return sum >= SUM_ROWS && sum <= SUM_R; }
struct Spread { int64_t length; std::vector<int64_t> stride; };
Spread spread_of_factors(const Tensor& tensor, Sum sum);  // with size 1 along rows or columns or both
void name_sums_of_factors(Tensor& tensor);
void exchange_factors(const Layer& layer, Sum sum, double* to, const std::array<int64_t, ROLES>& base, bool back);
inline void exchange_number(double& own, double& to, bool back) { back ? own = to : to = own; }

}  // namespace layerwise
