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

  T b1, a1, b2, a2, c1, c2, eps_root, eps, lam, lr_r, lr_c, answer0, answer1, answer2, answer3, answer4;

  Lans(const Numbers& k, In a) {
    b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); c1 = T(k.c1); c2 = T(k.c2); eps_root = T(k.eps_root);
    eps = T(k.eps); lam = T(k.lam); lr_r = T(k.lr_r); lr_c = T(k.lr_c); answer0 = T(a[0]); answer1 = T(a[1]);
    answer2 = T(a[2]); answer3 = T(a[3]); answer4 = T(a[4]);
  }

  template <int ROUND, class... A> void terms(A... a) const { ROUND == 0 ? this->terms_0(a...) : this->terms_1(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Lans<T>::answer_0(a...) : Lans<T>::answer_1(a...);
  }

  void keep(T, T g, T* s) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = g / answer0;
    const T exp_avg_ = b1 * exp_avg + a1 * y0;
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0);
    s[0] = exp_avg_;
    s[1] = exp_avg_sq_;
  }

  void terms_0(T, T g, const T*, T* x) const {
    x[0] = g;
  }

  void terms_1(T p, T g, const T* s, T* x) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = root(c2 * exp_avg_sq + eps_root) + eps;
    const T y1 = lam * unless_off(lam, p);
    x[0] = p;
    x[1] = c1 * exp_avg / y0 + y1;
    x[2] = g / answer0 / y0 + y1;
  }

  T apply(T p, T, T*, const T* x) const {
    const T x1 = x[1], x2 = x[2];
    return p - answer1 * (answer2 * x1) - answer3 * (answer4 * x2);
  }

  static void answer_0(const Numbers&, In S, In, Out a, Out) {
    const double y0 = root(S[-1]);
    a[0] = y0 == 0 ? 1 : y0;
  }

  static void answer_1(const Numbers& k, In S, In, Out a, Out to) {
    const double update_norm = root(S[-2]), y1 = at_least(update_norm, k.trust_min_norm), y2 = y1 == 0 ? 1 : y1;
    const double weight_norm = root(S[-3]), y4 = at_least(weight_norm, k.trust_min_norm), y5 = at_most(y4, k.max_norm);
    const double y6 = y5 > 1.8446744073709552e+19 ? 5.960464477539063e-08 : 1;
    const double y7 = y2 * y6 < 5.960464477539063e-08 ? 281474976710656.0 : 1;
    const double y8 = y2 * y6 < 2.117582368135751e-22 ? 7.922816251426434e+28 : (y2 * y6 > 16777216 ? 3.552713678800501e-15 : y7);
    const double y9 = y2 * y6 > 4.722366482869645e+21 ? 1.262177448353619e-29 : y8;
    const double y10 = y2 * y6 < 7.52316384526264e-37 ? 4.253529586511731e+37 : y9;
    const double y11 = y2 * y6 > 1.329227995784916e+36 ? 7.52316384526264e-37 : y10;
    const double y12 = at_most(at_least(y5 / (y2 * y11), k.trust_low / y11), k.trust_high / y11);
    const double y13 = ((y4 != 0) & (y1 != 0)) ? y12 : k.trust_undefined / y11;
    const double y14 = k.trust_adapts == 0 ? 1 / y11 : y13, y15 = at_least(root(S[-1]), k.trust_min_norm);
    const double y16 = y15 == 0 ? 1 : y15, y17 = y16 * y6 < 5.960464477539063e-08 ? 281474976710656.0 : 1;
    const double y18 = y16 * y6 > 16777216 ? 3.552713678800501e-15 : y17;
    const double y19 = y16 * y6 < 2.117582368135751e-22 ? 7.922816251426434e+28 : y18;
    const double y20 = y16 * y6 > 4.722366482869645e+21 ? 1.262177448353619e-29 : y19;
    const double y21 = y16 * y6 < 7.52316384526264e-37 ? 4.253529586511731e+37 : y20;
    const double y22 = y16 * y6 > 1.329227995784916e+36 ? 7.52316384526264e-37 : y21;
    const double y23 = at_most(at_least(y5 / (y16 * y22), k.trust_low / y22), k.trust_high / y22);
    const double y24 = ((y4 != 0) & (y15 != 0)) ? y23 : k.trust_undefined / y22, trust_ratio = y14 * y11;
    a[1] = k.lr_r * y14; a[2] = y11; a[3] = k.lr_c * (k.trust_adapts == 0 ? 1 / y22 : y24); a[4] = y22;
    to[0] = weight_norm; to[1] = update_norm; to[2] = trust_ratio;
  }

  T apply_adapt_false(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = g / answer0;
    const T exp_avg_ = b1 * exp_avg + a1 * y0;
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0);
    const T y3 = root(c2 * exp_avg_sq_ + eps_root) + eps;
    const T y4 = lam * unless_off(lam, p);
    s[0] = exp_avg_;
    s[1] = exp_avg_sq_;
    return p - lr_r * (c1 * exp_avg_ / y3 + y4) - lr_c * (y0 / y3 + y4);
  }

  static void answer_0_adapt_false(const Numbers&, In S, In, Out a, Out to) {
    const double y0 = root(S[-1]);
    a[0] = y0 == 0 ? 1 : y0; to[0] = 1;
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

#define LAYERWISE_PROGRAMS(X) \
  X(Lans, Lans, Lans, Lans) \
  X(LansAdaptFalse, LansAdaptFalse, Lans)
