// The passes of a printed program over one chunk of a layer.
//
// A program has `keep`, which makes the state that is final before the sums of round KEEPS; `terms`, what is added up in a
// round; and `apply`, the new weights and the rest of the state. Between the last round and `apply` a small layer caches
// the terms that cost most. For a large one `apply` computes them again, because a root and a quotient cost less than four
// bytes of memory. Where a layer is late, nothing is stored before `apply`, which then computes the kept state again:
// others complete the sums, or the terms have to be of state that has not been rounded, or numbers are of float64, which is
// rare and has no other kernels.

// Whether a sum of squares in float32 is reliable. A smaller one may lack terms that became 0, and an infinite one may be of
// finite numbers.
inline bool fits(float sum) { return sum >= 0x1p-80f && sum <= FLT_MAX; }
inline bool fits(double) { return true; }

// The arrays of a run. What a program does not read is null. Numbers of lines come behind the states. Mostly a run is a row,
// of which there is one number; else both VARY along the run.
template <class T, class S, bool VARIES>
struct Arrays {
  S* p;
  const S* g;
  T *s0, *s1, *s2, *s3;
  T *x0, *x1;
  const T *row, *column;
};

// One element of each array that is among READS.
template <class R, int READS, class T, class S, bool V>
inline void read_element(const Arrays<T, S, V>& at, int64_t i, T& p, T& g, T* s) {
  if constexpr (READS >> P & 1) p = get(at.p, i);
  if constexpr (READS >> G & 1) g = get(at.g, i);
  if constexpr (READS >> S0 & 1) s[0] = at.s0[i];
  if constexpr (READS >> S1 & 1) s[1] = at.s1[i];
  if constexpr (READS >> S2 & 1) s[2] = at.s2[i];
  if constexpr (READS >> S3 & 1) s[3] = at.s3[i];
  if constexpr (READS >> ROW & 1) s[ROW - S0] = at.row[V ? i : 0];
  if constexpr (READS >> COL & 1) s[COL - S0] = at.column[i];
}

template <int WRITES, class T, class S, bool V>
inline void write_states(const Arrays<T, S, V>& at, int64_t i, const T* s) {
  if constexpr (WRITES >> S0 & 1) at.s0[i] = s[0];
  if constexpr (WRITES >> S1 & 1) at.s1[i] = s[1];
  if constexpr (WRITES >> S2 & 1) at.s2[i] = s[2];
  if constexpr (WRITES >> S3 & 1) at.s3[i] = s[3];
}

template <class R, int ROUND, class U>
inline U summed(U x, int i) {
  return is_plain(R::TOTALS[ROUND][i]) ? x : x * x;
}

// Which state a pass finds: that before the step, which it keeps or leaves as it is; or that which is kept already.
enum State { BEFORE, KEPT };

template <class R, int ROUND>
inline constexpr bool keeps_by = R::KEEPS >= 0 && ROUND >= R::KEEPS;

template <class R, int ROUND, State FOUND>
inline constexpr int measure_reads =
    R::TERMS_READ[ROUND] | (FOUND == BEFORE && keeps_by<R, ROUND> ? R::KEEP_READS | R::KEEP_WRITES : 0);

template <class R, State FOUND>
inline constexpr int apply_writes = (R::KEEPS >= 0 && FOUND == BEFORE ? R::KEEP_WRITES : 0) | R::APPLY_WRITES;
template <class R, State FOUND, bool CACHED>
inline constexpr int apply_reads = 1 << P | R::APPLY_READS | apply_writes<R, FOUND> |
                                   (CACHED || R::ROUNDS == 0 ? 0 : R::TERMS_READ[R::ROUNDS > 0 ? R::ROUNDS - 1 : 0]) |
                                   (R::KEEPS >= 0 && FOUND == BEFORE ? R::KEEP_READS : 0);

// What a compiler vectorizes are loops over single numbers. The arrays of one element are therefore in functions of their
// own, which it inlines, and then finds to be numbers.

