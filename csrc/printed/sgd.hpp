// Printed from rules/sgd.py by `make generate`: change that, not this file.

// What SGD computes before it reads a tensor, in this order.
struct SGDNumbers {
  double l2, shrink, damped, mu, lr;
};

template <class T> struct SGD : Usual {
  using Numbers = SGDNumbers;
  static constexpr int STATES = 0, ROUNDS = 0, SUMS[1] = {0}, TERMS_READ[1] = {0}, APPLY_READS = 1 << P | 1 << G,
    APPLY_WRITES = 0;
  static constexpr Total TOTALS[1][4] = {{NONE}};

  T l2, shrink, damped, mu, lr;

  SGD(const Numbers& k, In) {
    l2 = T(k.l2); shrink = T(k.shrink); damped = T(k.damped); mu = T(k.mu); lr = T(k.lr);
  }

  template <int ROUND, class... A> static void answer(const A&... a) { SGD<T>::answer_0(a...); }

  T apply(T p, T g, T*, const T*) const {
    return p - shrink * unless_off(shrink, p) - lr * (g + l2 * unless_off(l2, p));
  }

  static void answer_0(const Numbers&, In, In, Out, Out to) {
    to[0] = 1;
  }

  T apply_with_momentum_buffer(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T momentum_buffer_ = damped * (g + l2 * unless_off(l2, p)) + mu * momentum_buffer;
    s[0] = momentum_buffer_;
    return p - shrink * unless_off(shrink, p) - lr * momentum_buffer_;
  }

  T apply_with_momentum_buffer_nesterov_true(T p, T g, T* s, const T*) const {
    const T momentum_buffer = s[0];
    const T y0 = g + l2 * unless_off(l2, p);
    const T momentum_buffer_ = damped * y0 + mu * momentum_buffer;
    s[0] = momentum_buffer_;
    return p - shrink * unless_off(shrink, p) - lr * (y0 + mu * momentum_buffer_);
  }
};

template <class T> struct SGDWithMomentumBuffer : SGD<T> {
  using SGD<T>::SGD;
  static constexpr int STATES = 1, APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;
  template <class... A> T apply(A... a) const { return this->apply_with_momentum_buffer(a...); }
};

template <class T> struct SGDWithMomentumBufferNesterovTrue : SGD<T> {
  using SGD<T>::SGD;
  static constexpr int STATES = 1, APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;
  template <class... A> T apply(A... a) const { return this->apply_with_momentum_buffer_nesterov_true(a...); }
};

#define LAYERWISE_PROGRAMS(X) \
  X(SGD, SGD) \
  X(SGDWithMomentumBuffer, SGDWithMomentumBuffer) \
  X(SGDWithMomentumBufferNesterovTrue, SGDWithMomentumBufferNesterovTrue)
