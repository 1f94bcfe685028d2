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

  T l2, lam, lam_x, lr, damped, mu, pace, answer0, answer1;

  Lars(const Numbers& k, In a) {
    l2 = T(k.l2); lam = T(k.lam); lam_x = T(k.lam_x); lr = T(k.lr); damped = T(k.damped); mu = T(k.mu);
    pace = T(k.pace); answer0 = T(a[0]); answer1 = T(a[1]);
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
    const T momentum_buffer_ = damped * (answer0 * (answer1 * y0)) + mu * momentum_buffer;
    s[0] = momentum_buffer_;
    return p - pace * momentum_buffer_;
  }

  static void answer_0(const Numbers& k, In S, In, Out a, Out to) {
    const double update_norm = root(S[-1]), y1 = at_least(update_norm, k.trust_min_norm), weight_norm = root(S[-2]);
    const double y3 = at_least(weight_norm, k.trust_min_norm);
    const double y4 = y1 == 0 ? 1 : y1 + k.lam_w * unless_off(k.lam_w, y3) + k.eps;
    const double y5 = k.eta * y3 > 1.8446744073709552e+19 ? 5.960464477539063e-08 : 1;
    const double y6 = y4 * y5 < 5.960464477539063e-08 ? 281474976710656.0 : 1;
    const double y7 = y4 * y5 < 2.117582368135751e-22 ? 7.922816251426434e+28 : (y4 * y5 > 16777216 ? 3.552713678800501e-15 : y6);
    const double y8 = y4 * y5 > 4.722366482869645e+21 ? 1.262177448353619e-29 : y7;
    const double y9 = y4 * y5 < 7.52316384526264e-37 ? 4.253529586511731e+37 : y8;
    const double y10 = y4 * y5 > 1.329227995784916e+36 ? 7.52316384526264e-37 : y9;
    const double y11 = at_least(k.eta * y3 / (y4 * y10) / k.unit, k.trust_low / y10);
    const double y12 = ((y3 != 0) & (y1 != 0)) ? at_most(y11, k.trust_high / y10) : k.trust_undefined / y10;
    const double y13 = k.trust_adapts == 0 ? 1 / y10 : y12, trust_ratio = y13 * y10;
    a[0] = k.lr * y13; a[1] = y10; to[0] = weight_norm; to[1] = update_norm; to[2] = trust_ratio;
  }

  T apply_nesterov_true(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    const T y1 = answer0 * (answer1 * y0);
    const T momentum_buffer_ = damped * y1 + mu * momentum_buffer;
    s[0] = momentum_buffer_;
    return p - pace * (y1 + mu * momentum_buffer_);
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

  T apply_without_momentum_buffer(T p, T g, T*, const T*) const {
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    return p - pace * (answer0 * (answer1 * y0));
  }

  T apply_without_momentum_buffer_adapt_false(T p, T g, T*, const T*) const {
    const T y0 = g + l2 * unless_off(l2, p) + lam * unless_off(lam, p);
    return p - pace * (lr * y0);
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

#define LAYERWISE_PROGRAMS(X) \
  X(Lars, Lars, Lars) \
  X(LarsNesterovTrue, LarsNesterovTrue, Lars) \
  X(LarsAdaptFalse, LarsAdaptFalse) \
  X(LarsAdaptFalseNesterovTrue, LarsAdaptFalseNesterovTrue) \
  X(LarsWithoutMomentumBuffer, LarsWithoutMomentumBuffer, Lars) \
  X(LarsWithoutMomentumBufferAdaptFalse, LarsWithoutMomentumBufferAdaptFalse)
