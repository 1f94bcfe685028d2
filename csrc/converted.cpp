#include "converted.hpp"

#include <cmath>
#include <cstring>

#include "compiler.hpp"
#include "dispatch.hpp"

namespace layerwise {
namespace {

#include "numbers.hpp"

#include "kernels/convert.hpp"
#include "printed/storage.hpp"

// Calls f(layer, n, done) for pieces of at most SCRATCH numbers, each a layer that is a row.
template <class F>
void for_pieces(const Converted& array, Storage& storage, F&& f) {
  Layer layer{};
  layer.dims = 1;
  layer.storage = &storage;
  layer.dtype[P] = array.dtype;
  const int64_t size = size_of(array.dtype), beside = size_of(array.stored.beside_dtype);
  layer.stride[0][P] = size, layer.stride[0][INDEX] = layer.stride[0][GROUP] = 1;
  const int64_t padded = (array.length + GROUP_SIZE - 1) / GROUP_SIZE * GROUP_SIZE;
  for (int64_t row = 0; row < array.rows; row++)
    for (int64_t i = 0, n; i < array.length; i += n) {
      n = array.length - i < SCRATCH ? array.length - i : SCRATCH;
      const int64_t done = row * array.length + i;
      layer.data[P] = array.at + done * size;
      storage.index = array.first + done, storage.group = row * padded + i;
      if (array.stored.format == SPLIT) storage.of[P].beside = array.stored.beside + done * beside;
      f(layer, n, done);
    }
}

constexpr int64_t FIRST[OPERANDS] = {};

}  // namespace

void draw(Storage& storage, uint64_t t) {
  for (Stored& one : storage.of) {
    const bool turns = one.format == GROUPED;
    const uint64_t at = turns ? 0 : t;
    const auto keys = at_step(one.key[0], one.key[1], uint32_t(at), uint32_t(at >> 32));
    one.k[0] = keys.first, one.k[1] = keys.second;
    one.turn = turns ? turn(uint32_t(t)) : 0;
  }
}

void read_stored(const Converted& array, float* to) {
  Storage storage{};
  storage.of[P] = array.stored;
  for_pieces(array, storage, [&](const Layer& layer, int64_t n, int64_t done) {
    kernels().narrow->load(layer, FIRST, n, P, to + done);
  });
}

void write_stored(const Converted& array, const float* from, uint64_t t) {
  Storage storage{};
  storage.of[P] = array.stored;
  draw(storage, t);
  for_pieces(array, storage, [&](const Layer& layer, int64_t n, int64_t done) {
    kernels().narrow->store(layer, FIRST, n, P, from + done);
  });
}

}  // namespace layerwise
