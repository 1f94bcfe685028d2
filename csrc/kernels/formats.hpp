// Storage formats: loops over the printed functions of one number (src/layerwise/storage, whose text says what each format
// is), and numbers in groups of 8 bits.

// The random bits of a run: of elements whose numbers in the whole tensor are `first`, `first` + `step`, …
struct Draws {
  uint32_t k0, k1, turn;
  uint64_t first, step;

  uint32_t at(uint64_t i) const {
    const uint64_t number = first + i * step;
    return random(k0, k1, uint32_t(number), uint32_t(number >> 32)) + turn;
  }
};

// In their place, where numbers are rounded to nearest.
struct Nearest {};

// The same where the numbers count by one, and their upper halves are equal.
struct NearDraws {
  uint32_t k0, k1, turn, first, high;
  explicit NearDraws(const Draws& d) : k0(d.k0), k1(d.k1), turn(d.turn), first(uint32_t(d.first)), high(uint32_t(d.first >> 32)) {}
  uint32_t at(uint32_t i) const { return random(k0, k1, first + i, high) + turn; }
};

// The same from element `by` on.
inline Nearest moved(Nearest, int64_t) { return {}; }
inline NearDraws moved(NearDraws d, int64_t by) { d.first += uint32_t(by); return d; }
inline Draws moved(Draws d, int64_t by) { d.first += uint64_t(by) * d.step; return d; }

template <class F>
inline void with_draws(const Draws& d, int64_t n, F&& f) {
  if (d.step == 1 && uint32_t(d.first) <= UINT32_MAX - uint32_t(n)) f(NearDraws(d));
  else f(d);
}

// Stores what a loop has computed, rounded: to nearest, or by its element's random bits.
template <class T, class U>
inline void put(T* x, int64_t i, U value, Nearest) { put(x, i, value); }
inline void put(uint16_t* x, int64_t i, float value, const NearDraws& draws) { x[i] = round_bf16(value, draws.at(uint32_t(i))); }

// ---- split numbers: p, and beside it KEPT bits of what it lacks

template <int KEPT>
struct RestOf { typedef int8_t type; };
template <>
struct RestOf<16> { typedef i16_at type; };  // at any address
template <int KEPT>
using Rest = typename RestOf<KEPT>::type;

template <int KEPT, bool BF16_, class D>
LAYERWISE_INLINE Two<uint16_t, int32_t> split_one(float x, const D& draws, int32_t i) {
  if constexpr (KEPT == 16 || std::is_empty_v<D>) return BF16_ ? split_bf16<KEPT>(x) : split_f16<KEPT>(x);
  else return BF16_ ? split_bf16_drawn<KEPT>(x, draws.at(uint32_t(i))) : split_f16_drawn<KEPT>(x, draws.at(uint32_t(i)));
}

// ---- numbers in groups

template <bool SIGNED>
using Code = std::conditional_t<SIGNED, int8_t, uint8_t>;

// Calls f(k, at, n) for each group of a run: its number, its first element, and how many it has.
template <class F>
LAYERWISE_INLINE void for_groups(int64_t n, F&& f) {
  int64_t k = 0, at = 0;
  for (; at + GROUP_SIZE <= n; k++, at += GROUP_SIZE) f(k, at, GROUP_SIZE);
  if (at < n) f(k, at, n - at);
}

// Of a number that is not 0, where there are no signs.
inline constexpr int32_t LOWEST = 4;
template <bool SIGNED>
inline constexpr int32_t MOST_CODE = SIGNED ? 127 : 255;

template <bool SIGNED, class T>
inline void decode_group(const Code<SIGNED>* __restrict codes, float scale, int64_t n, T* __restrict to) {
  for (int64_t i = 0; i < n; i++) {
    const float root = float(codes[i]) * scale, square = root * root;
    to[i] = T(SIGNED ? root * fabsf(root) : square * square);
  }
}

// A group that has numbers which are not finite.
template <bool SIGNED, class T>
LAYERWISE_RARE void decode_broken(const Code<SIGNED>* codes, float scale, int64_t n, T* to) {
  decode_group<SIGNED>(codes, -scale, n, to);
  for (int64_t i = 0; i < n; i++)
    if (fabsf(float(codes[i])) == float(MOST_CODE<SIGNED>)) to[i] = copysign(T(HUGE_VALF), T(codes[i]));
}

