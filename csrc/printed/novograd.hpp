// Printed from rules/novograd.py by `make generate`: change that, not this file.

// What NovoGrad computes before it reads a tensor, in this order.
struct NovoGradNumbers {
  double b2, a2, reseeds, c2, eps_root, eps, inside, b1, a1, lam, lr, shrink;
};

template <class T> struct NovoGrad : Usual {
  using Numbers = NovoGradNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, SUMS[1] = {1}, TERMS_READ[1] = {1 << G},
    APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0, LAYER_STATES = 1, OF_LAYER = 1 << 1;
  static constexpr Total TOTALS[1][4] = {{SQUARES}};

  T b1, shrink, step, step_, step__;

  NovoGrad(const Numbers& k, In a) {
    b1 = T(k.b1); shrink = T(k.shrink); step = T(a[0]); step_ = T(a[1]); step__ = T(a[2]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { NovoGrad<T>::answer_0(a...); }

  void terms_0(T, T g, const T*, T* x) const {
    x[0] = g;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T m = s[0];
    const T u = step_ * g;
    const T u_ = u + step__ * unless_off(step__, p);
    const T m_ = u_ + b1 * m;
    s[0] = m_;
    return p - shrink * unless_off(shrink, p) - step * m_;
  }

  static void answer_0(const Numbers& k, In S, In old, Out a, Out to) {
    const bool inside = k.inside == 1;
    const double norm = root(S[-1]), squares = norm * norm, new_ = k.b2 * old[0] + k.a2 * squares;
    const double v = ((k.reseeds != 0) & (old[0] == 0)) ? squares : new_;
    const bool zero = k.c2 * v + k.eps_root == 0;
    const double d = (zero ? 0 : root(zero ? 1 : k.c2 * v + k.eps_root)) + k.eps;
    const bool zero_ = v == 0;
    a[0] = k.lr * (inside ? 1 : 1 / d); a[1] = inside ? k.a1 / d : k.a1; a[2] = k.a1 * k.lam; to[0] = norm;
    to[1] = zero_ ? 0 : root(zero_ ? 1 : v); to[2] = 1;
  }

  static void remember(const Numbers& k, In S, In old, Out to) {
    const double norm = root(S[-1]), squares = norm * norm, new_ = k.b2 * old[0] + k.a2 * squares;
    const double v = ((k.reseeds != 0) & (old[0] == 0)) ? squares : new_;
    to[0] = v;
  }
};
