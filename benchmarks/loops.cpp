// One chunk of a layer stepped in the cache, in each storage format: nanoseconds a parameter of the pass that measures and of
// the one that applies, the least of many rounds. `loops.py` compiles and runs it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "layer.hpp"

namespace layerwise {
#define KERNELS(rule, set) LAYERWISE_NAME(rule, set)
extern const Passes KERNELS(lamb, LAYERWISE_ANY)[], KERNELS(lamb, LAYERWISE_LOW_SET)[];
extern const Passes KERNELS(adamw, LAYERWISE_ANY)[], KERNELS(adamw, LAYERWISE_LOW_SET)[];

namespace {
#include "numbers.hpp"
#include "printed/lamb.hpp"
#undef LAYERWISE_PROGRAMS
#include "printed/adamw.hpp"
}  // namespace
}  // namespace layerwise

using namespace layerwise;

namespace {

constexpr int64_t N = 1 << 14;
enum Kind { FULL, HALVES, CODES };
struct Case {
  const char* name;
  bool adamw;
  Dtype rest;  // beside weights; F32: nothing
  bool draws;
  Kind state;
};
constexpr Case CASES[] = {
    {"nearest", false, F32, false, FULL},     {"stochastic", false, F32, true, FULL},
    {"split", false, I16, false, FULL},       {"24 bits", false, I8, true, FULL},
    {"bfloat16 state", false, F32, false, HALVES}, {"8-bit state", false, F32, false, CODES},
    {"24 bits, 8-bit state", false, I8, true, CODES}, {"AdamW, 24 bits, 8-bit state", true, I8, true, CODES}};

alignas(64) char arrays[4][N * 4], beside[3][N * 2], cached[N * 4];

void fill(char* at, float size, std::mt19937& draw) {
  std::normal_distribution<float> normal(0, size);
  for (int64_t i = 0; i < N; i++) ((uint16_t*)at)[i] = uint16_t(bits_of(normal(draw)) >> 16);
}

Layer layer_of(const Case& c, Storage& storage, const GradientNumbers& gradient, const double* numbers) {
  Layer l{};
  l.gradient = &gradient, l.k = numbers, l.clip_own = l.clip_model = 1, l.answers[0] = 1e-4, l.answers[1] = 1;
  l.dims = 1, l.step = l.count = l.each = l.size[0] = N, l.chunks = 1, l.caches = !c.adamw, l.cached = cached;
  const Dtype first[] = {F32, BF16, I8}, second[] = {F32, BF16, U8};
  const Dtype dtypes[ARRAYS] = {BF16, BF16, first[c.state], second[c.state], F32, F32};
  for (int k = 0; k < ARRAYS; k++) {
    l.dtype[k] = dtypes[k], l.in_row[k] = true, l.direct[k] = dtypes[k] == F32;
    if (k < 4) l.data[k] = arrays[k], l.stride[0][k] = size_of(dtypes[k]);
  }
  l.stride[0][INDEX] = l.stride[0][GROUP] = 1;
  if (c.rest != F32) storage.of[P] = {SPLIT, c.draws, c.rest, {}, {123, 456}, 0, beside[0]};
  else storage.of[P] = {PLAIN, c.draws, I16, {}, {123, 456}, 0, nullptr};
  const Format format = c.state == CODES ? GROUPED : PLAIN;
  for (uint32_t k = 0; k < 2 && c.state != FULL; k++) storage.of[S0 + k] = {format, true, I16, {}, {77, 88 + k}, 99, beside[1 + k]};
  if (c.rest != F32 || c.draws || c.state != FULL) l.storage = &storage;
  l.low = c.rest == F32;
  return l;
}

void time(const Case& c, int rounds) {
  for (auto& one : arrays) memset(one, 0, sizeof one);
  for (auto& one : beside) memset(one, 0, sizeof one);
  std::mt19937 draw(0);
  fill(arrays[P], 0.02f, draw), fill(arrays[G], 0.01f, draw);
  LambNumbers lamb{};
  lamb.b1 = 0.9, lamb.a1 = 0.1, lamb.b2 = 0.999, lamb.a2 = 0.001, lamb.c1 = lamb.c2 = 1, lamb.eps = 1e-6, lamb.lam = 0.01;
  AdamWNumbers adamw{};
  adamw.b1 = 0.9, adamw.a1 = 0.1, adamw.b2 = 0.999, adamw.a2 = 0.001, adamw.c2 = 1, adamw.eps = 1e-8, adamw.lr = 1e-4;
  const GradientNumbers gradient{1, 1, 1, -NO_BOUND, NO_BOUND, NO_BOUND, NO_BOUND};
  Storage storage{};
  const Layer l = layer_of(c, storage, gradient, c.adamw ? (const double*)&adamw : (const double*)&lamb);
  const Passes* const of_rule[] = {KERNELS(lamb, LAYERWISE_ANY), KERNELS(lamb, LAYERWISE_LOW_SET),
                                   KERNELS(adamw, LAYERWISE_ANY), KERNELS(adamw, LAYERWISE_LOW_SET)};
  const Passes& passes = of_rule[2 * c.adamw + l.low][0];
  double least[2] = {1e9, 1e9};
  for (int round = 0; round < rounds; round++) {
    using Clock = std::chrono::steady_clock;
    storage.of[S0].turn = storage.of[S1].turn = uint32_t(round) * 0x9e3779b9u, storage.of[P].k[0] += 0x12345;
    double sums[SUMS] = {};
    const auto begin = Clock::now();
    if (!c.adamw) passes.measure[0](l, 0, sums);
    const auto middle = Clock::now();
    passes.apply(l, 0);
    const std::chrono::duration<double, std::nano> each[] = {middle - begin, Clock::now() - middle};
    for (int i = 0; i < 2; i++) least[i] = std::min(least[i], each[i].count() / double(N));
  }
  std::printf("%s,%.3f,%.3f\n", c.name, least[0], least[1]);
}

}  // namespace

int main(int, char** given) {
  for (const Case& c : CASES)
    if (!*given[2] || !strcmp(c.name, given[2])) time(c, std::atoi(given[1]));
}
