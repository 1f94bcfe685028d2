// Printed from rules/adamw.py by `make generate`: change that, not this file.

// What AdamW computes before it reads a tensor, in this order.
struct AdamWNumbers {
  double l2, shrink, b1, a1, b2, a2, ahead, beside, c2, eps_root, eps, lr;
};

template <class T> struct AdamW : Usual {
  using Numbers = AdamWNumbers;
  static constexpr int STATES = 2, ROUNDS = 0, SUMS[1] = {0}, TERMS_READ[1] = {0},
    APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;
  static constexpr Total TOTALS[1][4] = {{NONE}};

  T l2, shrink, b1, a1, b2, a2, ahead, beside, c2, eps_root, eps, lr;

  AdamW(const Numbers& k, In) {
    l2 = T(k.l2); shrink = T(k.shrink); b1 = T(k.b1); a1 = T(k.a1); b2 = T(k.b2); a2 = T(k.a2); ahead = T(k.ahead);
    beside = T(k.beside); c2 = T(k.c2); eps_root = T(k.eps_root); eps = T(k.eps); lr = T(k.lr);
  }

  template <int ROUND, class... A> static void answer(const A&... a) { AdamW<T>::answer_0(a...); }

  T apply(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = g + l2 * unless_off(l2, p);
    const T exp_avg_ = b1 * exp_avg + a1 * y0;
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0);
    const T y3 = exp_avg_ / (root(c2 * exp_avg_sq_ + eps_root) + eps);
    s[0] = exp_avg_;
    s[1] = exp_avg_sq_;
    return p - shrink * unless_off(shrink, p) - lr * y3;
  }

  static void answer_0(const Numbers&, In, In, Out, Out to) {
    to[0] = 1;
  }

  T apply_nesterov_true(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0], exp_avg_sq = s[1];
    const T y0 = g + l2 * unless_off(l2, p);
    const T exp_avg_ = b1 * exp_avg + a1 * y0;
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0);
    const T y3 = (ahead * exp_avg_ + beside * y0) / (root(c2 * exp_avg_sq_ + eps_root) + eps);
    s[0] = exp_avg_;
    s[1] = exp_avg_sq_;
    return p - shrink * unless_off(shrink, p) - lr * y3;
  }
};

template <class T> struct AdamWNesterovTrue : AdamW<T> {
  using AdamW<T>::AdamW;
  template <class... A> T apply(A... a) const { return this->apply_nesterov_true(a...); }
};

#define LAYERWISE_PROGRAMS(X) \
  X(AdamW, AdamW) \
  X(AdamWNesterovTrue, AdamWNesterovTrue)
