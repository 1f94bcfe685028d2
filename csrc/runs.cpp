#include "runs.hpp"

namespace layerwise {

void each_run(const Layer& layer, int64_t chunk, int64_t longest, const void* f, RunFunction call) {
  for_short_runs(layer, chunk, longest, [&](const int64_t* off, int64_t n) { call(f, off, n); });
}

}  // namespace layerwise
