// Adafactor (rules/adafactor.py) with a second moment by rows and columns, cut where the rule yields:
//
//     measure:         row and column sums of g², Σp²         → R, C, √(R/mean(R)) = row, √C = col
//     measure_update:  Σu²,  u = g / (row·col)                → the answers
//     apply:           p ← p − size·u, or by way of e
//
// Along a run C changes and R does not (COLS), or R changes and C does not (ROWS), or, where the run counts matrices, both
// do (BOTH).

enum Varying { COLS, ROWS, BOTH };

inline Varying varying(const Layer& layer) {
  const int64_t* stride = layer.stride[layer.dims - 1];
  return stride[ROW] == 0 ? COLS : stride[COL] == 0 ? ROWS : BOTH;
}

inline const AdafactorNumbers& factored_numbers(const Layer& layer) { return *(const AdafactorNumbers*)layer.k; }
inline bool clamps(const Layer& layer) { return factored_numbers(layer).least != 0; }
inline bool wants_weights(const Layer& layer) { return layer.sums(0) == 1; }

// Adds g² of a run to the sums of what varies along it, and returns the run's sum. mean(G) is mean(g²) + eps1.
template <class T, class S>
double add_to(const S* __restrict g, double* __restrict varying, int64_t n) {
  double sum = 0;
  LAYERWISE_SIMD(reduction(+ : sum))
  for (int64_t i = 0; i < n; i++) {
    const T g_ = get(g, i);
    const double gg_ = double(T(g_ * g_));
    varying[i] += gg_;
    sum += gg_;
  }
  return sum;
}

// Adds g² of a run, as T has it, to exact sums: each to one of `varying`, and with `both` to one of `other`, or all to the
// first of these. A digit takes 2^12 numbers. If no more can come to it, it is carried when the chunks are added up.
template <class T, class S>
void add_exactly_to(const Layer& layer, const S* __restrict g, const Digits& varying, const Digits& other, bool both,
                    int64_t n) {
  const bool carries = layer.each > n << 12;
  const auto add_each = [&](const T* terms, int64_t size, const Digits& to) {
    LAYERWISE_NAME(LAYERWISE_SET, add_each)(terms, size, to, carries);
  };
  for_blocks(n, [&](int64_t from, int64_t size) {
    alignas(64) T terms[BLOCK];
    for (int64_t i = 0; i < size; i++) terms[i] = T(get(g, from + i)) * T(get(g, from + i));
    add_each(terms, size, varying.from(from));
    if (both) add_each(terms, size, other.from(from));
    else add_terms(terms, size, false, other);
  });
}

template <class T, class S>
void measure_factored(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  const Factors& f = *layer.f;
  const Digits R = f.row_sums(layer.window(true), chunk), C = f.col_sums(layer.window(true), chunk);
  if (f.cut_rows) memset(R.at, 0, size_t(R.size()) * sizeof(double));
  if (f.cut_cols) memset(C.at, 0, size_t(C.size()) * sizeof(double));
  const Varying kind = varying(layer);
  for_runs(layer, chunk, longest<T, S>(layer, 1 << P | 1 << G), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    const S* g = run.template gradient_as<S>();
    const Digits r = R.from(off[ROW]), c = C.from(off[COL]);
    if (layer.exact) add_exactly_to<T>(layer, g, kind == ROWS ? r : c, kind == ROWS ? c : r, kind == BOTH, n);
    else if (kind == COLS) *r.at += add_to<T, S>(g, c.at, n);
    else if (kind == ROWS) *c.at += add_to<T, S>(g, r.at, n);
    else add_to<T, S>(g, c.at, n), add_to<T, S>(g, r.at, n);
    if (wants_weights(layer)) add_squares<T>(run.template weights<S>(), n, layer.sum(sums, 0, false));
  });
}

// u, given g, along a run. Without the clamp the factors are reciprocals.
template <class T, bool Clamp>
struct FactoredUpdate {
  T eps1;
  T operator()(T g, T row, T col) const { return Clamp ? g / at_least(row * col, eps1) : g * row * col; }

  // By rows first, whichever of them varies: parts of a tensor may vary along others than the whole.
  template <Varying KIND>
  T at(int64_t i, T g, const T* row, const T* col) const {
    return (*this)(g, row[KIND == COLS ? 0 : i], col[KIND == ROWS ? 0 : i]);
  }
};

