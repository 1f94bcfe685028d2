// Printed from layerwise/storage by `make generate`: change that, not this file.

inline uint32_t mix(uint32_t x, uint32_t between) {
  const auto x_ = x ^ (x >> 16);
  const auto x__ = x_ * 0x21f0aaad;
  const auto x___ = (x__ ^ (x__ >> 15)) ^ between;
  const auto x____ = x___ * 0xd35a2d97;
  return x____ ^ (x____ >> 15);
}

inline Two<uint32_t, uint32_t> at_step(uint32_t first, uint32_t second, uint32_t low, uint32_t high) {
  const auto first_ = mix(low ^ first, 0);
  return {uint32_t(first_), uint32_t(mix((first_ ^ second) ^ high, 0))};
}

inline uint32_t random(uint32_t k0, uint32_t k1, uint32_t low, uint32_t high) {
  return mix(low ^ k0, k1 ^ (high * 0x9e3779b9));
}

inline uint32_t turn(uint32_t step) {
  return step * 0x9e3779b9;
}

inline float fraction(uint32_t drawn) {
  return as_float(drawn >> 8) * 5.960464477539063e-08f;
}

inline uint16_t round_bf16(float x, uint32_t drawn) {
  const auto u = bits_of(x);
  const auto size = u & 0x7fffffff;
  const auto added = size <= 0x7f7f0000 ? drawn >> 16 : (size <= 0x7f800000 ? 0x8000 : 0);
  return uint16_t((u + added) >> 16);
}

inline uint16_t round_f16(float x, uint32_t drawn) {
  const auto u = bits_of(x);
  const auto size = u & 0x7fffffff;
  const auto units = (as_int(float_of(size < 0x38800000 ? size : 0) * 1099511627776.0f) + (drawn >> 16)) >> 16;
  const auto sign = u & 0x80000000;
  return size > 0x477fe000 ? float_to_f16(x) : (size < 0x38800000 ? uint16_t(units | (sign >> 16)) : uint16_t(((((u + (drawn >> 19)) & 0x7fffffff) - 0x38000000) >> 13) | (((u + (drawn >> 19)) & 0x80000000) >> 16)));
}

template <int KEPT>
inline float join_bf16(float p, int32_t rest) {
  const auto u = bits_of(p);
  const auto held = (u & 0x7fffffff) == 0 ? at_least(rest, 0) : rest;
  return float_of(u + (held << (16 - KEPT)));
}

template <int KEPT>
inline float join_f16(float p, int32_t rest) {
  const auto u = bits_of(p);
  const auto size = u & 0x7fffffff;
  const auto below = (((u & 0x80000000) > 0 ? rest > 0 : rest < 0) & ((size & 0x7fffff) == 0)) & (size > 0x38800000);
  const auto part = float_of(((at_least(size, 0x38800000) >> 23) - 10 - (below ? 1 : 0)) << 23) * (1.0f / (1 << KEPT));
  return size < 0x7f800000 ? p + as_float(rest) * part : p;
}

template <int KEPT>
inline Two<uint16_t, int32_t> split_bf16(float x) {
  const auto is_number = x == x;
  const auto dropped = 16 - KEPT;
  const auto added = (1 << dropped) >> 1;
  const auto u = ((bits_of(x) + added) >> dropped) << dropped;
  return {uint16_t(is_number ? uint16_t((u + 0x8000) >> 16) : float_to_bf16(x)), int32_t(is_number ? (u & 0xffff) >> dropped : 0)};
}

template <int KEPT>
inline Two<uint16_t, int32_t> split_bf16_drawn(float x, uint32_t drawn) {
  const auto is_number = x == x;
  const auto dropped = 16 - KEPT;
  const auto added = drawn >> (32 - dropped);
  const auto u = ((bits_of(x) + added) >> dropped) << dropped;
  return {uint16_t(is_number ? uint16_t((u + 0x8000) >> 16) : float_to_bf16(x)), int32_t(is_number ? (u & 0xffff) >> dropped : 0)};
}

template <int KEPT>
inline Two<uint16_t, int32_t> split_f16(float x) {
  const auto u = bits_of(x);
  const auto size = u & 0x7fffffff;
  const auto inside = size <= 0x477fe000;
  const auto place = (at_least(size, 0x38800000) >> 23) - 10;
  const auto fine = inside ? float_of(size) * float_of((254 - place) << 23) * (1 << KEPT) : 0.0f;
  const auto whole = as_int(fine);
  const auto over = fine - as_float(whole);
  const auto up = over >= 0.5f;
  const auto whole_ = whole + (up ? 1 : 0);
  const auto sign = u & 0x80000000;
  const auto half = sign > 0 ? ((1 << KEPT) >> 1) - 1 : (1 << KEPT) >> 1;
  const auto p = (whole_ + half) >> KEPT;
  const auto found = float_of(bits_of(as_float(p) * float_of(place << 23)) | sign);
  const auto rest = whole_ - (p << KEPT);
  return {uint16_t(float_to_f16(inside ? found : x)), int32_t(inside ? (sign > 0 ? -rest : rest) : 0)};
}

template <int KEPT>
inline Two<uint16_t, int32_t> split_f16_drawn(float x, uint32_t drawn) {
  const auto u = bits_of(x);
  const auto size = u & 0x7fffffff;
  const auto inside = size <= 0x477fe000;
  const auto place = (at_least(size, 0x38800000) >> 23) - 10;
  const auto fine = inside ? float_of(size) * float_of((254 - place) << 23) * (1 << KEPT) : 0.0f;
  const auto whole = as_int(fine);
  const auto over = fine - as_float(whole);
  const auto up = as_int(over * 65536.0f) + (drawn >> 16) >= 0x10000;
  const auto whole_ = whole + (up ? 1 : 0);
  const auto sign = u & 0x80000000;
  const auto half = sign > 0 ? ((1 << KEPT) >> 1) - 1 : (1 << KEPT) >> 1;
  const auto p = (whole_ + half) >> KEPT;
  const auto found = float_of(bits_of(as_float(p) * float_of(place << 23)) | sign);
  const auto rest = whole_ - (p << KEPT);
  return {uint16_t(float_to_f16(inside ? found : x)), int32_t(inside ? (sign > 0 ? -rest : rest) : 0)};
}

inline float drawn_signed(float code, float share) {
  const auto low = as_float(as_int(code));
  const auto over = code - low;
  return share * (2.0f * low + 1.0f) < over * (over + 2.0f * low) ? low + 1.0f : low;
}

inline float drawn_unsigned(float code, float share) {
  const auto low = as_float(as_int(code));
  const auto over = code - low;
  return share < over ? low + 1.0f : low;
}
