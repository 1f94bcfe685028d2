// Printed from rules/lars.py by `make generate`: change that, not this file.

// What Lars computes before it reads a tensor, in this order.
struct LarsNumbers {
  double l2, lam, lam_x, lam_w, eta, eps, unit, lr, damped, mu, pace, whole, trust_min_norm, trust_low, trust_high,
  trust_undefined, trust_adapts;
};

template <class T> struct Lars : Usual {
  using Numbers = LarsNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, SUMS[1] = {2}, TERMS_READ[1] = {1 << P | 1 << G},
    APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;
  static constexpr Total TOTALS[1][4] = {{SQUARES, SQUARES}};

  T l2, lam, lam_x, lr, damped, mu, pace, step, size, f_less_1, short_, first, second, more;

  Lars(const Numbers& k, In a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); lr = T(k.lr); damped = T(k.damped); mu = T(k.mu);
    pace = T(k.pace); step = T(a[0]); size = T(a[1]); f_less_1 = T(a[2]); short_ = T(a[3]); first = T(a[4]);
    second = T(a[5]); more = T(a[6]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lars<T>::answer_0(a...); }

  void terms_0(T p, T g, const T*, T* x) const {
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

  static void answer_0(const Numbers& k, In S, In, Out a, Out to) {
    const double norm_p = root(S[-2]), w = at_least(norm_p, k.trust_min_norm), norm_x = root(S[-1]);
    const double f = at_least(norm_x, k.trust_min_norm), d = f + k.lam_w * unless_off(k.lam_w, w) + k.eps;
    const double ratio = k.eta * w / (f == 0 ? 1 : d);
    const double ratio_ = at_most(at_least(ratio / k.unit, k.trust_low), k.trust_high);
    const double ratio__ = k.trust_adapts == 0 ? 1 : (((w != 0) & (f != 0)) ? ratio_ : k.trust_undefined);
    a[0] = k.lr * ratio__; to[0] = norm_p; to[1] = norm_x; to[2] = ratio__;
  }

  T apply_nesterov_true(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    const T moved = u + mu * b_;
    s[0] = b_;
    return p - pace * moved;
  }

  T apply_adapt_false(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    s[0] = b_;
    return p - pace * b_;
  }

  static void answer_0_adapt_false(const Numbers&, In, In, Out, Out to) {
    to[0] = 1;
  }

  T apply_adapt_false_nesterov_true(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    const T moved = u + mu * b_;
    s[0] = b_;
    return p - pace * moved;
  }

  void terms_1_caution_true(T p, T g, const T* s, T* x) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    const T agrees = (((b_ > 0) & (g_ > 0)) | ((b_ < 0) & (g_ < 0))) ? 1 : 0 * b_;
    x[0] = agrees;
  }

  T apply_caution_true(T p, T g, T* s, const T*) const {
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

  static void answer_1_caution_true(const Numbers&, In S, In, Out a, Out to) {
    const double size = at_least(S[-1], 0.001);
    a[1] = size; to[3] = S[-1];
  }

  void terms_0_caution_true_adapt_false(T p, T g, const T* s, T* x) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    const T agrees = (((b_ > 0) & (g_ > 0)) | ((b_ < 0) & (g_ < 0))) ? 1 : 0 * b_;
    x[0] = agrees;
  }

  T apply_caution_true_adapt_false(T p, T g, T* s, const T*) const {
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

  static void answer_0_caution_true_adapt_false(const Numbers&, In S, In, Out a, Out to) {
    const double size = at_least(S[-1], 0.001);
    a[1] = size; to[0] = 1; to[1] = S[-1];
  }

  T apply_without_momentum_buffer(T p, T g, T*, const T*) const {
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = step * r;
    return p - pace * u;
  }

  T apply_without_momentum_buffer_adapt_false(T p, T g, T*, const T*) const {
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = lr * r;
    return p - pace * u;
  }

  void terms_1_keep_norm_true(T p, T g, const T* s, T* x) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    x[0] = p;
    x[1] = b_;
  }

  void terms_2_keep_norm_true(T p, T g, const T* s, T* x) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    const T q = p + f_less_1 * p - short_ * b_;
    x[0] = q;
  }

  T apply_keep_norm_true(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = step * r;
    const T b_ = damped * u + mu * b;
    const T q = p + f_less_1 * p - short_ * b_;
    s[0] = b_;
    return p + first * p - second * b_ + more * q;
  }

  static void answer_1_keep_norm_true(const Numbers& k, In S, In, Out a, Out) {
    const double norm = root(S[-2]), norm_ = root(S[-1]), longest = at_least(norm, k.pace * norm_);
    const bool there = (norm > 0) & (longest > 0);
    const double f_less_1 = there ? (norm - (there ? longest : 1)) / (there ? longest : 1) : 0;
    const double f = there ? norm / (there ? longest : 1) : 1, short_ = k.pace * f;
    a[2] = f_less_1; a[3] = short_;
  }

  static void answer_2_keep_norm_true(const Numbers&, In S, In, Out a, Out) {
    const double norm = root(S[-1]), norm_ = root(S[-3]);
    const bool cancels = (norm == 0) & (norm_ > 0);
    const double first = cancels ? 0 : a[2], second = cancels ? 0 : a[3];
    const bool there = (norm_ > 0) & (norm > 0);
    const double more = there ? (norm_ - (there ? norm : 1)) / (there ? norm : 1) : 0;
    a[4] = first; a[5] = second; a[6] = more;
  }

  void terms_0_keep_norm_true_adapt_false(T p, T g, const T* s, T* x) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    x[0] = p;
    x[1] = b_;
  }

  void terms_1_keep_norm_true_adapt_false(T p, T g, const T* s, T* x) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    const T q = p + f_less_1 * p - short_ * b_;
    x[0] = q;
  }

  T apply_keep_norm_true_adapt_false(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T r = g_ + lam * unless_off(lam, p);
    const T u = lr * r;
    const T b_ = damped * u + mu * b;
    const T q = p + f_less_1 * p - short_ * b_;
    s[0] = b_;
    return p + first * p - second * b_ + more * q;
  }

  static void answer_0_keep_norm_true_adapt_false(const Numbers& k, In S, In, Out a, Out to) {
    const double norm = root(S[-2]), norm_ = root(S[-1]), longest = at_least(norm, k.pace * norm_);
    const bool there = (norm > 0) & (longest > 0);
    const double f_less_1 = there ? (norm - (there ? longest : 1)) / (there ? longest : 1) : 0;
    const double f = there ? norm / (there ? longest : 1) : 1, short_ = k.pace * f;
    a[2] = f_less_1; a[3] = short_; to[0] = norm; to[1] = norm_; to[2] = 1;
  }

  static void answer_1_with_norm_keep_norm_first(const Numbers& k, In S, In old, Out a, Out) {
    const double norm = root(S[-2]), R_ = old[0] == 0 ? norm : old[0], norm_ = root(S[-1]);
    const double longest = at_least(norm, k.pace * norm_);
    const bool there = (R_ > 0) & (longest > 0);
    const double f_less_1 = there ? (R_ - (there ? longest : 1)) / (there ? longest : 1) : 0;
    const double f = there ? R_ / (there ? longest : 1) : 1, short_ = k.pace * f;
    a[2] = f_less_1; a[3] = short_;
  }

  static void answer_2_with_norm_keep_norm_first(const Numbers&, In S, In old, Out a, Out) {
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

  static void answer_0_with_norm_keep_norm_first_adapt_false(const Numbers& k, In S, In old, Out a, Out to) {
    const double norm = root(S[-2]), R_ = old[0] == 0 ? norm : old[0], norm_ = root(S[-1]);
    const double longest = at_least(norm, k.pace * norm_);
    const bool there = (R_ > 0) & (longest > 0);
    const double f_less_1 = there ? (R_ - (there ? longest : 1)) / (there ? longest : 1) : 0;
    const double f = there ? R_ / (there ? longest : 1) : 1, short_ = k.pace * f;
    a[2] = f_less_1; a[3] = short_; to[0] = norm; to[1] = norm_; to[2] = 1;
  }
};

