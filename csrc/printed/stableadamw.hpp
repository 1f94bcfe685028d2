// Printed from rules/stableadamw.py by `make generate`: change that, not this file.

// What StableAdamW computes before it reads a tensor, in this order.
struct StableAdamWNumbers {
  double b1, a1, b2, a2, eps_root, eps, threshold, lr, lam, lam_size;
};

template <class T> struct StableAdamW : Usual {
  using Numbers = StableAdamWNumbers;
  static constexpr int STATES = 2, ROUNDS = 1, SUMS[1] = {1}, KEEPS = 0, KEEP_READS = 1 << G | 1 << S0 | 1 << S1,
    KEEP_WRITES = 1 << S0 | 1 << S1, TERMS_READ[1] = {1 << G | 1 << S1}, APPLY_READS = 1 << P | 1 << S0 | 1 << S1,
    APPLY_WRITES = 0;
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE}};

  T b1, a1, b2, a2, eps_root, eps, lr, lam, size;

  StableAdamW(const Numbers& k, In a) {
    b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); eps_root = T(k.eps_root); eps = T(k.eps); lr = T(k.lr);
    lam = T(a[0]); size = T(a[1]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { StableAdamW<T>::answer_0(a...); }

  void keep(T, T g, T* s) const {
    const T m = s[0], v = s[1];
    const T m_ = b1 * m + a1 * g;
    const T v_ = b2 * v + a2 * (g * g);
    s[0] = m_;
    s[1] = v_;
  }

  void terms_0(T, T g, const T* s, T* x) const {
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

  static void answer_0(const Numbers& k, In S, In, Out a, Out to) {
    const double rms = root(S[-1]), ratio = 1 / at_least(rms / k.threshold, 1), size = k.lr * ratio;
    const double lam = k.lam + k.lam_size * size;
    a[0] = lam; a[1] = size; to[0] = rms; to[1] = ratio;
  }

  T apply_clip_threshold_none(T p, T g, T* s, const T*) const {
    const T m = s[0], v = s[1];
    const T m_ = b1 * m + a1 * g;
    const T v_ = b2 * v + a2 * (g * g);
    const T root_v = root(v_ + eps_root);
    const T r = m_ / (root_v + eps);
    s[0] = m_;
    s[1] = v_;
    return p - lam * unless_off(lam, p) - lr * r;
  }

  static void answer_0_clip_threshold_none(const Numbers& k, In, In, Out a, Out to) {
    const double lam = k.lam + k.lam_size * k.lr;
    a[0] = lam; to[0] = 1;
  }
};

template <class T> struct StableAdamWClipThresholdNone : StableAdamW<T> {
  using StableAdamW<T>::StableAdamW;
  static constexpr int ROUNDS = 0, SUMS[1] = {0}, KEEPS = -1, KEEP_READS = 0, KEEP_WRITES = 0, TERMS_READ[1] = {0},
    APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;
  static constexpr Total TOTALS[1][4] = {{NONE}};
  template <class... A> T apply(A... a) const { return this->apply_clip_threshold_none(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    StableAdamW<T>::answer_0_clip_threshold_none(a...);
  }
};
