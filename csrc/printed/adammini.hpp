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

  T b1, a1, shrink, step;

  AdamMini(const Numbers& k, In a) {
    b1 = T(k.b1); a1 = T(k.a1); shrink = T(k.shrink); step = T(a[0]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { AdamMini<T>::answer_0(a...); }

  void terms_0(T, T g, const T*, T* x) const {
    x[0] = g;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T m = s[0];
    const T m_ = b1 * m + a1 * g;
    s[0] = m_;
    return p - shrink * unless_off(shrink, p) - step * m_;
  }

  static void answer_0(const Numbers& k, In S, In old, Out a, Out to) {
    const double rms = root(S[-1]), v = k.b2 * old[0] + k.a2 * (rms * rms);
    const bool zero = k.c2 * v + k.eps_root == 0;
    const double d = (zero ? 0 : root(zero ? 1 : k.c2 * v + k.eps_root)) + k.eps;
    const bool zero_ = v == 0;
    a[0] = k.lr / d; to[0] = rms; to[1] = zero_ ? 0 : root(zero_ ? 1 : v); to[2] = 1;
  }

  static void remember(const Numbers& k, In S, In old, Out to) {
    const double rms = root(S[-1]), v = k.b2 * old[0] + k.a2 * (rms * rms);
    to[0] = v;
  }
};
