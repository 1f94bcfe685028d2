// Printed from rules/lars.py by `make generate`: change that, not this file.

// What Lars computes before it reads a tensor, in this order.
struct LarsNumbers {
  double l2, lam, lam_x, lam_w, eta, eps, unit, lr, damped, mu, pace, trust_min_norm, trust_max_norm, trust_eps,
  trust_low, trust_high, trust_undefined, trust_adapts;
};

template <class T>
struct Lars {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {2}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{SQUARES, SQUARES}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << P | 1 << G};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lam_x, damped, mu, pace, step;

  Lars(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); damped = T(k.damped); mu = T(k.mu); pace = T(k.pace);
    step = T(a[0]);
  }

  template <int ROUND>
  void terms(T p, T g, const T*, T* x) const {
    const T g_ = g + l2 * p;
    const T x_ = g_ + lam_x * p;
    x[0] = p;
    x[1] = x_;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    s[0] = b_;
    return p - pace * b_;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_x = root(S[1]);
      const double f = at_least(norm_x, k.trust_min_norm);
      const double d = f + k.lam_w * w + k.eps;
      const double ratio = k.eta * w / (f == 0 ? 1 : d);
      const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
      const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
      a[0] = k.lr * ratio__;
    }
  }

  static void report(const LarsNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_x = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double f = at_least(norm_x, k.trust_min_norm);
    const double d = f + k.lam_w * w + k.eps;
    const double ratio = k.eta * w / (f == 0 ? 1 : d);
    const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
    const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
    to[0] = norm_p;
    to[1] = norm_x;
    to[2] = ratio__;
  }

  static void remember(const LarsNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LarsNesterovTrue {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {2}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{SQUARES, SQUARES}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << P | 1 << G};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lam_x, damped, mu, pace, step;

  LarsNesterovTrue(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); damped = T(k.damped); mu = T(k.mu); pace = T(k.pace);
    step = T(a[0]);
  }

  template <int ROUND>
  void terms(T p, T g, const T*, T* x) const {
    const T g_ = g + l2 * p;
    const T x_ = g_ + lam_x * p;
    x[0] = p;
    x[1] = x_;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    const T moved = u + mu * b_;
    s[0] = b_;
    return p - pace * moved;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_x = root(S[1]);
      const double f = at_least(norm_x, k.trust_min_norm);
      const double d = f + k.lam_w * w + k.eps;
      const double ratio = k.eta * w / (f == 0 ? 1 : d);
      const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
      const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
      a[0] = k.lr * ratio__;
    }
  }

  static void report(const LarsNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_x = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double f = at_least(norm_x, k.trust_min_norm);
    const double d = f + k.lam_w * w + k.eps;
    const double ratio = k.eta * w / (f == 0 ? 1 : d);
    const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
    const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
    to[0] = norm_p;
    to[1] = norm_x;
    to[2] = ratio__;
  }

  static void remember(const LarsNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LarsAdaptFalse {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 0, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {0}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{NONE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lr, damped, mu, pace;

  LarsAdaptFalse(const LarsNumbers& k, const double*) {
    l2 = T(k.l2); lam = T(k.lam); lr = T(k.lr); damped = T(k.damped); mu = T(k.mu); pace = T(k.pace);
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    s[0] = b_;
    return p - pace * b_;
  }

  static void answer(int, const LarsNumbers&, const double*, const double*, double*) {}

  static void report(const LarsNumbers&, const double*, const double*, double* to) {
    to[0] = 1;
  }

  static void remember(const LarsNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LarsAdaptFalseNesterovTrue {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 0, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {0}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{NONE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lr, damped, mu, pace;

  LarsAdaptFalseNesterovTrue(const LarsNumbers& k, const double*) {
    l2 = T(k.l2); lam = T(k.lam); lr = T(k.lr); damped = T(k.damped); mu = T(k.mu); pace = T(k.pace);
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    const T moved = u + mu * b_;
    s[0] = b_;
    return p - pace * moved;
  }

  static void answer(int, const LarsNumbers&, const double*, const double*, double*) {}

  static void report(const LarsNumbers&, const double*, const double*, double* to) {
    to[0] = 1;
  }

  static void remember(const LarsNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LarsCautionTrue {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 2, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[2] = {2, 1}, CACHED[1] = {0};
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {MEAN}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[2] = {1 << P | 1 << G, 1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lam_x, damped, mu, pace, step, size;

  LarsCautionTrue(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); damped = T(k.damped); mu = T(k.mu); pace = T(k.pace);
    step = T(a[0]); size = T(a[1]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T g_ = g + l2 * p;
      const T x_ = g_ + lam_x * p;
      x[0] = p;
      x[1] = x_;
    }
    if constexpr (ROUND == 1) {
      const T b = s[0];
      const T g_ = g + l2 * p;
      const T r = g_ + lam * p;
      const T u = step * r;
      const T b_ = damped * u + mu * b;
      const T agrees = (((b_ > 0) & (g_ > 0)) | ((b_ < 0) & (g_ < 0))) ? 1 : 0 * b_;
      x[0] = agrees;
    }
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    const T agrees = (((b_ > 0) & (g_ > 0)) | ((b_ < 0) & (g_ < 0))) ? 1 : 0 * b_;
    const T moved = b_ * agrees / size;
    s[0] = b_;
    return p - pace * moved;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_x = root(S[1]);
      const double f = at_least(norm_x, k.trust_min_norm);
      const double d = f + k.lam_w * w + k.eps;
      const double ratio = k.eta * w / (f == 0 ? 1 : d);
      const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
      const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
      a[0] = k.lr * ratio__;
    }
    if (round == 1) {
      const double size = at_least(S[2], 0.001);
      a[1] = size;
    }
  }

  static void report(const LarsNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_x = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double f = at_least(norm_x, k.trust_min_norm);
    const double d = f + k.lam_w * w + k.eps;
    const double ratio = k.eta * w / (f == 0 ? 1 : d);
    const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
    const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
    to[0] = norm_p;
    to[1] = norm_x;
    to[2] = ratio__;
    to[3] = S[2];
  }

  static void remember(const LarsNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LarsCautionTrueAdaptFalse {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {1}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{MEAN}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lr, damped, mu, pace, size;

  LarsCautionTrueAdaptFalse(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lr = T(k.lr); damped = T(k.damped); mu = T(k.mu); pace = T(k.pace); size = T(a[0]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    const T agrees = (((b_ > 0) & (g_ > 0)) | ((b_ < 0) & (g_ < 0))) ? 1 : 0 * b_;
    x[0] = agrees;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    const T agrees = (((b_ > 0) & (g_ > 0)) | ((b_ < 0) & (g_ < 0))) ? 1 : 0 * b_;
    const T moved = b_ * agrees / size;
    s[0] = b_;
    return p - pace * moved;
  }

  static void answer(int round, const LarsNumbers&, const double* S, const double*, double* a) {
    if (round == 0) {
      const double size = at_least(S[0], 0.001);
      a[0] = size;
    }
  }

  static void report(const LarsNumbers&, const double* S, const double*, double* to) {
    to[0] = 1;
    to[1] = S[0];
  }

  static void remember(const LarsNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LarsWithoutMomentumBuffer {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 0, ROUNDS = 1, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {2}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{SQUARES, SQUARES}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << P | 1 << G};
  static constexpr int APPLY_READS = 1 << P | 1 << G, APPLY_WRITES = 0;

  T l2, lam, lam_x, pace, step;

  LarsWithoutMomentumBuffer(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); pace = T(k.pace); step = T(a[0]);
  }

  template <int ROUND>
  void terms(T p, T g, const T*, T* x) const {
    const T g_ = g + l2 * p;
    const T x_ = g_ + lam_x * p;
    x[0] = p;
    x[1] = x_;
  }

  T apply(T p, T g, T*, const T*) const {
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = step * r;
    return p - pace * u;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_x = root(S[1]);
      const double f = at_least(norm_x, k.trust_min_norm);
      const double d = f + k.lam_w * w + k.eps;
      const double ratio = k.eta * w / (f == 0 ? 1 : d);
      const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
      const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
      a[0] = k.lr * ratio__;
    }
  }

  static void report(const LarsNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_x = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double f = at_least(norm_x, k.trust_min_norm);
    const double d = f + k.lam_w * w + k.eps;
    const double ratio = k.eta * w / (f == 0 ? 1 : d);
    const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
    const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
    to[0] = norm_p;
    to[1] = norm_x;
    to[2] = ratio__;
  }

  static void remember(const LarsNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LarsWithoutMomentumBufferAdaptFalse {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 0, ROUNDS = 0, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {0}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{NONE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {0};
  static constexpr int APPLY_READS = 1 << P | 1 << G, APPLY_WRITES = 0;

  T l2, lam, lr, pace;

  LarsWithoutMomentumBufferAdaptFalse(const LarsNumbers& k, const double*) {
    l2 = T(k.l2); lam = T(k.lam); lr = T(k.lr); pace = T(k.pace);
  }

  T apply(T p, T g, T*, const T*) const {
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = lr * r;
    return p - pace * u;
  }

  static void answer(int, const LarsNumbers&, const double*, const double*, double*) {}

  static void report(const LarsNumbers&, const double*, const double*, double* to) {
    to[0] = 1;
  }

  static void remember(const LarsNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LarsKeepNormTrue {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 2, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[2] = {2, 3}, CACHED[1] = {0};
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES, SQUARES, SUM}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[2] = {1 << P | 1 << G, 1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lam_x, damped, mu, step, more, size;

  LarsKeepNormTrue(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); damped = T(k.damped); mu = T(k.mu); step = T(a[0]);
    more = T(a[1]); size = T(a[2]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T g_ = g + l2 * p;
      const T x_ = g_ + lam_x * p;
      x[0] = p;
      x[1] = x_;
    }
    if constexpr (ROUND == 1) {
      const T b = s[0];
      const T g_ = g + l2 * p;
      const T r = g_ + lam * p;
      const T u = step * r;
      const T b_ = damped * u + mu * b;
      x[0] = p;
      x[1] = b_;
      x[2] = p * b_;
    }
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    s[0] = b_;
    return p + more * p - size * b_;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_x = root(S[1]);
      const double f = at_least(norm_x, k.trust_min_norm);
      const double d = f + k.lam_w * w + k.eps;
      const double ratio = k.eta * w / (f == 0 ? 1 : d);
      const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
      const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
      a[0] = k.lr * ratio__;
    }
    if (round == 1) {
      const double norm_p = root(S[2]);
      const bool there = (norm_p > 0) & (norm_p > 0);
      const double norm_b = root(S[3]);
      const double w = there ? norm_p : 1;
      const double a_ = k.pace * norm_b / w;
      const double cos = S[4] / w / (norm_b == 0 ? 1 : norm_b);
      const double shorter = a_ * (2 * cos - a_);
      const double x = at_least(1 - shorter, 0);
      const bool zero = x == 0;
      const double left = zero ? 0 : root(zero ? 1 : x);
      const bool there_ = there & (left > 0);
      const double k_ = w / w;
      const double found = ((w - w) / w * (k_ + 1) + shorter) / (there_ ? left * (k_ + left) : 1);
      const double more = there_ ? found : 0 * found;
      const double size = k.pace + k.pace * more;
      a[1] = more;
      a[2] = size;
    }
  }

  static void report(const LarsNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_x = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double f = at_least(norm_x, k.trust_min_norm);
    const double d = f + k.lam_w * w + k.eps;
    const double ratio = k.eta * w / (f == 0 ? 1 : d);
    const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
    const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
    to[0] = norm_p;
    to[1] = norm_x;
    to[2] = ratio__;
  }

  static void remember(const LarsNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LarsKeepNormTrueAdaptFalse {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {3}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{SQUARES, SQUARES, SUM}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lr, damped, mu, more, size;

  LarsKeepNormTrueAdaptFalse(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lr = T(k.lr); damped = T(k.damped); mu = T(k.mu); more = T(a[0]); size = T(a[1]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    x[0] = p;
    x[1] = b_;
    x[2] = p * b_;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    s[0] = b_;
    return p + more * p - size * b_;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const bool there = (norm_p > 0) & (norm_p > 0);
      const double norm_b = root(S[1]);
      const double w = there ? norm_p : 1;
      const double a_ = k.pace * norm_b / w;
      const double cos = S[2] / w / (norm_b == 0 ? 1 : norm_b);
      const double shorter = a_ * (2 * cos - a_);
      const double x = at_least(1 - shorter, 0);
      const bool zero = x == 0;
      const double left = zero ? 0 : root(zero ? 1 : x);
      const bool there_ = there & (left > 0);
      const double k_ = w / w;
      const double found = ((w - w) / w * (k_ + 1) + shorter) / (there_ ? left * (k_ + left) : 1);
      const double more = there_ ? found : 0 * found;
      const double size = k.pace + k.pace * more;
      a[0] = more;
      a[1] = size;
    }
  }

  static void report(const LarsNumbers&, const double*, const double*, double* to) {
    to[0] = 1;
  }

  static void remember(const LarsNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LarsWithNormKeepNormFirst {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 2, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 1, OF_LAYER = 1 << 1;
  static constexpr int SUMS[2] = {2, 3}, CACHED[1] = {0};
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES, SQUARES, SUM}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[2] = {1 << P | 1 << G, 1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lam_x, damped, mu, step, more, size;

  LarsWithNormKeepNormFirst(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); damped = T(k.damped); mu = T(k.mu); step = T(a[0]);
    more = T(a[1]); size = T(a[2]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T g_ = g + l2 * p;
      const T x_ = g_ + lam_x * p;
      x[0] = p;
      x[1] = x_;
    }
    if constexpr (ROUND == 1) {
      const T b = s[0];
      const T g_ = g + l2 * p;
      const T r = g_ + lam * p;
      const T u = step * r;
      const T b_ = damped * u + mu * b;
      x[0] = p;
      x[1] = b_;
      x[2] = p * b_;
    }
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    s[0] = b_;
    return p + more * p - size * b_;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double* old, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_x = root(S[1]);
      const double f = at_least(norm_x, k.trust_min_norm);
      const double d = f + k.lam_w * w + k.eps;
      const double ratio = k.eta * w / (f == 0 ? 1 : d);
      const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
      const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
      a[0] = k.lr * ratio__;
    }
    if (round == 1) {
      const double norm_p = root(S[2]);
      const double R_ = old[0] == 0 ? norm_p : old[0];
      const bool there = (R_ > 0) & (norm_p > 0);
      const double norm_b = root(S[3]);
      const double n = there ? norm_p : 1;
      const double a_ = k.pace * norm_b / n;
      const double cos = S[4] / n / (norm_b == 0 ? 1 : norm_b);
      const double shorter = a_ * (2 * cos - a_);
      const double x = at_least(1 - shorter, 0);
      const bool zero = x == 0;
      const double left = zero ? 0 : root(zero ? 1 : x);
      const bool there_ = there & (left > 0);
      const double w = there ? R_ : 1;
      const double k_ = w / n;
      const double found = ((w - n) / n * (k_ + 1) + shorter) / (there_ ? left * (k_ + left) : 1);
      const double more = there_ ? found : 0 * found;
      const double size = k.pace + k.pace * more;
      a[1] = more;
      a[2] = size;
    }
  }

  static void report(const LarsNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_x = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double f = at_least(norm_x, k.trust_min_norm);
    const double d = f + k.lam_w * w + k.eps;
    const double ratio = k.eta * w / (f == 0 ? 1 : d);
    const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
    const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
    to[0] = norm_p;
    to[1] = norm_x;
    to[2] = ratio__;
  }

  static void remember(const LarsNumbers&, const double* S, const double* old, double* to) {
    const double norm_p = root(S[2]);
    const double R_ = old[0] == 0 ? norm_p : old[0];
    to[0] = R_;
  }
};

template <class T>
struct LarsWithNormKeepNormFirstAdaptFalse {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 1, OF_LAYER = 1 << 1;
  static constexpr int SUMS[1] = {3}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{SQUARES, SQUARES, SUM}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lr, damped, mu, more, size;

  LarsWithNormKeepNormFirstAdaptFalse(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lr = T(k.lr); damped = T(k.damped); mu = T(k.mu); more = T(a[0]); size = T(a[1]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    x[0] = p;
    x[1] = b_;
    x[2] = p * b_;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * p;
    const T r = g_ + lam * p;
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    s[0] = b_;
    return p + more * p - size * b_;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double* old, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double R_ = old[0] == 0 ? norm_p : old[0];
      const bool there = (R_ > 0) & (norm_p > 0);
      const double norm_b = root(S[1]);
      const double n = there ? norm_p : 1;
      const double a_ = k.pace * norm_b / n;
      const double cos = S[2] / n / (norm_b == 0 ? 1 : norm_b);
      const double shorter = a_ * (2 * cos - a_);
      const double x = at_least(1 - shorter, 0);
      const bool zero = x == 0;
      const double left = zero ? 0 : root(zero ? 1 : x);
      const bool there_ = there & (left > 0);
      const double w = there ? R_ : 1;
      const double k_ = w / n;
      const double found = ((w - n) / n * (k_ + 1) + shorter) / (there_ ? left * (k_ + left) : 1);
      const double more = there_ ? found : 0 * found;
      const double size = k.pace + k.pace * more;
      a[0] = more;
      a[1] = size;
    }
  }

  static void report(const LarsNumbers&, const double*, const double*, double* to) {
    to[0] = 1;
  }

  static void remember(const LarsNumbers&, const double* S, const double* old, double* to) {
    const double norm_p = root(S[0]);
    const double R_ = old[0] == 0 ? norm_p : old[0];
    to[0] = R_;
  }
};