// Makes the terms of an element, as they are added up. The new state is only stored if STORES.
template <class R, int ROUND, State FOUND, bool STORES, bool CACHES, class U, class T, class S, bool V>
LAYERWISE_INLINE void measure_element(const R& k, const Arrays<T, S, V>& at, int64_t i, U& a, U& b, U& c, U& d) {
  T p = 0, g = 0, s[STATES + LINES] = {}, x[SUMS] = {};
  read_element<R, measure_reads<R, ROUND, FOUND>>(at, i, p, g, s);
  if constexpr (FOUND == BEFORE && keeps_by<R, ROUND>) k.keep(p, g, s);
  if constexpr (STORES) write_states<R::KEEP_WRITES>(at, i, s);
  k.template terms<ROUND>(p, g, s, x);
  if constexpr (CACHES && R::CACHES > 0) at.x0[i] = x[R::CACHED[0]];
  if constexpr (CACHES && R::CACHES > 1) at.x1[i] = x[R::CACHED[R::CACHES > 1]];
  a = summed<R, ROUND>(U(x[0]), 0);
  if constexpr (R::SUMS[ROUND] > 1) b = summed<R, ROUND>(U(x[1]), 1);
  if constexpr (R::SUMS[ROUND] > 2) c = summed<R, ROUND>(U(x[2]), 2);
  if constexpr (R::SUMS[ROUND] > 3) d = summed<R, ROUND>(U(x[3]), 3);
}

// Adds up the terms of a block in U.
template <class R, int ROUND, State FOUND, bool STORES, bool CACHES, class U, class T, class S, bool V>
LAYERWISE_INLINE void add_block(const R k, const Arrays<T, S, V> at, int64_t from, int64_t to, U* sums) {
  constexpr int n = R::SUMS[ROUND];
  U a = 0, b = 0, c = 0, d = 0;
  LAYERWISE_SIMD(reduction(+ : a, b, c, d))
  for (int64_t i = from; i < to; i++) {
    U a_, b_, c_, d_;
    measure_element<R, ROUND, FOUND, STORES, CACHES>(k, at, i, a_, b_, c_, d_);
    a += a_;
    if constexpr (n > 1) b += b_;
    if constexpr (n > 2) c += c_;
    if constexpr (n > 3) d += d_;
  }
  sums[0] = a;
  if constexpr (n > 1) sums[1] = b;
  if constexpr (n > 2) sums[2] = c;
  if constexpr (n > 3) sums[3] = d;
}

template <class R, int ROUND, State FOUND, class T, class S, bool V>
LAYERWISE_RARE void add_wide(const R k, const Arrays<T, S, V> at, int64_t from, int64_t to, double* sums) {
  double wide[SUMS];
  add_block<R, ROUND, FOUND, false, false>(k, at, from, to, wide);
  for (int i = 0; i < R::SUMS[ROUND]; i++) sums[i] += wide[i];
}

template <class R, int ROUND, int I, class T>
inline bool is_fine(const T* block) {
  if constexpr (I == R::SUMS[ROUND]) return true;
  else return (is_plain(R::TOTALS[ROUND][I]) || fits(block[I])) && is_fine<R, ROUND, I + 1>(block);
}

template <class R, int ROUND, State FOUND, bool STORES, bool CACHES, class T, class S, bool V>
void measure_run(const R k, const Arrays<T, S, V> at, int64_t n, double* sums) {
  for (int64_t from = 0, to; from < n; from = to) {
    to = from + BLOCK < n ? from + BLOCK : n;
    T block[SUMS];
    add_block<R, ROUND, FOUND, STORES, CACHES>(k, at, from, to, block);
    if (is_fine<R, ROUND, 0>(block)) {
      sums[0] += double(block[0]);
      if constexpr (R::SUMS[ROUND] > 1) sums[1] += double(block[1]);
      if constexpr (R::SUMS[ROUND] > 2) sums[2] += double(block[2]);
      if constexpr (R::SUMS[ROUND] > 3) sums[3] += double(block[3]);
    } else if constexpr (sizeof(T) == 4) {
      add_wide<R, ROUND, STORES ? KEPT : FOUND>(k, at, from, to, sums);
    }
  }
}

