// Printed from layerwise/storage by `make generate`: change that, not this file.

constexpr uint32_t mix(uint32_t x, uint32_t between) {
  const auto y0 = (x ^ (x >> 16)) * 0x21f0aaad;
  const auto y1 = ((y0 ^ (y0 >> 15)) ^ between) * 0xd35a2d97;
  return y1 ^ (y1 >> 15);
}

inline Two<uint32_t, uint32_t> at_step(uint32_t first, uint32_t second, uint32_t low, uint32_t high) {
  const auto y0 = mix(low ^ first, 0);
  const auto y1 = mix((y0 ^ (second & 0xfffffffe)) ^ high, 0) & 0xfffffffe;
  return {uint32_t(y0), uint32_t(y1 | (second & 1))};
}

inline uint32_t hashed(uint32_t k0, uint32_t k1, uint32_t low, uint32_t high) {
  const auto y0 = mix((low >> 6) ^ k0, (k1 & 0xfffffffe) ^ (high * 0x9e3779b9));
  const auto y1 = y0 * (mix(low & 63, 0) | 1);
  return y1 ^ (y1 >> 16);
}

inline uint32_t block(uint32_t k0, uint32_t k1, uint32_t low, uint32_t high) {
  return mix((low >> 6) ^ k0, (k1 & 0xfffffffe) ^ (high * 0x9e3779b9));
}

inline uint32_t folded(uint32_t x) {
  return x ^ (x >> 16);
}

constexpr uint32_t odd(uint32_t place) {
  return mix(place, 0) | 1;
}

inline uint32_t taken(uint32_t shared, uint32_t second) {
  return shared << ((second & 1) * 16);
}

inline uint32_t turn(uint32_t step) {
  return step * 0x9e3779b9;
}

inline uint32_t scale_signed(uint32_t most) {
  return at_least(most & 0x7f800000, 0xa800000) - 0x7000000;
}

inline uint32_t scale_unsigned(uint32_t most) {
  return at_least(most & 0x7f800000, 0x28800000) - 0x7000000;
}

inline uint32_t code_signed(float size, float scale, uint32_t added) {
  return (bits_of(size + scale) - bits_of(scale) + added) >> 20;
}

inline uint32_t code_unsigned(float size, float scale, uint32_t added) {
  return (bits_of(size + scale) - bits_of(scale) + added) >> 19;
}

inline float size_signed(uint32_t code, float scale) {
  return (float_of((code << 20) + 0x3f800000) - 1.0f) * scale;
}

inline float size_unsigned(uint32_t code, float scale) {
  return (float_of((code << 19) + 0x3f800000) - 1.0f) * scale;
}

inline uint16_t round_bf16(float x, uint32_t drawn) {
  const auto y0 = bits_of(x) & 0x7fffffff;
  const auto y1 = y0 <= 0x7f7f0000 ? drawn >> 16 : (y0 <= 0x7f800000 ? 0x8000 : 0);
  return uint16_t((bits_of(x) + y1) >> 16);
}

inline uint16_t round_f16(float x, uint32_t drawn) {
  const auto y0 = bits_of(x) & 0x7fffffff;
  const auto y1 = float_of(y0 < 0x38800000 ? y0 : 0) * 1099511627776.0f;
  const auto y2 = ((as_int(y1) + (drawn >> 16)) >> 16) | ((bits_of(x) & 0x80000000) >> 16);
  const auto y3 = bits_of(x) + (drawn >> 19);
  const auto y4 = (((y3 & 0x7fffffff) - 0x38000000) >> 13) | ((y3 & 0x80000000) >> 16);
  const auto y5 = y0 > 0x477fe000 ? float_to_f16(x) : (y0 < 0x38800000 ? uint16_t(y2) : uint16_t(y4));
  return y5;
}

template <int KEPT>
inline float join_bf16(float p, int32_t rest) {
  const auto y0 = (bits_of(p) & 0x7fffffff) == 0 ? at_least(rest, 0) : rest;
  return float_of(bits_of(p) + (y0 << (16 - KEPT)));
}

