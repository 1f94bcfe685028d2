// The processor's instructions, and how a thread waits on it. Files with kernels must not include this: they are compiled for
// instructions that not every machine has.
#pragma once

#include <cstdint>

#include "compiler.hpp"

#ifdef LAYERWISE_MSVC
#include <intrin.h>
#elif defined(LAYERWISE_X86)
#include <cpuid.h>
#endif

namespace layerwise {

// Called in a loop that waits, so that the core's other thread can run.
inline void relax() {
#if defined(LAYERWISE_MSVC) && defined(LAYERWISE_X86)
  _mm_pause();
#elif defined(LAYERWISE_MSVC)
  __isb(_ARM64_BARRIER_SY);
#elif defined(LAYERWISE_X86)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield does next to nothing on most cores
#endif
}

#ifdef LAYERWISE_X86

struct Registers {
  uint32_t a, b, c, d;
};

inline Registers identify(uint32_t leaf) {
#ifdef LAYERWISE_MSVC
  int found[4];
  __cpuidex(found, int(leaf), 0);
  return {uint32_t(found[0]), uint32_t(found[1]), uint32_t(found[2]), uint32_t(found[3])};
#else
  Registers r;
  __cpuid_count(leaf, 0, r.a, r.b, r.c, r.d);
  return r;
#endif
}

// The registers that the system saves when it switches threads.
inline uint64_t saved_registers() {
#ifdef LAYERWISE_MSVC
  return _xgetbv(0);
#else
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
#endif
}

// Instructions that the processor has and the system allows: AVX2 with FMA; AVX-512 with F, DQ, BW and VL.
struct Instructions {
  bool avx2 = false, avx512 = false;
};

inline Instructions instructions() {
  constexpr uint32_t FMA = 1u << 12, OSXSAVE = 1u << 27, AVX2 = 1u << 5;
  constexpr uint32_t AVX512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  constexpr uint64_t YMM = 0x6, ZMM = 0xe6;
  if (identify(0).a < 7) return {};
  const uint32_t c = identify(1).c, b = identify(7).b;
  if (!(c & OSXSAVE)) return {};
  const uint64_t saved = saved_registers();
  const bool avx2 = (c & FMA) && (b & AVX2) && (saved & YMM) == YMM;
  return {avx2, avx2 && (b & AVX512) == AVX512 && (saved & ZMM) == ZMM};
}

#endif

}  // namespace layerwise
