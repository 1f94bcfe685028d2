// All kernels for one instruction set. The file that includes this is compiled for it, and names it LAYERWISE_ISA.
//
// Everything is in a namespace without a name, and nothing of the standard library is used: an inline function that
// several files share exists once in the program, and might then be the one with instructions not every machine has.
#pragma once

#include "../layer.hpp"

namespace layerwise {
namespace {

#include "convert.hpp"
#include "runs.hpp"
#include "gradient.hpp"
#include "lamb.hpp"
#include "lars.hpp"
#include "adafactor.hpp"

template <class T>
void measure_by(const Layer& layer, int64_t stripe, double* sums) {
  if (layer.o->method == LAMB) measure_lamb<T>(layer, stripe, sums);
  else if (layer.o->method == LARS) measure_lars<T>(layer, stripe, sums);
  else if (layer.f) measure_factored<T>(layer, stripe, sums);
  else measure_whole<T>(layer, stripe, sums);
}

template <class T>
void measure_update_by(const Layer& layer, int64_t stripe, double* sums) {
  if (layer.o->clamp) measure_update_with<T, true>(layer, stripe, sums);
  else measure_update_with<T, false>(layer, stripe, sums);
}

template <class T>
void apply_by(const Layer& layer, int64_t stripe) {
  if (layer.o->method == LAMB) apply_lamb<T>(layer, stripe);
  else if (layer.o->method == LARS) apply_lars<T>(layer, stripe);
  else if (layer.f) apply_factored<T>(layer, stripe);
  else apply_whole<T>(layer, stripe);
}

void square(const Layer& layer, int64_t stripe, double* sums) {
  layer.wide ? square_of<double>(layer, stripe, sums) : square_of<float>(layer, stripe, sums);
}
void measure(const Layer& layer, int64_t stripe, double* sums) {
  layer.wide ? measure_by<double>(layer, stripe, sums) : measure_by<float>(layer, stripe, sums);
}
void measure_update(const Layer& layer, int64_t stripe, double* sums) {
  layer.wide ? measure_update_by<double>(layer, stripe, sums) : measure_update_by<float>(layer, stripe, sums);
}
void apply(const Layer& layer, int64_t stripe) {
  layer.wide ? apply_by<double>(layer, stripe) : apply_by<float>(layer, stripe);
}

}  // namespace

#define LAYERWISE_TEXT_(x) #x
#define LAYERWISE_TEXT(x) LAYERWISE_TEXT_(x)
#define LAYERWISE_JOIN_(a, b) a##b
#define LAYERWISE_JOIN(a, b) LAYERWISE_JOIN_(a, b)

extern const Kernels LAYERWISE_JOIN(kernels_, LAYERWISE_ISA);
const Kernels LAYERWISE_JOIN(kernels_, LAYERWISE_ISA) = {LAYERWISE_TEXT(LAYERWISE_ISA), square, measure,
                                                         measure_update, apply};

}  // namespace layerwise
