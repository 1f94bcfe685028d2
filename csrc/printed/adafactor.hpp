// Printed from rules/adafactor.py by `make generate`: change that, not this file.

// What Adafactor computes before it reads a tensor, in this order.
struct AdafactorNumbers {
  double b2, a2, eps1, least, most, clips, threshold, rho, eps2, b1, a1, inside, lam, lam_alpha;
};

template <class T> struct Adafactor : Usual {
  using Numbers = AdafactorNumbers;
  static constexpr int STATES = 1, ROUNDS = 1, SUMS[1] = {2}, CACHES = 1, TERMS_READ[1] = {1 << P | 1 << G | 1 << S0},
    APPLY_READS = 1 << P | 1 << G | 1 << S0, APPLY_WRITES = 1 << S0;
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE, MEAN_SQUARE}};

  T b2, a2, eps1, least, most, b1, early0, answer0, answer1, answer2, answer3, answer4;

  Adafactor(const Numbers& k, In a) {
    b2 = T(k.b2); a2 = T(k.a2); eps1 = T(k.eps1); least = T(k.least); most = T(k.most); b1 = T(k.b1);
    early0 = T(-k.most); answer0 = T(a[0]); answer1 = T(a[1]); answer2 = T(a[2]); answer3 = T(a[3]); answer4 = T(a[4]);
  }

  template <int ROUND, class... A> void terms(A... a) const { this->terms_0(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) { Adafactor<T>::answer_0(a...); }

  void terms_0(T p, T g, const T* s, T* x) const {
    const T exp_avg_sq = s[0];
    const T y0 = at_most(at_least(g, early0), most) + (g - g);
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1);
    x[0] = y0 / at_least(root(exp_avg_sq_), least);
    x[1] = p;
  }

  T apply(T p, T g, T* s, const T* x) const {
    const T exp_avg_sq = s[0], x0 = x[0];
    const T y0 = at_most(at_least(g, early0), most) + (g - g);
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1);
    s[0] = exp_avg_sq_;
    return p - answer0 * unless_off(answer0, p) - answer1 * x0;
  }

  static void answer_0(const Numbers& k, In S, In, Out a, Out to) {
    const double weight_rms = root(S[-1]), y1 = at_least(weight_rms, k.eps2), update_rms = root(S[-2]);
    const double y3 = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1), trust_ratio = y1 * y3;
    a[0] = k.lam + k.lam_alpha * (k.rho * y1); a[1] = k.rho * y1 * y3; to[0] = update_rms; to[1] = trust_ratio;
    to[2] = weight_rms;
  }

  void terms_0_scale_parameter_false(T, T g, const T* s, T* x) const {
    const T exp_avg_sq = s[0];
    const T y0 = at_most(at_least(g, early0), most) + (g - g);
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1);
    x[0] = y0 / at_least(root(exp_avg_sq_), least);
  }

  static void answer_0_scale_parameter_false(const Numbers& k, In S, In, Out a, Out to) {
    const double update_rms = root(S[-1]), trust_ratio = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1);
    a[0] = k.lam + k.lam_alpha * k.rho; a[1] = k.rho * trust_ratio; to[0] = update_rms; to[1] = trust_ratio;
  }

  T apply_with_exp_avg(T p, T g, T* s, const T* x) const {
    const T exp_avg_sq = s[0], exp_avg = s[1], x0 = x[0];
    const T y0 = at_most(at_least(g, early0), most) + (g - g);
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1);
    const T exp_avg_ = b1 * exp_avg + answer2 * x0;
    s[0] = exp_avg_sq_;
    s[1] = exp_avg_;
    return p - answer0 * unless_off(answer0, p) - answer1 * exp_avg_;
  }

  static void answer_0_with_exp_avg(const Numbers& k, In S, In, Out a, Out to) {
    const double weight_rms = root(S[-1]), y1 = at_least(weight_rms, k.eps2), update_rms = root(S[-2]);
    const double y3 = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1), trust_ratio = y1 * y3;
    a[0] = k.lam + k.lam_alpha * (k.rho * y1); a[1] = k.inside == 1 ? 1 : k.rho * y1;
    a[2] = k.a1 * y3 * (k.inside == 1 ? k.rho * y1 : 1); to[0] = update_rms; to[1] = trust_ratio; to[2] = weight_rms;
  }

  static void answer_0_with_exp_avg_scale_parameter_false(const Numbers& k, In S, In, Out a, Out to) {
    const double update_rms = root(S[-1]), trust_ratio = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1);
    a[0] = k.lam + k.lam_alpha * k.rho; a[1] = k.inside == 1 ? 1 : k.rho;
    a[2] = k.a1 * trust_ratio * (k.inside == 1 ? k.rho : 1); to[0] = update_rms; to[1] = trust_ratio;
  }

  void terms_1_with_exp_avg_caution_true(T, T g, const T* s, T* x) const {
    const T exp_avg_sq = s[0], exp_avg = s[1];
    const T y0 = at_most(at_least(g, early0), most) + (g - g);
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1);
    const T y2 = answer0 * (y0 / at_least(root(exp_avg_sq_), least));
    const T exp_avg_ = b1 * exp_avg + y2;
    const bool y4 = ((exp_avg_ > 0) & (g > 0)) | ((exp_avg_ < 0) & (g < 0));
    x[0] = y4 ? 1 : 0 * exp_avg_;
  }

  T apply_with_exp_avg_caution_true(T p, T g, T* s, const T* x) const {
    const T exp_avg_sq = s[0], exp_avg = s[1], x0 = x[0];
    const T y0 = at_most(at_least(g, early0), most) + (g - g);
    const T exp_avg_sq_ = b2 * exp_avg_sq + a2 * (y0 * y0 + eps1);
    const T y2 = answer0 * (y0 / at_least(root(exp_avg_sq_), least));
    const T exp_avg_ = b1 * exp_avg + y2;
    s[0] = exp_avg_sq_;
    s[1] = exp_avg_;
    return p - answer1 * unless_off(answer1, p) - answer2 * (exp_avg_ * x0 / answer3);
  }

  static void answer_0_with_exp_avg_caution_true(const Numbers& k, In S, In, Out a, Out to) {
    const double update_rms = root(S[-2]), y1 = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1);
    const double weight_rms = root(S[-1]), y3 = at_least(weight_rms, k.eps2), trust_ratio = y3 * y1;
    a[0] = k.a1 * y1 * (k.inside == 1 ? k.rho * y3 : 1); a[1] = k.lam + k.lam_alpha * (k.rho * y3);
    a[2] = k.inside == 1 ? 1 : k.rho * y3; to[0] = update_rms; to[1] = trust_ratio; to[3] = weight_rms;
  }

  static void answer_1_with_exp_avg_caution_true(const Numbers&, In S, In, Out a, Out to) {
    a[3] = at_least(S[-1], 0.001); to[2] = S[-1];
  }

  static void answer_0_with_exp_avg_caution_true_scale_parameter_false(const Numbers& k, In S, In, Out a, Out to) {
    const double update_rms = root(S[-1]), trust_ratio = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1);
    a[0] = k.a1 * trust_ratio * (k.inside == 1 ? k.rho : 1); a[1] = k.lam + k.lam_alpha * k.rho;
    a[2] = k.inside == 1 ? 1 : k.rho; to[0] = update_rms; to[1] = trust_ratio;
  }

  void terms_0_by_lines(T p, T g, const T*, T* x) const {
    const T y0 = at_most(at_least(g, early0), most) + (g - g);
    x[0] = y0 * y0;
    x[1] = y0 * y0;
    x[2] = p;
  }

  void terms_1_by_lines(T, T g, const T* s, T* x) const {
    const T row = s[ROW - S0], column = s[COL - S0];
    x[0] = (at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0);
  }

  T apply_by_lines(T p, T g, T* s, const T*) const {
    const T row = s[ROW - S0], column = s[COL - S0];
    const T y0 = (at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0);
    return p - answer1 * unless_off(answer1, p) - answer2 * y0;
  }

  static void answer_0_by_lines(const Numbers& k, In S, In, Out a, Out to) {
    const double weight_rms = root(S[-1]), y1 = k.lam_alpha * (k.rho * at_least(weight_rms, k.eps2));
    a[0] = k.least == 0 ? NO_BOUND : 1 / (k.least == 0 ? 1 : k.least); a[1] = k.lam + y1; to[2] = weight_rms;
  }

  static void answer_1_by_lines(const Numbers& k, In S, In, Out a, Out to) {
    const double weight_rms = root(S[-2]), y1 = at_least(weight_rms, k.eps2), update_rms = root(S[-1]);
    const double y3 = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1), trust_ratio = y1 * y3;
    a[2] = k.rho * y1 * y3; to[0] = update_rms; to[1] = trust_ratio;
  }

  static void row_by_lines(const Numbers& k, double old, double mean, In M, Out to) {
    const T exp_avg_sq_row = T(k.b2) * T(old) + T(k.a2) * (T(mean) + T(k.eps1));
    const T y1 = T(k.b2) * T(M[1]) + T(k.a2) * (T(M[0]) + T(k.eps1));
    to[0] = exp_avg_sq_row; to[1] = 1 / root(exp_avg_sq_row / at_least(y1, T(k.least)));
  }

  static void column_by_lines(const Numbers& k, double old, double mean, In, Out to) {
    const T exp_avg_sq_col = T(k.b2) * T(old) + T(k.a2) * (T(mean) + T(k.eps1));
    to[0] = exp_avg_sq_col; to[1] = 1 / root(exp_avg_sq_col);
  }

  void terms_0_by_lines_scale_parameter_false(T, T g, const T*, T* x) const {
    const T y0 = at_most(at_least(g, early0), most) + (g - g);
    x[0] = y0 * y0;
    x[1] = y0 * y0;
  }

  static void answer_0_by_lines_scale_parameter_false(const Numbers& k, In, In, Out a, Out) {
    a[0] = k.least == 0 ? NO_BOUND : 1 / (k.least == 0 ? 1 : k.least); a[1] = k.lam + k.lam_alpha * k.rho;
  }

  static void answer_1_by_lines_scale_parameter_false(const Numbers& k, In S, In, Out a, Out to) {
    const double update_rms = root(S[-1]), trust_ratio = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1);
    a[2] = k.rho * trust_ratio; to[0] = update_rms; to[1] = trust_ratio;
  }

  T apply_by_lines_with_exp_avg(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0], row = s[ROW - S0], column = s[COL - S0];
    const T y0 = (at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0);
    const T exp_avg_ = b1 * exp_avg + answer3 * y0;
    s[0] = exp_avg_;
    return p - answer1 * unless_off(answer1, p) - answer2 * exp_avg_;
  }

  static void answer_0_by_lines_with_exp_avg(const Numbers& k, In S, In, Out a, Out to) {
    const double weight_rms = root(S[-1]), y1 = k.rho * at_least(weight_rms, k.eps2);
    a[0] = k.least == 0 ? NO_BOUND : 1 / (k.least == 0 ? 1 : k.least); a[1] = k.lam + k.lam_alpha * y1;
    a[2] = k.inside == 1 ? 1 : y1; to[2] = weight_rms;
  }

  static void answer_1_by_lines_with_exp_avg(const Numbers& k, In S, In, Out a, Out to) {
    const double update_rms = root(S[-1]), y1 = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1);
    const double weight_rms = root(S[-2]), y3 = at_least(weight_rms, k.eps2), trust_ratio = y3 * y1;
    a[3] = k.a1 * y1 * (k.inside == 1 ? k.rho * y3 : 1); to[0] = update_rms; to[1] = trust_ratio;
  }

  static void answer_0_by_lines_with_exp_avg_scale_parameter_false(const Numbers& k, In, In, Out a, Out) {
    a[0] = k.least == 0 ? NO_BOUND : 1 / (k.least == 0 ? 1 : k.least); a[1] = k.lam + k.lam_alpha * k.rho;
    a[2] = k.inside == 1 ? 1 : k.rho;
  }

  static void answer_1_by_lines_with_exp_avg_scale_parameter_false(const Numbers& k, In S, In, Out a, Out to) {
    const double update_rms = root(S[-1]), trust_ratio = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1);
    a[3] = k.a1 * trust_ratio * (k.inside == 1 ? k.rho : 1); to[0] = update_rms; to[1] = trust_ratio;
  }

  void terms_2_by_lines_with_exp_avg_caution_true(T, T g, const T* s, T* x) const {
    const T exp_avg = s[0], row = s[ROW - S0], column = s[COL - S0];
    const T y0 = (at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0);
    const T exp_avg_ = b1 * exp_avg + answer1 * y0;
    const bool y2 = ((exp_avg_ > 0) & (g > 0)) | ((exp_avg_ < 0) & (g < 0));
    x[0] = y2 ? 1 : 0 * exp_avg_;
  }

  T apply_by_lines_with_exp_avg_caution_true(T p, T g, T* s, const T*) const {
    const T exp_avg = s[0], row = s[ROW - S0], column = s[COL - S0];
    const T y0 = (at_most(at_least(g, early0), most) + (g - g)) * at_most(row * column, answer0);
    const T exp_avg_ = b1 * exp_avg + answer1 * y0;
    const bool y2 = ((exp_avg_ > 0) & (g > 0)) | ((exp_avg_ < 0) & (g < 0));
    const T y3 = answer3 * (exp_avg_ * (y2 ? 1 : 0 * exp_avg_) / answer4);
    s[0] = exp_avg_;
    return p - answer2 * unless_off(answer2, p) - y3;
  }

  static void answer_0_by_lines_with_exp_avg_caution_true(const Numbers& k, In S, In, Out a, Out to) {
    const double weight_rms = root(S[-1]), y1 = k.rho * at_least(weight_rms, k.eps2);
    a[0] = k.least == 0 ? NO_BOUND : 1 / (k.least == 0 ? 1 : k.least); a[2] = k.lam + k.lam_alpha * y1;
    a[3] = k.inside == 1 ? 1 : y1; to[3] = weight_rms;
  }

  static void answer_1_by_lines_with_exp_avg_caution_true(const Numbers& k, In S, In, Out a, Out to) {
    const double update_rms = root(S[-1]), y1 = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1);
    const double weight_rms = root(S[-2]), y3 = at_least(weight_rms, k.eps2), trust_ratio = y3 * y1;
    a[1] = k.a1 * y1 * (k.inside == 1 ? k.rho * y3 : 1); to[0] = update_rms; to[1] = trust_ratio;
  }

  static void answer_2_by_lines_with_exp_avg_caution_true(const Numbers&, In S, In, Out a, Out to) {
    a[4] = at_least(S[-1], 0.001); to[2] = S[-1];
  }

  static void answer_0_by_lines_with_exp_avg_caution_true_scale_parameter_false(const Numbers& k, In, In, Out a, Out) {
    a[0] = k.least == 0 ? NO_BOUND : 1 / (k.least == 0 ? 1 : k.least); a[2] = k.lam + k.lam_alpha * k.rho;
    a[3] = k.inside == 1 ? 1 : k.rho;
  }

  static void answer_1_by_lines_with_exp_avg_caution_true_scale_parameter_false(const Numbers& k, In S, In, Out a, Out to) {
    const double update_rms = root(S[-1]), trust_ratio = k.clips == 0 ? 1 : 1 / at_least(update_rms / k.threshold, 1);
    a[1] = k.a1 * trust_ratio * (k.inside == 1 ? k.rho : 1); to[0] = update_rms; to[1] = trust_ratio;
  }
};

