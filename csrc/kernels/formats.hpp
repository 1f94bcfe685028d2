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
  uint32_t shared(uint64_t i) const {
    const uint64_t number = first + i * step;
    return hashed(k0, k1, uint32_t(number), uint32_t(number >> 32));
  }
};

// The same where the numbers count by one, and their upper halves are equal.
struct NearDraws {
  uint32_t k0, k1, turn, first, high;
  explicit NearDraws(const Draws& d) : k0(d.k0), k1(d.k1), turn(d.turn), first(uint32_t(d.first)), high(uint32_t(d.first >> 32)) {}
  Own own() const { return {k1, turn}; }
  uint32_t shared(uint32_t i) const { return hashed(k0, k1, first + i, high); }
};

// In their place, where numbers are rounded to nearest.
struct Nearest {
  Nearest own() const { return {}; }
  Nearest shared(uint32_t) const { return {}; }
  Nearest of(Nearest) const { return {}; }
};

// The same from element `by` on.
inline Nearest moved(Nearest, int64_t) { return {}; }
inline NearDraws moved(NearDraws d, int64_t by) { d.first += uint32_t(by); return d; }
inline Draws moved(Draws d, int64_t by) { d.first += uint64_t(by) * d.step; return d; }

template <class D>
inline auto drawn_by(const D& draws, int32_t i) { return draws.own().of(draws.shared(uint32_t(i))); }

template <class F>
inline void with_draws(const Draws& d, int64_t n, F&& f) {
  if (d.step == 1 && uint32_t(d.first) <= UINT32_MAX - uint32_t(n)) f(NearDraws(d));
  else f(d);
}

// Stores what a loop has computed, rounded: to nearest, or by its element's random bits.
template <class T, class U>
inline void put(T* x, int64_t i, U value, Nearest) { put(x, i, value); }
inline void put(uint16_t* x, int64_t i, float value, const NearDraws& draws) {
  x[i] = round_bf16(value, drawn_by(draws, int32_t(i)));
}

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

// Of a number that is not 0, where there are no signs.
inline constexpr int32_t LOWEST = 4;
template <bool SIGNED>
inline constexpr int32_t MOST_CODE = SIGNED ? 127 : 255;

template <bool SIGNED, class T>
inline void decode_group(const Code<SIGNED>* __restrict codes, float scale, int64_t n, T* __restrict to) {
  int64_t done = 0;
#ifdef __AVX2__
  // Compilers take 32 bytes at once, and move them about.
  if constexpr (sizeof(T) == 4) {
    done = n / 8 * 8;
    const __m256 unit = _mm256_set1_ps(scale);
    for (int64_t i = 0; i < done; i += 8) {
      const __m128i bytes = _mm_loadl_epi64((const __m128i*)(codes + i));
      const __m256i wide = SIGNED ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
      const __m256 root = _mm256_mul_ps(_mm256_cvtepi32_ps(wide), unit), square = _mm256_mul_ps(root, root);
      const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), root);
      _mm256_storeu_ps(to + i, SIGNED ? _mm256_mul_ps(root, size) : _mm256_mul_ps(square, square));
    }
  }
