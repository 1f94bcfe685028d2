// The hash of random bits (src/layerwise/storage/bits.py).

inline constexpr uint32_t TURN = 0x9e3779b9u;  // of numbers in groups, by a step

inline uint32_t mix(uint32_t x, uint32_t between = 0) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15 ^ between;
  x *= 0xd35a2d97u;
  return x ^ x >> 15;
}
