// Printed from rules/adafactor.py by `make generate`: change that, not this file.

// What Adafactor computes before it reads a tensor, in this order.
struct AdafactorNumbers {
  double b2, a2, eps1, least, clips, threshold, rho, eps2, b1, a1, inside, lam, lam_alpha;
};

template <class T> struct Adafactor : Usual {
  using Numbers = AdafactorNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, SUMS[1] = {2}, CACHES = 1, CACHED[1] = {1},
    TERMS_READ[1] = {1 << P | 1 << G | 1 << S0}, APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE, MEAN_SQUARE}};

  T b2, a2, eps1, least, b1, lam, size, step, size_;

  Adafactor(const Numbers& k, In a) {
    b2 = T(k.b2); a2 = T(k.a2); eps1 = T(k.eps1); least = T(k.least); b1 = T(k.b1); lam = T(a[0]); size = T(a[1]);
    step = T(a[2]); size_ = T(a[3]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Adafactor<T>::answer_0(a...); }

  void terms_0(T p, T g, const T* s, T* x) const {
    const T V = s[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T u = g / at_least(root(V_), least);
    x[0] = p;
    x[1] = u;
  }

  T apply(T p, T g, T* s, const T* x) const {
    const T V = s[0], u = x[1];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    s[0] = V_;
    return p - lam * unless_off(lam, p) - size * u;
  }

  static void answer_0(const Numbers& k, In S, In, Out a, Out to) {
    const double rms_p = root(S[-2]), scale = at_least(rms_p, k.eps2), alpha = k.rho * scale;
    const double lam = k.lam + k.lam_alpha * alpha, rms = root(S[-1]);
    const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1), size = alpha * clip;
    a[0] = lam; a[1] = size; to[0] = rms; to[1] = scale * clip; to[2] = rms_p;
  }

  void terms_0_scale_parameter_false(T, T g, const T* s, T* x) const {
    const T V = s[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T u = g / at_least(root(V_), least);
    x[0] = u;
  }

  T apply_scale_parameter_false(T p, T g, T* s, const T* x) const {
    const T V = s[0], u = x[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    s[0] = V_;
    return p - lam * unless_off(lam, p) - size * u;
  }

  static void answer_0_scale_parameter_false(const Numbers& k, In S, In, Out a, Out to) {
    const double lam = k.lam + k.lam_alpha * k.rho, rms = root(S[-1]);
    const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1), size = k.rho * clip;
    a[0] = lam; a[1] = size; to[0] = rms; to[1] = clip;
  }

  T apply_with_exp_avg(T p, T g, T* s, const T* x) const {
    const T V = s[0], e = s[1], u = x[1];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T e_ = b1 * e + step * u;
    s[0] = V_;
    s[1] = e_;
    return p - lam * unless_off(lam, p) - size * e_;
  }

  static void answer_0_with_exp_avg(const Numbers& k, In S, In, Out a, Out to) {
    const double rms_p = root(S[-2]), scale = at_least(rms_p, k.eps2), alpha = k.rho * scale;
    const double lam = k.lam + k.lam_alpha * alpha;
    const bool inside = k.inside == 1;
    const double size = inside ? 1 : alpha, rms = root(S[-1]);
    const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
    a[0] = lam; a[1] = size; a[2] = k.a1 * clip * (inside ? alpha : 1); to[0] = rms; to[1] = scale * clip;
    to[2] = rms_p;
  }

  T apply_with_exp_avg_scale_parameter_false(T p, T g, T* s, const T* x) const {
    const T V = s[0], e = s[1], u = x[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T e_ = b1 * e + step * u;
    s[0] = V_;
    s[1] = e_;
    return p - lam * unless_off(lam, p) - size * e_;
  }

  static void answer_0_with_exp_avg_scale_parameter_false(const Numbers& k, In S, In, Out a, Out to) {
    const double lam = k.lam + k.lam_alpha * k.rho;
    const bool inside = k.inside == 1;
    const double size = inside ? 1 : k.rho, rms = root(S[-1]);
    const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
    a[0] = lam; a[1] = size; a[2] = k.a1 * clip * (inside ? k.rho : 1); to[0] = rms; to[1] = clip;
  }

  void terms_1_with_exp_avg_caution_true(T, T g, const T* s, T* x) const {
    const T V = s[0], e = s[1];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T u = g / at_least(root(V_), least);
    const T e_ = b1 * e + step * u;
    const T agrees = (((e_ > 0) & (g > 0)) | ((e_ < 0) & (g < 0))) ? 1 : 0 * e_;
    x[0] = agrees;
  }

  T apply_with_exp_avg_caution_true(T p, T g, T* s, const T* x) const {
    const T V = s[0], e = s[1], agrees = x[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T u = g / at_least(root(V_), least);
    const T e_ = b1 * e + step * u;
    const T moved = e_ * agrees / size_;
    s[0] = V_;
    s[1] = e_;
    return p - lam * unless_off(lam, p) - size * moved;
  }

  static void answer_0_with_exp_avg_caution_true(const Numbers& k, In S, In, Out a, Out to) {
    const double rms = root(S[-1]), clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
    const bool inside = k.inside == 1;
    const double rms_p = root(S[-2]), scale = at_least(rms_p, k.eps2), alpha = k.rho * scale;
    const double lam = k.lam + k.lam_alpha * alpha, size = inside ? 1 : alpha;
    a[2] = k.a1 * clip * (inside ? alpha : 1); a[0] = lam; a[1] = size; to[0] = rms; to[1] = scale * clip;
    to[3] = rms_p;
  }

  static void answer_1_with_exp_avg_caution_true(const Numbers&, In S, In, Out a, Out to) {
    const double size = at_least(S[-1], 0.001);
    a[3] = size; to[2] = S[-1];
  }

  static void answer_0_with_exp_avg_caution_true_scale_parameter_false(const Numbers& k, In S, In, Out a, Out to) {
    const double rms = root(S[-1]), clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
    const bool inside = k.inside == 1;
    const double lam = k.lam + k.lam_alpha * k.rho, size = inside ? 1 : k.rho;
    a[2] = k.a1 * clip * (inside ? k.rho : 1); a[0] = lam; a[1] = size; to[0] = rms; to[1] = clip;
  }
};

template <class T> struct AdafactorScaleParameterFalse : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int SUMS[1] = {1}, CACHED[1] = {0}, TERMS_READ[1] = {1 << G | 1 << S0};
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE}};
  template <int ROUND, class... A> void terms(A... a) const { this->terms_0_scale_parameter_false(a...); }
  template <class... A> T apply(A... a) const { return this->apply_scale_parameter_false(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    Adafactor<T>::answer_0_scale_parameter_false(a...);
  }
};

template <class T> struct AdafactorWithExpAvg : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int STATES = 2, APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;
  template <class... A> T apply(A... a) const { return this->apply_with_exp_avg(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Adafactor<T>::answer_0_with_exp_avg(a...); }
};

template <class T> struct AdafactorWithExpAvgScaleParameterFalse : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int STATES = 2, SUMS[1] = {1}, CACHED[1] = {0}, TERMS_READ[1] = {1 << G | 1 << S0},
    APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE}};
  template <int ROUND, class... A> void terms(A... a) const { this->terms_0_scale_parameter_false(a...); }
  template <class... A> T apply(A... a) const { return this->apply_with_exp_avg_scale_parameter_false(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    Adafactor<T>::answer_0_with_exp_avg_scale_parameter_false(a...);
  }
};