#endif
  for (int64_t i = done; i < n; i++) {
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

// One of the whole numbers beside a code that is not below 0; what lies beyond `top` does so by an error of rounding. With
// signs the mean of its squares is the square. Without, a code comes in units of CODE_UNIT, so that its random bits are added
// to a whole number; it may be wrong below 1, where the lowest code is taken anyway. No sum has a product for its only use:
// made together, they would be rounded otherwise than elsewhere.
template <bool SIGNED, class Own>
inline constexpr float CODE_UNIT = SIGNED || std::is_same_v<Own, Nearest> ? 1.0f : 0x1p23f;
inline int32_t cut(int32_t code, int32_t top) { return code < top ? code : top; }
template <bool SIGNED>
inline int32_t rounded_code(float code, int32_t top, Nearest) {
  // From 2^23 to 2^24 floats are whole numbers, and the last bits of such a sum are the code.
  return cut(int32_t(bits_of(float_of(bits_of(code) & 0x7fffffff) + 0x1p23f) & 0xffu), top);
}
template <bool SIGNED>
inline int32_t rounded_code(float code, int32_t top, uint32_t drawn) {
  if constexpr (!SIGNED) return (cut(as_int(code), top << 23) + int32_t(drawn >> 9)) >> 23;
  const int32_t low = as_int(code);
  const float whole = as_float(low), width = whole * 0x1p-23f + 0x1p-24f;
  return cut(low + (as_float(int32_t(drawn >> 8)) * width < (code - whole) * (code + whole)), top);
}

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

// Numbers of a group that become codes.
template <bool SIGNED, class T, class Own>
struct Coding {
  const T* __restrict from;
  int32_t* __restrict to;
  float inverse;
  Own own;
  int32_t top = MOST_CODE<SIGNED>;

  template <class B>
  LAYERWISE_INLINE void put(int32_t i, B shared) const {
    const float x = float(from[i]), root = bent<SIGNED>(SIGNED ? fabsf(x) : x);
    const int32_t code = rounded_code<SIGNED>(root * inverse, top, own.of(shared));
    if constexpr (SIGNED) {
      const int32_t sign = int32_t(bits_of(x)) >> 31;
      to[i] = (code ^ sign) - sign;
    } else {
      const int32_t bits = int32_t(bits_of(root)), least = bits < LOWEST ? bits : LOWEST;  // 0 of 0
      to[i] = code < least ? least : code;
    }
  }
};

template <class A, class D>
void round_one(const A a, int64_t n, const D draws) {
  for (int32_t i = 0; i < n; i++) a.put(i, draws.shared(uint32_t(i)));
}
// Two arrays that share their random bits.
template <class A, class B, class D>
void round_both(const A a, const B b, int64_t n, const D draws) {
  LAYERWISE_SIMD()
  for (int32_t i = 0; i < n; i++) {
    const auto shared = draws.shared(uint32_t(i));
    a.put(i, shared), b.put(i, shared);
  }
}

inline float inverse_of(float scale) { return scale > 0 && scale <= FLT_MAX ? 1 / scale : 0; }

// A group that has numbers which are not finite: they get the highest code, and the others lower ones.
template <bool SIGNED, class T, class D>
LAYERWISE_RARE float encode_broken(const T* from, int64_t n, Code<SIGNED>* codes, const D draws) {
  float finite[GROUP_SIZE];
  int32_t found[GROUP_SIZE];
  for (int64_t i = 0; i < n; i++) finite[i] = fabsf(float(from[i])) <= FLT_MAX ? float(from[i]) : 0;
  constexpr int32_t most = MOST_CODE<SIGNED>;
  const float scale = bent<SIGNED>(largest(finite, n)) / float(most - 1);
  const auto own = draws.own();
  using Of = std::remove_const_t<decltype(own)>;
  const float inverse = inverse_of(scale) * CODE_UNIT<SIGNED, Of>;
  round_one(Coding<SIGNED, float, Of>{finite, found, inverse, own, most - 1}, n, draws);
  for (int64_t i = 0; i < n; i++)
    codes[i] = Code<SIGNED>(fabsf(float(from[i])) <= FLT_MAX ? found[i] : SIGNED && from[i] < 0 ? -most : most);
  return scale > 0 ? -scale : -1;
}

// A run of numbers that become codes: their scales are made together, the codes by loops over `group`, and then bytes.
template <bool SIGNED, class T>
struct Codes {
  Code<SIGNED>* codes;
  f32_at* scales;
  const T* from;
  alignas(64) float most[SCRATCH / GROUP_SIZE], inverse[SCRATCH / GROUP_SIZE];
  alignas(64) int32_t found[SCRATCH];
  int32_t broken = 0;  // whether a group has numbers that are not finite

  Codes(char* codes, f32_at* scales, const T* from, int64_t n) : codes((Code<SIGNED>*)codes), scales(scales), from(from) {
    for_groups(n, [&](int64_t k, int64_t at, int64_t count) { most[k] = largest(from + at, count); });
    for (int64_t k = 0; k < (n + GROUP_SIZE - 1) / GROUP_SIZE; k++) {
      const float scale = bent<SIGNED>(most[k]) / float(MOST_CODE<SIGNED>);
      scales[k] = scale, inverse[k] = inverse_of(scale);
      broken |= most[k] > FLT_MAX || most[k] != most[k];
    }
  }
  template <class Own>
  Coding<SIGNED, T, Own> group(int64_t k, int64_t at, const Own& own) {
    return {from + at, found + at, inverse[k] * CODE_UNIT<SIGNED, Own>, own};
  }
  template <class D>
  void finish(int64_t n, const D& draws) {
    narrow(found, n, codes);
    if (broken) finish_broken(n, draws);
  }
  template <class D>
  LAYERWISE_RARE void finish_broken(int64_t n, const D& draws) {
    for_groups(n, [&](int64_t k, int64_t at, int64_t count) {
      if (!(most[k] <= FLT_MAX)) scales[k] = encode_broken<SIGNED>(from + at, count, codes + at, moved(draws, at));
    });
  }
};

template <bool SIGNED, class T, class D>
void encode(char* codes, f32_at* scales, int64_t n, const T* from, const D draws) {
  Codes<SIGNED, T> to(codes, scales, from, n);
  for_groups(n, [&](int64_t k, int64_t at, int64_t count) {
    round_one(to.group(k, at, draws.own()), count, moved(draws, at));
  });
  to.finish(n, draws);
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
      const uint32_t drawn = drawn_by(draws, i);
      *(u16_at*)(at + i * by) = is_bf16 ? round_bf16(float(from[i]), drawn) : round_f16(float(from[i]), drawn);
    }
  });
}
