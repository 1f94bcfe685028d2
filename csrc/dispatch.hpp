// Which kernels run on this machine.
#pragma once

#include <string>
#include <vector>

#include "layer.hpp"

namespace layerwise {

// Those the machine can run, fastest first.
std::vector<const Kernels*> available_kernels();

// The ones in use. `use_kernels` is false where there are none of that name.
const Kernels& kernels();
bool use_kernels(const std::string& name);

// Sums of either kind are added to others, when they have been carried; and made numbers, at the place of the first digits.
inline void carry(const Digits& sums, int64_t n) {
  if (sums.exact()) kernels().exact->carry(sums, n);
}
inline void add(const Digits& sums, const Digits& to, int64_t n) {
  if (to.exact()) return kernels().exact->add(sums, to, n);
  for (int64_t i = 0; i < n; i++) to.at[i] += sums.at[i];
}
inline void make_totals(const Digits& sums, int64_t n) {
  if (sums.exact()) kernels().exact->total(sums, n, sums.at);
}
// Adds up what chunks have of n sums, each so many numbers behind the one before, in their order.
inline void add_up(const Digits& sums, int64_t n, int64_t chunks, int64_t room) {
  carry(sums, n);
  for (int64_t s = 1; s < chunks; s++) {
    const Digits one{sums.at + s * room, sums.n, sums.window};
    carry(one, n);
    add(one, sums, n);
  }
}

}  // namespace layerwise
