#include "dispatch.hpp"

#include <atomic>

#include "processor.hpp"

namespace layerwise {

extern const Functions baseline_any, baseline_low;
#ifdef LAYERWISE_X86
extern const Functions avx2_any, avx2_low, avx512_narrow, avx512_low;
#endif

std::vector<const Kernels*> available_kernels() {
  static const Kernels kernels_baseline{"baseline", &baseline_any, &baseline_any, &baseline_low};
  std::vector<const Kernels*> found;
#ifdef LAYERWISE_X86
  static const Kernels kernels_avx2{"avx2", &avx2_any, &avx2_any, &avx2_low};
  static const Kernels kernels_avx512{"avx512", &avx512_narrow, &avx2_any, &avx512_low};
  const Instructions has = instructions();
  if (has.avx512) found.push_back(&kernels_avx512);
  if (has.avx2) found.push_back(&kernels_avx2);
#endif
  found.push_back(&kernels_baseline);
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
