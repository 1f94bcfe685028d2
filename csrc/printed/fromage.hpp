// Printed from rules/fromage.py by `make generate`: change that, not this file.

// What Fromage computes before it reads a tensor, in this order.
struct FromageNumbers {
  double mu, shrink, size, least, bound;
};

template <class T> struct Fromage : Usual {
  using Numbers = FromageNumbers;
  static constexpr int STATES = 0, ROUNDS = 1, SUMS[1] = {2}, TERMS_READ[1] = {1 << P | 1 << G},
    APPLY_READS = 1 << P | 1 << G, APPLY_WRITES = 0;
  static constexpr Total TOTALS[1][4] = {{SQUARES, SQUARES}};

  T mu, shrink, answer0, answer1, answer2;

  Fromage(const Numbers& k, In a) {
    mu = T(k.mu); shrink = T(k.shrink); answer0 = T(a[0]); answer1 = T(a[1]); answer2 = T(a[2]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Fromage<T>::answer_0(a...); }

  void terms_0(T p, T g, const T*, T* x) const {
    x[0] = p;
    x[1] = g;
  }

  T apply(T p, T g, T*, const T*) const {
    return p - shrink * unless_off(shrink, p) - answer0 * (answer1 * g);
  }

  static void answer_0(const Numbers& k, In S, In, Out a, Out to) {
    const double weight_norm = root(S[-2]), y1 = at_least(weight_norm, k.least), update_norm = root(S[-1]);
    const double y3 = at_least(update_norm, k.least), y4 = y3 == 0 ? 1 : y3;
    const double y5 = y1 > 1.8446744073709552e+19 ? 5.960464477539063e-08 : 1;
    const double y6 = y4 * y5 < 5.960464477539063e-08 ? 281474976710656.0 : 1;
    const double y7 = y4 * y5 < 2.117582368135751e-22 ? 7.922816251426434e+28 : (y4 * y5 > 16777216 ? 3.552713678800501e-15 : y6);
    const double y8 = y4 * y5 > 4.722366482869645e+21 ? 1.262177448353619e-29 : y7;
    const double y9 = y4 * y5 < 7.52316384526264e-37 ? 4.253529586511731e+37 : y8;
    const double y10 = y4 * y5 > 1.329227995784916e+36 ? 7.52316384526264e-37 : y9;
    const double y11 = ((y1 != 0) & (y3 != 0)) ? y1 / (y4 * y10) : 1 / y10, trust_ratio = y11 * y10;
    a[0] = k.size * y11; a[1] = y10; to[0] = weight_norm; to[1] = update_norm; to[2] = trust_ratio;
  }

  void terms_1_with_norm_p_bound_given(T p, T g, const T*, T* x) const {
    x[0] = p - shrink * unless_off(shrink, p) - answer0 * (answer1 * g);
  }

  T apply_with_norm_p_bound_given(T p, T g, T*, const T*) const {
    const T y0 = p - shrink * unless_off(shrink, p) - answer0 * (answer1 * g);
    return y0 + answer2 * y0;
  }

  static void answer_1_with_norm_p_bound_given(const Numbers& k, In S, In old, Out a, Out) {
    const double y0 = root(S[-1]), weight_norm = root(S[-3]), norm = old[0] == 0 ? weight_norm : old[0];
    const bool y3 = y0 > k.bound * norm;
    a[2] = y3 ? (k.bound * norm - y0) / (y3 ? y0 : 1) : 0;
  }

  static void remember_with_norm_p_bound_given(const Numbers&, In S, In old, Out to) {
    const double weight_norm = root(S[-3]), norm = old[0] == 0 ? weight_norm : old[0];
    to[0] = norm;
  }

  void keep_with_momentum_buffer(T, T g, T* s) const {
    const T momentum_buffer = s[0];
    const T momentum_buffer_ = g + mu * momentum_buffer;
    s[0] = momentum_buffer_;
  }

  void terms_0_with_momentum_buffer(T p, T, const T* s, T* x) const {
    const T momentum_buffer = s[0];
    x[0] = p;
    x[1] = momentum_buffer;
  }

  T apply_with_momentum_buffer(T p, T, T* s, const T*) const {
    const T momentum_buffer = s[0];
    return p - shrink * unless_off(shrink, p) - answer0 * (answer1 * momentum_buffer);
  }

  void terms_1_with_momentum_buffer_with_norm_p_bound_given(T p, T, const T* s, T* x) const {
    const T momentum_buffer = s[0];
    x[0] = p - shrink * unless_off(shrink, p) - answer0 * (answer1 * momentum_buffer);
  }

  T apply_with_momentum_buffer_with_norm_p_bound_given(T p, T, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = p - shrink * unless_off(shrink, p) - answer0 * (answer1 * momentum_buffer);
    return y0 + answer2 * y0;
  }
};

template <class T> struct FromageWithNormPBoundGiven : Fromage<T> {
  using Fromage<T>::Fromage;
  static constexpr int ROUNDS = 2, SUMS[2] = {2, 1}, TERMS_READ[2] = {1 << P | 1 << G, 1 << P | 1 << G},
    LAYER_STATES = 1, OF_LAYER = 1 << 0;
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0(a...) : this->terms_1_with_norm_p_bound_given(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_with_norm_p_bound_given(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Fromage<T>::answer_0(a...) : Fromage<T>::answer_1_with_norm_p_bound_given(a...);
  }
  template <class... A> static void remember(const A&... a) { Fromage<T>::remember_with_norm_p_bound_given(a...); }
};

template <class T> struct FromageWithMomentumBuffer : Fromage<T> {
  using Fromage<T>::Fromage;
  static constexpr int STATES = 1, KEEPS = 0, KEEP_READS = 1 << G | 1 << S0, KEEP_WRITES = 1 << S0,
    TERMS_READ[1] = {1 << P | 1 << S0}, APPLY_READS = 1 << P | 1 << S0;
  template <class... A> void keep(A... a) const { this->keep_with_momentum_buffer(a...); }
  template <int ROUND, class... A> void terms(A... a) const { this->terms_0_with_momentum_buffer(a...); }
  template <class... A> T apply(A... a) const { return this->apply_with_momentum_buffer(a...); }
};

template <class T> struct FromageWithMomentumBufferWithNormPBoundGiven : Fromage<T> {
  using Fromage<T>::Fromage;
  static constexpr int STATES = 1, ROUNDS = 2, SUMS[2] = {2, 1}, KEEPS = 0, KEEP_READS = 1 << G | 1 << S0,
    KEEP_WRITES = 1 << S0, TERMS_READ[2] = {1 << P | 1 << S0, 1 << P | 1 << S0}, APPLY_READS = 1 << P | 1 << S0,
    LAYER_STATES = 1, OF_LAYER = 1 << 1;
  static constexpr Total TOTALS[2][4] = {{SQUARES, SQUARES}, {SQUARES}};
  template <class... A> void keep(A... a) const { this->keep_with_momentum_buffer(a...); }
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_with_momentum_buffer(a...) :
    this->terms_1_with_momentum_buffer_with_norm_p_bound_given(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_with_momentum_buffer_with_norm_p_bound_given(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Fromage<T>::answer_0(a...) : Fromage<T>::answer_1_with_norm_p_bound_given(a...);
  }
  template <class... A> static void remember(const A&... a) { Fromage<T>::remember_with_norm_p_bound_given(a...); }
};

#define LAYERWISE_PROGRAMS(X) \
  X(Fromage, Fromage, Fromage) \
  X(FromageWithNormPBoundGiven, FromageWithNormPBoundGiven, Fromage, FromageWithNormPBoundGiven) \
  X(FromageWithMomentumBuffer, FromageWithMomentumBuffer, FromageWithMomentumBuffer) \
  X(FromageWithMomentumBufferWithNormPBoundGiven, FromageWithMomentumBufferWithNormPBoundGiven, FromageWithMomentumBuffer, FromageWithMomentumBufferWithNormPBoundGiven)
