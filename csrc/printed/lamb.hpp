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

  T l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr, answer0, answer1, answer2, answer3, answer4, answer5;

  Lamb(const Numbers& k, In a) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); c1 = T(k.c1);
    c2 = T(k.c2); eps_root = T(k.eps_root); eps = T(k.eps); lam = T(k.lam); lr = T(k.lr); answer0 = T(a[0]);
    answer1 = T(a[1]); answer2 = T(a[2]); answer3 = T(a[3]); answer4 = T(a[4]); answer5 = T(a[5]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Lamb<T>::answer_0(a...); }

  void keep(T p, T g, T* s) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = g + l2 * unless_off(l2, p);
    const T exp_avg_ = b1 * exp_avg + a1 * y0;
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0);
    s[0] = exp_avg_;
    s[1] = exp_avg_sq_;
  }

  void terms_0(T p, T, const T* s, T* x) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = p - shrink * unless_off(shrink, p);
    const T y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root));
    x[0] = y0;
    x[1] = y1 + lam * unless_off(lam, y0);
  }

  T apply(T p, T, T*, const T* x) const {
    const T x1 = x[1];
    return p - shrink * unless_off(shrink, p) - answer0 * (answer1 * x1);
  }

  static void answer_0(const Numbers& k, In S, In, Out a, Out to) {
    const double update_norm = root(S[-1]), y1 = at_least(update_norm, k.trust_min_norm);
    const double y2 = (y1 == 0 ? 1 : y1) + k.trust_eps, weight_norm = root(S[-2]);
    const double y4 = at_least(weight_norm, k.trust_min_norm), y5 = at_most(y4, k.max_norm);
    const double y6 = y5 > 1.8446744073709552e+19 ? 5.960464477539063e-08 : 1;
    const double y7 = y2 * y6 < 5.960464477539063e-08 ? 281474976710656.0 : 1;
    const double y8 = y2 * y6 < 2.117582368135751e-22 ? 7.922816251426434e+28 : (y2 * y6 > 16777216 ? 3.552713678800501e-15 : y7);
    const double y9 = y2 * y6 > 4.722366482869645e+21 ? 1.262177448353619e-29 : y8;
    const double y10 = y2 * y6 < 7.52316384526264e-37 ? 4.253529586511731e+37 : y9;
    const double y11 = y2 * y6 > 1.329227995784916e+36 ? 7.52316384526264e-37 : y10;
    const double y12 = at_most(at_least(y5 / (y2 * y11), k.trust_low / y11), k.trust_high / y11);
    const double y13 = ((y4 != 0) & (y1 != 0)) ? y12 : k.trust_undefined / y11;
    const double y14 = k.trust_adapts == 0 ? 1 / y11 : y13, trust_ratio = y14 * y11;
    a[0] = k.lr * y14; a[1] = y11; to[0] = weight_norm; to[1] = update_norm; to[2] = trust_ratio;
  }

  T apply_adapt_false(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = g + l2 * unless_off(l2, p);
    const T exp_avg_ = b1 * exp_avg + a1 * y0;
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0);
    const T y3 = p - shrink * unless_off(shrink, p);
    const T y4 = exp_avg_ / (eps + c1 * root(c2 * exp_avg_sq_ + eps_root));
    s[0] = exp_avg_;
    s[1] = exp_avg_sq_;
    return y3 - lr * (y4 + lam * unless_off(lam, y3));
  }

  static void answer_0_adapt_false(const Numbers&, In, In, Out, Out to) {
    to[0] = 1;
  }

  void terms_0_caution_true(T p, T g, const T* s, T* x) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root));
    const T y1 = g + l2 * unless_off(l2, p);
    x[0] = (((y0 > 0) & (y1 > 0)) | ((y0 < 0) & (y1 < 0))) ? 1 : 0 * y0;
  }

  void terms_1_caution_true(T p, T g, const T* s, T* x) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = p - shrink * unless_off(shrink, p);
    const T y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root));
    const T y2 = g + l2 * unless_off(l2, p);
    const T y3 = (((y1 > 0) & (y2 > 0)) | ((y1 < 0) & (y2 < 0))) ? 1 : 0 * y1;
    x[0] = y0;
    x[1] = y1 * y3 / answer0 + lam * unless_off(lam, y0);
  }

  T apply_caution_true(T p, T, T*, const T* x) const {
    const T x1 = x[1];
    return p - shrink * unless_off(shrink, p) - answer1 * (answer2 * x1);
  }

  static void answer_0_caution_true(const Numbers&, In S, In, Out a, Out to) {
    a[0] = at_least(S[-1], 0.001); to[3] = S[-1];
  }

  static void answer_1_caution_true(const Numbers& k, In S, In, Out a, Out to) {
    const double update_norm = root(S[-1]), y1 = at_least(update_norm, k.trust_min_norm);
    const double y2 = (y1 == 0 ? 1 : y1) + k.trust_eps, weight_norm = root(S[-2]);
    const double y4 = at_least(weight_norm, k.trust_min_norm), y5 = at_most(y4, k.max_norm);
    const double y6 = y5 > 1.8446744073709552e+19 ? 5.960464477539063e-08 : 1;
    const double y7 = y2 * y6 < 5.960464477539063e-08 ? 281474976710656.0 : 1;
    const double y8 = y2 * y6 < 2.117582368135751e-22 ? 7.922816251426434e+28 : (y2 * y6 > 16777216 ? 3.552713678800501e-15 : y7);
    const double y9 = y2 * y6 > 4.722366482869645e+21 ? 1.262177448353619e-29 : y8;
    const double y10 = y2 * y6 < 7.52316384526264e-37 ? 4.253529586511731e+37 : y9;
    const double y11 = y2 * y6 > 1.329227995784916e+36 ? 7.52316384526264e-37 : y10;
    const double y12 = at_most(at_least(y5 / (y2 * y11), k.trust_low / y11), k.trust_high / y11);
    const double y13 = ((y4 != 0) & (y1 != 0)) ? y12 : k.trust_undefined / y11;
    const double y14 = k.trust_adapts == 0 ? 1 / y11 : y13, trust_ratio = y14 * y11;
    a[1] = k.lr * y14; a[2] = y11; to[0] = weight_norm; to[1] = update_norm; to[2] = trust_ratio;
  }

  T apply_caution_true_adapt_false(T p, T, T* s, const T* x) const {
    const T exp_avg = s[0], exp_avg_sq = s[1], x0 = x[0];
    const T y0 = p - shrink * unless_off(shrink, p);
    const T y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root));
    const T y2 = lr * (y1 * x0 / answer0 + lam * unless_off(lam, y0));
    return y0 - y2;
  }

  static void answer_0_caution_true_adapt_false(const Numbers&, In S, In, Out a, Out to) {
    a[0] = at_least(S[-1], 0.001); to[0] = 1; to[1] = S[-1];
  }

  void terms_1_keep_norm_true(T p, T, const T* s, T* x) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = p - shrink * unless_off(shrink, p);
    const T y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root));
    const T y2 = answer1 * (answer2 * (y1 + lam * unless_off(lam, y0)));
    x[0] = y0 + answer0 * y0 - y2;
  }

  T apply_keep_norm_true(T p, T, T* s, const T* x) const {
    const T exp_avg = s[0], exp_avg_sq = s[1], x0 = x[0];
    const T y0 = p - shrink * unless_off(shrink, p);
    const T y1 = exp_avg / (eps + c1 * root(c2 * exp_avg_sq + eps_root));
    const T y2 = answer4 * (answer2 * (y1 + lam * unless_off(lam, y0)));
    return p + answer3 * y0 - y2 + answer5 * x0;
  }

  static void answer_0_keep_norm_true(const Numbers& k, In S, In, Out a, Out to) {
    const double weight_norm = root(S[-2]), update_norm = root(S[-1]), y2 = at_least(update_norm, k.trust_min_norm);
    const double y3 = (y2 == 0 ? 1 : y2) + k.trust_eps, y4 = at_least(weight_norm, k.trust_min_norm);
    const double y5 = at_most(y4, k.max_norm), y6 = y5 > 1.8446744073709552e+19 ? 5.960464477539063e-08 : 1;
    const double y7 = y3 * y6 < 5.960464477539063e-08 ? 281474976710656.0 : 1;
    const double y8 = y3 * y6 < 2.117582368135751e-22 ? 7.922816251426434e+28 : (y3 * y6 > 16777216 ? 3.552713678800501e-15 : y7);
    const double y9 = y3 * y6 > 4.722366482869645e+21 ? 1.262177448353619e-29 : y8;
    const double y10 = y3 * y6 < 7.52316384526264e-37 ? 4.253529586511731e+37 : y9;
    const double y11 = y3 * y6 > 1.329227995784916e+36 ? 7.52316384526264e-37 : y10;
    const double y12 = at_most(at_least(y5 / (y3 * y11), k.trust_low / y11), k.trust_high / y11);
    const double y13 = ((y4 != 0) & (y2 != 0)) ? y12 : k.trust_undefined / y11;
    const double y14 = k.trust_adapts == 0 ? 1 / y11 : y13;
    const double y15 = at_least(weight_norm, k.lr * y14 * (y11 * update_norm));
    const bool y16 = (weight_norm > 0) & (y15 > 0);
    const double y17 = (weight_norm - (y16 ? y15 : 1)) / (y16 ? y15 : 1), trust_ratio = y14 * y11;
    a[0] = y16 ? y17 : 0; a[1] = k.lr * y14 * (y16 ? weight_norm / (y16 ? y15 : 1) : 1); a[2] = y11;
    to[0] = weight_norm; to[1] = update_norm; to[2] = trust_ratio;
  }

  static void answer_1_keep_norm_true(const Numbers&, In S, In, Out a, Out) {
    const double y0 = root(S[-1]), weight_norm = root(S[-3]);
    const bool y2 = (y0 == 0) & (weight_norm > 0), y3 = (weight_norm > 0) & (y0 > 0);
    a[3] = y2 ? 0 : a[0]; a[4] = y2 ? 0 : a[1]; a[5] = y3 ? (weight_norm - (y3 ? y0 : 1)) / (y3 ? y0 : 1) : 0;
  }

  static void answer_0_with_norm_keep_norm_first(const Numbers& k, In S, In old, Out a, Out to) {
    const double weight_norm = root(S[-2]), norm = old[0] == 0 ? weight_norm : old[0], update_norm = root(S[-1]);
    const double y3 = at_least(update_norm, k.trust_min_norm), y4 = (y3 == 0 ? 1 : y3) + k.trust_eps;
    const double y5 = at_least(weight_norm, k.trust_min_norm), y6 = at_most(y5, k.max_norm);
    const double y7 = y6 > 1.8446744073709552e+19 ? 5.960464477539063e-08 : 1;
    const double y8 = y4 * y7 < 5.960464477539063e-08 ? 281474976710656.0 : 1;
    const double y9 = y4 * y7 < 2.117582368135751e-22 ? 7.922816251426434e+28 : (y4 * y7 > 16777216 ? 3.552713678800501e-15 : y8);
    const double y10 = y4 * y7 > 4.722366482869645e+21 ? 1.262177448353619e-29 : y9;
    const double y11 = y4 * y7 < 7.52316384526264e-37 ? 4.253529586511731e+37 : y10;
    const double y12 = y4 * y7 > 1.329227995784916e+36 ? 7.52316384526264e-37 : y11;
    const double y13 = at_most(at_least(y6 / (y4 * y12), k.trust_low / y12), k.trust_high / y12);
    const double y14 = ((y5 != 0) & (y3 != 0)) ? y13 : k.trust_undefined / y12;
    const double y15 = k.trust_adapts == 0 ? 1 / y12 : y14;
    const double y16 = at_least(weight_norm, k.lr * y15 * (y12 * update_norm));
    const bool y17 = (norm > 0) & (y16 > 0);
    const double trust_ratio = y15 * y12;
    a[0] = y17 ? (norm - (y17 ? y16 : 1)) / (y17 ? y16 : 1) : 0; a[1] = k.lr * y15 * (y17 ? norm / (y17 ? y16 : 1) : 1);
    a[2] = y12; to[0] = weight_norm; to[1] = update_norm; to[2] = trust_ratio;
  }

  static void answer_1_with_norm_keep_norm_first(const Numbers&, In S, In old, Out a, Out) {
    const double y0 = root(S[-1]), weight_norm = root(S[-3]);
    const bool y2 = (y0 == 0) & (weight_norm > 0);
    const double norm = old[0] == 0 ? weight_norm : old[0];
    const bool y4 = (norm > 0) & (weight_norm > 0);
    const double y5 = (norm - (y4 ? weight_norm : 1)) / (y4 ? weight_norm : 1);
    const bool y6 = (norm > 0) & (y0 > 0);
    a[3] = y2 ? (y4 ? y5 : 0) : a[0]; a[4] = y2 ? 0 : a[1]; a[5] = y6 ? (norm - (y6 ? y0 : 1)) / (y6 ? y0 : 1) : 0;
  }

  static void remember_with_norm_keep_norm_first(const Numbers&, In S, In old, Out to) {
    const double weight_norm = root(S[-3]), norm = old[0] == 0 ? weight_norm : old[0];
    to[0] = norm;
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

#define LAYERWISE_PROGRAMS(X) \
  X(Lamb, Lamb, Lamb) \
  X(LambAdaptFalse, LambAdaptFalse) \
  X(LambCautionTrue, LambCautionTrue, LambCautionTrue, LambCautionTrue) \
  X(LambCautionTrueAdaptFalse, LambCautionTrueAdaptFalse, LambCautionTrueAdaptFalse) \
  X(LambKeepNormTrue, LambKeepNormTrue, LambKeepNormTrue, LambKeepNormTrue) \
  X(LambWithNormKeepNormFirst, LambKeepNormTrue, LambKeepNormTrue, LambKeepNormTrue)
