// A chunk as a sequence of runs: compiled once for all kernels.
#include "layer.hpp"

namespace layerwise {

void each_run(const Layer& layer, int64_t chunk, int64_t longest, const void* f, RunFunction call) {
  const int inner = layer.dims - 1;
  int64_t begin[MAX_DIMS] = {}, end[MAX_DIMS] = {}, at[MAX_DIMS] = {}, off[OPERANDS] = {};
  for (int d = 0; d <= inner; d++) begin[d] = 0, end[d] = layer.size[d];
  const int64_t from = chunk * layer.step, to = from + layer.step;
  begin[layer.split] = from;
  end[layer.split] = to < end[layer.split] ? to : end[layer.split];
  for (int d = 0; d <= inner; d++) {
    if (begin[d] >= end[d]) return;
    at[d] = begin[d];
    for (int k = 0; k < OPERANDS; k++) off[k] += begin[d] * layer.stride[d][k];
  }
  for (;;) {
    int64_t o[OPERANDS];
    for (int k = 0; k < OPERANDS; k++) o[k] = off[k];
    for (int64_t i = begin[inner], n; i < end[inner]; i += n) {
      const int64_t left = end[inner] - i;
      n = left < longest ? left : longest;
      call(f, o, n);
      for (int k = 0; k < OPERANDS; k++) o[k] += n * layer.stride[inner][k];
    }
    int d = inner - 1;
    for (; d >= 0; d--) {
      for (int k = 0; k < OPERANDS; k++) off[k] += layer.stride[d][k];
      if (++at[d] < end[d]) break;
      for (int k = 0; k < OPERANDS; k++) off[k] -= (end[d] - begin[d]) * layer.stride[d][k];
      at[d] = begin[d];
    }
    if (d < 0) return;
  }
}

}  // namespace layerwise
