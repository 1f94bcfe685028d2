// Printed from rules/sgd.py by `make generate`: change that, not this file.

// What SGD computes before it reads a tensor, in this order.
struct SGDNumbers {
  double l2, shrink, damped, mu, lr;
};

template <class T>
struct SGD {
  using Numbers = SGDNumbers;
  static constexpr int STATES = 0, ROUNDS = 0, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {0}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{NONE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {0};
  static constexpr int APPLY_READS = 1 << P | 1 << G, APPLY_WRITES = 0;

  T l2, shrink, lr;

  SGD(const SGDNumbers& k, const double*) {
    l2 = T(k.l2); shrink = T(k.shrink); lr = T(k.lr);
  }

  T apply(T p, T g, T*, const T*) const {
    const T g_ = g + l2 * unless_off(l2, p);
    return p - shrink * unless_off(shrink, p) - lr * g_;
  }

  static void answer(int, const SGDNumbers&, const double*, const double*, double*) {}

  static void report(const SGDNumbers&, const double*, const double*, double* to) {
    to[0] = 1;
  }

  static void remember(const SGDNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct SGDWithMomentumBuffer {
  using Numbers = SGDNumbers;
  static constexpr int STATES = 1, ROUNDS = 0, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {0}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{NONE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, shrink, damped, mu, lr;

  SGDWithMomentumBuffer(const SGDNumbers& k, const double*) {
    l2 = T(k.l2); shrink = T(k.shrink); damped = T(k.damped); mu = T(k.mu); lr = T(k.lr);
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T b_ = damped * g_ + mu * b;
    s[0] = b_;
    return p - shrink * unless_off(shrink, p) - lr * b_;
  }

  static void answer(int, const SGDNumbers&, const double*, const double*, double*) {}

  static void report(const SGDNumbers&, const double*, const double*, double* to) {
    to[0] = 1;
  }

  static void remember(const SGDNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct SGDWithMomentumBufferNesterovTrue {
  using Numbers = SGDNumbers;
  static constexpr int STATES = 1, ROUNDS = 0, CACHES = 0, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {0}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{NONE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T l2, shrink, damped, mu, lr;

  SGDWithMomentumBufferNesterovTrue(const SGDNumbers& k, const double*) {
    l2 = T(k.l2); shrink = T(k.shrink); damped = T(k.damped); mu = T(k.mu); lr = T(k.lr);
  }

  T apply(T p, T g, T* s, const T*) const {
    const T b = s[0];
    const T g_ = g + l2 * unless_off(l2, p);
    const T b_ = damped * g_ + mu * b;
    const T moved = g_ + mu * b_;
    s[0] = b_;
    return p - shrink * unless_off(shrink, p) - lr * moved;
  }

  static void answer(int, const SGDNumbers&, const double*, const double*, double*) {}

  static void report(const SGDNumbers&, const double*, const double*, double* to) {
    to[0] = 1;
  }

  static void remember(const SGDNumbers&, const double*, const double*, double*) {}
};