template <class T> struct LarsNesterovTrue : Lars<T> {
  using Lars<T>::Lars;
  template <class... A> T apply(A... a) const { return this->apply_nesterov_true(a...); }
};

template <class T> struct LarsAdaptFalse : Lars<T> {
  using Lars<T>::Lars;
  static constexpr int ROUNDS = 0, SUMS[1] = {0}, TERMS_READ[1] = {0};
  static constexpr Total TOTALS[1][4] = {{NONE}};
  template <class... A> T apply(A... a) const { return this->apply_adapt_false(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lars<T>::answer_0_adapt_false(a...); }
};

template <class T> struct LarsAdaptFalseNesterovTrue : Lars<T> {
  using Lars<T>::Lars;
  static constexpr int ROUNDS = 0, SUMS[1] = {0}, TERMS_READ[1] = {0};
  static constexpr Total TOTALS[1][4] = {{NONE}};
  template <class... A> T apply(A... a) const { return this->apply_adapt_false_nesterov_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lars<T>::answer_0_adapt_false(a...); }
};

template <class T> struct LarsCautionTrue : Lars<T> {
  using Lars<T>::Lars;
  static constexpr int ROUNDS = 2, SUMS[2] = {2, 1}, TERMS_READ[2] = {1 << P | 1 << G, 1 << P | 1 << G | 1 << S0};
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {MEAN}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0(a...) : this->terms_1_caution_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_caution_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lars<T>::answer_0(a...) : Lars<T>::answer_1_caution_true(a...);
  }
};

