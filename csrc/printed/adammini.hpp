// Printed from rules/adammini.py by `make generate`: change that, not this file.

// What AdamMini computes before it reads a tensor, in this order.
struct AdamMiniNumbers {
  double b1, a1, b2, a2, c2, eps_root, eps, lr, shrink;
};

template <class T>
struct AdamMini {
  using Numbers = AdamMiniNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 1, OF_LAYER = 1 << 1;
  static constexpr int SUMS[1] = {1}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << G};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T b1, a1, shrink, step;

  AdamMini(const AdamMiniNumbers& k, const double* a) {
    b1 = T(k.b1); a1 = T(k.a1); shrink = T(k.shrink); step = T(a[0]);
  }

  template <int ROUND>
  void terms(T, T g, const T*, T* x) const {
    x[0] = g;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T m = s[0];
    const T m_ = b1 * m + a1 * g;
    s[0] = m_;
    return p - shrink * unless_off(shrink, p) - step * m_;
  }

  static void answer(int round, const AdamMiniNumbers& k, const double* S, const double* old, double* a) {
    if (round == 0) {
      const double rms = root(S[0]);
      const double v = k.b2 * old[0] + k.a2 * (rms * rms);
      const bool zero = k.c2 * v + k.eps_root == 0;
      const double d = (zero ? 0 : root(zero ? 1 : k.c2 * v + k.eps_root)) + k.eps;
      a[0] = k.lr / d;
    }
  }

  static void report(const AdamMiniNumbers& k, const double* S, const double* old, double* to) {
    const double rms = root(S[0]);
    const double v = k.b2 * old[0] + k.a2 * (rms * rms);
    const bool zero = v == 0;
    to[0] = rms;
    to[1] = zero ? 0 : root(zero ? 1 : v);
    to[2] = 1;
  }

  static void remember(const AdamMiniNumbers& k, const double* S, const double* old, double* to) {
    const double rms = root(S[0]);
    const double v = k.b2 * old[0] + k.a2 * (rms * rms);
    to[0] = v;
  }
};
