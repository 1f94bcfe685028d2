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

  T l2, shrink, b1, a1, b2, a2, lam, lr, answer0, answer1, answer2;

  Lion(const Numbers& k, In a) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); lam = T(k.lam);
    lr = T(k.lr); answer0 = T(a[0]); answer1 = T(a[1]); answer2 = T(a[2]);
  }

  template <int ROUND, class... A> static void answer(const A&... a) { Lion<T>::answer_0(a...); }

  T apply(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0];
    const T y0 = g + l2 * unless_off(l2, p);
    const T exp_avg_ = b2 * exp_avg + a2 * y0;
    const T y2 = p - shrink * unless_off(shrink, p);
    const T y3 = a1 * y0 + b1 * exp_avg;
    const T y4 = (y3 > 0 ? 1 : (y3 < 0 ? -1 : y3)) + lam * unless_off(lam, y2);
    s[0] = exp_avg_;
    return y2 - lr * y4;
  }

  static void answer_0(const Numbers&, In, In, Out, Out to) {
    to[0] = 1;
  }

  void terms_0_adapt_true(T p, T g, const T* s, T* x) const {
    const T exp_avg = s[0];
    const T y0 = p - shrink * unless_off(shrink, p);
    const T y1 = a1 * (g + l2 * unless_off(l2, p)) + b1 * exp_avg;
    x[0] = y0;
    x[1] = (y1 > 0 ? 1 : (y1 < 0 ? -1 : y1)) + lam * unless_off(lam, y0);
  }

  T apply_adapt_true(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0];
    const T y0 = g + l2 * unless_off(l2, p);
    const T exp_avg_ = b2 * exp_avg + a2 * y0;
    const T y2 = p - shrink * unless_off(shrink, p);
    const T y3 = a1 * y0 + b1 * exp_avg;
    const T y4 = (y3 > 0 ? 1 : (y3 < 0 ? -1 : y3)) + lam * unless_off(lam, y2);
    s[0] = exp_avg_;
    return y2 - answer0 * (answer1 * y4);
  }

  static void answer_0_adapt_true(const Numbers& k, In S, In, Out a, Out to) {
    const double update_norm = root(S[-1]), y1 = at_least(update_norm, k.trust_min_norm), y2 = y1 == 0 ? 1 : y1;
    const double weight_norm = root(S[-2]), y4 = at_least(weight_norm, k.trust_min_norm);
    const double y5 = y4 > 1.8446744073709552e+19 ? 5.960464477539063e-08 : 1;
    const double y6 = y2 * y5 < 5.960464477539063e-08 ? 281474976710656.0 : 1;
    const double y7 = y2 * y5 < 2.117582368135751e-22 ? 7.922816251426434e+28 : (y2 * y5 > 16777216 ? 3.552713678800501e-15 : y6);
    const double y8 = y2 * y5 > 4.722366482869645e+21 ? 1.262177448353619e-29 : y7;
    const double y9 = y2 * y5 < 7.52316384526264e-37 ? 4.253529586511731e+37 : y8;
    const double y10 = y2 * y5 > 1.329227995784916e+36 ? 7.52316384526264e-37 : y9;
    const double y11 = at_most(at_least(y4 / (y2 * y10), k.trust_low / y10), k.trust_high / y10);
    const double y12 = ((y4 != 0) & (y1 != 0)) ? y11 : k.trust_undefined / y10;
    const double y13 = k.trust_adapts == 0 ? 1 / y10 : y12, trust_ratio = y13 * y10;
    a[0] = k.lr * y13; a[1] = y10; to[0] = weight_norm; to[1] = update_norm; to[2] = trust_ratio;
  }

  void terms_0_caution_true(T p, T g, const T* s, T* x) const {
    const T exp_avg = s[0];
    const T y0 = g + l2 * unless_off(l2, p);
    const T y1 = a1 * y0 + b1 * exp_avg;
    const T y2 = y1 > 0 ? 1 : (y1 < 0 ? -1 : y1);
    x[0] = (((y2 > 0) & (y0 > 0)) | ((y2 < 0) & (y0 < 0))) ? 1 : 0 * y2;
  }

  T apply_caution_true(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0];
    const T y0 = g + l2 * unless_off(l2, p);
    const T exp_avg_ = b2 * exp_avg + a2 * y0;
    const T y2 = p - shrink * unless_off(shrink, p);
    const T y3 = a1 * y0 + b1 * exp_avg;
    const T y4 = y3 > 0 ? 1 : (y3 < 0 ? -1 : y3);
    const T y5 = (((y4 > 0) & (y0 > 0)) | ((y4 < 0) & (y0 < 0))) ? 1 : 0 * y4;
    const T y6 = lr * (y4 * y5 / answer0 + lam * unless_off(lam, y2));
    s[0] = exp_avg_;
    return y2 - y6;
  }

  static void answer_0_caution_true(const Numbers&, In S, In, Out a, Out to) {
    a[0] = at_least(S[-1], 0.001); to[0] = 1; to[1] = S[-1];
  }

  void terms_1_caution_true_adapt_true(T p, T g, const T* s, T* x) const {
    const T exp_avg = s[0];
    const T y0 = p - shrink * unless_off(shrink, p);
    const T y1 = g + l2 * unless_off(l2, p);
    const T y2 = a1 * y1 + b1 * exp_avg;
    const T y3 = y2 > 0 ? 1 : (y2 < 0 ? -1 : y2);
    const T y4 = (((y3 > 0) & (y1 > 0)) | ((y3 < 0) & (y1 < 0))) ? 1 : 0 * y3;
    x[0] = y0;
    x[1] = y3 * y4 / answer0 + lam * unless_off(lam, y0);
  }

  T apply_caution_true_adapt_true(T p, T g, T* s, const T* x) const {
    const T exp_avg = s[0], x1 = x[1];
    const T exp_avg_ = b2 * exp_avg + a2 * (g + l2 * unless_off(l2, p));
    s[0] = exp_avg_;
    return p - shrink * unless_off(shrink, p) - answer1 * (answer2 * x1);
  }

  static void answer_0_caution_true_adapt_true(const Numbers&, In S, In, Out a, Out to) {
    a[0] = at_least(S[-1], 0.001); to[3] = S[-1];
  }

  static void answer_1_caution_true_adapt_true(const Numbers& k, In S, In, Out a, Out to) {
    const double update_norm = root(S[-1]), y1 = at_least(update_norm, k.trust_min_norm), y2 = y1 == 0 ? 1 : y1;
    const double weight_norm = root(S[-2]), y4 = at_least(weight_norm, k.trust_min_norm);
    const double y5 = y4 > 1.8446744073709552e+19 ? 5.960464477539063e-08 : 1;
    const double y6 = y2 * y5 < 5.960464477539063e-08 ? 281474976710656.0 : 1;
    const double y7 = y2 * y5 < 2.117582368135751e-22 ? 7.922816251426434e+28 : (y2 * y5 > 16777216 ? 3.552713678800501e-15 : y6);
    const double y8 = y2 * y5 > 4.722366482869645e+21 ? 1.262177448353619e-29 : y7;
    const double y9 = y2 * y5 < 7.52316384526264e-37 ? 4.253529586511731e+37 : y8;
    const double y10 = y2 * y5 > 1.329227995784916e+36 ? 7.52316384526264e-37 : y9;
    const double y11 = at_most(at_least(y4 / (y2 * y10), k.trust_low / y10), k.trust_high / y10);
    const double y12 = ((y4 != 0) & (y1 != 0)) ? y11 : k.trust_undefined / y10;
    const double y13 = k.trust_adapts == 0 ? 1 / y10 : y12, trust_ratio = y13 * y10;
    a[1] = k.lr * y13; a[2] = y10; to[0] = weight_norm; to[1] = update_norm; to[2] = trust_ratio;
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

#define LAYERWISE_PROGRAMS(X) \
  X(Lion, Lion) \
  X(LionAdaptTrue, LionAdaptTrue, LionAdaptTrue) \
  X(LionCautionTrue, LionCautionTrue, LionCautionTrue) \
  X(LionCautionTrueAdaptTrue, LionCautionTrueAdaptTrue, LionCautionTrue, LionCautionTrueAdaptTrue)