template <bool SIGNED, class T>
void decode(const char* codes, const f32_at* scales, int64_t n, T* to) {
  for_groups(n, [&](int64_t k, int64_t at, int64_t count) {
    const Code<SIGNED>* group = (const Code<SIGNED>*)codes + at;
    if (scales[k] < 0) decode_broken<SIGNED>(group, scales[k], count, to + at);
    else decode_group<SIGNED>(group, scales[k], count, to + at);
  });
}

// The largest size in a group, by its bits: those of numbers that are not negative are in their order, with nan beyond
// infinity.
template <class T>
inline float largest(const T* __restrict from, int64_t n) {
  int32_t most = 0;
  LAYERWISE_SIMD(reduction(max : most))
  for (int64_t i = 0; i < n; i++) {
    const int32_t u = int32_t(bits_of(float(from[i])) & 0x7fffffff);
    most = most > u ? most : u;
  }
  return float_of(uint32_t(most));
}

template <bool SIGNED>
inline float bent(float size) { return SIGNED ? sqrtf(size) : sqrtf(sqrtf(size)); }

// The whole number that a code is rounded to, which comes in units of CODE_UNIT: of 2^-23 where its random bits can then be added
// to a whole number. Such a code may be wrong below 1, where the lowest code is taken anyway. What lies beyond `top` does so
// by an error of rounding.
template <bool SIGNED, class D>
inline constexpr float CODE_UNIT = SIGNED || std::is_empty_v<D> ? 1.0f : 0x1p23f;
inline int32_t cut(int32_t code, int32_t top) { return code < top ? code : top; }
template <bool SIGNED>
inline int32_t rounded_code(float code, int32_t top, Nearest, int32_t) {
  // From 2^23 to 2^24 floats are whole numbers, and the last bits of such a sum are the code.
  return cut(int32_t(bits_of(code + 0x1p23f) & 0xffu), top);
}
template <bool SIGNED, class D>
inline int32_t rounded_code(float code, int32_t top, const D& draws, int32_t i) {
  const uint32_t drawn = draws.at(uint32_t(i));
  if constexpr (SIGNED) return cut(as_int(drawn_signed(code, fraction(drawn))), top);
  else return (cut(as_int(code), top << 23) + int32_t(~drawn >> 9)) >> 23;
}

// Makes the codes of a group. The bits are cut between the product and what is taken from it: made together, they would be
// rounded otherwise than elsewhere.
template <bool SIGNED, class T, class D>
inline void encode_group(const T* __restrict from, float inverse, int32_t top, int32_t n, int32_t* __restrict codes, const D draws) {
  inverse *= CODE_UNIT<SIGNED, D>;
  for (int32_t i = 0; i < n; i++) {
    const float x = float(from[i]), root = bent<SIGNED>(fabsf(x));
    const int32_t code = rounded_code<SIGNED>(float_of(bits_of(root * inverse) & 0x7fffffff), top, draws, i);
    if constexpr (SIGNED) {
      const int32_t sign = int32_t(bits_of(x)) >> 31;
      codes[i] = (code ^ sign) - sign;
    } else {
      const int32_t bits = int32_t(bits_of(root)), least = bits < LOWEST ? bits : LOWEST;  // 0 of 0
      codes[i] = code < least ? least : code;
    }
  }
}

// A group that has numbers which are not finite: they get the highest code, and the others lower ones.
template <bool SIGNED, class T, class D>
LAYERWISE_RARE float encode_broken(const T* from, int32_t n, Code<SIGNED>* codes, const D draws) {
  float finite[GROUP_SIZE];
  int32_t found[GROUP_SIZE];
  for (int32_t i = 0; i < n; i++) finite[i] = fabsf(float(from[i])) <= FLT_MAX ? float(from[i]) : 0;
  constexpr int32_t top = MOST_CODE<SIGNED> - 1;
  const float scale = bent<SIGNED>(largest(finite, n)) / float(top);
  encode_group<SIGNED>(finite, scale > 0 ? 1 / scale : 0, top, n, found, draws);
  for (int32_t i = 0; i < n; i++)
    codes[i] = Code<SIGNED>(fabsf(float(from[i])) <= FLT_MAX ? found[i] : SIGNED && from[i] < 0 ? -MOST_CODE<SIGNED> : MOST_CODE<SIGNED>);
  return scale > 0 ? -scale : -1;
}

