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

  T l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1, answer2, answer3, answer4, answer5;

  Lars(const Numbers& k, In a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); lr = T(k.lr); damped = T(k.damped); mu = T(k.mu);
    pace = T(k.pace); answer0 = T(a[0]); answer1 = T(a[1]); answer2 = T(a[2]); answer3 = T(a[3]); answer4 = T(a[4]);
    answer5 = T(a[5]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lars<T>::answer_0(a...); }

  void terms_0(T p, T g, const T*, T* x) const {
    x[0] = p;
    x[1] = g + l2 * unless_off(l2, p) + lam_x * unless_off(lam_x, p);
  }

  T apply(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T momentum_buffer_ = damped * (answer0 * y0) + mu * momentum_buffer;
    s[0] = momentum_buffer_;
    return p - pace * momentum_buffer_;
  }

  static void answer_0(const Numbers& k, In S, In, Out a, Out to) {
    const double weight_norm = root(S[-2]), y1 = at_least(weight_norm, k.trust_min_norm), update_norm = root(S[-1]);
    const double y3 = at_least(update_norm, k.trust_min_norm);
    const double y4 = y3 == 0 ? 1 : y3 + k.lam_w * unless_off(k.lam_w, y1) + k.eps;
    const double y5 = at_most(at_least(k.eta * y1 / y4 / k.unit, k.trust_low), k.trust_high);
    const double trust_ratio = k.trust_adapts == 0 ? 1 : (((y1 != 0) & (y3 != 0)) ? y5 : k.trust_undefined);
    a[0] = k.lr * trust_ratio; to[0] = weight_norm; to[1] = update_norm; to[2] = trust_ratio;
  }

  T apply_nesterov_true(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T momentum_buffer_ = damped * (answer0 * y0) + mu * momentum_buffer;
    s[0] = momentum_buffer_;
    return p - pace * (answer0 * y0 + mu * momentum_buffer_);
  }

  T apply_adapt_false(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer;
    s[0] = momentum_buffer_;
    return p - pace * momentum_buffer_;
  }

  static void answer_0_adapt_false(const Numbers&, In, In, Out, Out to) {
    to[0] = 1;
  }

  T apply_adapt_false_nesterov_true(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer;
    s[0] = momentum_buffer_;
    return p - pace * (lr * y0 + mu * momentum_buffer_);
  }

  void terms_1_caution_true(T p, T g, const T* s, T* x) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p);
    const T y1 = damped * (answer0 * (y0 + lam * unless_off(lam, p)));
    const T momentum_buffer_ = y1 + mu * momentum_buffer;
    const bool y3 = ((momentum_buffer_ > 0) & (y0 > 0)) | ((momentum_buffer_ < 0) & (y0 < 0));
    x[0] = y3 ? 1 : 0 * momentum_buffer_;
  }

  T apply_caution_true(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p);
    const T y1 = damped * (answer0 * (y0 + lam * unless_off(lam, p)));
    const T momentum_buffer_ = y1 + mu * momentum_buffer;
    const bool y3 = ((momentum_buffer_ > 0) & (y0 > 0)) | ((momentum_buffer_ < 0) & (y0 < 0));
    const T y4 = momentum_buffer_ * (y3 ? 1 : 0 * momentum_buffer_);
    s[0] = momentum_buffer_;
    return p - pace * (y4 / answer1);
  }

  static void answer_1_caution_true(const Numbers&, In S, In, Out a, Out to) {
    a[1] = at_least(S[-1], 0.001); to[3] = S[-1];
  }

  void terms_0_caution_true_adapt_false(T p, T g, const T* s, T* x) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p);
    const T momentum_buffer_ = damped * (lr * (y0 + lam * unless_off(lam, p))) + mu * momentum_buffer;
    const bool y2 = ((momentum_buffer_ > 0) & (y0 > 0)) | ((momentum_buffer_ < 0) & (y0 < 0));
    x[0] = y2 ? 1 : 0 * momentum_buffer_;
  }

  T apply_caution_true_adapt_false(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p);
    const T momentum_buffer_ = damped * (lr * (y0 + lam * unless_off(lam, p))) + mu * momentum_buffer;
    const bool y2 = ((momentum_buffer_ > 0) & (y0 > 0)) | ((momentum_buffer_ < 0) & (y0 < 0));
    const T y3 = momentum_buffer_ * (y2 ? 1 : 0 * momentum_buffer_);
    s[0] = momentum_buffer_;
    return p - pace * (y3 / answer0);
  }

  static void answer_0_caution_true_adapt_false(const Numbers&, In S, In, Out a, Out to) {
    a[0] = at_least(S[-1], 0.001); to[0] = 1; to[1] = S[-1];
  }

  T apply_without_momentum_buffer(T p, T g, T*, const T*) const {
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    return p - pace * (answer0 * y0);
  }

  T apply_without_momentum_buffer_adapt_false(T p, T g, T*, const T*) const {
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    return p - pace * (lr * y0);
  }

  void terms_1_keep_norm_true(T p, T g, const T* s, T* x) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T momentum_buffer_ = damped * (answer0 * y0) + mu * momentum_buffer;
    x[0] = p;
    x[1] = momentum_buffer_;
  }

  void terms_2_keep_norm_true(T p, T g, const T* s, T* x) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T momentum_buffer_ = damped * (answer0 * y0) + mu * momentum_buffer;
    x[0] = p + answer1 * p - answer2 * momentum_buffer_;
  }

  T apply_keep_norm_true(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T momentum_buffer_ = damped * (answer0 * y0) + mu * momentum_buffer;
    const T y2 = answer5 * (p + answer1 * p - answer2 * momentum_buffer_);
    s[0] = momentum_buffer_;
    return p + answer3 * p - answer4 * momentum_buffer_ + y2;
  }

  static void answer_1_keep_norm_true(const Numbers& k, In S, In, Out a, Out) {
    const double y0 = root(S[-2]), y1 = at_least(y0, k.pace * root(S[-1]));
    const bool y2 = (y0 > 0) & (y1 > 0);
    a[1] = y2 ? (y0 - (y2 ? y1 : 1)) / (y2 ? y1 : 1) : 0; a[2] = k.pace * (y2 ? y0 / (y2 ? y1 : 1) : 1);
  }

  static void answer_2_keep_norm_true(const Numbers&, In S, In, Out a, Out) {
    const double y0 = root(S[-1]), y1 = root(S[-3]);
    const bool y2 = (y0 == 0) & (y1 > 0), y3 = (y1 > 0) & (y0 > 0);
    a[3] = y2 ? 0 : a[1]; a[4] = y2 ? 0 : a[2]; a[5] = y3 ? (y1 - (y3 ? y0 : 1)) / (y3 ? y0 : 1) : 0;
  }

  void terms_0_keep_norm_true_adapt_false(T p, T g, const T* s, T* x) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer;
    x[0] = p;
    x[1] = momentum_buffer_;
  }

  void terms_1_keep_norm_true_adapt_false(T p, T g, const T* s, T* x) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer;
    x[0] = p + answer0 * p - answer1 * momentum_buffer_;
  }

  T apply_keep_norm_true_adapt_false(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T momentum_buffer_ = damped * (lr * y0) + mu * momentum_buffer;
    const T y2 = answer4 * (p + answer0 * p - answer1 * momentum_buffer_);
    s[0] = momentum_buffer_;
    return p + answer2 * p - answer3 * momentum_buffer_ + y2;
  }

  static void answer_0_keep_norm_true_adapt_false(const Numbers& k, In S, In, Out a, Out to) {
    const double weight_norm = root(S[-2]), update_norm = root(S[-1]), y2 = at_least(weight_norm, k.pace * update_norm);
    const bool y3 = (weight_norm > 0) & (y2 > 0);
    a[0] = y3 ? (weight_norm - (y3 ? y2 : 1)) / (y3 ? y2 : 1) : 0;
    a[1] = k.pace * (y3 ? weight_norm / (y3 ? y2 : 1) : 1); to[0] = weight_norm; to[1] = update_norm; to[2] = 1;
  }

  static void answer_1_keep_norm_true_adapt_false(const Numbers&, In S, In, Out a, Out) {
    const double y0 = root(S[-1]), weight_norm = root(S[-3]);
    const bool y2 = (y0 == 0) & (weight_norm > 0), y3 = (weight_norm > 0) & (y0 > 0);
    a[2] = y2 ? 0 : a[0]; a[3] = y2 ? 0 : a[1]; a[4] = y3 ? (weight_norm - (y3 ? y0 : 1)) / (y3 ? y0 : 1) : 0;
  }

  static void answer_1_with_norm_keep_norm_first(const Numbers& k, In S, In old, Out a, Out) {
    const double y0 = root(S[-2]), norm = old[0] == 0 ? y0 : old[0], y2 = at_least(y0, k.pace * root(S[-1]));
    const bool y3 = (norm > 0) & (y2 > 0);
    a[1] = y3 ? (norm - (y3 ? y2 : 1)) / (y3 ? y2 : 1) : 0; a[2] = k.pace * (y3 ? norm / (y3 ? y2 : 1) : 1);
  }

  static void answer_2_with_norm_keep_norm_first(const Numbers&, In S, In old, Out a, Out) {
    const double y0 = root(S[-1]), y1 = root(S[-3]);
    const bool y2 = (y0 == 0) & (y1 > 0);
    const double norm = old[0] == 0 ? y1 : old[0];
    const bool y4 = (norm > 0) & (y1 > 0), y5 = (norm > 0) & (y0 > 0);
    a[3] = y2 ? (y4 ? (norm - (y4 ? y1 : 1)) / (y4 ? y1 : 1) : 0) : a[1]; a[4] = y2 ? 0 : a[2];
    a[5] = y5 ? (norm - (y5 ? y0 : 1)) / (y5 ? y0 : 1) : 0;
  }

  static void remember_with_norm_keep_norm_first(const Numbers&, In S, In old, Out to) {
    const double norm = old[0] == 0 ? root(S[-3]) : old[0];
    to[0] = norm;
  }

  static void answer_0_with_norm_keep_norm_first_adapt_false(const Numbers& k, In S, In old, Out a, Out to) {
    const double weight_norm = root(S[-2]), norm = old[0] == 0 ? weight_norm : old[0], update_norm = root(S[-1]);
    const double y3 = at_least(weight_norm, k.pace * update_norm);
    const bool y4 = (norm > 0) & (y3 > 0);
    a[0] = y4 ? (norm - (y4 ? y3 : 1)) / (y4 ? y3 : 1) : 0; a[1] = k.pace * (y4 ? norm / (y4 ? y3 : 1) : 1);
    to[0] = weight_norm; to[1] = update_norm; to[2] = 1;
  }

  static void answer_1_with_norm_keep_norm_first_adapt_false(const Numbers&, In S, In old, Out a, Out) {
    const double y0 = root(S[-1]), weight_norm = root(S[-3]);
    const bool y2 = (y0 == 0) & (weight_norm > 0);
    const double norm = old[0] == 0 ? weight_norm : old[0];
    const bool y4 = (norm > 0) & (weight_norm > 0);
    const double y5 = (norm - (y4 ? weight_norm : 1)) / (y4 ? weight_norm : 1);
    const bool y6 = (norm > 0) & (y0 > 0);
    a[2] = y2 ? (y4 ? y5 : 0) : a[0]; a[3] = y2 ? 0 : a[1]; a[4] = y6 ? (norm - (y6 ? y0 : 1)) / (y6 ? y0 : 1) : 0;
  }

  static void remember_with_norm_keep_norm_first_adapt_false(const Numbers&, In S, In old, Out to) {
    const double weight_norm = root(S[-3]), norm = old[0] == 0 ? weight_norm : old[0];
    to[0] = norm;
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
    ROUND == 0 ? Lars<T>::answer_0_keep_norm_true_adapt_false(a...) :
    Lars<T>::answer_1_keep_norm_true_adapt_false(a...);
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
    Lars<T>::answer_1_with_norm_keep_norm_first_adapt_false(a...);
  }
  template <class... A> static void remember(const A&... a) {
    Lars<T>::remember_with_norm_keep_norm_first_adapt_false(a...);
  }
};

#define LAYERWISE_PROGRAMS(X) \
  X(Lars) \
  X(LarsNesterovTrue) \
  X(LarsAdaptFalse) \
  X(LarsAdaptFalseNesterovTrue) \
  X(LarsCautionTrue) \
  X(LarsCautionTrueAdaptFalse) \
  X(LarsWithoutMomentumBuffer) \
  X(LarsWithoutMomentumBufferAdaptFalse) \
  X(LarsKeepNormTrue) \
  X(LarsKeepNormTrueAdaptFalse) \
  X(LarsWithNormKeepNormFirst) \
  X(LarsWithNormKeepNormFirstAdaptFalse)
