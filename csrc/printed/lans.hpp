// Printed from rules/lans.py by `make generate`: change that, not this file.

// What Lans computes before it reads a tensor, in this order.
struct LansNumbers {
  double b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, max_norm, trust_min_norm, trust_low, trust_high,
  trust_undefined, trust_adapts;
};

template <class T> struct Lans : Usual {
  using Numbers = LansNumbers;
  static constexpr int STATES = 2, ROUNDS = 2, SUMS[2] = {1, 3}, CACHES = 2, CACHED[2] = {1, 2}, KEEPS = 1,
    KEEP_READS = 1 << G | 1 << S0 | 1 << S1, KEEP_WRITES = 1 << S0 | 1 << S1,
    TERMS_READ[2] = {1 << G, 1 << P | 1 << G | 1 << S0 | 1 << S1}, APPLY_READS = 1 << P, APPLY_WRITES = 0;
  static constexpr Total TOTALS[2][4] = {{SQUARES}, {SQUARES, SQUARES, SQUARES}};

  T b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, size, step, step_;

  Lans(const Numbers& k, In a) {
    b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); c1 = T(k.c1); c2 = T(k.c2); eps_root = T(k.eps_root);
    eps = T(k.eps); lam = T(k.lam); lr_r = T(k.lr_r); lr_c = T(k.lr_c); size = T(a[0]); step = T(a[1]); step_ = T(a[2]);
  }

  template <int ROUND, class... A> void terms(A... a) const { ROUND == 0 ? this->terms_0(a...) : this->terms_1(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lans<T>::answer_0(a...) : Lans<T>::answer_1(a...);
  }

  void keep(T, T g, T* s) const {
    const T m = s[0], v = s[1];
    const T g_ = g / size;
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    s[0] = m_;
    s[1] = v_;
  }

  void terms_0(T, T g, const T*, T* x) const {
    x[0] = g;
  }

  void terms_1(T p, T g, const T* s, T* x) const {
    const T m = s[0], v = s[1];
    const T v_hat = c2 * v;
    const T d = root(v_hat + eps_root) + eps;
    const T r = c1 * m / d;
    const T r_ = r + lam * unless_off(lam, p);
    const T g_ = g / size;
    const T c = g_ / d;
    const T c_ = c + lam * unless_off(lam, p);
    x[0] = p;
    x[1] = r_;
    x[2] = c_;
  }

  T apply(T p, T, T*, const T* x) const {
    const T r = x[1], c = x[2];
    return p - step * r - step_ * c;
  }

  static void answer_0(const Numbers&, In S, In, Out a, Out) {
    const double norm = root(S[-1]), size = norm == 0 ? 1 : norm;
    a[0] = size;
  }

  static void answer_1(const Numbers& k, In S, In, Out a, Out to) {
    const double norm_p = root(S[-3]), w = at_least(norm_p, k.trust_min_norm), norm_r = root(S[-2]);
    const double x = at_least(norm_r, k.trust_min_norm), phi = at_most(w, k.max_norm), d = x == 0 ? 1 : x;
    const double ratio = at_most(at_least(phi / d, k.trust_low), k.trust_high);
    const double ratio_r = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    const double norm_c = root(S[-1]), y = at_least(norm_c, k.trust_min_norm), d_ = y == 0 ? 1 : y;
    const double ratio_ = at_most(at_least(phi / d_, k.trust_low), k.trust_high);
    const double ratio_c = k.trust_adapts == 0 ? 1 : (((w != 0) & (y != 0)) ? ratio_ : k.trust_undefined);
    a[1] = k.lr_r * ratio_r; a[2] = k.lr_c * ratio_c; to[0] = norm_p; to[1] = norm_r; to[2] = ratio_r;
  }

  T apply_adapt_false(T p, T g, T* s, const T*) const {
    const T m = s[0], v = s[1];
    const T g_ = g / size;
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    const T v_hat = c2 * v_;
    const T d = root(v_hat + eps_root) + eps;
    const T r = c1 * m_ / d;
    const T r_ = r + lam * unless_off(lam, p);
    const T c = g_ / d;
    const T c_ = c + lam * unless_off(lam, p);
    s[0] = m_;
    s[1] = v_;
    return p - lr_r * r_ - lr_c * c_;
  }

  static void answer_0_adapt_false(const Numbers&, In S, In, Out a, Out to) {
    const double norm = root(S[-1]), size = norm == 0 ? 1 : norm;
    a[0] = size; to[0] = 1;
  }
};

template <class T> struct LansAdaptFalse : Lans<T> {
  using Lans<T>::Lans;
  static constexpr int ROUNDS = 1, SUMS[1] = {1}, CACHES = 0, CACHED[1] = {0}, KEEPS = -1, KEEP_READS = 0,
    KEEP_WRITES = 0, TERMS_READ[1] = {1 << G}, APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1,
    APPLY_WRITES = 1 << S0 | 1 << S1;
  static constexpr Total TOTALS[1][4] = {{SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <class... A> T apply(A... a) const { return this->apply_adapt_false(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lans<T>::answer_0_adapt_false(a...); }
};
