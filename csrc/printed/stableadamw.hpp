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

  T b1, a1, b2, a2, eps_root, eps, lr, answer0, answer1;

  StableAdamW(const Numbers& k, In a) {
    b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); eps_root = T(k.eps_root); eps = T(k.eps); lr = T(k.lr);
    answer0 = T(a[0]); answer1 = T(a[1]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { StableAdamW<T>::answer_0(a...); }

  void keep(T, T g, T* s) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T exp_avg_ = b1 * exp_avg + a1 * g;
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (g * g);
    s[0] = exp_avg_;
    s[1] = exp_avg_sq_;
  }

  void terms_0(T, T g, const T* s, T* x) const {
    const T exp_avg_sq = s[1];
    x[0] = g / at_least(root(exp_avg_sq + eps_root), eps);
  }

  T apply(T p, T, T* s, const T*) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = answer1 * (exp_avg / (root(exp_avg_sq + eps_root) + eps));
    return p - answer0 * unless_off(answer0, p) - y0;
  }

  static void answer_0(const Numbers& k, In S, In, Out a, Out to) {
    const double update_rms = root(S[-1]), trust_ratio = 1 / at_least(update_rms / k.threshold, 1);
    a[0] = k.lam + k.lam_size * (k.lr * trust_ratio); a[1] = k.lr * trust_ratio; to[0] = update_rms;
    to[1] = trust_ratio;
  }

  T apply_clip_threshold_none(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T exp_avg_ = b1 * exp_avg + a1 * g;
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (g * g);
    const T y2 = lr * (exp_avg_ / (root(exp_avg_sq_ + eps_root) + eps));
    s[0] = exp_avg_;
    s[1] = exp_avg_sq_;
    return p - answer0 * unless_off(answer0, p) - y2;
  }

  static void answer_0_clip_threshold_none(const Numbers& k, In, In, Out a, Out to) {
    a[0] = k.lam + k.lam_size * k.lr; to[0] = 1;
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

#define LAYERWISE_PROGRAMS(X) \
  X(StableAdamW, StableAdamW, StableAdamW) \
  X(StableAdamWClipThresholdNone, StableAdamWClipThresholdNone)
