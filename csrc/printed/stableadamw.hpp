// Printed from rules/stableadamw.py by `make generate`: change that, not this file.

// What StableAdamW computes before it reads a tensor, in this order.
struct StableAdamWNumbers {
  double b1, a1, b2, a2, eps_root, eps, threshold, lr, lam, lam_size;
};

template <class T>
struct StableAdamW {
  using Numbers = StableAdamWNumbers;
  static constexpr int STATES = 2, ROUNDS = 1, CACHES = 0, KEEPS = 0;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {1}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE}};
  static constexpr int KEEP_READS = 1 << G | 1 << S0 | 1 << S1, KEEP_WRITES = 1 << S0 | 1 << S1;
  static constexpr int TERMS_READ[1] = {1 << G | 1 << S1};
  static constexpr int APPLY_READS = 1 << P | 1 << S0 | 1 << S1, APPLY_WRITES = 0;

  T b1, a1, b2, a2, eps_root, eps, lam, size;

  StableAdamW(const StableAdamWNumbers& k, const double* a) {
    b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); eps_root = T(k.eps_root); eps = T(k.eps); lam = T(a[0]);
    size = T(a[1]);
  }

  void keep(T, T g, T* s) const {
    const T m = s[0], v = s[1];
    const T m_ = b1 * m + a1 * g;
    const T v_ = b2 * v + a2 * (g * g);
    s[0] = m_;
    s[1] = v_;
  }

  template <int ROUND>
  void terms(T, T g, const T* s, T* x) const {
    const T v = s[1];
    const T root_v = root(v + eps_root);
    x[0] = g / at_least(root_v, eps);
  }

  T apply(T p, T, T* s, const T*) const {
    const T m = s[0], v = s[1];
    const T root_v = root(v + eps_root);
    const T r = m / (root_v + eps);
    return p - lam * unless_off(lam, p) - size * r;
  }

  static void answer(int round, const StableAdamWNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double rms = root(S[0]);
      const double ratio = 1 / at_least(rms / k.threshold, 1);
      const double size = k.lr * ratio;
      const double lam = k.lam + k.lam_size * size;
      a[0] = lam;
      a[1] = size;
    }
  }

  static void report(const StableAdamWNumbers& k, const double* S, const double*, double* to) {
    const double rms = root(S[0]);
    const double ratio = 1 / at_least(rms / k.threshold, 1);
    to[0] = rms;
    to[1] = ratio;
  }

  static void remember(const StableAdamWNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct StableAdamWClipThresholdNone {
  using Numbers = StableAdamWNumbers;
  static constexpr int STATES = 2, ROUNDS = 0, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {0}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{NONE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;

  T b1, a1, b2, a2, eps_root, eps, lr, lam;

  StableAdamWClipThresholdNone(const StableAdamWNumbers& k, const double*) {
    b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); eps_root = T(k.eps_root); eps = T(k.eps); lr = T(k.lr);
    lam = T(k.lam + k.lam_size * k.lr);
  }

  T apply(T p, T g, T* s, const T*) const {
    const T m = s[0], v = s[1];
    const T m_ = b1 * m + a1 * g;
    const T v_ = b2 * v + a2 * (g * g);
    const T root_v = root(v_ + eps_root);
    const T r = m_ / (root_v + eps);
    s[0] = m_;
    s[1] = v_;
    return p - lam * unless_off(lam, p) - lr * r;
  }

  static void answer(int, const StableAdamWNumbers&, const double*, const double*, double*) {}

  static void report(const StableAdamWNumbers&, const double*, const double*, double* to) {
    to[0] = 1;
  }

  static void remember(const StableAdamWNumbers&, const double*, const double*, double*) {}
};
