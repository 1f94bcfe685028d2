// Adafactor (rules/adafactor.py), cut where the rule yields:
//
//     G = g² + eps1
//     measure:         row and column sums of G, Σp²          → R, C, √(R/mean(R)) = row, √C = col
//     measure_update:  Σu²,  u = g / (row·col)                → clip, alpha
//     apply:           p ← p − alpha·clip·u, or by way of e
//
// Where V is not factored, u needs no sums, and `measure` gives Σp² and Σu² at once. Along a run C changes and R does not
// (COLS), or R changes and C does not (ROWS), or, where the run counts matrices, both do (BOTH).

enum Varying { COLS, ROWS, BOTH };

inline Varying varying(const Layer& layer) {
  const int64_t* stride = layer.stride[layer.dims - 1];
  return stride[ROW] == 0 ? COLS : stride[COL] == 0 ? ROWS : BOTH;
}

template <class T>
struct AdafactorCoefficients {
  T eps1, b2, a2, u, b1, e, lr, lam;  // e ← b1·e + e·u,  p ← p − lr·e − lam·p
  bool clamp, momentum;
  explicit AdafactorCoefficients(const Layer& l) : clamp(l.o->clamp), momentum(l.o->beta1 >= 0) {
    const Options& o = *l.o;
    const double alpha = l.scale, lr_decay = o.relative && !o.lr_caps ? l.c->lr * o.lr_cap : l.c->lr;
    const double scale[] = {lr_decay, alpha, 1};
    eps1 = T(o.eps1), b2 = T(l.c->b2), a2 = T(l.c->a2), b1 = T(o.beta1);
    u = T(alpha * l.clip);
    e = T((1 - o.beta1) * l.clip * (o.lr_in_momentum ? alpha : 1));
    lr = o.lr_in_momentum ? T(1) : T(alpha);
    lam = l.c->lam == 0 ? T(0) : T(scale[o.decay_scale] * l.c->lam);
  }
};

// Adds g² of a run to the sums of what varies along it, and returns the run's sum. mean(G) is mean(g²) + eps1.
template <class T, class S>
double add_to(const S* __restrict g, double* __restrict varying, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
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
  for_runs(layer, chunk, longest(layer, 1 << P | 1 << G), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    const S* g = run.template gradient_as<S>();
    double *r = R + off[ROW], *c = C + off[COL];
    if (kind == COLS) *r += add_to<T, S>(g, c, n);
    else if (kind == ROWS) *c += add_to<T, S>(g, r, n);
    else add_to<T, S>(g, c, n), add_to<T, S>(g, r, n);
    if (layer.o->scale_parameter) pp += squares(run.template weights<S>(), n);
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
#pragma omp simd reduction(+ : uu)
  for (int64_t i = 0; i < n; i++) {
    const T u_ = u(get(g, i), Both ? fixed[i] : fixed[0], varying[i]);
    uu += double(u_) * double(u_);
  }
  return uu;
}

template <class T, class S, bool Clamp>
void measure_update_with(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  const FactoredUpdate<T, Clamp> u{T(layer.o->eps1)};
  const Varying kind = varying(layer);
  double uu = 0;
  for_runs(layer, chunk, longest(layer, 1 << G), [&](const int64_t* off, int64_t n) {
    const S* g = Run<T>{layer, off, n, scratch}.template gradient_as<S>();
    const T *row = (const T*)layer.f->row_factor + off[ROW], *col = (const T*)layer.f->col_factor + off[COL];
    if (kind == COLS) uu += update_squares<T, S, Clamp, false>(u, g, row, col, n);
    else if (kind == ROWS) uu += update_squares<T, S, Clamp, false>(u, g, col, row, n);
    else uu += update_squares<T, S, Clamp, true>(u, g, row, col, n);
  });
  sums[0] = uu;
}

template <class T, bool Momentum, bool Decayed>
inline T moved_by(const AdafactorCoefficients<T>& k, T p, T u, T* e) {
  T moved;
  if (Momentum) *e = k.b1 * *e + k.e * u, moved = k.lr * *e;
  else moved = k.u * u;
  return p - (Decayed ? moved + k.lam * p : moved);
}

template <class T, class S, bool Clamp, bool Both, bool Momentum, bool Decayed>
void factored_apply(const AdafactorCoefficients<T> k, S* __restrict p, const S* __restrict g, T* __restrict e,
                    const T* __restrict fixed, const T* __restrict varying, int64_t n) {
  const FactoredUpdate<T, Clamp> u{k.eps1};
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const T u_ = u(get(g, i), Both ? fixed[i] : fixed[0], varying[i]);
    put(p, i, moved_by<T, Momentum, Decayed>(k, get(p, i), u_, e + i));
  }
}

template <class T, class S, bool Clamp, bool Both>
auto factored_body(bool momentum, bool decayed) {
  if (momentum)
    return decayed ? factored_apply<T, S, Clamp, Both, true, true> : factored_apply<T, S, Clamp, Both, true, false>;
  return decayed ? factored_apply<T, S, Clamp, Both, false, true> : factored_apply<T, S, Clamp, Both, false, false>;
}

