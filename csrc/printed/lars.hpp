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
    const T g_ = g + l2 * unless_off(l2, p);
    const T x_ = g_ + lam_x * unless_off(lam_x, p);
    x[0] = p;
    x[1] = x_;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
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
      const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
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
    const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
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
    const T g_ = g + l2 * unless_off(l2, p);
    const T x_ = g_ + lam_x * unless_off(lam_x, p);
    x[0] = p;
    x[1] = x_;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
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
      const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
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
    const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
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
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
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
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
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
      const T g_ = g + l2 * unless_off(l2, p);
      const T x_ = g_ + lam_x * unless_off(lam_x, p);
      x[0] = p;
      x[1] = x_;
    }
    if constexpr (ROUND == 1) {
      const T b = s[0];
      const T g_ = g + l2 * unless_off(l2, p);
      const T r = g_ + lam * unless_off(lam, p);
      const T u = step * r;
      const T b_ = damped * u + mu * b;
      const T agrees = (((b_ > 0) & (g_ > 0)) | ((b_ < 0) & (g_ < 0))) ? 1 : 0 * b_;
      x[0] = agrees;
    }
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
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
      const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
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
    const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
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
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    const T agrees = (((b_ > 0) & (g_ > 0)) | ((b_ < 0) & (g_ < 0))) ? 1 : 0 * b_;
    x[0] = agrees;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
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
    const T g_ = g + l2 * unless_off(l2, p);
    const T x_ = g_ + lam_x * unless_off(lam_x, p);
    x[0] = p;
    x[1] = x_;
  }

  T apply(T p, T g, T*, const T*) const {
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = step * r;
    return p - pace * u;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_x = root(S[1]);
      const double f = at_least(norm_x, k.trust_min_norm);
      const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
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
    const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
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
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
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
  static constexpr int STATES = 1, ROUNDS = 3, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[3] = {2, 2, 1}, CACHED[1] = {0};
  static constexpr Total TOTALS[3][4] = {{SQUARES, SQUARES}, {SQUARES, SQUARES}, {SQUARES}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[3] = {1 << P | 1 << G, 1 << P | 1 << G | 1 << S0, 1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lam_x, damped, mu, step, f_less_1, short_, first, second, more;

  LarsKeepNormTrue(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); damped = T(k.damped); mu = T(k.mu); step = T(a[0]);
    f_less_1 = T(a[1]); short_ = T(a[2]); first = T(a[3]); second = T(a[4]); more = T(a[5]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T g_ = g + l2 * unless_off(l2, p);
      const T x_ = g_ + lam_x * unless_off(lam_x, p);
      x[0] = p;
      x[1] = x_;
    }
    if constexpr (ROUND == 1) {
      const T b = s[0];
      const T g_ = g + l2 * unless_off(l2, p);
      const T r = g_ + lam * unless_off(lam, p);
      const T u = step * r;
      const T b_ = damped * u + mu * b;
      x[0] = p;
      x[1] = b_;
    }
    if constexpr (ROUND == 2) {
      const T b = s[0];
      const T g_ = g + l2 * unless_off(l2, p);
      const T r = g_ + lam * unless_off(lam, p);
      const T u = step * r;
      const T b_ = damped * u + mu * b;
      const T q = p + f_less_1 * p - short_ * b_;
      x[0] = q;
    }
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    const T q = p + f_less_1 * p - short_ * b_;
    s[0] = b_;
    return p + first * p - second * b_ + more * q;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_x = root(S[1]);
      const double f = at_least(norm_x, k.trust_min_norm);
      const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
      const double ratio = k.eta * w / (f == 0 ? 1 : d);
      const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
      const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
      a[0] = k.lr * ratio__;
    }
    if (round == 1) {
      const double norm_p = root(S[2]);
      const double norm_b = root(S[3]);
      const double longest = at_least(norm_p, k.pace * norm_b);
      const bool there = (norm_p > 0) & (longest > 0);
      const double f_less_1 = there ? (norm_p - (there ? longest : 1)) / (there ? longest : 1) : 0;
      const double f = there ? norm_p / (there ? longest : 1) : 1;
      const double short_ = k.pace * f;
      a[1] = f_less_1;
      a[2] = short_;
    }
    if (round == 2) {
      const double norm = root(S[4]);
      const double norm_p = root(S[2]);
      const bool cancels = (norm == 0) & (norm_p > 0);
      const double norm_b = root(S[3]);
      const double longest = at_least(norm_p, k.pace * norm_b);
      const bool there = (norm_p > 0) & (longest > 0);
      const double f_less_1 = there ? (norm_p - (there ? longest : 1)) / (there ? longest : 1) : 0;
      const double first = cancels ? 0 : f_less_1;
      const double f = there ? norm_p / (there ? longest : 1) : 1;
      const double short_ = k.pace * f;
      const double second = cancels ? 0 : short_;
      const bool there_ = (norm_p > 0) & (norm > 0);
      const double more = there_ ? (norm_p - (there_ ? norm : 1)) / (there_ ? norm : 1) : 0;
      a[3] = first;
      a[4] = second;
      a[5] = more;
    }
  }

  static void report(const LarsNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_x = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double f = at_least(norm_x, k.trust_min_norm);
    const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
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
  static constexpr int STATES = 1, ROUNDS = 2, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[2] = {2, 1}, CACHED[1] = {0};
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[2] = {1 << P | 1 << G | 1 << S0, 1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lr, damped, mu, f_less_1, short_, first, second, more;

  LarsKeepNormTrueAdaptFalse(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lr = T(k.lr); damped = T(k.damped); mu = T(k.mu); f_less_1 = T(a[0]);
    short_ = T(a[1]); first = T(a[2]); second = T(a[3]); more = T(a[4]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T b = s[0];
      const T g_ = g + l2 * unless_off(l2, p);
      const T r = g_ + lam * unless_off(lam, p);
      const T u = lr * r;
      const T b_ = damped * u + mu * b;
      x[0] = p;
      x[1] = b_;
    }
    if constexpr (ROUND == 1) {
      const T b = s[0];
      const T g_ = g + l2 * unless_off(l2, p);
      const T r = g_ + lam * unless_off(lam, p);
      const T u = lr * r;
      const T b_ = damped * u + mu * b;
      const T q = p + f_less_1 * p - short_ * b_;
      x[0] = q;
    }
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    const T q = p + f_less_1 * p - short_ * b_;
    s[0] = b_;
    return p + first * p - second * b_ + more * q;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double norm_b = root(S[1]);
      const double longest = at_least(norm_p, k.pace * norm_b);
      const bool there = (norm_p > 0) & (longest > 0);
      const double f_less_1 = there ? (norm_p - (there ? longest : 1)) / (there ? longest : 1) : 0;
      const double f = there ? norm_p / (there ? longest : 1) : 1;
      const double short_ = k.pace * f;
      a[0] = f_less_1;
      a[1] = short_;
    }
    if (round == 1) {
      const double norm = root(S[2]);
      const double norm_p = root(S[0]);
      const bool cancels = (norm == 0) & (norm_p > 0);
      const double norm_b = root(S[1]);
      const double longest = at_least(norm_p, k.pace * norm_b);
      const bool there = (norm_p > 0) & (longest > 0);
      const double f_less_1 = there ? (norm_p - (there ? longest : 1)) / (there ? longest : 1) : 0;
      const double first = cancels ? 0 : f_less_1;
      const double f = there ? norm_p / (there ? longest : 1) : 1;
      const double short_ = k.pace * f;
      const double second = cancels ? 0 : short_;
      const bool there_ = (norm_p > 0) & (norm > 0);
      const double more = there_ ? (norm_p - (there_ ? norm : 1)) / (there_ ? norm : 1) : 0;
      a[2] = first;
      a[3] = second;
      a[4] = more;
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
  static constexpr int STATES = 1, ROUNDS = 3, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 1, OF_LAYER = 1 << 1;
  static constexpr int SUMS[3] = {2, 2, 1}, CACHED[1] = {0};
  static constexpr Total TOTALS[3][4] = {{SQUARES, SQUARES}, {SQUARES, SQUARES}, {SQUARES}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[3] = {1 << P | 1 << G, 1 << P | 1 << G | 1 << S0, 1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lam_x, damped, mu, step, f_less_1, short_, first, second, more;

  LarsWithNormKeepNormFirst(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); damped = T(k.damped); mu = T(k.mu); step = T(a[0]);
    f_less_1 = T(a[1]); short_ = T(a[2]); first = T(a[3]); second = T(a[4]); more = T(a[5]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T g_ = g + l2 * unless_off(l2, p);
      const T x_ = g_ + lam_x * unless_off(lam_x, p);
      x[0] = p;
      x[1] = x_;
    }
    if constexpr (ROUND == 1) {
      const T b = s[0];
      const T g_ = g + l2 * unless_off(l2, p);
      const T r = g_ + lam * unless_off(lam, p);
      const T u = step * r;
      const T b_ = damped * u + mu * b;
      x[0] = p;
      x[1] = b_;
    }
    if constexpr (ROUND == 2) {
      const T b = s[0];
      const T g_ = g + l2 * unless_off(l2, p);
      const T r = g_ + lam * unless_off(lam, p);
      const T u = step * r;
      const T b_ = damped * u + mu * b;
      const T q = p + f_less_1 * p - short_ * b_;
      x[0] = q;
    }
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    const T q = p + f_less_1 * p - short_ * b_;
    s[0] = b_;
    return p + first * p - second * b_ + more * q;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double* old, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_x = root(S[1]);
      const double f = at_least(norm_x, k.trust_min_norm);
      const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
      const double ratio = k.eta * w / (f == 0 ? 1 : d);
      const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
      const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
      a[0] = k.lr * ratio__;
    }
    if (round == 1) {
      const double norm_p = root(S[2]);
      const double R_ = old[0] == 0 ? norm_p : old[0];
      const double norm_b = root(S[3]);
      const double longest = at_least(norm_p, k.pace * norm_b);
      const bool there = (R_ > 0) & (longest > 0);
      const double f_less_1 = there ? (R_ - (there ? longest : 1)) / (there ? longest : 1) : 0;
      const double f = there ? R_ / (there ? longest : 1) : 1;
      const double short_ = k.pace * f;
      a[1] = f_less_1;
      a[2] = short_;
    }
    if (round == 2) {
      const double norm = root(S[4]);
      const double norm_p = root(S[2]);
      const bool cancels = (norm == 0) & (norm_p > 0);
      const double R_ = old[0] == 0 ? norm_p : old[0];
      const bool there = (R_ > 0) & (norm_p > 0);
      const double norm_b = root(S[3]);
      const double longest = at_least(norm_p, k.pace * norm_b);
      const bool there_ = (R_ > 0) & (longest > 0);
      const double f_less_1 = there_ ? (R_ - (there_ ? longest : 1)) / (there_ ? longest : 1) : 0;
      const double first = cancels ? (there ? (R_ - (there ? norm_p : 1)) / (there ? norm_p : 1) : 0) : f_less_1;
      const double f = there_ ? R_ / (there_ ? longest : 1) : 1;
      const double short_ = k.pace * f;
      const double second = cancels ? 0 : short_;
      const bool there__ = (R_ > 0) & (norm > 0);
      const double more = there__ ? (R_ - (there__ ? norm : 1)) / (there__ ? norm : 1) : 0;
      a[3] = first;
      a[4] = second;
      a[5] = more;
    }
  }

  static void report(const LarsNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_x = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double f = at_least(norm_x, k.trust_min_norm);
    const double d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
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
  static constexpr int STATES = 1, ROUNDS = 2, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 1, OF_LAYER = 1 << 1;
  static constexpr int SUMS[2] = {2, 1}, CACHED[1] = {0};
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[2] = {1 << P | 1 << G | 1 << S0, 1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, lam, lr, damped, mu, f_less_1, short_, first, second, more;

  LarsWithNormKeepNormFirstAdaptFalse(const LarsNumbers& k, const double* a) {
    l2 = T(k.l2); lam = T(k.lam); lr = T(k.lr); damped = T(k.damped); mu = T(k.mu); f_less_1 = T(a[0]);
    short_ = T(a[1]); first = T(a[2]); second = T(a[3]); more = T(a[4]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T b = s[0];
      const T g_ = g + l2 * unless_off(l2, p);
      const T r = g_ + lam * unless_off(lam, p);
      const T u = lr * r;
      const T b_ = damped * u + mu * b;
      x[0] = p;
      x[1] = b_;
    }
    if constexpr (ROUND == 1) {
      const T b = s[0];
      const T g_ = g + l2 * unless_off(l2, p);
      const T r = g_ + lam * unless_off(lam, p);
      const T u = lr * r;
      const T b_ = damped * u + mu * b;
      const T q = p + f_less_1 * p - short_ * b_;
      x[0] = q;
    }
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    const T q = p + f_less_1 * p - short_ * b_;
    s[0] = b_;
    return p + first * p - second * b_ + more * q;
  }

  static void answer(int round, const LarsNumbers& k, const double* S, const double* old, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double R_ = old[0] == 0 ? norm_p : old[0];
      const double norm_b = root(S[1]);
      const double longest = at_least(norm_p, k.pace * norm_b);
      const bool there = (R_ > 0) & (longest > 0);
      const double f_less_1 = there ? (R_ - (there ? longest : 1)) / (there ? longest : 1) : 0;
      const double f = there ? R_ / (there ? longest : 1) : 1;
      const double short_ = k.pace * f;
      a[0] = f_less_1;
      a[1] = short_;
    }
    if (round == 1) {
      const double norm = root(S[2]);
      const double norm_p = root(S[0]);
      const bool cancels = (norm == 0) & (norm_p > 0);
      const double R_ = old[0] == 0 ? norm_p : old[0];
      const bool there = (R_ > 0) & (norm_p > 0);
      const double norm_b = root(S[1]);
      const double longest = at_least(norm_p, k.pace * norm_b);
      const bool there_ = (R_ > 0) & (longest > 0);
      const double f_less_1 = there_ ? (R_ - (there_ ? longest : 1)) / (there_ ? longest : 1) : 0;
      const double first = cancels ? (there ? (R_ - (there ? norm_p : 1)) / (there ? norm_p : 1) : 0) : f_less_1;
      const double f = there_ ? R_ / (there_ ? longest : 1) : 1;
      const double short_ = k.pace * f;
      const double second = cancels ? 0 : short_;
      const bool there__ = (R_ > 0) & (norm > 0);
      const double more = there__ ? (R_ - (there__ ? norm : 1)) / (there__ ? norm : 1) : 0;
      a[2] = first;
      a[3] = second;
      a[4] = more;
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
