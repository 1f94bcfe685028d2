// Storage formats: loops over the printed functions of one number (src/layerwise/storage, whose text says what each format
// is), and numbers in groups of 8 bits.

#ifdef __AVX2__
inline void store_row(void* to, __m256i x) { _mm256_storeu_si256((__m256i*)to, x); }

// Whole numbers as bytes, in their order.
template <class C>
inline __m256i bytes_of(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i x = _mm256_packs_epi32(a, b), y = _mm256_packs_epi32(c, d);
  const __m256i both = std::is_signed_v<C> ? _mm256_packs_epi16(x, y) : _mm256_packus_epi16(x, y);
  return _mm256_permutevar8x32_epi32(both, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#endif

// Stores whole numbers as bytes: in a loop of its own, because one that also made them would take as many at once as there
// are bytes in a vector, for which there are too few registers.
template <class C>
inline void narrow(const int32_t* __restrict from, int64_t n, C* __restrict to) {
  int64_t i = 0;
#ifdef __AVX2__
  const auto at = [&](int64_t j) { return _mm256_load_si256((const __m256i*)(from + i + j)); };
  for (; i + 32 <= n; i += 32) store_row(to + i, bytes_of<C>(at(0), at(8), at(16), at(24)));
#endif
  for (; i < n; i++) to[i] = C(from[i]);
}

// ---- numbers of 16 bits, and beside them KEPT bits of what they lack, or none

template <int KEPT>
struct RestOf { typedef int8_t type; };
template <>
struct RestOf<16> { typedef i16_at type; };  // at any address
template <int KEPT>
using Rest = typename RestOf<KEPT>::type;

template <int KEPT, bool BF16_>
LAYERWISE_INLINE Two<uint16_t, int32_t> split_one(float x, uint32_t drawn) {
  if constexpr (KEPT == 16) return BF16_ ? split_bf16<16>(x) : split_f16<16>(x);
  else if constexpr (KEPT == 0) return {BF16_ ? round_bf16(x, drawn) : round_f16(x, drawn), 0};
  else return BF16_ ? split_bf16_drawn<KEPT>(x, drawn) : split_f16_drawn<KEPT>(x, drawn);
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

// Of a number that is not 0, where there are no signs; and of one that is not finite.
inline constexpr int32_t LOWEST = 4;
template <bool SIGNED>
inline constexpr int32_t MOST_CODE = SIGNED ? 127 : 255;
template <bool SIGNED>
inline constexpr int PLACE = SIGNED ? 20 : 19;  // where a code stands in a float32

template <bool SIGNED, class T>
inline void decode_group(const Code<SIGNED>* __restrict codes, float scale, int64_t n, T* __restrict to) {
  int64_t done = 0;
#ifdef __AVX2__
  // Compilers take 32 bytes at once, and move them about.
  if constexpr (sizeof(T) == 4) {
    done = n / 8 * 8;
    const __m256 unit = _mm256_set1_ps(scale), one = _mm256_set1_ps(1.0f);
    for (int64_t i = 0; i < done; i += 8) {
      const __m128i bytes = _mm_loadl_epi64((const __m128i*)(codes + i));
      const __m256i wide = SIGNED ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
      const __m256i fine = _mm256_slli_epi32(SIGNED ? _mm256_abs_epi32(wide) : wide, PLACE<SIGNED>);
      const __m256 grown = _mm256_castsi256_ps(_mm256_add_epi32(fine, _mm256_castps_si256(one)));
      const __m256 size = _mm256_mul_ps(_mm256_sub_ps(grown, one), unit);
      const __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(wide), _mm256_set1_ps(-0.0f));
      _mm256_storeu_ps(to + i, SIGNED ? _mm256_xor_ps(size, sign) : _mm256_mul_ps(size, size));
    }
  }
#endif
  for (int64_t i = done; i < n; i++) {
    const int32_t code = codes[i];
    const float size = SIGNED ? size_signed(uint32_t(code < 0 ? -code : code), scale) : size_unsigned(uint32_t(code), scale);
    to[i] = T(SIGNED ? (code < 0 ? -size : size) : size * size);
  }
}

template <bool SIGNED, class T>
void decode(const char* codes, const f32_at* scales, int64_t n, T* to) {
  for_groups(n, [&](int64_t k, int64_t at, int64_t count) {
    const Code<SIGNED>* group = (const Code<SIGNED>*)codes + at;
    decode_group<SIGNED>(group, fabsf(scales[k]), count, to + at);
    for (int64_t i = 0; scales[k] < 0 && i < count; i++)  // has numbers that are not finite
      if (fabsf(float(group[i])) == float(MOST_CODE<SIGNED>)) to[at + i] = copysign(T(HUGE_VALF), T(group[i]));
  });
}

// The largest size in a group, by its bits: those of numbers that are not negative are in their order, with nan beyond
// infinity.
template <class T>
inline uint32_t largest(const T* __restrict from, int64_t n) {
  int32_t most = 0;
  LAYERWISE_SIMD(reduction(max : most))
  for (int64_t i = 0; i < n; i++) {
    const int32_t u = int32_t(bits_of(float(from[i])) & 0x7fffffff);
    most = most > u ? most : u;
  }
  return uint32_t(most);
}

template <bool SIGNED>
inline float scale_of(uint32_t most) {
  return float_of(SIGNED ? scale_signed(most) : scale_unsigned(bits_of(sqrtf(float_of(most)))));
}

// Numbers of a group that become codes.
template <bool SIGNED, class T, class Own>
struct Coding {
  const T* __restrict from;
  int32_t* __restrict to;
  float scale;
  Own own;

  LAYERWISE_INLINE void put(int64_t i, uint32_t shared) const {
    const float x = float(from[i]);
    const uint32_t drawn = own.of(shared) >> (32 - PLACE<SIGNED>);
    const int32_t code = int32_t(SIGNED ? code_signed(fabsf(x), scale, drawn) : code_unsigned(sqrtf(x), scale, drawn));
    if constexpr (SIGNED) {
      const int32_t sign = int32_t(bits_of(x)) >> 31;
      to[i] = (code ^ sign) - sign;
    } else {
      const int32_t least = x > 0 ? LOWEST : 0;
      to[i] = code < least ? least : code;
    }
  }
};

// Arrays that share their random bits.
template <class D, class... A>
LAYERWISE_INLINE void round_all(int64_t from, int64_t to, const D draws, const A... arrays) {
  LAYERWISE_SIMD()
  for (int64_t i = from; i < to; i++) {
    const uint32_t shared = draws.shared(i);
    (arrays.put(i, shared), ...);
  }
}

// A run of numbers that become codes: their scales are made first, the codes by loops over groups, and then bytes.
template <bool SIGNED, class T>
struct Codes {
  Code<SIGNED>* codes;
  f32_at* scales;
  const T* from;
  float scale[SCRATCH / GROUP_SIZE];
  alignas(64) int32_t found[SCRATCH];
  bool broken = false;  // whether there are numbers that are not finite

  Codes(char* codes, f32_at* scales, const T* from, int64_t n) : codes((Code<SIGNED>*)codes), scales(scales), from(from) {
    for_groups(n, [&](int64_t k, int64_t at, int64_t count) {
      const uint32_t most = largest(from + at, count);
      if (most > bits_of(FLT_MAX)) return scale_broken(k, at, count);
      scales[k] = scale[k] = scale_of<SIGNED>(most);
    });
  }
  static bool finite(T x) { return fabsf(float(x)) <= FLT_MAX; }
  LAYERWISE_RARE void scale_broken(int64_t k, int64_t at, int64_t count) {
    uint32_t most = 0;
    for (int64_t i = at; i < at + count; i++)
      if (const uint32_t size = bits_of(fabsf(float(from[i]))); finite(from[i]) && most < size) most = size;
    scale[k] = scale_of<SIGNED>(most), scales[k] = -scale[k], broken = true;
  }
  template <class Own>
  Coding<SIGNED, T, Own> group(int64_t k, Own own) { return {from, found, scale[k], own}; }
  void finish(int64_t n) {
    narrow(found, n, codes);
    for (int64_t i = 0; broken && i < n; i++)
      if (!finite(from[i])) codes[i] = Code<SIGNED>(SIGNED && from[i] < 0 ? -MOST_CODE<SIGNED> : MOST_CODE<SIGNED>);
  }
};

template <bool SIGNED, class T, class D>
void encode(char* codes, f32_at* scales, int64_t n, const T* from, const D draws) {
  Codes<SIGNED, T> to(codes, scales, from, n);
  for_groups(n, [&](int64_t k, int64_t at, int64_t count) {
    in_blocks(draws, at, at + count, [&](int64_t from, int64_t end, const auto& one) {
      round_all(from, end, one, to.group(k, one.own()));
    });
  });
  to.finish(n);
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

#ifdef __AVX2__
// What join_bf16<8> says, for the most of a row; returns how many.
inline int64_t join_row(const u16_at* p, const char* rest, int64_t n, float* __restrict to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i upper = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + i))), 16);
    const __m256i lower = _mm256_slli_epi32(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(rest + i))), 8);
    const __m256i zero = _mm256_cmpeq_epi32(_mm256_add_epi32(upper, upper), _mm256_setzero_si256());
    const __m256i held = _mm256_max_epi32(lower, _mm256_andnot_si256(zero, _mm256_set1_epi32(INT32_MIN)));
    _mm256_storeu_si256((__m256i*)(to + i), _mm256_add_epi32(upper, held));
  }
  return i;
}

