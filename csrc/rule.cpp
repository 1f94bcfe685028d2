// The parts of a rule's programs that the engine computes itself, in float64. CMakeLists.txt compiles this file once for each
// rule.
#include <cmath>

#include "layer.hpp"

namespace layerwise {

#define LAYERWISE_DECLARED(set) extern const Passes LAYERWISE_NAME(LAYERWISE_RULE, set)[];
LAYERWISE_SETS(LAYERWISE_DECLARED)

namespace {

#include "numbers.hpp"
#include LAYERWISE_HEADER

template <class R, int ROUND>
void answer(const double* k, const double* S, const double* old, double* a, double* stats) {
  R::template answer<ROUND>(*(const typename R::Numbers*)k, S, old, a, stats);
}

template <class R, int LINE>
void renew(const double* k, Entries& of, int64_t n) {
  const auto numbers = *(const typename R::Numbers*)k;
  for (int64_t i = 0; i < n; i++) {
    const double means[] = {of.of_matrix[i], of.of_rows[i]}, *M = means;
    double made[2] = {}, *to = made;
    LINE ? R::column(numbers, of.state[i], of.mean[i], M, to) : R::row(numbers, of.state[i], of.mean[i], M, to);
    of.state[i] = to[0], of.made[i] = to[1];
  }
}

template <template <class> class Of, class R = Of<double>>
Program program_of(const char* name, int place) {
  using N = typename R::Numbers;
  Program found{name, R::LINES, R::STATES, R::LAYER_STATES, R::OF_LAYER, R::ROUNDS, R::CACHES, R::KEEPS, {},
                int(sizeof(N) / sizeof(double)), {}, {}, {answer<R, 0>}, {},
                {{renew<Of<float>, 0>, renew<R, 0>}, {renew<Of<float>, 1>, renew<R, 1>}}, {}};
  static_assert(R::ROUNDS <= ROUNDS && R::STATES <= STATES && R::LAYER_STATES <= LAYER_STATES);
  for (int j = 0, at = 0; j < R::ROUNDS; j++) {
    found.sums[j] = R::SUMS[j];
    for (int i = 0; i < R::SUMS[j]; i++) found.totals[at++] = R::TOTALS[j][i];
  }
  found.rereads = R::KEEPS + 1 < R::ROUNDS || (R::APPLY_READS & R::KEEP_WRITES) != 0;
  if constexpr (R::ROUNDS > 1) found.answer[1] = answer<R, 1>;
  if constexpr (R::ROUNDS > 2) found.answer[2] = answer<R, 2>;
  found.remember = [](const double* k, auto... given) { R::remember(*(const N*)k, given...); };
#define LAYERWISE_FOUND(set) found.passes[set] = &LAYERWISE_NAME(LAYERWISE_RULE, set)[place];
  LAYERWISE_SETS(LAYERWISE_FOUND)
  return found;
}

#define LAYERWISE_PLACE(R, ...) place_##R,
enum Place { LAYERWISE_PROGRAMS(LAYERWISE_PLACE) };

#define LAYERWISE_PROGRAM(R, ...) program_of<R>(#R, place_##R),
const Program programs[] = {LAYERWISE_PROGRAMS(LAYERWISE_PROGRAM)};

}  // namespace

extern const Rule LAYERWISE_NAME(LAYERWISE_RULE, rule);
const Rule LAYERWISE_NAME(LAYERWISE_RULE, rule) = {programs, int(sizeof(programs) / sizeof(*programs))};

}  // namespace layerwise
