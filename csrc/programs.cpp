// The table of all programs: what the engine itself asks of them, in float64.
#include <cmath>

#include "layer.hpp"

namespace layerwise {
namespace {

#include "numbers.hpp"
#include "printed/programs.hpp"

template <class R, int ROUND>
void answer(const double* k, const double* S, const double* old, double* a, double* stats) {
  R::template answer<ROUND>(*(const typename R::Numbers*)k, S, old, a, stats);
}

template <class R>
Program program_of(const char* name) {
  using N = typename R::Numbers;
  Program found{name, R::STATES, R::LAYER_STATES, R::OF_LAYER, R::ROUNDS, R::CACHES, R::KEEPS, {},
                int(sizeof(N) / sizeof(double)), {}, {}, {answer<R, 0>}, {}};
  static_assert(R::ROUNDS <= ROUNDS && R::STATES <= STATES && R::LAYER_STATES <= LAYER_STATES);
  for (int j = 0, at = 0; j < R::ROUNDS; j++) {
    found.sums[j] = R::SUMS[j];
    for (int i = 0; i < R::SUMS[j]; i++) found.totals[at++] = R::TOTALS[j][i];
  }
  found.rereads = R::KEEPS + 1 < R::ROUNDS || (R::APPLY_READS & R::KEEP_WRITES) != 0;
  if constexpr (R::ROUNDS > 1) found.answer[1] = answer<R, 1>;
  if constexpr (R::ROUNDS > 2) found.answer[2] = answer<R, 2>;
  found.remember = [](const double* k, auto... given) { R::remember(*(const N*)k, given...); };
  return found;
}

}  // namespace

#define LAYERWISE_PROGRAM(R) program_of<R<double>>(#R),
const Program programs[] = {LAYERWISE_PROGRAMS(LAYERWISE_PROGRAM)};
const int program_count = int(sizeof(programs) / sizeof(Program));

}  // namespace layerwise