#ifdef __AVX512F__
// What is added to codes that are then rounded to nearest: 0, or what makes that at random.
inline __m512 added(Nearest, int32_t) { return _mm512_setzero_ps(); }
template <class D>
inline __m512 added(const D& draws, int32_t first) {
  alignas(64) float to[16];
  for (int32_t i = 0; i < 16; i++) to[i] = 0.5f - fraction(draws.at(uint32_t(first + i)));
  return _mm512_load_ps(to);
}

// The same of a whole group, not signed, in two thirds of the time: the second root is an estimate with one step of Newton's.
// Together with the rounding of both it is less than 0.0001 away from the exact one; false where that may decide a code.
template <class D>
inline bool encode_by_estimate(const float* from, float inverse, int32_t* codes, const D& draws) {
  const __m512 whole = _mm512_set1_ps(0x1.8p23f), scale = _mm512_set1_ps(inverse), half = _mm512_set1_ps(0.5f * inverse);
  __m512 most = _mm512_setzero_ps();
  LAYERWISE_UNROLL(4)
  for (int32_t i = 0; i < GROUP_SIZE; i += 16) {
    const __m512 root = _mm512_sqrt_ps(_mm512_abs_ps(_mm512_loadu_ps(from + i)));
    const __mmask16 some = _mm512_cmp_ps_mask(root, _mm512_setzero_ps(), _CMP_NEQ_OQ);
    const __m512 reciprocal = _mm512_maskz_rsqrt14_ps(some, root), estimate = root * reciprocal;
    const __m512 lacking = _mm512_fnmadd_ps(estimate, estimate, root);
    const __m512 code = _mm512_fmadd_ps(lacking, reciprocal * half, estimate * scale) + _mm512_maskz_mov_ps(some, added(draws, i));
    const __m512 sum = code + whole;
    most = _mm512_max_ps(_mm512_abs_ps(code - (sum - whole)), most);
    const __m512i found = _mm512_and_si512(_mm512_castps_si512(sum), _mm512_set1_epi32(255));
    _mm512_storeu_si512(codes + i, _mm512_mask_max_epi32(found, some, found, _mm512_set1_epi32(LOWEST)));
  }
  return _mm512_cmp_ps_mask(most, _mm512_set1_ps(0.4998f), _CMP_GT_OQ) == 0;
}
#endif