template <int KEPT>
inline float join_f16(float p, int32_t rest) {
  const auto y0 = bits_of(p) & 0x7fffffff;
  const auto y1 = (bits_of(p) & 0x80000000) > 0 ? rest > 0 : rest < 0;
  const auto y2 = (y1 & ((y0 & 0x7fffff) == 0)) & (y0 > 0x38800000);
  const auto y3 = (at_least(y0, 0x38800000) >> 23) - 10 - (y2 ? 1 : 0);
  const auto y4 = as_float(rest) * (float_of(y3 << 23) * (1.0f / (1 << KEPT)));
  return y0 < 0x7f800000 ? p + y4 : p;
}

template <int KEPT>
inline Two<uint16_t, int32_t> split_bf16(float x) {
  const auto y0 = (bits_of(x) + ((1 << (16 - KEPT)) >> 1)) >> (16 - KEPT);
  const auto y1 = y0 << (16 - KEPT);
  return {uint16_t(x == x ? uint16_t((y1 + 0x8000) >> 16) : upper(x)), int32_t(x == x ? (y1 & 0xffff) >> (16 - KEPT) : 0)};
}

template <int KEPT>
inline Two<uint16_t, int32_t> split_bf16_drawn(float x, uint32_t drawn) {
  const auto y0 = (bits_of(x) + (drawn >> (32 - (16 - KEPT)))) >> (16 - KEPT);
  const auto y1 = y0 << (16 - KEPT);
  return {uint16_t(x == x ? uint16_t((y1 + 0x8000) >> 16) : upper(x)), int32_t(x == x ? (y1 & 0xffff) >> (16 - KEPT) : 0)};
}

template <int KEPT>
inline Two<uint16_t, int32_t> split_f16(float x) {
  const auto y0 = bits_of(x) & 0x7fffffff;
  const auto y1 = (at_least(y0, 0x38800000) >> 23) - 10;
  const auto y2 = float_of(y0) * float_of((254 - y1) << 23) * (1 << KEPT);
  const auto y3 = y0 <= 0x477fe000 ? y2 : 0.0f;
  const auto y4 = as_int(y3) + (y3 - as_float(as_int(y3)) >= 0.5f ? 1 : 0);
  const auto y5 = bits_of(x) & 0x80000000;
  const auto y6 = (1 << KEPT) >> 1;
  const auto y7 = (y4 + (y5 > 0 ? y6 - 1 : y6)) >> KEPT;
  const auto y8 = float_of(bits_of(as_float(y7) * float_of(y1 << 23)) | y5);
  const auto y9 = y4 - (y7 << KEPT);
  return {uint16_t(float_to_f16(y0 <= 0x477fe000 ? y8 : x)), int32_t(y0 <= 0x477fe000 ? (y5 > 0 ? -y9 : y9) : 0)};
}

template <int KEPT>
inline Two<uint16_t, int32_t> split_f16_drawn(float x, uint32_t drawn) {
  const auto y0 = bits_of(x) & 0x7fffffff;
  const auto y1 = (at_least(y0, 0x38800000) >> 23) - 10;
  const auto y2 = float_of(y0) * float_of((254 - y1) << 23) * (1 << KEPT);
  const auto y3 = y0 <= 0x477fe000 ? y2 : 0.0f;
  const auto y4 = as_int((y3 - as_float(as_int(y3))) * 65536.0f) + (drawn >> 16);
  const auto y5 = as_int(y3) + (y4 >= 0x10000 ? 1 : 0);
  const auto y6 = bits_of(x) & 0x80000000;
  const auto y7 = (1 << KEPT) >> 1;
  const auto y8 = (y5 + (y6 > 0 ? y7 - 1 : y7)) >> KEPT;
  const auto y9 = float_of(bits_of(as_float(y8) * float_of(y1 << 23)) | y6);
  const auto y10 = y5 - (y8 << KEPT);
  return {uint16_t(float_to_f16(y0 <= 0x477fe000 ? y9 : x)), int32_t(y0 <= 0x477fe000 ? (y6 > 0 ? -y10 : y10) : 0)};
}