// Computes the new weights of an element. Cached terms are read where they are.
template <class R, State FOUND, bool CACHED, class T, class S, bool V, class D>
LAYERWISE_INLINE void apply_element(const R& k, const Arrays<T, S, V>& at, int64_t i, const D& rounding) {
  T p = 0, g = 0, s[STATES + LINES] = {}, x[SUMS] = {};
  read_element<R, apply_reads<R, FOUND, CACHED>>(at, i, p, g, s);
  if constexpr (R::KEEPS >= 0 && FOUND == BEFORE) k.keep(p, g, s);
  if constexpr (CACHED) {
    if constexpr (R::CACHES > 0) x[R::CACHED[0]] = at.x0[i];
    if constexpr (R::CACHES > 1) x[R::CACHED[R::CACHES > 1]] = at.x1[i];
  } else if constexpr (R::ROUNDS > 0) {
    k.template terms<R::ROUNDS - 1>(p, g, s, x);
  }
  put(at.p, i, k.apply(p, g, s, x), rounding);
  write_states<apply_writes<R, FOUND>>(at, i, s);
}

template <class R, State FOUND, bool CACHED, class T, class S, bool V, class D>
void apply_run(const R k, const Arrays<T, S, V> at, int64_t from, int64_t to, const D rounding) {
  LAYERWISE_SIMD()
  for (int64_t i = from; i < to; i++) apply_element<R, FOUND, CACHED>(k, at, i, rounding);
}

// The arrays of a run that are among READS, in the dtype of the arithmetic.
template <int READS, class T, class S, bool VARIES>
Arrays<T, S, VARIES> arrays_of(const Run<T>& run) {
  Arrays<T, S, VARIES> at{};
  if constexpr (READS >> P & 1) at.p = run.template weights<S>();
  if constexpr (READS >> G & 1) at.g = run.template gradient_as<S>();
  if constexpr (READS >> S0 & 1) at.s0 = run.read(S0);
  if constexpr (READS >> S1 & 1) at.s1 = run.read(S1);
  if constexpr (READS >> S2 & 1) at.s2 = run.read(S2);
  if constexpr (READS >> S3 & 1) at.s3 = run.read(S3);
  if constexpr (READS >> ROW & 1) at.row = run.template line<VARIES>(ROW);
  if constexpr (READS >> COL & 1) at.column = run.template line<VARIES>(COL);
  return at;
}

template <int WRITES, class T>
void write_back(const Run<T>& run) {
  if constexpr (sizeof(T) == 4 && WRITES == (1 << S0 | 1 << S1))
    if (run.shares_draws()) return run.write_both();
  for (int k = S0; k <= S3; k++)
    if (WRITES >> k & 1) run.write(Operand(k));
}

template <class R>
R program_for(const Layer& layer) {
  return R(*(const typename R::Numbers*)layer.k, layer.answers);
}

// Calls f for the runs of a chunk, with whether the numbers of lines vary. Rows may be short, and are never joined.
template <class R, int READS, class T, class S, class F>
void for_runs_of(const Layer& layer, int64_t chunk, F&& f) {
  using std::false_type, std::true_type;
  if constexpr (R::LINES == 0) {
    for_runs(layer, chunk, longest<T, S>(layer, READS), [&](const int64_t* off, int64_t n) { f(off, n, false_type{}); });
  } else if (const int64_t* stride = layer.stride[layer.dims - 1]; stride[ROW] == 0 && stride[COL] != 0) {
    for_short_runs(layer, chunk, longest<T, S>(layer, READS), [&](const int64_t* off, int64_t n) { f(off, n, false_type{}); });
  } else {
    for_runs(layer, chunk, longest<T, S, true>(layer, READS), [&](const int64_t* off, int64_t n) { f(off, n, true_type{}); });
  }
}