// What split_bf16_drawn<8> says, for a block of a row that has no nan; returns whether that is so.
inline bool split_block(const float* __restrict from, int64_t begin, const InBlock& draws, char* p, char* rest) {
  alignas(64) uint32_t upper[BLOCK_SIZE];  // 24 bits of each, and others
  int32_t nan = 0;
  LAYERWISE_SIMD(reduction(| : nan))
  for (int64_t i = 0; i < BLOCK_SIZE; i++) {
    upper[i] = bits_of(from[i]) + (drawn_by(draws, begin + i) >> 24);
    nan |= from[i] != from[i];
  }
  for (int64_t i = 0; i < BLOCK_SIZE && !nan; i += 32) {
    const auto at = [&](int64_t j) { return _mm256_load_si256((const __m256i*)(upper + i + 8 * j)); };
    const auto high = [&](int64_t j) { return _mm256_srli_epi32(_mm256_add_epi32(at(j), _mm256_set1_epi32(0x8000)), 16); };
    const auto low = [&](int64_t j) { return _mm256_srai_epi32(_mm256_slli_epi32(at(j), 16), 24); };
    for (int64_t j = 0; j < 4; j += 2)
      store_row(p + 2 * (i + 8 * j), _mm256_permute4x64_epi64(_mm256_packus_epi32(high(j), high(j + 1)), 0xd8));
    store_row(rest + i, bytes_of<int8_t>(low(0), low(1), low(2), low(3)));
  }
  return !nan;
}
#endif

