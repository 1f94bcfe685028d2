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

template <class T, class S>
void measure_factored(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  const Factors& f = *layer.f;
  double* R = f.R + (f.cut_rows ? chunk * f.rows : 0);
  double* C = f.C + (f.cut_cols ? chunk * f.cols : 0);
  if (f.cut_rows) for (int64_t i = 0; i < f.rows; i++) R[i] = 0;
  if (f.cut_cols) for (int64_t i = 0; i < f.cols; i++) C[i] = 0;
  const Varying kind = varying(layer);
  double pp = 0;
  for_runs(layer, chunk, longest<T, S>(layer, 1 << P | 1 << G), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    const S* g = run.template gradient_as<S>();
    double *r = R + off[ROW], *c = C + off[COL];
    if (kind == COLS) *r += add_to<T, S>(g, c, n);
    else if (kind == ROWS) *c += add_to<T, S>(g, r, n);
    else add_to<T, S>(g, c, n), add_to<T, S>(g, r, n);
    if (wants_weights(layer)) pp += squares(run.template weights<S>(), n);
  });
  sums[0] = pp;
}

// u, given g, along a run. Without the clamp the factors are reciprocals.
template <class T, bool Clamp>
struct FactoredUpdate {
  T eps1;
  T operator()(T g, T row, T col) const { return Clamp ? g / at_least(row * col, eps1) : g * row * col; }
};

template <class T, class S, bool Clamp, bool Both>
double update_squares(const FactoredUpdate<T, Clamp> u, const S* __restrict g, const T* __restrict fixed,
                      const T* __restrict varying, int64_t n) {
  double uu = 0;
  LAYERWISE_SIMD(reduction(+ : uu))
  for (int64_t i = 0; i < n; i++) {
    const T u_ = u(get(g, i), Both ? fixed[i] : fixed[0], varying[i]);
    uu += double(u_) * double(u_);
  }
  return uu;
}

template <class T, class S, bool Clamp>
void measure_update_with(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  const FactoredUpdate<T, Clamp> u{T(factored_numbers(layer).least)};
  const Varying kind = varying(layer);
  double uu = 0;
  for_runs(layer, chunk, longest<T, S>(layer, 1 << G), [&](const int64_t* off, int64_t n) {
    const S* g = Run<T>{layer, off, n, scratch}.template gradient_as<S>();
    const T *row = (const T*)layer.f->row_factor + off[ROW], *col = (const T*)layer.f->col_factor + off[COL];
    if (kind == COLS) uu += update_squares<T, S, Clamp, false>(u, g, row, col, n);
    else if (kind == ROWS) uu += update_squares<T, S, Clamp, false>(u, g, col, row, n);
    else uu += update_squares<T, S, Clamp, true>(u, g, row, col, n);
  });
  sums[0] = uu;
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

template <class R, bool Clamp, bool Both, class T, class S, class D>
void factored_apply(const R k, const FactoredUpdate<T, Clamp> u, S* __restrict p, const S* __restrict g, T* __restrict e,
                    const T* __restrict fixed, const T* __restrict varying, int32_t n, const D rounding) {
  LAYERWISE_SIMD()
  for (int32_t i = 0; i < n; i++) {
    const T g_ = get(g, i);
    apply_update(k, p, e, u(g_, Both ? fixed[i] : fixed[0], varying[i]), g_, i, rounding);
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
    const T *fixed = kind == ROWS ? col : row, *changing = kind == ROWS ? row : col;
    with_rounding<S>(run, [&](const auto& rounding) {
      if (kind == BOTH) factored_apply<R, Clamp, true>(k, u, p, g, e, fixed, changing, int32_t(n), rounding);
      else factored_apply<R, Clamp, false>(k, u, p, g, e, fixed, changing, int32_t(n), rounding);
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