template <class T, class S>
void apply_factored(const Layer& layer, int64_t chunk) {
  Scratch<T> scratch;
  const AdafactorCoefficients<T> k(layer);
  const Varying kind = varying(layer);
  const bool decayed = k.lam != 0;
  const auto body = k.clamp ? (kind == BOTH ? factored_body<T, S, true, true>(k.momentum, decayed)
                                            : factored_body<T, S, true, false>(k.momentum, decayed))
                            : (kind == BOTH ? factored_body<T, S, false, true>(k.momentum, decayed)
                                            : factored_body<T, S, false, false>(k.momentum, decayed));
  for_runs(layer, chunk, longest(layer, 1 << P | 1 << G | k.momentum << S0), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    S* p = run.template weights<S>();
    const S* g = run.template gradient_as<S>();
    T* e = k.momentum ? run.read(S0) : nullptr;
    const T *row = (const T*)layer.f->row_factor + off[ROW], *col = (const T*)layer.f->col_factor + off[COL];
    if (kind == ROWS) body(k, p, g, e, col, row, n);
    else body(k, p, g, e, row, col, n);
    run.template write_weights<S>();
    if (k.momentum) run.write(S0);
  });
}

// V unfactored: V ← b2·V + a2·G,  u = g/√V.  The u of a small layer is cached, as LAMB's r is. For a large layer `apply`
// computes u again and stores V, so that both passes use a V that has not been rounded.

template <class T>
struct UnfactoredUpdate {
  T eps1, b2, a2;
  bool clamp;
  explicit UnfactoredUpdate(const AdafactorCoefficients<T>& k) : eps1(k.eps1), b2(k.b2), a2(k.a2), clamp(k.clamp) {}
  T V(T g, T V_) const { return b2 * V_ + a2 * (clamp ? g * g : g * g + eps1); }
  T u(T g, T V_) const { return g / (clamp ? at_least(root(V_), eps1) : root(V_)); }
};

template <class T, bool Caches>
double unfactored_measure(const UnfactoredUpdate<T> k, const T* __restrict g, T* __restrict V, T* __restrict cached, int64_t n) {
  double uu = 0;
#pragma omp simd reduction(+ : uu)
  for (int64_t i = 0; i < n; i++) {
    const T V_ = k.V(g[i], V[i]), u = k.u(g[i], V_);
    if (Caches) V[i] = V_, cached[i] = u;
    uu += double(u) * double(u);
  }
  return uu;
}

template <class T>
void measure_unfactored(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  const UnfactoredUpdate<T> k{AdafactorCoefficients<T>(layer)};
  const auto body = layer.caches ? unfactored_measure<T, true> : unfactored_measure<T, false>;
  T* cached = (T*)layer.cached;
  double pp = 0, uu = 0;
  for_runs(layer, chunk, longest(layer, 1 << P | 1 << G | 1 << S1), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    uu += body(k, run.gradient(), run.read(S1), cached, n);
    if (layer.o->scale_parameter) pp += squares(run.read(P), n);
    if (!layer.caches) return;
    run.write(S1);
    cached += n;
  });
  sums[0] = pp;
  sums[1] = uu;
}

template <class T, bool Momentum, bool Decayed>
void unfactored_apply(const AdafactorCoefficients<T> k, T* __restrict p, const T* __restrict u, T* __restrict e, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) p[i] = moved_by<T, Momentum, Decayed>(k, p[i], u[i], e + i);
}

template <class T>
void unfactored_update(const UnfactoredUpdate<T> k, const T* __restrict g, T* __restrict V, T* __restrict u, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    V[i] = k.V(g[i], V[i]);
    u[i] = k.u(g[i], V[i]);
  }
}

template <class T>
void apply_unfactored(const Layer& layer, int64_t chunk) {
  Scratch<T> scratch;
  alignas(64) T made[SCRATCH];
  const AdafactorCoefficients<T> k(layer);
  const bool decayed = k.lam != 0;
  const auto body = k.momentum ? (decayed ? unfactored_apply<T, true, true> : unfactored_apply<T, true, false>)
                               : (decayed ? unfactored_apply<T, false, true> : unfactored_apply<T, false, false>);
  const T* cached = (const T*)layer.cached;
  const int64_t most = layer.caches ? longest(layer, 1 << P | k.momentum << S0) : SCRATCH;
  for_runs(layer, chunk, most, [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    if (!layer.caches) {
      unfactored_update(UnfactoredUpdate<T>(k), run.gradient(), run.read(S1), made, n);
      run.write(S1);
    }
    T *p = run.read(P), *e = k.momentum ? run.read(S0) : nullptr;
    body(k, p, layer.caches ? cached : made, e, n);
    run.write(P);
    if (k.momentum) run.write(S0);
    if (layer.caches) cached += n;
  });
}
