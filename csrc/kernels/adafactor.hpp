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
    const T g_ = bounded(get(g, i));
    const double gg_ = double(T(g_ * g_));
    varying[i] += gg_;
    sum += gg_;
  }
  return sum;
}

// A loop, because an empty tensor may have no memory, which memset does not take.
inline void clear(double* sums, int64_t n) {
  for (int64_t i = 0; i < n; i++) sums[i] = 0;
}

template <class T, class S>
void measure_factored(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  const Factors& f = *layer.f;
  double *R = f.R.of(chunk), *C = f.C.of(chunk);
  if (f.R.cut) clear(R, f.R.n);
  if (f.C.cut) clear(C, f.C.n);
  const Varying kind = varying(layer);
  for_short_runs(layer, chunk, longest<T, S>(layer, 1 << P | 1 << G), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    const S* g = run.template gradient_as<S>();
    double *r = R + off[ROW], *c = C + off[COL];
    if (kind == COLS) *r += add_to<T, S>(g, c, n);
    else if (kind == ROWS) *c += add_to<T, S>(g, r, n);
    else add_to<T, S>(g, c, n), add_to<T, S>(g, r, n);
    if (wants_weights(layer)) *sums += squares(run.template weights<S>(), n);
  });
}

// How u is made of g and its two factors along a run. Without the clamp these are reciprocals.
template <class T, bool CLAMPED>
struct FactoredUpdate {
  T eps1;
  T operator()(T gradient, T fixed, T varying) const {
    const T g = bounded(gradient);
    return CLAMPED ? g / at_least(fixed * varying, eps1) : g * fixed * varying;
  }
};

// Calls f with how u is made in a layer.
template <class T, class F>
void with_update(const Layer& layer, F&& f) {
  if (clamps(layer)) return f(FactoredUpdate<T, true>{T(factored_numbers(layer).least)});
  f(FactoredUpdate<T, false>{});
}

template <bool Both, class T, class S, class U>
double update_squares(const U u, const S* __restrict g, const T* __restrict fixed, const T* __restrict varying, int64_t n) {
  double uu = 0;
  LAYERWISE_SIMD(reduction(+ : uu))
  for (int64_t i = 0; i < n; i++) {
    const T u_ = u(get(g, i), Both ? fixed[i] : fixed[0], varying[i]);
    uu += double(u_) * double(u_);
  }
  return uu;
}

template <class T, class S>
void measure_update(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  const Varying kind = varying(layer);
  with_update<T>(layer, [&](const auto& u) {
    for_short_runs(layer, chunk, longest<T, S>(layer, 1 << G), [&](const int64_t* off, int64_t n) {
      const S* g = Run<T>{layer, off, n, scratch}.template gradient_as<S>();
      const T *row = (const T*)layer.f->R.factor + off[ROW], *col = (const T*)layer.f->C.factor + off[COL];
      if (kind == COLS) *sums += update_squares<false>(u, g, row, col, n);
      else if (kind == ROWS) *sums += update_squares<false>(u, g, col, row, n);
      else *sums += update_squares<true>(u, g, row, col, n);
    });
  });
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

template <bool Both, class R, class T, class S, class U, class D>
void factored_apply(const R k, const U u, S* __restrict p, const S* __restrict g, T* __restrict e,
                    const T* __restrict fixed, const T* __restrict varying, int32_t n, const D rounding) {
  LAYERWISE_SIMD()
  for (int32_t i = 0; i < n; i++) {
    const T g_ = get(g, i);
    apply_update(k, p, e, u(g_, Both ? fixed[i] : fixed[0], varying[i]), g_, i, rounding);
  }
}

template <class R, class T, class S, class U>
void apply_factored_with(const U& u, const Layer& layer, int64_t chunk) {
  constexpr bool momentum = R::STATES > 1;
  Scratch<T> scratch;
  const R k = program_for<R>(layer);
  const Varying kind = varying(layer);
  for_short_runs(layer, chunk, longest<T, S>(layer, 1 << P | 1 << G | momentum << S1), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    S* p = run.template weights<S>();
    const S* g = run.template gradient_as<S>();
    T* e = momentum ? run.read(S1) : nullptr;
    const T *row = (const T*)layer.f->R.factor + off[ROW], *col = (const T*)layer.f->C.factor + off[COL];
    const T *fixed = kind == ROWS ? col : row, *changing = kind == ROWS ? row : col;
    with_rounding<S>(run, [&](const auto& rounding) {
      if (kind == BOTH) factored_apply<true>(k, u, p, g, e, fixed, changing, int32_t(n), rounding);
      else factored_apply<false>(k, u, p, g, e, fixed, changing, int32_t(n), rounding);
    });
    run.template write_weights<S>();
    if (momentum) run.write(S1);
  });
}

template <class R, class T, class S>
void apply_factored(const Layer& layer, int64_t chunk) {
  with_update<T>(layer, [&](const auto& u) { apply_factored_with<R, T, S>(u, layer, chunk); });
}
