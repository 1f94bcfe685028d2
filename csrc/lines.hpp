// Sums by rows and by columns of layers in a batch: from those of the chunks to state, and to what elements are computed with.
// A layer whose program has no lines has none of it.
#pragma once

#include "batch.hpp"

namespace layerwise {

// Their layout; the most chunks, each with sums of its own, into which a dimension is cut; and their bytes, which begin `at`.
std::unique_ptr<Lines> make_lines(Layer& layer, const Tensor& tensor, const std::vector<Dim>& dims);
int64_t most_pieces(const Layer& layer, const Lines* lines, int dim);
int64_t place_lines(Layer& layer, char* at);

void clear_lines(const Layer& layer);
void add_up_lines(const Layer& layer);
void answer_lines(const Layer& layer, bool stores);  // otherwise it leaves the new state in place of the sums
void store_lines(const Layer& layer);

// The places of their sums among those that others complete, and how they move there, or back.
void name_sums_of_lines(Tensor& tensor);
void exchange_lines(const Layer& layer, int which, double* to, const std::array<int64_t, ROLES>& base, bool back);
inline void exchange_number(double& own, double& to, bool back) { back ? own = to : to = own; }

}  // namespace layerwise
