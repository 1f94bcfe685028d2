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

  T b1, shrink, answer0, answer1, answer2;

  NovoGrad(const Numbers& k, In a) {
    b1 = T(k.b1); shrink = T(k.shrink); answer0 = T(a[0]); answer1 = T(a[1]); answer2 = T(a[2]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { NovoGrad<T>::answer_0(a...); }

  void terms_0(T, T g, const T*, T* x) const {
    x[0] = g;
  }

  T apply(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0];
    const T exp_avg_ = answer1 * g + answer2 * unless_off(answer2, p) + b1 * exp_avg;
    s[0] = exp_avg_;
    return p - shrink * unless_off(shrink, p) - answer0 * exp_avg_;
  }

  static void answer_0(const Numbers& k, In S, In old, Out a, Out to) {
    const double gradient_norm = root(S[-1]), y1 = k.b2 * old[0] + k.a2 * (gradient_norm * gradient_norm);
    const double exp_avg_sq = ((k.reseeds != 0) & (old[0] == 0)) ? gradient_norm * gradient_norm : y1;
    const double y3 = k.c2 * exp_avg_sq + k.eps_root, y4 = (y3 == 0 ? 0 : root(y3 == 0 ? 1 : y3)) + k.eps;
    const double average_norm = exp_avg_sq == 0 ? 0 : root(exp_avg_sq == 0 ? 1 : exp_avg_sq);
    a[0] = k.lr * (k.inside == 1 ? 1 : 1 / y4); a[1] = k.inside == 1 ? k.a1 / y4 : k.a1; a[2] = k.a1 * k.lam;
    to[0] = gradient_norm; to[1] = average_norm; to[2] = 1;
  }

  static void remember(const Numbers& k, In S, In old, Out to) {
    const double gradient_norm = root(S[-1]), y1 = k.b2 * old[0] + k.a2 * (gradient_norm * gradient_norm);
    const double exp_avg_sq = ((k.reseeds != 0) & (old[0] == 0)) ? gradient_norm * gradient_norm : y1;
    to[0] = exp_avg_sq;
  }
};

#define LAYERWISE_PROGRAMS(X) \
  X(NovoGrad, NovoGrad, NovoGrad)