template <int KEPT, class T>
void join(Dtype dtype, const char* at, int64_t stride, Beside beside, int64_t n, T* __restrict to) {
  for_each_low(dtype, stride, [&](auto is_bf16, auto in_row) {
    const int64_t by = in_row ? 2 : stride, by_rest = in_row ? int64_t(sizeof(Rest<KEPT>)) : beside.stride;
    int64_t i = 0;
#ifdef __AVX2__
    if constexpr (KEPT == 8 && sizeof(T) == 4)  // by itself, or Clang looks for functions of other types
      if constexpr (is_bf16 && in_row) i = join_row((const u16_at*)at, beside.at, n, to);
#endif
    for (; i < n; i++) {
      const uint16_t p = *(const u16_at*)(at + i * by);
      const int32_t rest = *(const Rest<KEPT>*)(beside.at + i * by_rest);
      to[i] = T(is_bf16 ? join_bf16<KEPT>(bf16_to_float(p), rest) : join_f16<KEPT>(f16_to_float(p), rest));
    }
  });
}

template <int KEPT, class D, class T>
void split(Dtype dtype, char* at, int64_t stride, Beside beside, int64_t n, const T* __restrict from, const D draws) {
  for_each_low(dtype, stride, [=](auto is_bf16, auto in_row) {
    const int64_t by = in_row ? 2 : stride, by_rest = in_row ? int64_t(sizeof(Rest<KEPT>)) : beside.stride;
    char* __restrict p = at;
    char* __restrict rest = beside.at;
    in_blocks(draws, 0, n, [=](int64_t begin, int64_t end, const auto one) {
#ifdef __AVX2__
      if constexpr (KEPT == 8 && sizeof(T) == 4)
        if constexpr (is_bf16 && in_row && std::is_same_v<decltype(one), const InBlock>)
          if (end - begin == BLOCK_SIZE && split_block(from + begin, begin, one, p + 2 * begin, rest + begin)) return;
#endif
      for (int64_t i = begin; i < end; i++) {
        const auto parts = split_one<KEPT, is_bf16>(float(from[i]), drawn_by(one, i));
        *(u16_at*)(p + i * by) = parts.first;
        if constexpr (KEPT > 0) *(Rest<KEPT>*)(rest + i * by_rest) = Rest<KEPT>(parts.second);
      }
    });
  });
}
