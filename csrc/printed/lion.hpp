// Printed from rules/lion.py by `make generate`: change that, not this file.

// What Lion computes before it reads a tensor, in this order.
struct LionNumbers {
  double l2, shrink, b1, a1, b2, a2, lam, lr, trust_min_norm, trust_low, trust_high, trust_undefined, trust_adapts;
};

template <class T> struct Lion : Usual {
  using Numbers = LionNumbers;
  static constexpr int STATES = 1, ROUNDS = 0, SUMS[1] = {0}, TERMS_READ[1] = {0},
    APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;
  static constexpr Total TOTALS[1][4] = {{NONE}};

  T l2, shrink, b1, a1, b2, a2, lam, lr, size, size_;

  Lion(const Numbers& k, In a) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); lam = T(k.lam);
    lr = T(k.lr); size = T(a[0]); size_ = T(a[1]);
  }

  template <int ROUND, class... A> static void answer(const A&... a) { Lion<T>::answer_0(a...); }

  T apply(T p, T g, T* s, const T*) const {
    const T m = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b2 * m + a2 * g_;
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T x__ = a1 * g_ + b1 * m;
    const T u = x__ > 0 ? 1 : (x__ < 0 ? -1 : x__);
    const T r = u + lam * unless_off(lam, p_);
    s[0] = m_;
    return p_ - lr * r;
  }

  static void answer_0(const Numbers&, In, In, Out, Out to) {
    to[0] = 1;
  }

  void terms_0_adapt_true(T p, T g, const T* s, T* x) const {
    const T m = s[0];
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T g_ = g + l2 * unless_off(l2, p);
    const T x__ = a1 * g_ + b1 * m;
    const T u = x__ > 0 ? 1 : (x__ < 0 ? -1 : x__);
    const T r = u + lam * unless_off(lam, p_);
    x[0] = p_;
    x[1] = r;
  }

  T apply_adapt_true(T p, T g, T* s, const T*) const {
    const T m = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b2 * m + a2 * g_;
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T x__ = a1 * g_ + b1 * m;
    const T u = x__ > 0 ? 1 : (x__ < 0 ? -1 : x__);
    const T r = u + lam * unless_off(lam, p_);
    s[0] = m_;
    return p_ - size * r;
  }

  static void answer_0_adapt_true(const Numbers& k, In S, In, Out a, Out to) {
    const double norm = root(S[-2]), w = at_least(norm, k.trust_min_norm), norm_ = root(S[-1]);
    const double x = at_least(norm_, k.trust_min_norm), d = x == 0 ? 1 : x;
    const double ratio = at_most(at_least(w / d, k.trust_low), k.trust_high);
    const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    const double size = k.lr * ratio_;
    a[0] = size; to[0] = norm; to[1] = norm_; to[2] = ratio_;
  }

  void terms_0_caution_true(T p, T g, const T* s, T* x) const {
    const T m = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T x_ = a1 * g_ + b1 * m;
    const T u = x_ > 0 ? 1 : (x_ < 0 ? -1 : x_);
    const T agrees = (((u > 0) & (g_ > 0)) | ((u < 0) & (g_ < 0))) ? 1 : 0 * u;
    x[0] = agrees;
  }

  T apply_caution_true(T p, T g, T* s, const T*) const {
    const T m = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b2 * m + a2 * g_;
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T x__ = a1 * g_ + b1 * m;
    const T u = x__ > 0 ? 1 : (x__ < 0 ? -1 : x__);
    const T agrees = (((u > 0) & (g_ > 0)) | ((u < 0) & (g_ < 0))) ? 1 : 0 * u;
    const T u_ = u * agrees / size;
    const T r = u_ + lam * unless_off(lam, p_);
    s[0] = m_;
    return p_ - lr * r;
  }

  static void answer_0_caution_true(const Numbers&, In S, In, Out a, Out to) {
    const double size = at_least(S[-1], 0.001);
    a[0] = size; to[0] = 1; to[1] = S[-1];
  }

  void terms_1_caution_true_adapt_true(T p, T g, const T* s, T* x) const {
    const T m = s[0];
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    const T g_ = g + l2 * unless_off(l2, p);
    const T x__ = a1 * g_ + b1 * m;
    const T u = x__ > 0 ? 1 : (x__ < 0 ? -1 : x__);
    const T agrees = (((u > 0) & (g_ > 0)) | ((u < 0) & (g_ < 0))) ? 1 : 0 * u;
    const T u_ = u * agrees / size;
    const T r = u_ + lam * unless_off(lam, p_);
    x[0] = p_;
    x[1] = r;
  }

  T apply_caution_true_adapt_true(T p, T g, T* s, const T* x) const {
    const T m = s[0], r = x[1];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b2 * m + a2 * g_;
    const T x_ = unless_off(shrink, p);
    const T p_ = p - shrink * x_;
    s[0] = m_;
    return p_ - size_ * r;
  }

  static void answer_0_caution_true_adapt_true(const Numbers&, In S, In, Out a, Out to) {
    const double size = at_least(S[-1], 0.001);
    a[0] = size; to[3] = S[-1];
  }

  static void answer_1_caution_true_adapt_true(const Numbers& k, In S, In, Out a, Out to) {
    const double norm = root(S[-2]), w = at_least(norm, k.trust_min_norm), norm_ = root(S[-1]);
    const double x = at_least(norm_, k.trust_min_norm), d = x == 0 ? 1 : x;
    const double ratio = at_most(at_least(w / d, k.trust_low), k.trust_high);
    const double ratio_ = k.trust_adapts == 0 ? 1 : (((w != 0) & (x != 0)) ? ratio : k.trust_undefined);
    const double size = k.lr * ratio_;
    a[1] = size; to[0] = norm; to[1] = norm_; to[2] = ratio_;
  }
};

template <class T> struct LionAdaptTrue : Lion<T> {
  using Lion<T>::Lion;
  static constexpr int ROUNDS = 1, SUMS[1] = {2}, TERMS_READ[1] = {1 << P | 1 << G | 1 << S0};
  static constexpr Total TOTALS[1][4] = {{SQUARES, SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const { this->terms_0_adapt_true(a...); }
  template <class... A> T apply(A... a) const { return this->apply_adapt_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lion<T>::answer_0_adapt_true(a...); }
};

template <class T> struct LionCautionTrue : Lion<T> {
  using Lion<T>::Lion;
  static constexpr int ROUNDS = 1, SUMS[1] = {1}, TERMS_READ[1] = {1 << P | 1 << G | 1 << S0};
  static constexpr Total TOTALS[1][4] = {{MEAN}};
  template <int ROUND, class... A> void terms(A... a) const { this->terms_0_caution_true(a...); }
  template <class... A> T apply(A... a) const { return this->apply_caution_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lion<T>::answer_0_caution_true(a...); }
};

template <class T> struct LionCautionTrueAdaptTrue : Lion<T> {
  using Lion<T>::Lion;
  static constexpr int ROUNDS = 2, SUMS[2] = {1, 2}, CACHES = 1, CACHED[1] = {1},
    TERMS_READ[2] = {1 << P | 1 << G | 1 << S0, 1 << P | 1 << G | 1 << S0};
  static constexpr Total TOTALS[2][4] = {{MEAN}, {SQUARES, SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_caution_true(a...) : this->terms_1_caution_true_adapt_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_caution_true_adapt_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lion<T>::answer_0_caution_true_adapt_true(a...) : Lion<T>::answer_1_caution_true_adapt_true(a...);
  }
};
