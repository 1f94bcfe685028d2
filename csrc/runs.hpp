// A chunk as a sequence of runs along the innermost dimension.
#pragma once

#include "layer.hpp"

namespace layerwise {

// Calls f(offsets, n) for every run of the chunk, cut to at most `longest`. It is inlined, which is worth its size for short
// runs.
template <class F>
LAYERWISE_INLINE void for_short_runs(const Layer& layer, int64_t chunk, int64_t longest, F&& f) {
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
      f(o, n);
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

// The same through a function pointer, so that all kernels share one compiled function.
using RunFunction = void (*)(const void* f, const int64_t* off, int64_t n);
void each_run(const Layer& layer, int64_t chunk, int64_t longest, const void* f, RunFunction call);

template <class F>
LAYERWISE_INLINE void for_runs(const Layer& layer, int64_t chunk, int64_t longest, const F& f) {
  each_run(layer, chunk, longest, &f, [](const void* f, const int64_t* off, int64_t n) { (*(const F*)f)(off, n); });
}

}  // namespace layerwise
