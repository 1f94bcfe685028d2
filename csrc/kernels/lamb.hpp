// LAMB (rules/lamb.py), cut where the rule yields:
//
//     m ← b1·m + a1·g;   v ← b2·v + a2·g²;   u = c1·m / (√(c2·v + eps_root) + eps);   r = u + lam·p
//     measure: Σp², Σr²          apply: p ← p − lr·ratio·r
//
// A small layer caches r between the two. For a large one `apply` computes r again, because a root and a quotient cost
// less than four bytes of memory. Where a layer is late, `apply` also computes the moments again and stores them, because
// others complete the sums, or because r has to be of moments that have not been rounded.

template <class T>
struct LambCoefficients {
  T b1, a1, b2, a2, c1, c2, eps_root, eps, lam, shrink, step;
  explicit LambCoefficients(const Layer& l)
      : b1(T(l.c->b1)), a1(T(l.c->a1)), b2(T(l.c->b2)), a2(T(l.c->a2)), c1(T(l.c->c1)), c2(T(l.c->c2)),
        eps_root(T(l.o->eps_root)), eps(T(l.o->eps)), lam(T(l.c->lam_r)), shrink(T(l.c->shrink)), step(T(l.scale)) {}

  T direction(T m, T v) const { return c1 * m / (root(c2 * v + eps_root) + eps); }
};

// Whether a sum of float squares is reliable. A smaller one may lack terms that became 0, and an infinite one may be of
// finite numbers.
inline bool fits(float sum) { return sum >= 0x1p-80f && sum <= __FLT_MAX__; }

// Adds Σp² and Σr² of a block once more, with squares in float64. m and v are the new moments, or if late the old ones.
template <class T, class S, bool Decayed, bool Late>
__attribute__((noinline, cold)) void lamb_measure_wide(const LambCoefficients<T>& k, const S* p, const S* g, const T* m,
                                                       const T* v, int64_t n, double* sums) {
  for (int64_t i = 0; i < n; i++) {
    const T p_ = k.shrink * get(p, i), g_ = Late ? get(g, i) : T(0);
    const T m_ = Late ? k.b1 * m[i] + k.a1 * g_ : m[i], v_ = Late ? k.b2 * v[i] + k.a2 * (g_ * g_) : v[i];
    const T u = k.direction(m_, v_), r = Decayed ? u + k.lam * p_ : u;
    sums[0] += double(p_) * double(p_);
    sums[1] += double(r) * double(r);
  }
}

inline uint64_t magnitude(double x) { return __builtin_bit_cast(uint64_t, x) << 1; }
inline uint32_t magnitude(float x) { return __builtin_bit_cast(uint32_t, x) << 1; }
inline uint32_t magnitude(uint16_t x) { return uint32_t(x) << 17; }

template <class S>
bool zeros(const S* x, int64_t n) {
  decltype(magnitude(S())) any = 0;
#pragma omp simd reduction(| : any)
  for (int64_t i = 0; i < n; i++) any |= magnitude(x[i]);
  return any == 0;
}

// Whether these sums of float squares are right. Sums of zeros are: biases, padding and tensors without gradients.
template <class T, class S, bool Decayed, bool Late>
bool lamb_is_measured(float pp, float rr, const S* p, const S* g, const T* m, int64_t n) {
  if ((pp != 0 && !fits(pp)) || (rr != 0 && !fits(rr)) || (Decayed && pp != 0 && rr == 0)) return false;
  return (pp != 0 || zeros(p, n)) && (rr != 0 || (zeros(m, n) && (!Late || zeros(g, n))));
}

template <class T, class S, bool Decayed, bool Late, bool Caches>
void lamb_measure(const LambCoefficients<T> k, const S* __restrict p, const S* __restrict g, T* __restrict m,
                  T* __restrict v, T* __restrict cached, int64_t n, double* sums) {
  for (int64_t from = 0, to; from < n; from = to) {
    to = from + BLOCK < n ? from + BLOCK : n;
    T pp = 0, rr = 0;
#pragma omp simd reduction(+ : pp, rr)
    for (int64_t i = from; i < to; i++) {
      const T p_ = k.shrink * get(p, i), g_ = get(g, i);
      const T m_ = k.b1 * m[i] + k.a1 * g_, v_ = k.b2 * v[i] + k.a2 * (g_ * g_);
      const T u = k.direction(m_, v_), r = Decayed ? u + k.lam * p_ : u;
      if (!Late) m[i] = m_, v[i] = v_;
      if (Caches) cached[i] = r;
      pp += p_ * p_;
      rr += r * r;
    }
    if (is_wide<T> || (fits(float(pp)) && fits(float(rr))) ||
        lamb_is_measured<T, S, Decayed, Late>(float(pp), float(rr), p + from, g + from, m + from, to - from)) {
      sums[0] += double(pp);
      sums[1] += double(rr);
    } else {
      lamb_measure_wide<T, S, Decayed, Late>(k, p + from, g + from, m + from, v + from, to - from, sums);
    }
  }
}