template <class R, int ROUND, State FOUND, bool STORES, bool CACHES, class T, class S>
void measure_as(const Layer& layer, int64_t chunk, double* sums) {
  constexpr int reads = measure_reads<R, ROUND, FOUND>;
  Scratch<T> scratch;
  const R k = program_for<R>(layer);
  T* cached = (T*)layer.cached + chunk * layer.each;
  for_runs_of<R, reads, T, S>(layer, chunk, [&](const int64_t* off, int64_t n, auto varies) {
    const Run<T> run{layer, off, n, scratch};
    auto at = arrays_of<reads, T, S, decltype(varies)::value>(run);
    if (CACHES) at.x0 = cached, at.x1 = cached + layer.count, cached += n;
    measure_run<R, ROUND, FOUND, STORES, CACHES>(k, at, n, sums);
    if (STORES) write_back<R::KEEP_WRITES>(run);
  });
}

// Makes what an element adds to the sums of its row and of its column, and to another.
template <class R, class U, class T, class S, bool V>
LAYERWISE_INLINE void line_element(const R& k, const Arrays<T, S, V>& at, int64_t i, U& row, double& column, U& other) {
  T p = 0, g = 0, s[STATES + LINES] = {}, x[LINES + 1] = {};
  read_element<R, R::TERMS_READ[0]>(at, i, p, g, s);
  k.template terms<0>(p, g, s, x);
  row = U(x[0]), column = double(x[1]), other = summed<R, 0>(U(x[LINES]), 0);
}

// Adds up a block by its row and the other sum, in U, and adds it to columns. The sums of rows that vary are in memory too.
template <class R, class U, class T, class S, bool V>
LAYERWISE_INLINE void line_block(const R k, const Arrays<T, S, V> at, double* __restrict row, double* __restrict column,
                                 int64_t from, int64_t to, U& of_row, U& other) {
  U a = 0, b = 0;
  LAYERWISE_SIMD(reduction(+ : a, b))
  for (int64_t i = from; i < to; i++) {
    U a_, b_;
    double column_;
    line_element(k, at, i, a_, column_, b_);
    if (V) row[i] += double(a_);
    else a += a_;
    column[i] += column_;
    if constexpr (R::SUMS[0] > 0) b += b_;
  }
  of_row = a, other = b;
}

template <class R, class T, class S, bool V>
LAYERWISE_RARE double add_other(const R k, const Arrays<T, S, V> at, int64_t from, int64_t to) {
  double sum = 0;
  LAYERWISE_SIMD(reduction(+ : sum))
  for (int64_t i = from; i < to; i++) {
    double row, column, other;
    line_element(k, at, i, row, column, other);
    sum += other;
  }
  return sum;
}

template <class R, class T, class S, bool V>
void line_run(const R k, const Arrays<T, S, V> at, double* __restrict row, double* __restrict column, int64_t n, double* sums) {
  for (int64_t from = 0, to; from < n; from = to) {
    to = from + BLOCK < n ? from + BLOCK : n;
    T of_row, other;
    line_block(k, at, row, column, from, to, of_row, other);
    if (!V) *row += double(of_row);
    if constexpr (R::SUMS[0] > 0) *sums += is_plain(R::TOTALS[0][0]) || fits(other) ? double(other) : add_other(k, at, from, to);
  }
}

