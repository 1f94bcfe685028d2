// Sums by rows and by columns (lines): adds up the chunks' sums of a layer, and makes of them the state and the numbers that
// elements are computed with. Layers whose program has no lines have none of this.
#pragma once

#include "batch.hpp"

namespace layerwise {

// Lays the lines out; the most chunks, each with sums of its own, into which a dimension is cut; and the bytes of the lines,
// which begin `at`.
std::unique_ptr<Lines> make_lines(Layer& layer, const Tensor& tensor, const std::vector<Dim>& dims);
int64_t most_pieces(const Layer& layer, const Lines* lines, int dim);
int64_t place_lines(Layer& layer, char* at);

void clear_lines(const Layer& layer);
void add_up_lines(const Layer& layer);
void answer_lines(const Layer& layer, bool stores);  // if it does not store the new state, it leaves it in place of the sums
void store_lines(const Layer& layer);

// The places of these sums among the sums that other processes complete, and the moves there and back.
void name_sums_of_lines(Tensor& tensor);
void exchange_lines(const Layer& layer, int which, double* to, const std::array<int64_t, ROLES>& base, bool back);
inline void exchange_number(double& own, double& to, bool back) { back ? own = to : to = own; }

}  // namespace layerwise