template <class T> struct AdafactorWithExpAvgCautionTrue : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int STATES = 2, ROUNDS = 2, SUMS[2] = {2, 1}, CACHED[1] = {0},
    TERMS_READ[2] = {1 << P | 1 << G | 1 << S0, 1 << G | 1 << S0 | 1 << S1},
    APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;
  static constexpr Total TOTALS[2][4] = {{MEAN_SQUARE, MEAN_SQUARE}, {MEAN}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0(a...) : this->terms_1_with_exp_avg_caution_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_with_exp_avg_caution_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Adafactor<T>::answer_0_with_exp_avg_caution_true(a...) :
    Adafactor<T>::answer_1_with_exp_avg_caution_true(a...);
  }
};

template <class T> struct AdafactorWithExpAvgCautionTrueScaleParameterFalse : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int STATES = 2, ROUNDS = 2, SUMS[2] = {1, 1}, CACHED[1] = {0},
    TERMS_READ[2] = {1 << G | 1 << S0, 1 << G | 1 << S0 | 1 << S1}, APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1,
    APPLY_WRITES = 1 << S0 | 1 << S1;
  static constexpr Total TOTALS[2][4] = {{MEAN_SQUARE}, {MEAN}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_scale_parameter_false(a...) : this->terms_1_with_exp_avg_caution_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_with_exp_avg_caution_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Adafactor<T>::answer_0_with_exp_avg_caution_true_scale_parameter_false(a...) :
    Adafactor<T>::answer_1_with_exp_avg_caution_true(a...);
  }
};

// R, C and mean(R) (rules/factors.py), made of the means of this step.
template <class T>
inline T averaged(const AdafactorNumbers& k, T x, double mean) {
  return T(k.b2) * x + T(k.a2) * T(mean + k.eps1);
}
inline double averaged_mean(const AdafactorNumbers& k, double R_mean, double mean) {
  return at_least(k.b2 * R_mean + k.a2 * (mean + k.eps1), k.least);
}
