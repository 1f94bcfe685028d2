// Storage formats: loops over the printed functions of one number (src/layerwise/storage, whose text says what each format
// is), and numbers in groups of 8 bits.

// What an array makes of the bits that the states of a layer share.
struct Own {
  uint32_t second, turn;
  uint32_t of(uint32_t shared) const { return taken(shared, second) + turn; }
};

// The same where it is known which half comes first, as loops have it that make two arrays at once.
struct Upper {
  uint32_t turn;
  uint32_t of(uint32_t shared) const { return shared + turn; }
};
struct Lower {
  uint32_t turn;
  uint32_t of(uint32_t shared) const { return (shared << 16) + turn; }
};

// The random bits of a run: of elements whose numbers in the whole tensor are `first`, `first` + `step`, …
struct Draws {
  uint32_t k0, k1, turn;
  uint64_t first, step;

  Own own() const { return {k1, turn}; }
  uint32_t shared(int64_t i) const {
    const uint64_t number = first + uint64_t(i) * step;
    return hashed(k0, k1, uint32_t(number), uint32_t(number >> 32));
  }
};

inline constexpr int64_t BLOCK_SIZE = 64;
struct Odd {
  alignas(64) uint32_t of[BLOCK_SIZE] = {};
  constexpr Odd() { for (uint32_t i = 0; i < BLOCK_SIZE; i++) of[i] = odd(i); }
};
inline constexpr Odd ODD;

// The same of a part of a run whose numbers count by one within a block; `at` is the element where the block begins.
struct InBlock {
  uint32_t k1, turn, hash;
  int64_t at;
  Own own() const { return {k1, turn}; }
  uint32_t shared(int64_t i) const { return folded(hash * ODD.of[i - at]); }
};

// In their place, where numbers are rounded to nearest.
struct Nearest {
  Nearest own() const { return {}; }
  Nearest shared(int64_t) const { return {}; }
  Nearest of(Nearest) const { return {}; }
};

template <class D>
LAYERWISE_INLINE auto drawn_by(const D& draws, int64_t i) { return draws.own().of(draws.shared(i)); }

// Calls f(from, to, draws) for the parts of a run that lie in one block each. Its numbers count by one.
template <class F>
LAYERWISE_INLINE void in_blocks_of(const Draws& d, int64_t from, int64_t to, F&& f) {
  while (from < to) {
    const uint64_t number = d.first + uint64_t(from);
    const int64_t at = from - int64_t(number % BLOCK_SIZE), end = at + BLOCK_SIZE < to ? at + BLOCK_SIZE : to;
    const InBlock draws{d.k1, d.turn, block(d.k0, d.k1, uint32_t(number), uint32_t(number >> 32)), at};
    if (end - from == BLOCK_SIZE) f(from, from + BLOCK_SIZE, draws);  // compilers know the length of most loops
    else f(from, end, draws);
    from = end;
  }
}
// The same of any run.
template <class F>
LAYERWISE_INLINE void in_blocks(const Draws& d, int64_t from, int64_t to, F&& f) {
  if (d.step == 1) in_blocks_of(d, from, to, f);
  else f(from, to, d);
}
template <class F>
LAYERWISE_INLINE void in_blocks(Nearest, int64_t from, int64_t to, F&& f) { f(from, to, Nearest{}); }

// Stores what a loop has computed, rounded: to nearest, or by its element's random bits.
template <class T, class U>
inline void put(T* x, int64_t i, U value, Nearest) { put(x, i, value); }
inline void put(uint16_t* x, int64_t i, float value, const InBlock& draws) { x[i] = round_bf16(value, drawn_by(draws, i)); }

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

// ---- split numbers: p, and beside it KEPT bits of what it lacks

template <int KEPT>
struct RestOf { typedef int8_t type; };
template <>
struct RestOf<16> { typedef i16_at type; };  // at any address
template <int KEPT>
using Rest = typename RestOf<KEPT>::type;

template <int KEPT, bool BF16_, class D>
LAYERWISE_INLINE Two<uint16_t, int32_t> split_one(float x, const D& draws, int64_t i) {
  if constexpr (KEPT == 16 || std::is_empty_v<D>) return BF16_ ? split_bf16<KEPT>(x) : split_f16<KEPT>(x);
  else return BF16_ ? split_bf16_drawn<KEPT>(x, drawn_by(draws, i)) : split_f16_drawn<KEPT>(x, drawn_by(draws, i));
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

template <bool SIGNED>
inline uint32_t added(Nearest) { return 1u << (PLACE<SIGNED> - 1); }
template <bool SIGNED>
inline uint32_t added(uint32_t drawn) { return drawn >> (32 - PLACE<SIGNED>); }

// Numbers of a group that become codes.
template <bool SIGNED, class T, class Own>
struct Coding {
  const T* __restrict from;
  int32_t* __restrict to;
  float scale;
  Own own;

  template <class B>
  LAYERWISE_INLINE void put(int64_t i, B shared) const {
    const float x = float(from[i]);
    const uint32_t drawn = added<SIGNED>(own.of(shared));
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

template <class A, class D>
LAYERWISE_INLINE void round_one(const A a, int64_t from, int64_t to, const D draws) {
  LAYERWISE_SIMD()
  for (int64_t i = from; i < to; i++) a.put(i, draws.shared(i));
}
// Two arrays that share their random bits.
template <class A, class B, class D>
LAYERWISE_INLINE void round_both(const A a, const B b, int64_t from, int64_t to, const D draws) {
  LAYERWISE_SIMD()
  for (int64_t i = from; i < to; i++) {
    const auto shared = draws.shared(i);
    a.put(i, shared), b.put(i, shared);
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
  Coding<SIGNED, T, Own> group(int64_t k, const Own& own) { return {from, found, scale[k], own}; }
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
      round_one(to.group(k, one.own()), from, end, one);
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
    if constexpr (is_bf16 && in_row && KEPT == 8 && sizeof(T) == 4) i = join_row((const u16_at*)at, beside.at, n, to);
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
      if constexpr (is_bf16 && in_row && KEPT == 8 && sizeof(T) == 4 && std::is_same_v<decltype(one), const InBlock>)
        if (end - begin == BLOCK_SIZE && split_block(from + begin, begin, one, p + 2 * begin, rest + begin)) return;
#endif
      for (int64_t i = begin; i < end; i++) {
        const auto parts = split_one<KEPT, is_bf16>(float(from[i]), one, i);
        *(u16_at*)(p + i * by) = parts.first, *(Rest<KEPT>*)(rest + i * by_rest) = Rest<KEPT>(parts.second);
      }
    });
  });
}

template <class T>
void store_drawn(Dtype dtype, char* at, int64_t stride, int64_t n, const T* __restrict from, const Draws& draws) {
  for_each_low(dtype, stride, [=](auto is_bf16, auto in_row) {
    const int64_t by = in_row ? 2 : stride;
    in_blocks(draws, 0, n, [=](int64_t begin, int64_t end, const auto one) {
      for (int64_t i = begin; i < end; i++) {
        const uint32_t drawn = drawn_by(one, i);
        *(u16_at*)(at + i * by) = is_bf16 ? round_bf16(float(from[i]), drawn) : round_f16(float(from[i]), drawn);
      }
    });
  });
}
