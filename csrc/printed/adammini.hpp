// Printed from rules/adammini.py by `make generate`: change that, not this file.

// What AdamMini computes before it reads a tensor, in this order.
struct AdamMiniNumbers {
  double b1, a1, b2, a2, c2, eps_root, eps, lr, shrink;
};

template <class T> struct AdamMini : Usual {
  using Numbers = AdamMiniNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, SUMS[1] = {1}, TERMS_READ[1] = {1 << G},
    APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0, LAYER_STATES = 1, OF_LAYER = 1 << 1;
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE}};

  T b1, a1, shrink, answer0;

  AdamMini(const Numbers& k, In a) {
    b1 = T(k.b1); a1 = T(k.a1); shrink = T(k.shrink); answer0 = T(a[0]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { AdamMini<T>::answer_0(a...); }

  void terms_0(T, T g, const T*, T* x) const {
    x[0] = g;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0];
    const T exp_avg_ = b1 * exp_avg + a1 * g;
    s[0] = exp_avg_;
    return p - shrink * unless_off(shrink, p) - answer0 * exp_avg_;
  }

  static void answer_0(const Numbers& k, In S, In old, Out a, Out to) {
    const double gradient_rms = root(S[-1]), exp_avg_sq = k.b2 * old[0] + k.a2 * (gradient_rms * gradient_rms);
    const double y2 = k.c2 * exp_avg_sq + k.eps_root;
    const double average_rms = exp_avg_sq == 0 ? 0 : root(exp_avg_sq == 0 ? 1 : exp_avg_sq);
    a[0] = k.lr / ((y2 == 0 ? 0 : root(y2 == 0 ? 1 : y2)) + k.eps); to[0] = gradient_rms; to[1] = average_rms;
    to[2] = 1;
  }

  static void remember(const Numbers& k, In S, In old, Out to) {
    const double gradient_rms = root(S[-1]), exp_avg_sq = k.b2 * old[0] + k.a2 * (gradient_rms * gradient_rms);
    to[0] = exp_avg_sq;
  }
};

#define LAYERWISE_PROGRAMS(X) \
  X(AdamMini, AdamMini, AdamMini)
