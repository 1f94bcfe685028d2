// The arrays of a run in the dtype of the arithmetic.

// So many terms are added up in the dtype of the arithmetic, and such sums in float64. Widening every term would cost an
// eighth of the loop's time where it does not wait for memory.
inline constexpr int64_t BLOCK = 512;

inline Draws draws_of(const Layer& layer, const int64_t* off, Operand k) {
  const Stored& stored = layer.storage->of[k];
  const int64_t step = layer.stride[layer.dims - 1][INDEX];
  return {stored.k[0], stored.k[1], stored.turn, uint64_t(layer.storage->index + off[INDEX]), uint64_t(step)};
}

template <class T>
struct Scratch {
  alignas(64) T of[ARRAYS][SCRATCH], made[LINES][SCRATCH];
};

// The arrays of a run: where they lie, or copies of them in scratch.
template <class T>
struct Run {
  const Layer& layer;
  const int64_t* off;
  int64_t n;
  Scratch<T>& scratch;

  char* place(Operand k) const { return layer.data[k] + off[k]; }
  int64_t stride(Operand k) const { return layer.stride[layer.dims - 1][k]; }

  T* read(Operand k) const {
    if (layer.direct[k]) return (T*)place(k);
    if (in_format(k)) load_format(k);
    else load<T>(layer.dtype[k], place(k), stride(k), n, scratch.of[k]);
    return scratch.of[k];
  }
  void write(Operand k) const {
    if (layer.direct[k]) return;
    if (in_format(k)) store_format(k);
    else store<T>(layer.dtype[k], place(k), stride(k), n, scratch.of[k]);
  }
  // Whether the first two states are rounded by halves of the same bits.
  bool shares_draws() const {
    if (!layer.storage) return false;
    const Stored &a = layer.storage->of[S0], &b = layer.storage->of[S1];
    const bool codes = layer.dtype[S0] == I8 && layer.dtype[S1] == U8, rows = layer.in_row[S0] && layer.in_row[S1];
    const bool alike = a.format == GROUPED ? codes : layer.dtype[S0] == BF16 && layer.dtype[S1] == BF16 && rows;
    return a.draws && b.draws && a.format == b.format && alike && a.k[0] == b.k[0] && b.k[1] == a.k[1] + 1 && b.k[1] & 1;
  }
  void write_both() const { LAYERWISE_NAME(LAYERWISE_SET, store_both)(layer, off, n, scratch.of[S0], scratch.of[S1]); }
  // What is made of lines, one number for each element if it VARIES, else as it lies.
  template <bool VARIES>
  const T* line(Operand k) const {
    const T* at = (const T*)layer.lines->of[k - ROW].made + off[k];
    if (!VARIES || stride(k) != 0) return at;
    T* to = scratch.made[k - ROW];
    for (int64_t i = 0; i < n; i++) to[i] = *at;
    return to;
  }
  bool in_format(Operand k) const { return layer.storage && !layer.storage->of[k].plain(); }
  void load_format(Operand k) const { LAYERWISE_NAME(LAYERWISE_SET, load_format)(layer, off, n, k, scratch.of[k]); }
  void store_format(Operand k) const { LAYERWISE_NAME(LAYERWISE_SET, store_format)(layer, off, n, k, scratch.of[k]); }
  Draws draws(Operand k) const { return draws_of(layer, off, k); }
  const T* gradient() const;

  // p and g as numbers stored as S: of T itself, by way of scratch where need be, or of bfloat16 where they lie.
  template <class S>
  S* weights() const {
    if constexpr (sizeof(S) == sizeof(T)) return read(P);
    else return (S*)place(P);
  }
  template <class S>
  const S* gradient_as() const {
    if constexpr (sizeof(S) == sizeof(T)) return gradient();
    else return (const S*)place(G);
  }
  template <class S>
  void write_weights() const {
    if constexpr (sizeof(S) == sizeof(T)) write(P);
  }
};

// Calls f(from, to, draws) with how weights stored as S are rounded where they lie. Those in scratch are rounded when they
// are written back.
template <class S, class T, class F>
inline void with_rounding(const Run<T>& run, F&& f) {
  if constexpr (sizeof(S) != sizeof(T))
    if (run.in_format(P)) return in_blocks_of(run.draws(P), 0, run.n, f);
  f(int64_t(0), run.n, Nearest{});
}

// The longest run that may be taken at once: as long as 32 bits count where nothing has to be copied. Weights and gradients
// stored as S of fewer bytes are read where they lie.
template <class T, class S, bool VARIES = false>
inline int64_t longest(const Layer& layer, int arrays) {
  if (sizeof(S) != sizeof(T)) arrays &= ~(1 << P | 1 << G);
  bool direct = !VARIES && !layer.prepared;
  for (int k = 0; k < ARRAYS; k++) direct &= !(arrays >> k & 1) || layer.direct[k];
  return direct ? int64_t(1) << 30 : SCRATCH;
}
