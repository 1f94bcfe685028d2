// Runs of numbers in storage formats, from where they lie and back.

inline Beside beside_of(const Layer& layer, const int64_t* off, Operand k) {
  const Stored& stored = layer.storage->of[k];
  const int64_t size = size_of(stored.beside_dtype);
  return {stored.beside + off[k] / 2 * size, layer.stride[layer.dims - 1][k] / 2 * size};
}

inline f32_at* scales_of(const Layer& layer, const int64_t* off, Operand k) {
  return (f32_at*)layer.storage->of[k].beside + (layer.storage->group + off[GROUP]) / GROUP_SIZE;
}

template <class T>
void load_stored(const Layer& layer, const int64_t* off, int64_t n, Operand k, T* to) {
  const Dtype dtype = layer.dtype[k];
  const char* at = layer.data[k] + off[k];
  const int64_t stride = layer.stride[layer.dims - 1][k];
  if (!layer.storage) return load<T>(dtype, at, stride, n, to);
  const Stored& stored = layer.storage->of[k];
  if (stored.format == PLAIN) load<T>(dtype, at, stride, n, to);
  else if (stored.format == GROUPED && dtype == I8) decode<true>(at, scales_of(layer, off, k), n, to);
  else if (stored.format == GROUPED) decode<false>(at, scales_of(layer, off, k), n, to);
  else if (stored.beside_dtype == I16) join<16>(dtype, at, stride, beside_of(layer, off, k), n, to);
  else join<8>(dtype, at, stride, beside_of(layer, off, k), n, to);
}

template <class T>
void store_stored(const Layer& layer, const int64_t* off, int64_t n, Operand k, const T* from) {
  const Dtype dtype = layer.dtype[k];
  char* at = layer.data[k] + off[k];
  const int64_t stride = layer.stride[layer.dims - 1][k];
  if (!layer.storage || layer.storage->of[k].plain()) return store<T>(dtype, at, stride, n, from);
  const Stored& stored = layer.storage->of[k];
  if (stored.format == SPLIT && stored.beside_dtype == I16)
    return split<16>(dtype, at, stride, beside_of(layer, off, k), n, from, Nearest{});
  const auto store_by = [&](const auto& draws) {
    if (stored.format == SPLIT) split<8>(dtype, at, stride, beside_of(layer, off, k), n, from, draws);
    else if (stored.format == PLAIN) split<0>(dtype, at, stride, {}, n, from, draws);
    else if (dtype == I8) encode<true>(at, scales_of(layer, off, k), n, from, draws);
    else encode<false>(at, scales_of(layer, off, k), n, from, draws);
  };
  stored.draws ? store_by(draws_of(layer, off, k)) : store_by(Nearest{});
}

// State in bfloat16.
template <class Own>
struct Bf16Rounding {
  const float* from;
  u16_at* to;
  Own own;
  LAYERWISE_INLINE void put(int64_t i, uint32_t shared) const { to[i] = round_bf16(from[i], own.of(shared)); }
};

// Two states that share their random bits, of codes or of bfloat16.
inline void store_both(const Layer& layer, const int64_t* off, int64_t n, const float* first, const float* second) {
  const Draws draws = draws_of(layer, off, S0);
  const OwnHalf<0> own{draws.turn};
  const OwnHalf<1> others{draws_of(layer, off, S1).turn};
  if (layer.dtype[S0] == BF16) {
    const auto at = [&](Operand k) { return (u16_at*)(layer.data[k] + off[k]); };
    return in_blocks(draws, 0, n, [&](int64_t from, int64_t to, const auto& one) {
      round_all(from, to, one, Bf16Rounding<OwnHalf<0>>{first, at(S0), own}, Bf16Rounding<OwnHalf<1>>{second, at(S1), others});
    });
  }
  Codes<true, float> to(layer.data[S0] + off[S0], scales_of(layer, off, S0), first, n);
  Codes<false, float> other(layer.data[S1] + off[S1], scales_of(layer, off, S1), second, n);
  for_groups(n, [&](int64_t k, int64_t at, int64_t count) {
    in_blocks(draws, at, at + count, [&](int64_t from, int64_t end, const auto& one) {
      round_all(from, end, one, to.group(k, own), other.group(k, others));
    });
  });
  to.finish(n), other.finish(n);
}
