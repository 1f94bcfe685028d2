#include "dispatch.hpp"

#include <atomic>

#include "processor.hpp"

namespace layerwise {

#define LAYERWISE_DECLARED(set) extern const Functions LAYERWISE_NAME(set, functions);
LAYERWISE_SETS(LAYERWISE_DECLARED)

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> found;
#ifdef LAYERWISE_X86
  [[maybe_unused]] const Instructions has = instructions();
#if LAYERWISE_HAS(512)
  static const Kernels kernels_avx512{"avx512", &avx512_narrow_functions, &avx2_any_functions,
                                      &avx512_low_functions};
  if (has.avx512) found.push_back(&kernels_avx512);
#endif
#if LAYERWISE_HAS(2)
  static const Kernels kernels_avx2{"avx2", &avx2_any_functions, &avx2_any_functions, &avx2_low_functions};
  if (has.avx2) found.push_back(&kernels_avx2);
#endif
#endif
#if LAYERWISE_HAS(0)
#ifdef LAYERWISE_X86
  constexpr const Functions* low = nullptr;
#else
  constexpr const Functions* low = &baseline_low_functions;
#endif
  static const Kernels kernels_baseline{"baseline", &baseline_any_functions, &baseline_any_functions, low};
  found.push_back(&kernels_baseline);
#endif
  return found;
}

namespace {
std::atomic<const Kernels*>& in_use() {
  static std::atomic<const Kernels*> chosen{available_kernels().front()};
  return chosen;
}
}  // namespace

const Kernels& kernels() { return *in_use().load(std::memory_order_relaxed); }

bool use_kernels(const std::string& name) {
  for (const Kernels* k : available_kernels())
    if (name == k->name) {
      in_use().store(k, std::memory_order_relaxed);
      return true;
    }
  return false;
}

}  // namespace layerwise
