// Printed from rules/lamb.py by `make generate`: change that, not this file.

// What Lamb computes before it reads a tensor, in this order.
struct LambNumbers {
  double l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, max_norm, trust_eps, trust_min_norm, trust_low,
  trust_high, trust_undefined, trust_adapts;
};

template <class T> struct Lamb : Usual {
  using Numbers = LambNumbers;
  static constexpr int STATES = 2, ROUNDS = 1, SUMS[1] = {2}, CACHES = 1, CACHED[1] = {1}, KEEPS = 0,
    KEEP_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, KEEP_WRITES = 1 << S0 | 1 << S1,
    TERMS_READ[1] = {1 << P | 1 << S0 | 1 << S1}, APPLY_READS = 1 << P, APPLY_WRITES = 0;
  static constexpr Total TOTALS[1][4] = {{SQUARES, SQUARES}};

  T l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, size, size_, f_less_1, short_, first, second, more;

  Lamb(const Numbers& k, In a) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); c1 = T(k.c1);
    c2 = T(k.c2); eps_root = T(k.eps_root); eps = T(k.eps); lam = T(k.lam); lr = T(k.lr); size = T(a[0]);
    size_ = T(a[1]); f_less_1 = T(a[2]); short_ = T(a[3]); first = T(a[4]); second = T(a[5]); more = T(a[6]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lamb<T>::answer_0(a...); }

  void keep(T p, T g, T* s) const {
    const T m = s[0], v = s[1];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    s[0] = m_;
    s[1] = v_;
  }

  void terms_0(T p, T, const T* s, T* x) const {
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

  static void answer_0(const Numbers& k, In S, In, Out a, Out to) {
    const double norm = root(S[-2]), w = at_least(norm, k.trust_min_norm), norm_ = root(S[-1]);
    const double x = at_least(norm_, k.trust_min_norm), phi = at_most(w, k.max_norm), d = x == 0 ? 1 : x;
    const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
    const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    const double size = k.lr * ratio_;
    a[0] = size; to[0] = norm; to[1] = norm_; to[2] = ratio_;
  }

  T apply_adapt_false(T p, T g, T* s, const T*) const {
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

  static void answer_0_adapt_false(const Numbers&, In, In, Out, Out to) {
    to[0] = 1;
  }

  void terms_0_caution_true(T p, T g, const T* s, T* x) const {
    const T m = s[0], v = s[1];
    const T v_hat = c2 * v;
    const T root_v = root(v_hat + eps_root);
    const T u = m / (eps + c1 * root_v);
    const T g_ = g + l2 * unless_off(l2, p);
    const T agrees = (((u > 0) & (g_ > 0)) | ((u < 0) & (g_ < 0))) ? 1 : 0 * u;
    x[0] = agrees;
  }

  void terms_1_caution_true(T p, T g, const T* s, T* x) const {
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

  T apply_caution_true(T p, T, T*, const T* x) const {
    const T r = x[1];
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    return p_ - size_ * r;
  }

  static void answer_0_caution_true(const Numbers&, In S, In, Out a, Out to) {
    const double size = at_least(S[-1], 0.001);
    a[0] = size; to[3] = S[-1];
  }

  static void answer_1_caution_true(const Numbers& k, In S, In, Out a, Out to) {
    const double norm = root(S[-2]), w = at_least(norm, k.trust_min_norm), norm_ = root(S[-1]);
    const double x = at_least(norm_, k.trust_min_norm), phi = at_most(w, k.max_norm), d = x == 0 ? 1 : x;
    const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
    const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    const double size = k.lr * ratio_;
    a[1] = size; to[0] = norm; to[1] = norm_; to[2] = ratio_;
  }

  T apply_caution_true_adapt_false(T p, T, T* s, const T* x) const {
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

  static void answer_0_caution_true_adapt_false(const Numbers&, In S, In, Out a, Out to) {
    const double size = at_least(S[-1], 0.001);
    a[0] = size; to[0] = 1; to[1] = S[-1];
  }

  void terms_1_keep_norm_true(T p, T, const T* s, T* x) const {
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

  T apply_keep_norm_true(T p, T, T* s, const T* x) const {
    const T m = s[0], v = s[1], q = x[0];
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T v_hat = c2 * v;
    const T root_v = root(v_hat + eps_root);
    const T u = m / (eps + c1 * root_v);
    const T r = u + lam * unless_off(lam, p_);
    return p + first * p_ - second * r + more * q;
  }

  static void answer_0_keep_norm_true(const Numbers& k, In S, In, Out a, Out to) {
    const double norm = root(S[-2]), w = at_least(norm, k.trust_min_norm), norm_ = root(S[-1]);
    const double x = at_least(norm_, k.trust_min_norm), phi = at_most(w, k.max_norm), d = x == 0 ? 1 : x;
    const double ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
    const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    const double size = k.lr * ratio_, longest = at_least(norm, size * norm_);
    const bool there = (norm > 0) & (longest > 0);
    const double f_less_1 = there ? (norm - (there ? longest : 1)) / (there ? longest : 1) : 0;
    const double f = there ? norm / (there ? longest : 1) : 1, short_ = size * f;
    a[2] = f_less_1; a[3] = short_; to[0] = norm; to[1] = norm_; to[2] = ratio_;
  }

  static void answer_1_keep_norm_true(const Numbers&, In S, In, Out a, Out) {
    const double norm = root(S[-1]), norm_ = root(S[-3]);
    const bool cancels = (norm == 0) & (norm_ > 0);
    const double first = cancels ? 0 : a[2], second = cancels ? 0 : a[3];
    const bool there = (norm_ > 0) & (norm > 0);
    const double more = there ? (norm_ - (there ? norm : 1)) / (there ? norm : 1) : 0;
    a[4] = first; a[5] = second; a[6] = more;
  }

  static void answer_0_with_norm_keep_norm_first(const Numbers& k, In S, In old, Out a, Out to) {
    const double norm = root(S[-2]), R_ = old[0] == 0 ? norm : old[0], w = at_least(norm, k.trust_min_norm);
    const double norm_ = root(S[-1]), x = at_least(norm_, k.trust_min_norm), phi = at_most(w, k.max_norm);
    const double d = x == 0 ? 1 : x, ratio = at_most(at_least(phi / (d + k.trust_eps), k.trust_low), k.trust_high);
    const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    const double size = k.lr * ratio_, longest = at_least(norm, size * norm_);
    const bool there = (R_ > 0) & (longest > 0);
    const double f_less_1 = there ? (R_ - (there ? longest : 1)) / (there ? longest : 1) : 0;
    const double f = there ? R_ / (there ? longest : 1) : 1, short_ = size * f;
    a[2] = f_less_1; a[3] = short_; to[0] = norm; to[1] = norm_; to[2] = ratio_;
  }

  static void answer_1_with_norm_keep_norm_first(const Numbers&, In S, In old, Out a, Out) {
    const double norm = root(S[-1]), norm_ = root(S[-3]);
    const bool cancels = (norm == 0) & (norm_ > 0);
    const double R_ = old[0] == 0 ? norm_ : old[0];
    const bool there = (R_ > 0) & (norm_ > 0);
    const double first = cancels ? (there ? (R_ - (there ? norm_ : 1)) / (there ? norm_ : 1) : 0) : a[2];
    const double second = cancels ? 0 : a[3];
    const bool there_ = (R_ > 0) & (norm > 0);
    const double more = there_ ? (R_ - (there_ ? norm : 1)) / (there_ ? norm : 1) : 0;
    a[4] = first; a[5] = second; a[6] = more;
  }

  static void remember_with_norm_keep_norm_first(const Numbers&, In S, In old, Out to) {
    const double norm = root(S[-3]), R_ = old[0] == 0 ? norm : old[0];
    to[0] = R_;
  }
};

template <class T> struct LambAdaptFalse : Lamb<T> {
  using Lamb<T>::Lamb;
  static constexpr int ROUNDS = 0, SUMS[1] = {0}, CACHES = 0, CACHED[1] = {0}, KEEPS = -1, KEEP_READS = 0,
    KEEP_WRITES = 0, TERMS_READ[1] = {0}, APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1,
    APPLY_WRITES = 1 << S0 | 1 << S1;
  static constexpr Total TOTALS[1][4] = {{NONE}};
  template <class... A> T apply(A... a) const { return this->apply_adapt_false(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lamb<T>::answer_0_adapt_false(a...); }
};

template <class T> struct LambCautionTrue : Lamb<T> {
  using Lamb<T>::Lamb;
  static constexpr int ROUNDS = 2, SUMS[2] = {1, 2},
    TERMS_READ[2] = {1 << P | 1 << G | 1 << S0 | 1 << S1, 1 << P | 1 << G | 1 << S0 | 1 << S1};
  static constexpr Total TOTALS[2][4] = {{MEAN}, {SQUARES, SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_caution_true(a...) : this->terms_1_caution_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_caution_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lamb<T>::answer_0_caution_true(a...) : Lamb<T>::answer_1_caution_true(a...);
  }
};

template <class T> struct LambCautionTrueAdaptFalse : Lamb<T> {
  using Lamb<T>::Lamb;
  static constexpr int SUMS[1] = {1}, CACHED[1] = {0}, TERMS_READ[1] = {1 << P | 1 << G | 1 << S0 | 1 << S1},
    APPLY_READS = 1 << P | 1 << S0 | 1 << S1;
  static constexpr Total TOTALS[1][4] = {{MEAN}};
  template <int ROUND, class... A> void terms(A... a) const { this->terms_0_caution_true(a...); }
  template <class... A> T apply(A... a) const { return this->apply_caution_true_adapt_false(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    Lamb<T>::answer_0_caution_true_adapt_false(a...);
  }
};

template <class T> struct LambKeepNormTrue : Lamb<T> {
  using Lamb<T>::Lamb;
  static constexpr int ROUNDS = 2, SUMS[2] = {2, 1}, CACHED[1] = {0},
    TERMS_READ[2] = {1 << P | 1 << S0 | 1 << S1, 1 << P | 1 << S0 | 1 << S1}, APPLY_READS = 1 << P | 1 << S0 | 1 << S1;
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0(a...) : this->terms_1_keep_norm_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_keep_norm_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lamb<T>::answer_0_keep_norm_true(a...) : Lamb<T>::answer_1_keep_norm_true(a...);
  }
};

template <class T> struct LambWithNormKeepNormFirst : Lamb<T> {
  using Lamb<T>::Lamb;
  static constexpr int ROUNDS = 2, SUMS[2] = {2, 1}, CACHED[1] = {0},
    TERMS_READ[2] = {1 << P | 1 << S0 | 1 << S1, 1 << P | 1 << S0 | 1 << S1}, APPLY_READS = 1 << P | 1 << S0 | 1 << S1,
    LAYER_STATES = 1, OF_LAYER = 1 << 2;
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0(a...) : this->terms_1_keep_norm_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_keep_norm_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lamb<T>::answer_0_with_norm_keep_norm_first(a...) : Lamb<T>::answer_1_with_norm_keep_norm_first(a...);
  }
  template <class... A> static void remember(const A&... a) { Lamb<T>::remember_with_norm_keep_norm_first(a...); }
};
