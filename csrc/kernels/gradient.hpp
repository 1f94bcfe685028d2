// The gradient as it is to be used (rules/clipping.py, `prepare_gradient`):
//
//     g ← g / g_scale;   g ← −g;   g ← clip(g, low, high);   g ← g / max(1, ‖g‖/c), its own norm and that of all

// The divisor of finite numbers need not fit their type.
template <class T>
void divide(T* __restrict g, int64_t n, double by) {
  constexpr double FAR = 0x1p64;
  if (by > FAR * 0x1p36) {
    for (int64_t i = 0; i < n; i++) g[i] *= T(1 / FAR);
    by /= FAR;
  }
  const T divisor = T(by);
  if (by != 1)
    for (int64_t i = 0; i < n; i++) g[i] = g[i] / divisor;
}

template <class T>
void ready(const Layer& layer, const T* __restrict from, T* __restrict g, int64_t n) {
  const GradientNumbers& k = *layer.gradient;
  const T scale = T(k.scale), sign = T(k.sign), low = T(k.low), high = T(k.high);
  for (int64_t i = 0; i < n; i++) g[i] = from[i] / scale * sign;
  if (low > T(-NO_BOUND) || high < T(NO_BOUND))
    for (int64_t i = 0; i < n; i++) g[i] = at_most(at_least(g[i], low), high);
  divide(g, n, layer.clip_own);
  divide(g, n, layer.clip_model);
}

template <class T>
const T* Run<T>::gradient() const {
  T* g = read(G);
  if (!layer.prepared) return g;
  alignas(64) T copy[SCRATCH];
  if (g == scratch.of[G]) memcpy(copy, g, size_t(n) * sizeof(T)), g = copy;
  ready<T>(layer, g, scratch.of[G], n);
  return scratch.of[G];
}

template <class S>
double squares(const S* __restrict x, int64_t n) {
  double xx = 0;
  LAYERWISE_SIMD(reduction(+ : xx))
  for (int64_t i = 0; i < n; i++) xx += double(get(x, i)) * double(get(x, i));
  return xx;
}

template <class T, class S>
void square_of(const Layer& layer, int64_t chunk, double* sums) {
  Scratch<T> scratch;
  for_runs(layer, chunk, longest<T, S>(layer, 1 << G), [&](const int64_t* off, int64_t n) {
    *sums += squares(Run<T>{layer, off, n, scratch}.template gradient_as<S>(), n);
  });
}