template <Varying KIND, class T, class S, bool Clamp>
void add_updates(const FactoredUpdate<T, Clamp> u, const S* __restrict g, const T* __restrict row,
                 const T* __restrict col, int64_t n, const Digits& to) {
  alignas(64) T terms[BLOCK];
  for_blocks(n, [&](int64_t from, int64_t size) {
    LAYERWISE_SIMD()
    for (int64_t i = 0; i < size; i++) terms[i] = u.template at<KIND>(from + i, get(g, from + i), row, col);
    add_terms(terms, size, true, to);
  });
}

template <class T, class S, bool Clamp>
void measure_update_with(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  const FactoredUpdate<T, Clamp> u{T(factored_numbers(layer).least)};
  const Varying kind = varying(layer);
  const Digits uu = layer.sum(sums, 0, false);
  for_runs(layer, chunk, longest<T, S>(layer, 1 << G), [&](const int64_t* off, int64_t n) {
    const S* g = Run<T>{layer, off, n, scratch}.template gradient_as<S>();
    const T *row = (const T*)layer.f->row_factor + off[ROW], *col = (const T*)layer.f->col_factor + off[COL];
    if (kind == COLS) add_updates<COLS>(u, g, row, col, n, uu);
    else if (kind == ROWS) add_updates<ROWS>(u, g, row, col, n, uu);
    else add_updates<BOTH>(u, g, row, col, n, uu);
  });
}

template <class T, class S>
void measure_update(const Layer& layer, int64_t chunk, double* sums) {
  if (clamps(layer)) measure_update_with<T, S, true>(layer, chunk, sums);
  else measure_update_with<T, S, false>(layer, chunk, sums);
}

// Computes the new p and e of an element, given u: what the rule does where V is not factored, but for V.
template <class R, class T, class S, class D>
LAYERWISE_INLINE void apply_update(const R& k, S* p, T* e, T u, T g, int64_t i, const D& rounding) {
  T s[STATES] = {}, x[SUMS] = {};
  if constexpr (R::STATES > 1) s[1] = e[i];
  x[R::CACHED[0]] = u;
  put(p, i, k.apply(get(p, i), g, s, x), rounding);
  if constexpr (R::STATES > 1) e[i] = s[1];
}

template <Varying KIND, class R, bool Clamp, class T, class S, class D>
void factored_apply(const R k, const FactoredUpdate<T, Clamp> u, S* __restrict p, const S* __restrict g, T* __restrict e,
                    const T* __restrict row, const T* __restrict col, int32_t n, const D rounding) {
  LAYERWISE_SIMD()
  for (int32_t i = 0; i < n; i++) {
    const T g_ = get(g, i);
    apply_update(k, p, e, u.template at<KIND>(i, g_, row, col), g_, i, rounding);
  }
}

template <class R, bool Clamp, class T, class S>
void apply_factored_with(const Layer& layer, int64_t chunk) {
  constexpr bool momentum = R::STATES > 1;
  Scratch<T> scratch;
  const R k = program_for<R>(layer);
  const FactoredUpdate<T, Clamp> u{T(factored_numbers(layer).least)};
  const Varying kind = varying(layer);
  for_runs(layer, chunk, longest<T, S>(layer, 1 << P | 1 << G | momentum << S1), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    S* p = run.template weights<S>();
    const S* g = run.template gradient_as<S>();
    T* e = momentum ? run.read(S1) : nullptr;
    const T *row = (const T*)layer.f->row_factor + off[ROW], *col = (const T*)layer.f->col_factor + off[COL];
    with_rounding<S>(run, [&](const auto& rounding) {
      if (kind == COLS) factored_apply<COLS>(k, u, p, g, e, row, col, int32_t(n), rounding);
      else if (kind == ROWS) factored_apply<ROWS>(k, u, p, g, e, row, col, int32_t(n), rounding);
      else factored_apply<BOTH>(k, u, p, g, e, row, col, int32_t(n), rounding);
    });
    run.template write_weights<S>();
    if (momentum) run.write(S1);
  });
}

template <class R, class T, class S>
void apply_factored(const Layer& layer, int64_t chunk) {
  if (clamps(layer)) apply_factored_with<R, true, T, S>(layer, chunk);
  else apply_factored_with<R, false, T, S>(layer, chunk);
}
