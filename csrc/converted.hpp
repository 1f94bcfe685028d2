// Converts whole arrays between their storage format and float32, by the loops of the kernels, for rules without kernels.
#pragma once

#include "layer.hpp"

namespace layerwise {

// Makes the keys of a step (src/layerwise/storage/bits.py, `keys_at_step` and `bits_of_group`).
void draw(Storage& storage, uint64_t t);

// An array without gaps, in rows that have groups of their own.
struct Converted {
  char* at;
  Dtype dtype;
  Stored stored;
  int64_t rows, length;
  int64_t first;  // index of its first element in the whole tensor; the others follow it
};

void read_stored(const Converted& array, float* to);
void write_stored(const Converted& array, const float* from, uint64_t t);

}  // namespace layerwise