// Stores codes as bytes: in a loop of its own, because one that also made them would take as many at once as there are
// bytes in a vector, for which there are too few registers.
template <class C>
inline void narrow(const int32_t* __restrict from, int64_t n, C* __restrict to) {
  int64_t i = 0;
#ifdef __AVX2__
  const auto at = [&](int64_t j) { return _mm256_load_si256((const __m256i*)(from + i + j)); };
  for (; i + 32 <= n; i += 32) {
    const __m256i a = _mm256_packs_epi32(at(0), at(8)), b = _mm256_packs_epi32(at(16), at(24));
    const __m256i both = std::is_signed_v<C> ? _mm256_packs_epi16(a, b) : _mm256_packus_epi16(a, b);
    _mm256_storeu_si256((__m256i*)(to + i), _mm256_permutevar8x32_epi32(both, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }
#endif
  for (; i < n; i++) to[i] = C(from[i]);
}

template <bool SIGNED, class T, class D>
void encode(char* codes, f32_at* __restrict scales, int64_t n, const T* __restrict from, const D draws) {
  alignas(64) float most[SCRATCH / GROUP_SIZE], inverse[SCRATCH / GROUP_SIZE];
  alignas(64) int32_t found[SCRATCH];
  for_groups(n, [&](int64_t k, int64_t at, int64_t count) { most[k] = largest(from + at, count); });
  for (int64_t k = 0; k < (n + GROUP_SIZE - 1) / GROUP_SIZE; k++) {
    const float scale = bent<SIGNED>(most[k]) / float(MOST_CODE<SIGNED>);
    scales[k] = scale;
    inverse[k] = scale > 0 && scale <= FLT_MAX ? 1 / scale : 0;
  }
  for_groups(n, [&](int64_t k, int64_t at, int64_t count) {
    if (inverse[k] == 0) return (void)memset(found + at, 0, size_t(count) * sizeof(int32_t));
#ifdef __AVX512F__
    if constexpr (sizeof(T) == 4 && !SIGNED)
      if (count == GROUP_SIZE && encode_by_estimate(from + at, inverse[k], found + at, moved(draws, at))) return;
#endif
    encode_group<SIGNED>(from + at, inverse[k], MOST_CODE<SIGNED>, int32_t(count), found + at, moved(draws, at));
  });
  narrow(found, n, (Code<SIGNED>*)codes);
  for_groups(n, [&](int64_t k, int64_t at, int64_t count) {
    if (inverse[k] == 0 && most[k] != 0)
      scales[k] = encode_broken<SIGNED>(from + at, int32_t(count), (Code<SIGNED>*)codes + at, moved(draws, at));
  });
}

// ---- runs

// Where the numbers beside a run of split weights begin, and how far they lie from one another; in bytes.
struct Beside {
  char* at;
  int64_t stride;
};

// Calls f with whether the numbers are bfloat16, and whether they lie in a row: loops are vectorized for each.
template <class F>
LAYERWISE_INLINE void for_each_low(Dtype dtype, int64_t stride, F&& f) {
  if (dtype == BF16 && stride == 2) f(std::true_type(), std::true_type());
  else if (dtype == BF16) f(std::true_type(), std::false_type());
  else if (stride == 2) f(std::false_type(), std::true_type());
  else f(std::false_type(), std::false_type());
}

template <int KEPT, class T>
void join(Dtype dtype, const char* at, int64_t stride, Beside beside, int64_t n, T* __restrict to) {
  for_each_low(dtype, stride, [&](auto is_bf16, auto in_row) {
    const int64_t by = in_row ? 2 : stride, by_rest = in_row ? int64_t(sizeof(Rest<KEPT>)) : beside.stride;
    for (int64_t i = 0; i < n; i++) {
      const uint16_t p = *(const u16_at*)(at + i * by);
      const int32_t rest = *(const Rest<KEPT>*)(beside.at + i * by_rest);
      to[i] = T(is_bf16 ? join_bf16<KEPT>(bf16_to_float(p), rest) : join_f16<KEPT>(f16_to_float(p), rest));
    }
  });
}

template <int KEPT, class D, class T>
void split(Dtype dtype, char* at, int64_t stride, Beside beside, int32_t n, const T* __restrict from, const D draws) {
  for_each_low(dtype, stride, [=](auto is_bf16, auto in_row) {
    const int64_t by = in_row ? 2 : stride, by_rest = in_row ? int64_t(sizeof(Rest<KEPT>)) : beside.stride;
    char* __restrict p = at;
    char* __restrict rest = beside.at;
    for (int32_t i = 0; i < n; i++) {
      const auto parts = split_one<KEPT, is_bf16>(float(from[i]), draws, i);
      *(u16_at*)(p + i * by) = parts.first, *(Rest<KEPT>*)(rest + i * by_rest) = Rest<KEPT>(parts.second);
    }
  });
}

template <class D, class T>
void store_drawn(Dtype dtype, char* at, int64_t stride, int32_t n, const T* __restrict from, const D draws) {
  for_each_low(dtype, stride, [=](auto is_bf16, auto in_row) {
    const int64_t by = in_row ? 2 : stride;
    for (int32_t i = 0; i < n; i++) {
      const uint32_t drawn = draws.at(uint32_t(i));
      *(u16_at*)(at + i * by) = is_bf16 ? round_bf16(float(from[i]), drawn) : round_f16(float(from[i]), drawn);
    }
  });
}
