// Printed from rules/adafactor.py by `make generate`: change that, not this file.

// What Adafactor computes before it reads a tensor, in this order.
struct AdafactorNumbers {
  double b2, a2, eps1, least, clips, threshold, rho, eps2, b1, a1, inside, lam, lam_alpha;
};

template <class T>
struct Adafactor {
  using Numbers = AdafactorNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, CACHES = 1, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {2}, CACHED[1] = {1};
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE, MEAN_SQUARE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T b2, a2, eps1, least, lam, size;

  Adafactor(const AdafactorNumbers& k, const double* a) {
    b2 = T(k.b2); a2 = T(k.a2); eps1 = T(k.eps1); least = T(k.least); lam = T(a[0]); size = T(a[1]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
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

  static void answer(int round, const AdafactorNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double rms_p = root(S[0]);
      const double scale = at_least(rms_p, k.eps2);
      const double alpha = k.rho * scale;
      const double lam = k.lam + k.lam_alpha * alpha;
      const double rms = root(S[1]);
      const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
      const double size = alpha * clip;
      a[0] = lam;
      a[1] = size;
    }
  }

  static void report(const AdafactorNumbers& k, const double* S, const double*, double* to) {
    const double rms = root(S[1]);
    const double rms_p = root(S[0]);
    const double scale = at_least(rms_p, k.eps2);
    const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
    to[0] = rms;
    to[1] = scale * clip;
    to[2] = rms_p;
  }

  static void remember(const AdafactorNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct AdafactorScaleParameterFalse {
  using Numbers = AdafactorNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, CACHES = 1, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {1}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;

  T b2, a2, eps1, least, lam, size;

  AdafactorScaleParameterFalse(const AdafactorNumbers& k, const double* a) {
    b2 = T(k.b2); a2 = T(k.a2); eps1 = T(k.eps1); least = T(k.least); lam = T(k.lam + k.lam_alpha * k.rho);
    size = T(a[0]);
  }

  template <int ROUND>
  void terms(T, T g, const T* s, T* x) const {
    const T V = s[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T u = g / at_least(root(V_), least);
    x[0] = u;
  }

  T apply(T p, T g, T* s, const T* x) const {
    const T V = s[0], u = x[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    s[0] = V_;
    return p - lam * unless_off(lam, p) - size * u;
  }

  static void answer(int round, const AdafactorNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double rms = root(S[0]);
      const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
      const double size = k.rho * clip;
      a[0] = size;
    }
  }

  static void report(const AdafactorNumbers& k, const double* S, const double*, double* to) {
    const double rms = root(S[0]);
    const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
    to[0] = rms;
    to[1] = clip;
  }

  static void remember(const AdafactorNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct AdafactorWithExpAvg {
  using Numbers = AdafactorNumbers;
  static constexpr int STATES = 2, ROUNDS = 1, CACHES = 1, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {2}, CACHED[1] = {1};
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE, MEAN_SQUARE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << P | 1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;

  T b2, a2, eps1, least, b1, lam, size, step;

  AdafactorWithExpAvg(const AdafactorNumbers& k, const double* a) {
    b2 = T(k.b2); a2 = T(k.a2); eps1 = T(k.eps1); least = T(k.least); b1 = T(k.b1); lam = T(a[0]); size = T(a[1]);
    step = T(a[2]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    const T V = s[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T u = g / at_least(root(V_), least);
    x[0] = p;
    x[1] = u;
  }

  T apply(T p, T g, T* s, const T* x) const {
    const T V = s[0], e = s[1], u = x[1];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T e_ = b1 * e + step * u;
    s[0] = V_;
    s[1] = e_;
    return p - lam * unless_off(lam, p) - size * e_;
  }

  static void answer(int round, const AdafactorNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double rms_p = root(S[0]);
      const double scale = at_least(rms_p, k.eps2);
      const double alpha = k.rho * scale;
      const double lam = k.lam + k.lam_alpha * alpha;
      const bool inside = k.inside == 1;
      const double size = inside ? 1 : alpha;
      const double rms = root(S[1]);
      const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
      a[0] = lam;
      a[1] = size;
      a[2] = k.a1 * clip * (inside ? alpha : 1);
    }
  }

  static void report(const AdafactorNumbers& k, const double* S, const double*, double* to) {
    const double rms = root(S[1]);
    const double rms_p = root(S[0]);
    const double scale = at_least(rms_p, k.eps2);
    const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
    to[0] = rms;
    to[1] = scale * clip;
    to[2] = rms_p;
  }

  static void remember(const AdafactorNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct AdafactorWithExpAvgScaleParameterFalse {
  using Numbers = AdafactorNumbers;
  static constexpr int STATES = 2, ROUNDS = 1, CACHES = 1, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[1] = {1}, CACHED[1] = {0};
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[1] = {1 << G | 1 << S0};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;

  T b2, a2, eps1, least, b1, lam, size, step;

  AdafactorWithExpAvgScaleParameterFalse(const AdafactorNumbers& k, const double* a) {
    b2 = T(k.b2); a2 = T(k.a2); eps1 = T(k.eps1); least = T(k.least); b1 = T(k.b1);
    lam = T(k.lam + k.lam_alpha * k.rho); size = T(k.inside == 1 ? 1 : k.rho); step = T(a[0]);
  }

  template <int ROUND>
  void terms(T, T g, const T* s, T* x) const {
    const T V = s[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T u = g / at_least(root(V_), least);
    x[0] = u;
  }

  T apply(T p, T g, T* s, const T* x) const {
    const T V = s[0], e = s[1], u = x[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T e_ = b1 * e + step * u;
    s[0] = V_;
    s[1] = e_;
    return p - lam * unless_off(lam, p) - size * e_;
  }

  static void answer(int round, const AdafactorNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double rms = root(S[0]);
      const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
      const bool inside = k.inside == 1;
      a[0] = k.a1 * clip * (inside ? k.rho : 1);
    }
  }

  static void report(const AdafactorNumbers& k, const double* S, const double*, double* to) {
    const double rms = root(S[0]);
    const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
    to[0] = rms;
    to[1] = clip;
  }

  static void remember(const AdafactorNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct AdafactorWithExpAvgCautionTrue {
  using Numbers = AdafactorNumbers;
  static constexpr int STATES = 2, ROUNDS = 2, CACHES = 1, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[2] = {2, 1}, CACHED[1] = {0};
  static constexpr Total TOTALS[2][4] = {{MEAN_SQUARE, MEAN_SQUARE}, {MEAN}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[2] = {1 << P | 1 << G | 1 << S0, 1 << G | 1 << S0 | 1 << S1};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;

  T b2, a2, eps1, least, b1, step, lam, size, size_;

  AdafactorWithExpAvgCautionTrue(const AdafactorNumbers& k, const double* a) {
    b2 = T(k.b2); a2 = T(k.a2); eps1 = T(k.eps1); least = T(k.least); b1 = T(k.b1); step = T(a[0]); lam = T(a[1]);
    size = T(a[2]); size_ = T(a[3]);
  }

  template <int ROUND>
  void terms(T p, T g, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T V = s[0];
      const T V_ = b2 * V + a2 * (g * g + eps1);
      const T u = g / at_least(root(V_), least);
      x[0] = p;
      x[1] = u;
    }
    if constexpr (ROUND == 1) {
      const T V = s[0], e = s[1];
      const T V_ = b2 * V + a2 * (g * g + eps1);
      const T u = g / at_least(root(V_), least);
      const T e_ = b1 * e + step * u;
      const T agrees = (((e_ > 0) & (g > 0)) | ((e_ < 0) & (g < 0))) ? 1 : 0 * e_;
      x[0] = agrees;
    }
  }

  T apply(T p, T g, T* s, const T* x) const {
    const T V = s[0], e = s[1], agrees = x[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T u = g / at_least(root(V_), least);
    const T e_ = b1 * e + step * u;
    const T moved = e_ * agrees / size_;
    s[0] = V_;
    s[1] = e_;
    return p - lam * unless_off(lam, p) - size * moved;
  }

  static void answer(int round, const AdafactorNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double rms = root(S[1]);
      const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
      const bool inside = k.inside == 1;
      const double rms_p = root(S[0]);
      const double scale = at_least(rms_p, k.eps2);
      const double alpha = k.rho * scale;
      const double lam = k.lam + k.lam_alpha * alpha;
      const double size = inside ? 1 : alpha;
      a[0] = k.a1 * clip * (inside ? alpha : 1);
      a[1] = lam;
      a[2] = size;
    }
    if (round == 1) {
      const double size = at_least(S[2], 0.001);
      a[3] = size;
    }
  }

  static void report(const AdafactorNumbers& k, const double* S, const double*, double* to) {
    const double rms = root(S[1]);
    const double rms_p = root(S[0]);
    const double scale = at_least(rms_p, k.eps2);
    const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
    to[0] = rms;
    to[1] = scale * clip;
    to[2] = S[2];
    to[3] = rms_p;
  }

  static void remember(const AdafactorNumbers&, const double*, const double*, double*) {}
};

template <class T>
struct AdafactorWithExpAvgCautionTrueScaleParameterFalse {
  using Numbers = AdafactorNumbers;
  static constexpr int STATES = 2, ROUNDS = 2, CACHES = 1, KEEPS = -1;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0;
  static constexpr int SUMS[2] = {1, 1}, CACHED[1] = {0};
  static constexpr Total TOTALS[2][4] = {{MEAN_SQUARE}, {MEAN}};
  static constexpr int KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int TERMS_READ[2] = {1 << G | 1 << S0, 1 << G | 1 << S0 | 1 << S1};
  static constexpr int APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;

  T b2, a2, eps1, least, b1, step, lam, size, size_;

  AdafactorWithExpAvgCautionTrueScaleParameterFalse(const AdafactorNumbers& k, const double* a) {
    b2 = T(k.b2); a2 = T(k.a2); eps1 = T(k.eps1); least = T(k.least); b1 = T(k.b1); step = T(a[0]);
    lam = T(k.lam + k.lam_alpha * k.rho); size = T(k.inside == 1 ? 1 : k.rho); size_ = T(a[1]);
  }

  template <int ROUND>
  void terms(T, T g, const T* s, T* x) const {
    if constexpr (ROUND == 0) {
      const T V = s[0];
      const T V_ = b2 * V + a2 * (g * g + eps1);
      const T u = g / at_least(root(V_), least);
      x[0] = u;
    }
    if constexpr (ROUND == 1) {
      const T V = s[0], e = s[1];
      const T V_ = b2 * V + a2 * (g * g + eps1);
      const T u = g / at_least(root(V_), least);
      const T e_ = b1 * e + step * u;
      const T agrees = (((e_ > 0) & (g > 0)) | ((e_ < 0) & (g < 0))) ? 1 : 0 * e_;
      x[0] = agrees;
    }
  }

  T apply(T p, T g, T* s, const T* x) const {
    const T V = s[0], e = s[1], agrees = x[0];
    const T V_ = b2 * V + a2 * (g * g + eps1);
    const T u = g / at_least(root(V_), least);
    const T e_ = b1 * e + step * u;
    const T moved = e_ * agrees / size_;
    s[0] = V_;
    s[1] = e_;
    return p - lam * unless_off(lam, p) - size * moved;
  }

  static void answer(int round, const AdafactorNumbers& k, const double* S, const double*, double* a) {
    if (round == 0) {
      const double rms = root(S[0]);
      const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
      const bool inside = k.inside == 1;
      a[0] = k.a1 * clip * (inside ? k.rho : 1);
    }
    if (round == 1) {
      const double size = at_least(S[1], 0.001);
      a[1] = size;
    }
  }

  static void report(const AdafactorNumbers& k, const double* S, const double*, double* to) {
    const double rms = root(S[0]);
    const double clip = k.clips == 0 ? 1 : 1 / at_least(rms / k.threshold, 1);
    to[0] = rms;
    to[1] = clip;
    to[2] = S[1];
  }

  static void remember(const AdafactorNumbers&, const double*, const double*, double*) {}
};
