// LARS (rules/lars.py), cut where the rule yields:
//
//     r = g + lam·p
//     measure: Σp², Σx², x = g or r, both with what l2 adds to g       apply: u = lr·ratio·r;  b ← mu·b + (1 − dampening)·u;  p ← p − b
//
// without lr in u, and lr·b in its place, where lr_in_momentum is off.

template <class T>
struct LarsCoefficients {
  T lam, mu, u, damped, lr;
  explicit LarsCoefficients(const Layer& l)
      : lam(T(l.c->lam_r)), mu(T(l.o->momentum)), u(T(l.scale)),
        damped(T(l.c->t == 1 ? l.scale : l.scale * (1 - l.o->dampening))),
        lr(l.o->lr_in_momentum ? T(1) : T(l.c->lr)) {}
};

template <class T, class S, bool Decayed>
void lars_measure(const T lam, const S* __restrict p, const S* __restrict g, int64_t n, double* sums) {
  double pp = 0, xx = 0;
#pragma omp simd reduction(+ : pp, xx)
  for (int64_t i = 0; i < n; i++) {
    const T p_ = get(p, i), x = Decayed ? get(g, i) + lam * p_ : get(g, i);
    pp += double(p_) * double(p_);
    xx += double(x) * double(x);
  }
  sums[0] += pp;
  sums[1] += xx;
}

template <class T, class S, bool Decayed, bool Momentum, bool Nesterov>
void lars_apply(const LarsCoefficients<T> k, S* __restrict p, const S* __restrict g, T* __restrict b, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const T p_ = get(p, i), r = Decayed ? get(g, i) + k.lam * p_ : get(g, i);
    const T b_ = Momentum ? k.mu * b[i] + k.damped * r : k.u * r;
    if (Momentum) b[i] = b_;
    put(p, i, T(p_ - k.lr * (Nesterov ? k.u * r + k.mu * b_ : b_)));
  }
}

template <class T, class S>
void measure_lars(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  const T lam = T(layer.c->lam_x);
  const auto body = lam != 0 ? lars_measure<T, S, true> : lars_measure<T, S, false>;
  sums[0] = sums[1] = 0;
  for_runs(layer, chunk, longest(layer, 1 << P | 1 << G), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    body(lam, run.template weights<S>(), run.template gradient_as<S>(), n, sums);
  });
}

template <class T, class S, bool Decayed>
auto lars_body(const Options& o) {
  if (o.momentum == 0) return lars_apply<T, S, Decayed, false, false>;
  return o.nesterov ? lars_apply<T, S, Decayed, true, true> : lars_apply<T, S, Decayed, true, false>;
}

template <class T, class S>
void apply_lars(const Layer& layer, int64_t chunk) {
  Scratch<T> scratch;
  const LarsCoefficients<T> k(layer);
  const auto body = k.lam != 0 ? lars_body<T, S, true>(*layer.o) : lars_body<T, S, false>(*layer.o);
  const bool momentum = layer.o->momentum != 0;
  for_runs(layer, chunk, longest(layer, 7), [&](const int64_t* off, int64_t n) {
    const Run<T> run{layer, off, n, scratch};
    S* p = run.template weights<S>();
    T* b = momentum ? run.read(S0) : nullptr;
    body(k, p, run.template gradient_as<S>(), b, n);
    run.template write_weights<S>();
    if (momentum) run.write(S0);
  });
}
