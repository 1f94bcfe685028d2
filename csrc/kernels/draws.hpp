// Random bits by which a loop rounds (src/layerwise/storage/bits.py): of blocks of 64 elements, whose bits are products with
// one hash.

// What an array makes of the bits that the states of a layer share.
struct Own {
  uint32_t second, turn;
  uint32_t of(uint32_t shared) const { return taken(shared, second) + turn; }
};

// The same where it is known which half comes first.
template <uint32_t SECOND>
struct OwnHalf {
  uint32_t turn;
  uint32_t of(uint32_t shared) const { return taken(shared, SECOND) + turn; }
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

// In their place, where numbers are rounded to nearest: half of what is cut.
struct Nearest {
  Nearest own() const { return {}; }
  uint32_t shared(int64_t) const { return 1u << 31; }
  uint32_t of(uint32_t half) const { return half; }
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
