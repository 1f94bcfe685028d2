// Printed from rules/lamb.py by `make generate`: change that, not this file.

// What Lamb computes before it reads a tensor, in this order.
struct LambNumbers {
  double l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, trust_min_norm, trust_max_norm, trust_eps,
  trust_low, trust_high, trust_undefined, trust_adapts;
};

template <class T>
struct Lamb {
  using Numbers = LambNumbers;
  static constexpr int STATES = 2, ROUNDS = 1, CACHES = 1, KEEPS = 0;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {2}, CACHED[1] = {1};
  static constexpr Total TOTALS[1][4] = {{SQUARES, SQUARES}};
  static constexpr int KEEP_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, KEEP_WRITES = 1 << S0 | 1 << S1;
  static constexpr int TERMS_READ[1] = {1 << P | 1 << S0 | 1 << S1};
  static constexpr int APPLY_READS = 1 << P, APPLY_WRITES = 0;

  T l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size;

  Lamb(const LambNumbers& k, const double* a) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); c1 = T(k.c1);
    c2 = T(k.c2); eps_root = T(k.eps_root); eps = T(k.eps); lam = T(k.lam); size = T(a[0]);
  }

  void keep(T p, T g, T* s) const {
    const T m = s[0], v = s[1];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    s[0] = m_;
    s[1] = v_;
  }

  template <int ROUND>
  void terms(T p, T, const T* s, T* x) const {
    const T m = s[0], v = s[1];
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T v_hat = c2 * v;
    const T root_v = root(v_hat + eps_root);
    const T u = m / (eps + c1 * root_v);
    const T r = u + lam * unless_off(lam, p_);
    x[0] = p_;
    x[1] = r;
  }

  T apply(T p, T, T*, const T* x) const {
    const T r = x[1];
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    return p_ - size * r;
  }

  static void answer(int round, const LambNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_r = root(S[1]);
      const double x = at_least(norm_r, k.trust_min_norm);
      const double phi = at_most(w, k.trust_max_norm);
      const double d = x == 0 ? 1 : x;
      const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
      const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
      const double size = k.lr * ratio_;
      a[0] = size;
    }
  }

  static void report(const LambNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_r = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double x = at_least(norm_r, k.trust_min_norm);
    const double phi = at_most(w, k.trust_max_norm);
    const double d = x == 0 ? 1 : x;
    const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
    const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    to[0] = norm_p;
    to[1] = norm_r;
    to[2] = ratio_;
  }

  static void remember(const LambNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LambAdaptFalse {
  using Numbers = LambNumbers;
  static constexpr int STATES = 2, ROUNDS = 0, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {0}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{NONE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;

  T l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr;

  LambAdaptFalse(const LambNumbers& k, const double*) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); c1 = T(k.c1);
    c2 = T(k.c2); eps_root = T(k.eps_root); eps = T(k.eps); lam = T(k.lam); lr = T(k.lr);
  }

  T apply(T p, T g, T* s, const T*) const {
    const T m = s[0], v = s[1];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T v_hat = c2 * v_;
    const T root_v = root(v_hat + eps_root);
    const T u = m_ / (eps + c1 * root_v);
    const T r = u + lam * unless_off(lam, p_);
    s[0] = m_;
    s[1] = v_;
    return p_ - lr * r;
  }

  static void answer(int, const LambNumbers&, const double*, const double*, double*) {}

  static void report(const LambNumbers&, const double*, const double*, double* to) {
    to[0] = 1;
  }

  static void remember(const LambNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LambCautionTrue {
  using Numbers = LambNumbers;
  static constexpr int STATES = 2, ROUNDS = 2, CACHES = 1, KEEPS = 0;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[2] = {1, 2}, CACHED[1] = {1};
  static constexpr Total TOTALS[2][4] = {{MEAN}, {SQUARES, SQUARES}};
  static constexpr int KEEP_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, KEEP_WRITES = 1 << S0 | 1 << S1;
  static constexpr int TERMS_READ[2] = {1 << P | 1 << G | 1 << S0 | 1 << S1, 1 << P | 1 << G | 1 << S0 | 1 << S1};
  static constexpr int APPLY_READS = 1 << P, APPLY_WRITES = 0;

  T l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size, size_;

  LambCautionTrue(const LambNumbers& k, const double* a) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); c1 = T(k.c1);
    c2 = T(k.c2); eps_root = T(k.eps_root); eps = T(k.eps); lam = T(k.lam); size = T(a[0]); size_ = T(a[1]);
  }

  void keep(T p, T g, T* s) const {
    const T m = s[0], v = s[1];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    s[0] = m_;
    s[1] = v_;
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T m = s[0], v = s[1];
      const T v_hat = c2 * v;
      const T root_v = root(v_hat + eps_root);
      const T u = m / (eps + c1 * root_v);
      const T g_ = g + l2 * unless_off(l2, p);
      const T agrees = (((u > 0) & (g_ > 0)) | ((u < 0) & (g_ < 0))) ? 1 : 0 * u;
      x[0] = agrees;
    }
    if constexpr (ROUND == 1) {
      const T m = s[0], v = s[1];
      const T x_ = unless_off(shrink, p);
      const T p_ = p - shrink * x_;
      const T v_hat = c2 * v;
      const T root_v = root(v_hat + eps_root);
      const T u = m / (eps + c1 * root_v);
      const T g_ = g + l2 * unless_off(l2, p);
      const T agrees = (((u > 0) & (g_ > 0)) | ((u < 0) & (g_ < 0))) ? 1 : 0 * u;
      const T u_ = u * agrees / size;
      const T r = u_ + lam * unless_off(lam, p_);
      x[0] = p_;
      x[1] = r;
    }
  }

  T apply(T p, T, T*, const T* x) const {
    const T r = x[1];
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    return p_ - size_ * r;
  }

  static void answer(int round, const LambNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double size = at_least(S[0], 0.001);
      a[0] = size;
    }
    if (round == 1) {
      const double norm_p = root(S[1]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_r = root(S[2]);
      const double x = at_least(norm_r, k.trust_min_norm);
      const double phi = at_most(w, k.trust_max_norm);
      const double d = x == 0 ? 1 : x;
      const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
      const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
      const double size = k.lr * ratio_;
      a[1] = size;
    }
  }

  static void report(const LambNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[1]);
    const double norm_r = root(S[2]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double x = at_least(norm_r, k.trust_min_norm);
    const double phi = at_most(w, k.trust_max_norm);
    const double d = x == 0 ? 1 : x;
    const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
    const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    to[0] = norm_p;
    to[1] = norm_r;
    to[2] = ratio_;
    to[3] = S[0];
  }

  static void remember(const LambNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LambCautionTrueAdaptFalse {
  using Numbers = LambNumbers;
  static constexpr int STATES = 2, ROUNDS = 1, CACHES = 1, KEEPS = 0;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {1}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{MEAN}};
  static constexpr int KEEP_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, KEEP_WRITES = 1 << S0 | 1 << S1;
  static constexpr int TERMS_READ[1] = {1 << P | 1 << G | 1 << S0 | 1 << S1};
  static constexpr int APPLY_READS = 1 << P | 1 << S0 | 1 << S1, APPLY_WRITES = 0;

  T l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size;

  LambCautionTrueAdaptFalse(const LambNumbers& k, const double* a) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); c1 = T(k.c1);
    c2 = T(k.c2); eps_root = T(k.eps_root); eps = T(k.eps); lam = T(k.lam); lr = T(k.lr); size = T(a[0]);
  }

  void keep(T p, T g, T* s) const {
    const T m = s[0], v = s[1];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    s[0] = m_;
    s[1] = v_;
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    const T m = s[0], v = s[1];
    const T v_hat = c2 * v;
    const T root_v = root(v_hat + eps_root);
    const T u = m / (eps + c1 * root_v);
    const T g_ = g + l2 * unless_off(l2, p);
    const T agrees = (((u > 0) & (g_ > 0)) | ((u < 0) & (g_ < 0))) ? 1 : 0 * u;
    x[0] = agrees;
  }

  T apply(T p, T, T* s, const T* x) const {
    const T m = s[0], v = s[1], agrees = x[0];
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T v_hat = c2 * v;
    const T root_v = root(v_hat + eps_root);
    const T u = m / (eps + c1 * root_v);
    const T u_ = u * agrees / size;
    const T r = u_ + lam * unless_off(lam, p_);
    return p_ - lr * r;
  }

  static void answer(int round, const LambNumbers&, const double* S, const double*, double* a) {
    if (round == 0) {
      const double size = at_least(S[0], 0.001);
      a[0] = size;
    }
  }

  static void report(const LambNumbers&, const double* S, const double*, double* to) {
    to[0] = 1;
    to[1] = S[0];
  }

  static void remember(const LambNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LambKeepNormTrue {
  using Numbers = LambNumbers;
  static constexpr int STATES = 2, ROUNDS = 2, CACHES = 1, KEEPS = 0;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[2] = {2, 1}, CACHED[1] = {0};
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES}};
  static constexpr int KEEP_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, KEEP_WRITES = 1 << S0 | 1 << S1;
  static constexpr int TERMS_READ[2] = {1 << P | 1 << S0 | 1 << S1, 1 << P | 1 << S0 | 1 << S1};
  static constexpr int APPLY_READS = 1 << P | 1 << S0 | 1 << S1, APPLY_WRITES = 0;

  T l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short_, first, second, more;

  LambKeepNormTrue(const LambNumbers& k, const double* a) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); c1 = T(k.c1);
    c2 = T(k.c2); eps_root = T(k.eps_root); eps = T(k.eps); lam = T(k.lam); f_less_1 = T(a[0]); short_ = T(a[1]);
    first = T(a[2]); second = T(a[3]); more = T(a[4]);
  }

  void keep(T p, T g, T* s) const {
    const T m = s[0], v = s[1];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    s[0] = m_;
    s[1] = v_;
  }

  template <int ROUND>
  void terms(T p, T, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T m = s[0], v = s[1];
      const T x_ = unless_off(shrink, p);
      const T p_ = p - shrink * x_;
      const T v_hat = c2 * v;
      const T root_v = root(v_hat + eps_root);
      const T u = m / (eps + c1 * root_v);
      const T r = u + lam * unless_off(lam, p_);
      x[0] = p_;
      x[1] = r;
    }
    if constexpr (ROUND == 1) {
      const T m = s[0], v = s[1];
      const T x_ = unless_off(shrink, p);
      const T p_ = p - shrink * x_;
      const T v_hat = c2 * v;
      const T root_v = root(v_hat + eps_root);
      const T u = m / (eps + c1 * root_v);
      const T r = u + lam * unless_off(lam, p_);
      const T q = p_ + f_less_1 * p_ - short_ * r;
      x[0] = q;
    }
  }

  T apply(T p, T, T* s, const T* x) const {
    const T m = s[0], v = s[1], q = x[0];
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T v_hat = c2 * v;
    const T root_v = root(v_hat + eps_root);
    const T u = m / (eps + c1 * root_v);
    const T r = u + lam * unless_off(lam, p_);
    return p + first * p_ - second * r + more * q;
  }

  static void answer(int round, const LambNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_r = root(S[1]);
      const double x = at_least(norm_r, k.trust_min_norm);
      const double phi = at_most(w, k.trust_max_norm);
      const double d = x == 0 ? 1 : x;
      const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
      const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
      const double size = k.lr * ratio_;
      const double longest = at_least(norm_p, size * norm_r);
      const bool there = (norm_p > 0) & (longest > 0);
      const double f_less_1 = there ? (norm_p - (there ? longest : 1)) / (there ? longest : 1) : 0;
      const double f = there ? norm_p / (there ? longest : 1) : 1;
      const double short_ = size * f;
      a[0] = f_less_1;
      a[1] = short_;
    }
    if (round == 1) {
      const double norm = root(S[2]);
      const double norm_p = root(S[0]);
      const bool cancels = (norm == 0) & (norm_p > 0);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_r = root(S[1]);
      const double x = at_least(norm_r, k.trust_min_norm);
      const double phi = at_most(w, k.trust_max_norm);
      const double d = x == 0 ? 1 : x;
      const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
      const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
      const double size = k.lr * ratio_;
      const double longest = at_least(norm_p, size * norm_r);
      const bool there = (norm_p > 0) & (longest > 0);
      const double f_less_1 = there ? (norm_p - (there ? longest : 1)) / (there ? longest : 1) : 0;
      const double first = cancels ? 0 : f_less_1;
      const double f = there ? norm_p / (there ? longest : 1) : 1;
      const double short_ = size * f;
      const double second = cancels ? 0 : short_;
      const bool there_ = (norm_p > 0) & (norm > 0);
      const double more = there_ ? (norm_p - (there_ ? norm : 1)) / (there_ ? norm : 1) : 0;
      a[2] = first;
      a[3] = second;
      a[4] = more;
    }
  }

  static void report(const LambNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_r = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double x = at_least(norm_r, k.trust_min_norm);
    const double phi = at_most(w, k.trust_max_norm);
    const double d = x == 0 ? 1 : x;
    const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
    const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    to[0] = norm_p;
    to[1] = norm_r;
    to[2] = ratio_;
  }

  static void remember(const LambNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct LambWithNormKeepNormFirst {
  using Numbers = LambNumbers;
  static constexpr int STATES = 2, ROUNDS = 2, CACHES = 1, KEEPS = 0;
  static constexpr int LAYER_STATES = 1, OF_LAYER = 1 << 2;
  static constexpr int SUMS[2] = {2, 1}, CACHED[1] = {0};
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES}};
  static constexpr int KEEP_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, KEEP_WRITES = 1 << S0 | 1 << S1;
  static constexpr int TERMS_READ[2] = {1 << P | 1 << S0 | 1 << S1, 1 << P | 1 << S0 | 1 << S1};
  static constexpr int APPLY_READS = 1 << P | 1 << S0 | 1 << S1, APPLY_WRITES = 0;

  T l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, f_less_1, short_, first, second, more;

  LambWithNormKeepNormFirst(const LambNumbers& k, const double* a) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); c1 = T(k.c1);
    c2 = T(k.c2); eps_root = T(k.eps_root); eps = T(k.eps); lam = T(k.lam); f_less_1 = T(a[0]); short_ = T(a[1]);
    first = T(a[2]); second = T(a[3]); more = T(a[4]);
  }

  void keep(T p, T g, T* s) const {
    const T m = s[0], v = s[1];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    s[0] = m_;
    s[1] = v_;
  }

  template <int ROUND>
  void terms(T p, T, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T m = s[0], v = s[1];
      const T x_ = unless_off(shrink, p);
      const T p_ = p - shrink * x_;
      const T v_hat = c2 * v;
      const T root_v = root(v_hat + eps_root);
      const T u = m / (eps + c1 * root_v);
      const T r = u + lam * unless_off(lam, p_);
      x[0] = p_;
      x[1] = r;
    }
    if constexpr (ROUND == 1) {
      const T m = s[0], v = s[1];
      const T x_ = unless_off(shrink, p);
      const T p_ = p - shrink * x_;
      const T v_hat = c2 * v;
      const T root_v = root(v_hat + eps_root);
      const T u = m / (eps + c1 * root_v);
      const T r = u + lam * unless_off(lam, p_);
      const T q = p_ + f_less_1 * p_ - short_ * r;
      x[0] = q;
    }
  }

  T apply(T p, T, T* s, const T* x) const {
    const T m = s[0], v = s[1], q = x[0];
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T v_hat = c2 * v;
    const T root_v = root(v_hat + eps_root);
    const T u = m / (eps + c1 * root_v);
    const T r = u + lam * unless_off(lam, p_);
    return p + first * p_ - second * r + more * q;
  }

  static void answer(int round, const LambNumbers& k, const double* S, const double* old, double* a) {
    if (round == 0) {
      const double norm_p = root(S[0]);
      const double R_ = old[0] == 0 ? norm_p : old[0];
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_r = root(S[1]);
      const double x = at_least(norm_r, k.trust_min_norm);
      const double phi = at_most(w, k.trust_max_norm);
      const double d = x == 0 ? 1 : x;
      const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
      const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
      const double size = k.lr * ratio_;
      const double longest = at_least(norm_p, size * norm_r);
      const bool there = (R_ > 0) & (longest > 0);
      const double f_less_1 = there ? (R_ - (there ? longest : 1)) / (there ? longest : 1) : 0;
      const double f = there ? R_ / (there ? longest : 1) : 1;
      const double short_ = size * f;
      a[0] = f_less_1;
      a[1] = short_;
    }
    if (round == 1) {
      const double norm = root(S[2]);
      const double norm_p = root(S[0]);
      const bool cancels = (norm == 0) & (norm_p > 0);
      const double R_ = old[0] == 0 ? norm_p : old[0];
      const bool there = (R_ > 0) & (norm_p > 0);
      const double w = at_least(norm_p, k.trust_min_norm);
      const double norm_r = root(S[1]);
      const double x = at_least(norm_r, k.trust_min_norm);
      const double phi = at_most(w, k.trust_max_norm);
      const double d = x == 0 ? 1 : x;
      const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
      const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
      const double size = k.lr * ratio_;
      const double longest = at_least(norm_p, size * norm_r);
      const bool there_ = (R_ > 0) & (longest > 0);
      const double f_less_1 = there_ ? (R_ - (there_ ? longest : 1)) / (there_ ? longest : 1) : 0;
      const double first = cancels ? (there ? (R_ - (there ? norm_p : 1)) / (there ? norm_p : 1) : 0) : f_less_1;
      const double f = there_ ? R_ / (there_ ? longest : 1) : 1;
      const double short_ = size * f;
      const double second = cancels ? 0 : short_;
      const bool there__ = (R_ > 0) & (norm > 0);
      const double more = there__ ? (R_ - (there__ ? norm : 1)) / (there__ ? norm : 1) : 0;
      a[2] = first;
      a[3] = second;
      a[4] = more;
    }
  }

  static void report(const LambNumbers& k, const double* S, const double*, double* to) {
    const double norm_p = root(S[0]);
    const double norm_r = root(S[1]);
    const double w = at_least(norm_p, k.trust_min_norm);
    const double x = at_least(norm_r, k.trust_min_norm);
    const double phi = at_most(w, k.trust_max_norm);
    const double d = x == 0 ? 1 : x;
    const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
    const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    to[0] = norm_p;
    to[1] = norm_r;
    to[2] = ratio_;
  }

  static void remember(const LambNumbers&, const double* S, const double* old, double* to) {
    const double norm_p = root(S[0]);
    const double R_ = old[0] == 0 ? norm_p : old[0];
    to[0] = R_;
  }
};