// Adds up what a program asks of each row and column first. Where only columns vary along a run, or only rows, the sums of
// the other are in scratch on the way.
template <class R, class T, class S>
void measure_lines(const Layer& layer, int64_t chunk, double* sums) {
  static_assert(R::SUMS[0] <= 1);
  constexpr int reads = R::TERMS_READ[0];
  Scratch<T> scratch;
  const R k = program_for<R>(layer);
  double* of[LINES];
  for (int j = 0; j < LINES; j++) {
    const Line& line = layer.lines->of[j];
    of[j] = line.of(chunk);
    for (int64_t i = 0; line.cut && i < line.n; i++) of[j][i] = 0;  // an empty tensor may have no memory
  }
  for_runs_of<R, reads, T, S>(layer, chunk, [&](const int64_t* off, int64_t n, auto varies) {
    constexpr bool V = decltype(varies)::value;
    const Run<T> run{layer, off, n, scratch};
    const auto at = arrays_of<reads, T, S, V>(run);
    double *row = of[0] + off[ROW], *column = of[1] + off[COL], each[V ? SCRATCH : 1] = {};
    double* const fixed = !V ? nullptr : run.stride(ROW) == 0 ? row : run.stride(COL) == 0 ? column : nullptr;
    line_run(k, at, fixed && fixed == row ? each : row, fixed && fixed == column ? each : column, n, sums);
    for (int64_t i = 0; fixed && i < n; i++) *fixed += each[i];
  });
}

template <class T>
inline constexpr bool RECOMPUTES = sizeof(T) == 8;

// What is cached is of layers that are not late.
template <class R, int ROUND, class T, class S>
void measure_elements(const Layer& layer, int64_t chunk, double* sums) {
  constexpr bool keeps = keeps_by<R, ROUND>, stores = keeps && ROUND == R::KEEPS;
  constexpr State found = keeps && !stores ? KEPT : BEFORE;
  if constexpr (!RECOMPUTES<T> && ROUND + 1 == R::ROUNDS && R::CACHES > 0)
    if (layer.caches) return measure_as<R, ROUND, found, stores, true, T, S>(layer, chunk, sums);
  if constexpr (!RECOMPUTES<T> && keeps)
    if (!layer.late) return measure_as<R, ROUND, found, stores, false, T, S>(layer, chunk, sums);
  measure_as<R, ROUND, BEFORE, false, false, T, S>(layer, chunk, sums);
}

template <class R, int ROUND, class T, class S>
void measure_program(const Layer& layer, int64_t chunk, double* sums) {
  if constexpr (R::LINES > 0 && ROUND == 0) measure_lines<R, T, S>(layer, chunk, sums);
  else measure_elements<R, ROUND, T, S>(layer, chunk, sums);
}

template <class R, State FOUND, bool CACHED, class T, class S>
void apply_as(const Layer& layer, int64_t chunk) {
  constexpr int writes = apply_writes<R, FOUND>, reads = apply_reads<R, FOUND, CACHED>;
  Scratch<T> scratch;
  const R k = program_for<R>(layer);
  T* cached = (T*)layer.cached + chunk * layer.each;
  for_runs_of<R, reads, T, S>(layer, chunk, [&](const int64_t* off, int64_t n, auto varies) {
    const Run<T> run{layer, off, n, scratch};
    auto at = arrays_of<reads, T, S, decltype(varies)::value>(run);
    if (CACHED) at.x0 = cached, at.x1 = cached + layer.count, cached += n;
    with_rounding<S>(run, [&](int64_t from, int64_t to, const auto& rounding) {
      apply_run<R, FOUND, CACHED>(k, at, from, to, rounding);
    });
    run.template write_weights<S>();
    write_back<writes>(run);
  });
}

template <class R, class T, class S>
void apply_program(const Layer& layer, int64_t chunk) {
  if constexpr (!RECOMPUTES<T> && R::CACHES > 0)
    if (layer.caches) return apply_as<R, R::KEEPS >= 0 ? KEPT : BEFORE, true, T, S>(layer, chunk);
  if constexpr (!RECOMPUTES<T> && R::KEEPS >= 0)
    if (!layer.late) return apply_as<R, KEPT, false, T, S>(layer, chunk);
  apply_as<R, BEFORE, false, T, S>(layer, chunk);
}