template <class T> struct AdafactorScaleParameterFalse : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int SUMS[1] = {1}, TERMS_READ[1] = {1 << G | 1 << S0};
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE}};
  template <int ROUND, class... A> void terms(A... a) const { this->terms_0_scale_parameter_false(a...); }
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
  static constexpr int STATES = 2, SUMS[1] = {1}, TERMS_READ[1] = {1 << G | 1 << S0},
    APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << S1, APPLY_WRITES = 1 << S0 | 1 << S1;
  static constexpr Total TOTALS[1][4] = {{MEAN_SQUARE}};
  template <int ROUND, class... A> void terms(A... a) const { this->terms_0_scale_parameter_false(a...); }
  template <class... A> T apply(A... a) const { return this->apply_with_exp_avg(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    Adafactor<T>::answer_0_with_exp_avg_scale_parameter_false(a...);
  }
};

template <class T> struct AdafactorWithExpAvgCautionTrue : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int STATES = 2, ROUNDS = 2, SUMS[2] = {2, 1},
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
  static constexpr int STATES = 2, ROUNDS = 2, SUMS[2] = {1, 1},
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

template <class T> struct AdafactorByLines : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int STATES = 0, ROUNDS = 2, SUMS[2] = {1, 1}, CACHES = 0,
    TERMS_READ[2] = {1 << P | 1 << G, 1 << G | 1 << ROW | 1 << COL},
    APPLY_READS = 1 << P | 1 << G | 1 << ROW | 1 << COL, APPLY_WRITES = 0, LINES = 2;
  static constexpr Total TOTALS[2][4] = {{MEAN_SQUARE}, {MEAN_SQUARE}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_by_lines(a...) : this->terms_1_by_lines(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_by_lines(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Adafactor<T>::answer_0_by_lines(a...) : Adafactor<T>::answer_1_by_lines(a...);
  }
  template <class... A> static void row(const A&... a) { Adafactor<T>::row_by_lines(a...); }
  template <class... A> static void column(const A&... a) { Adafactor<T>::column_by_lines(a...); }
};

template <class T> struct AdafactorByLinesScaleParameterFalse : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int STATES = 0, ROUNDS = 2, SUMS[2] = {0, 1}, CACHES = 0,
    TERMS_READ[2] = {1 << G, 1 << G | 1 << ROW | 1 << COL}, APPLY_READS = 1 << P | 1 << G | 1 << ROW | 1 << COL,
    APPLY_WRITES = 0, LINES = 2;
  static constexpr Total TOTALS[2][4] = {{NONE}, {MEAN_SQUARE}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_by_lines_scale_parameter_false(a...) : this->terms_1_by_lines(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_by_lines(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Adafactor<T>::answer_0_by_lines_scale_parameter_false(a...) :
    Adafactor<T>::answer_1_by_lines_scale_parameter_false(a...);
  }
  template <class... A> static void row(const A&... a) { Adafactor<T>::row_by_lines(a...); }
  template <class... A> static void column(const A&... a) { Adafactor<T>::column_by_lines(a...); }
};

template <class T> struct AdafactorByLinesWithExpAvg : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int ROUNDS = 2, SUMS[2] = {1, 1}, CACHES = 0,
    TERMS_READ[2] = {1 << P | 1 << G, 1 << G | 1 << ROW | 1 << COL},
    APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << ROW | 1 << COL, LINES = 2;
  static constexpr Total TOTALS[2][4] = {{MEAN_SQUARE}, {MEAN_SQUARE}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_by_lines(a...) : this->terms_1_by_lines(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_by_lines_with_exp_avg(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Adafactor<T>::answer_0_by_lines_with_exp_avg(a...) :
    Adafactor<T>::answer_1_by_lines_with_exp_avg(a...);
  }
  template <class... A> static void row(const A&... a) { Adafactor<T>::row_by_lines(a...); }
  template <class... A> static void column(const A&... a) { Adafactor<T>::column_by_lines(a...); }
};

template <class T> struct AdafactorByLinesWithExpAvgScaleParameterFalse : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int ROUNDS = 2, SUMS[2] = {0, 1}, CACHES = 0, TERMS_READ[2] = {1 << G, 1 << G | 1 << ROW | 1 << COL},
    APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << ROW | 1 << COL, LINES = 2;
  static constexpr Total TOTALS[2][4] = {{NONE}, {MEAN_SQUARE}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_by_lines_scale_parameter_false(a...) : this->terms_1_by_lines(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_by_lines_with_exp_avg(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Adafactor<T>::answer_0_by_lines_with_exp_avg_scale_parameter_false(a...) :
    Adafactor<T>::answer_1_by_lines_with_exp_avg_scale_parameter_false(a...);
  }
  template <class... A> static void row(const A&... a) { Adafactor<T>::row_by_lines(a...); }
  template <class... A> static void column(const A&... a) { Adafactor<T>::column_by_lines(a...); }
};

template <class T> struct AdafactorByLinesWithExpAvgCautionTrue : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int ROUNDS = 3, SUMS[3] = {1, 1, 1}, CACHES = 0,
    TERMS_READ[3] = {1 << P | 1 << G, 1 << G | 1 << ROW | 1 << COL, 1 << G | 1 << S0 | 1 << ROW | 1 << COL},
    APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << ROW | 1 << COL, LINES = 2;
  static constexpr Total TOTALS[3][4] = {{MEAN_SQUARE}, {MEAN_SQUARE}, {MEAN}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_by_lines(a...) : ROUND == 1 ? this->terms_1_by_lines(a...) :
    this->terms_2_by_lines_with_exp_avg_caution_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_by_lines_with_exp_avg_caution_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Adafactor<T>::answer_0_by_lines_with_exp_avg_caution_true(a...) :
    ROUND == 1 ? Adafactor<T>::answer_1_by_lines_with_exp_avg_caution_true(a...) :
    Adafactor<T>::answer_2_by_lines_with_exp_avg_caution_true(a...);
  }
  template <class... A> static void row(const A&... a) { Adafactor<T>::row_by_lines(a...); }
  template <class... A> static void column(const A&... a) { Adafactor<T>::column_by_lines(a...); }
};

template <class T> struct AdafactorByLinesWithExpAvgCautionTrueScaleParameterFalse : Adafactor<T> {
  using Adafactor<T>::Adafactor;
  static constexpr int ROUNDS = 3, SUMS[3] = {0, 1, 1}, CACHES = 0,
    TERMS_READ[3] = {1 << G, 1 << G | 1 << ROW | 1 << COL, 1 << G | 1 << S0 | 1 << ROW | 1 << COL},
    APPLY_READS = 1 << P | 1 << G | 1 << S0 | 1 << ROW | 1 << COL, LINES = 2;
  static constexpr Total TOTALS[3][4] = {{NONE}, {MEAN_SQUARE}, {MEAN}};
  template <int ROUND, class... A> void terms(A... a) const {
    ROUND == 0 ? this->terms_0_by_lines_scale_parameter_false(a...) : ROUND == 1 ? this->terms_1_by_lines(a...) :
    this->terms_2_by_lines_with_exp_avg_caution_true(a...);
  }
  template <class... A> T apply(A... a) const { return this->apply_by_lines_with_exp_avg_caution_true(a...); }
  template <int ROUND, class... A> static void answer(const A&... a) {
    ROUND == 0 ? Adafactor<T>::answer_0_by_lines_with_exp_avg_caution_true_scale_parameter_false(a...) :
    ROUND == 1 ? Adafactor<T>::answer_1_by_lines_with_exp_avg_caution_true_scale_parameter_false(a...) :
    Adafactor<T>::answer_2_by_lines_with_exp_avg_caution_true(a...);
  }
  template <class... A> static void row(const A&... a) { Adafactor<T>::row_by_lines(a...); }
  template <class... A> static void column(const A&... a) { Adafactor<T>::column_by_lines(a...); }
};

#define LAYERWISE_PROGRAMS(X) \
  X(Adafactor, Adafactor, Adafactor) \
  X(AdafactorScaleParameterFalse, Adafactor, AdafactorScaleParameterFalse) \
  X(AdafactorWithExpAvg, AdafactorWithExpAvg, Adafactor) \
  X(AdafactorWithExpAvgScaleParameterFalse, AdafactorWithExpAvg, AdafactorScaleParameterFalse) \
  X(AdafactorWithExpAvgCautionTrue, AdafactorWithExpAvgCautionTrue, AdafactorWithExpAvgCautionTrue, AdafactorWithExpAvgCautionTrue) \
  X(AdafactorWithExpAvgCautionTrueScaleParameterFalse, AdafactorWithExpAvgCautionTrue, AdafactorWithExpAvgCautionTrueScaleParameterFalse, AdafactorWithExpAvgCautionTrue) \
  X(AdafactorByLines, AdafactorByLines, AdafactorByLines, AdafactorByLines) \
  X(AdafactorByLinesScaleParameterFalse, AdafactorByLines, AdafactorByLinesScaleParameterFalse, AdafactorByLines) \
  X(AdafactorByLinesWithExpAvg, AdafactorByLinesWithExpAvg, AdafactorByLines, AdafactorByLines) \
  X(AdafactorByLinesWithExpAvgScaleParameterFalse, AdafactorByLinesWithExpAvg, AdafactorByLinesScaleParameterFalse, AdafactorByLines) \
  X(AdafactorByLinesWithExpAvgCautionTrue, AdafactorByLinesWithExpAvgCautionTrue, AdafactorByLines, AdafactorByLines, AdafactorByLinesWithExpAvgCautionTrue) \
  X(AdafactorByLinesWithExpAvgCautionTrueScaleParameterFalse, AdafactorByLinesWithExpAvgCautionTrue, AdafactorByLinesScaleParameterFalse, AdafactorByLines, AdafactorByLinesWithExpAvgCautionTrue)
