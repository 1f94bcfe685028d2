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
    const T m = s[0], v = s[1];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    const T v_hat = c2 * v_;
    const T u = m_ / (root(v_hat + eps_root) + eps);
    s[0] = m_;
    s[1] = v_;
    return p - shrink * unless_off(shrink, p) - lr * u;
  }

  static void answer_0(const Numbers&, In, In, Out, Out to) {
    to[0] = 1;
  }

  T apply_nesterov_true(T p, T g, T* s, const T*) const {
    const T m = s[0], v = s[1];
    const T g_ = g + l2 * unless_off(l2, p);
    const T m_ = b1 * m + a1 * g_;
    const T v_ = b2 * v + a2 * (g_ * g_);
    const T ahead_ = ahead * m_ + beside * g_;
    const T v_hat = c2 * v_;
    const T u = ahead_ / (root(v_hat + eps_root) + eps);
    s[0] = m_;
    s[1] = v_;
    return p - shrink * unless_off(shrink, p) - lr * u;
  }
};

template <class T> struct AdamWNesterovTrue : AdamW<T> {
  using AdamW<T>::AdamW;
  template <class... A> T apply(A... a) const { return this->apply_nesterov_true(a...); }
};