template <class T, class S>
void lamb_apply(const LambCoefficients<T> k, S* __restrict p, const T* __restrict r, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) put(p, i, T(k.shrink * get(p, i) - k.step * r[i]));
}

template <class T, class S, bool Decayed, bool Late>
void lamb_apply_again(const LambCoefficients<T> k, S* __restrict p, const S* __restrict g, T* __restrict m, T* __restrict v,
                      int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    T p_ = k.shrink * get(p, i), m_ = m[i], v_ = v[i];
    if (Late) {
      const T g_ = get(g, i);
      m[i] = m_ = k.b1 * m_ + k.a1 * g_, v[i] = v_ = k.b2 * v_ + k.a2 * (g_ * g_);
    }
    const T u = k.direction(m_, v_), r = Decayed ? u + k.lam * p_ : u;
    put(p, i, T(p_ - k.step * r));
  }
}

inline const uint16_t* lamb_gradient(const Run<float>& run, const uint16_t*) { return run.gradient_as<uint16_t>(); }
template <class T>
const T* lamb_gradient(const Run<T>& run, const T* p) {
  const T* g = run.gradient();
  const T lam = T(run.layer.c->lam_g);
  if (lam == 0) return g;
  T* to = run.scratch.of[G];
  for (int64_t i = 0; i < run.n; i++) to[i] = g[i] + lam * p[i];
  return to;
}

template <class T, class S, bool Decayed>
auto lamb_measure_of(const Layer& layer) {
  if (layer.late) return lamb_measure<T, S, Decayed, true, false>;
  return layer.caches ? lamb_measure<T, S, Decayed, false, true> : lamb_measure<T, S, Decayed, false, false>;
}

template <class T, class S>
void measure_lamb(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  const LambCoefficients<T> k(layer);
  const auto body = layer.c->lam_r != 0 ? lamb_measure_of<T, S, true>(layer) : lamb_measure_of<T, S, false>(layer);
  T* cached = (T*)layer.cached;
  sums[0] = sums[1] = 0;
  for_runs(layer, chunk, longest(layer, 15), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    const S* p = run.template weights<S>();
    T *m = run.read(S0), *v = run.read(S1);
    body(k, p, lamb_gradient(run, p), m, v, cached, n, sums);
    if (!layer.late) run.write(S0), run.write(S1);
    if (layer.caches) cached += n;
  });
}

template <class T, class S>
void apply_lamb_again(const Layer& layer, int64_t chunk) {
  Scratch<T> scratch;
  const LambCoefficients<T> k(layer);
  const bool decayed = layer.c->lam_r != 0;
  const auto body = layer.late ? (decayed ? lamb_apply_again<T, S, true, true> : lamb_apply_again<T, S, false, true>)
                               : (decayed ? lamb_apply_again<T, S, true, false> : lamb_apply_again<T, S, false, false>);
  for_runs(layer, chunk, longest(layer, 15), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    S* p = run.template weights<S>();
    T *m = run.read(S0), *v = run.read(S1);
    body(k, p, layer.late ? lamb_gradient(run, p) : (const S*)nullptr, m, v, n);
    run.template write_weights<S>();
    if (layer.late) run.write(S0), run.write(S1);
  });
}

template <class T, class S>
void apply_lamb(const Layer& layer, int64_t chunk) {
  if (!layer.caches) return apply_lamb_again<T, S>(layer, chunk);
  Scratch<T> scratch;
  const LambCoefficients<T> k(layer);
  const T* cached = (const T*)layer.cached;
  for_runs(layer, chunk, longest(layer, 1 << P), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    lamb_apply<T, S>(k, run.template weights<S>(), cached, n);
    run.template write_weights<S>();
    cached += n;
  });
}
