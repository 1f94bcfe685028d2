// Conversion of stored numbers to those of the arithmetic and back, rounded to nearest even, a few hundred at a time.
// Included once per instruction set, in a namespace without a name: see table.hpp.

inline constexpr int64_t SCRATCH = 1024;  // numbers that are converted at once: their arrays fit the first-level cache

// Arrays may begin at any address.
typedef LAYERWISE_ANYWHERE(float) f32_at;
typedef LAYERWISE_ANYWHERE(double) f64_at;
typedef LAYERWISE_ANYWHERE(uint16_t) u16_at;
typedef LAYERWISE_ANYWHERE(int16_t) i16_at;

inline float bf16_to_float(uint16_t x) { return float_of(uint32_t(x) << 16); }

inline uint16_t upper(float nan) { return uint16_t(bits_of(nan) >> 16 | 0x40u); }

inline uint16_t float_to_bf16(float x) {
  uint32_t bits = bits_of(x);
  return x != x ? upper(x) : uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float f16_to_float(uint16_t x) {
  uint32_t magnitude = x & 0x7fffu, sign = uint32_t(x & 0x8000u) << 16;
  // Below 2^-14, float16 counts units of 2^-24. No float here is below 2^-126, which the processor may be set to treat as 0.
  uint32_t small = bits_of(float(int32_t(magnitude)) * 0x1p-24f);
  uint32_t bits = magnitude < 0x0400u    ? small
                  : magnitude >= 0x7c00u ? magnitude << 13 | 0x7f800000u
                                         : (magnitude << 13) + 0x38000000u;
  return float_of(bits | sign);
}

inline uint16_t float_to_f16(float x) {
  uint32_t bits = bits_of(x), sign = bits & 0x80000000u;
  bits ^= sign;
  // Below 2^-14: adding 0.5 leaves the rounded result in the last bits.
  uint32_t small = bits_of(float_of(bits) + 0.5f) - 0x3f000000u;
  uint32_t normal = (bits + 0xc8000fffu + ((bits >> 13) & 1u)) >> 13;
  uint32_t large = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
  uint32_t out = bits < 0x38800000u ? small : bits >= 0x47800000u ? large : normal;
  return uint16_t(out | (sign >> 16));
}

// Reads and writes stored numbers in a loop: numbers of the arithmetic unchanged, and bfloat16.
template <class T>
inline T get(const T* x, int64_t i) { return x[i]; }
inline float get(const uint16_t* x, int64_t i) { return bf16_to_float(x[i]); }
template <class T>
inline void put(T* x, int64_t i, T value) { x[i] = value; }
inline void put(uint16_t* x, int64_t i, float value) { x[i] = float_to_bf16(value); }

// Does DO for each stored number x with its index i, in separate loops for contiguous numbers and for others.
#define LAYERWISE_EACH(AT, DO)                                                                     \
  if (stride == int64_t(sizeof(AT))) for (int64_t i = 0; i < n; i++) { AT& x = ((AT*)at)[i]; DO; } \
  else for (int64_t i = 0; i < n; i++) { AT& x = *(AT*)(at + i * stride); DO; }                    \
  break

template <class T>
void load(Dtype dtype, const char* at, int64_t stride, int64_t n, T* __restrict to) {
  switch (dtype) {
    case F32: LAYERWISE_EACH(const f32_at, to[i] = T(x));
    case F64: LAYERWISE_EACH(const f64_at, to[i] = T(x));
    case BF16: LAYERWISE_EACH(const u16_at, to[i] = T(bf16_to_float(x)));
    case F16: LAYERWISE_EACH(const u16_at, to[i] = T(f16_to_float(x)));
    default: LAYERWISE_UNREACHABLE();  // formats.hpp has all others
  }
}

template <class T>
void store(Dtype dtype, char* at, int64_t stride, int64_t n, const T* __restrict from) {
  switch (dtype) {
    case F32: LAYERWISE_EACH(f32_at, x = float(from[i]));
    case F64: LAYERWISE_EACH(f64_at, x = double(from[i]));
    case BF16: LAYERWISE_EACH(u16_at, x = float_to_bf16(float(from[i])));
    case F16: LAYERWISE_EACH(u16_at, x = float_to_f16(float(from[i])));
    default: LAYERWISE_UNREACHABLE();
  }
}
