// Sums of terms that kernels hand over a block at a time: ordinary ones, or exact ones in digits.

// Whether a sum of squares in float32 is reliable. A smaller one may lack terms that became 0, and an infinite one may be
// of finite numbers.
inline bool fits(float sum) { return sum >= 0x1p-80f && sum <= FLT_MAX; }

// Adds up in U: in several sums, of which none waits for another.
template <bool SQUARES, class U, class T>
U sum_of(const T* x, int64_t n) {
  const auto term = [&](int64_t i) { return SQUARES ? U(x[i]) * U(x[i]) : U(x[i]); };
  const int64_t part = n / 4;
  U a = 0, b = 0, c = 0, d = 0;
  LAYERWISE_SIMD(reduction(+ : a, b, c, d))
  for (int64_t i = 0; i < part; i++)
    a += term(i), b += term(part + i), c += term(2 * part + i), d += term(3 * part + i);
  for (int64_t i = 4 * part; i < n; i++) a += term(i);
  return (a + b) + (c + d);
}

template <bool SQUARES, class T>
void add_ordinarily(const T* x, int64_t n, double* to) {
  const T sum = sum_of<SQUARES, T>(x, n);
  if constexpr (SQUARES && sizeof(T) == 4)
    if (!fits(sum)) { *to += sum_of<true, double>(x, n); return; }
  *to += double(sum);
}

template <class T>
void add_up_terms(const T* x, int64_t n, bool squares, const Digits& to) {
  if (to.window.digits > 1) return add_exactly(x, n, squares, to);
  squares ? add_ordinarily<true>(x, n, to.at) : add_ordinarily<false>(x, n, to.at);
}