template <class T> struct LarsCautionTrueAdaptFalse : Lars<T> {
  using Lars<T>::Lars;
  static constexpr int SUMS[1] = {1}, TERMS_READ[1] = {1 << P | 1 << G | 1 << S0};
  static constexpr Total TOTALS[1][4] = {{MEAN}};
  template <int ROUND, class... A> void terms(A... a) const { this->terms_0_caution_true_adapt_false(a...); }
  template <class... A> T apply(A... a) const { return this->apply_caution_true_adapt_false(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    Lars<T>::answer_0_caution_true_adapt_false(a...);
  }
};

template <class T> struct LarsWithoutMomentumBuffer : Lars<T> {
  using Lars<T>::Lars;
  static constexpr int STATES = 0, APPLY_READS = 1 << P | 1 << G, APPLY_WRITES = 0;
  template <class... A> T apply(A... a) const { return this->apply_without_momentum_buffer(a...); }
};

template <class T> struct LarsWithoutMomentumBufferAdaptFalse : Lars<T> {
  using Lars<T>::Lars;
  static constexpr int STATES = 0, ROUNDS = 0, SUMS[1] = {0}, TERMS_READ[1] = {0}, APPLY_READS = 1 << P | 1 << G,
    APPLY_WRITES = 0;
  static constexpr Total TOTALS[1][4] = {{NONE}};
  template <class... A> T apply(A... a) const { return this->apply_without_momentum_buffer_adapt_false(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lars<T>::answer_0_adapt_false(a...); }
};

template <class T> struct LarsKeepNormTrue : Lars<T> {
  using Lars<T>::Lars;
  static constexpr int ROUNDS = 3, SUMS[3] = {2, 2, 1},
    TERMS_READ[3] = {1 << P | 1 << G, 1 << P | 1 << G | 1 << S0, 1 << P | 1 << G | 1 << S0};
  static constexpr Total TOTALS[3][4] = {{SQUARES, SQUARES}, {SQUARES, SQUARES}, {SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0(a...) : ROUND == 1 ? this->terms_1_keep_norm_true(a...) :
    this->terms_2_keep_norm_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_keep_norm_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lars<T>::answer_0(a...) : ROUND == 1 ? Lars<T>::answer_1_keep_norm_true(a...) :
    Lars<T>::answer_2_keep_norm_true(a...);
  }
};

template <class T> struct LarsKeepNormTrueAdaptFalse : Lars<T> {
  using Lars<T>::Lars;
  static constexpr int ROUNDS = 2, SUMS[2] = {2, 1},
    TERMS_READ[2] = {1 << P | 1 << G | 1 << S0, 1 << P | 1 << G | 1 << S0};
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_keep_norm_true_adapt_false(a...) : this->terms_1_keep_norm_true_adapt_false(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_keep_norm_true_adapt_false(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lars<T>::answer_0_keep_norm_true_adapt_false(a...) : Lars<T>::answer_2_keep_norm_true(a...);
  }
};

template <class T> struct LarsWithNormKeepNormFirst : Lars<T> {
  using Lars<T>::Lars;
  static constexpr int ROUNDS = 3, SUMS[3] = {2, 2, 1},
    TERMS_READ[3] = {1 << P | 1 << G, 1 << P | 1 << G | 1 << S0, 1 << P | 1 << G | 1 << S0}, LAYER_STATES = 1,
    OF_LAYER = 1 << 1;
  static constexpr Total TOTALS[3][4] = {{SQUARES, SQUARES}, {SQUARES, SQUARES}, {SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0(a...) : ROUND == 1 ? this->terms_1_keep_norm_true(a...) :
    this->terms_2_keep_norm_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_keep_norm_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lars<T>::answer_0(a...) : ROUND == 1 ? Lars<T>::answer_1_with_norm_keep_norm_first(a...) :
    Lars<T>::answer_2_with_norm_keep_norm_first(a...);
  }
  template <class... A> static void remember(const A&... a) { Lars<T>::remember_with_norm_keep_norm_first(a...); }
};

template <class T> struct LarsWithNormKeepNormFirstAdaptFalse : Lars<T> {
  using Lars<T>::Lars;
  static constexpr int ROUNDS = 2, SUMS[2] = {2, 1},
    TERMS_READ[2] = {1 << P | 1 << G | 1 << S0, 1 << P | 1 << G | 1 << S0}, LAYER_STATES = 1, OF_LAYER = 1 << 1;
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_keep_norm_true_adapt_false(a...) : this->terms_1_keep_norm_true_adapt_false(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_keep_norm_true_adapt_false(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lars<T>::answer_0_with_norm_keep_norm_first_adapt_false(a...) :
    Lars<T>::answer_2_with_norm_keep_norm_first(a...);
  }
  template <class... A> static void remember(const A&... a) { Lars<T>::remember_with_norm_keep_norm_first(a...); }
};
