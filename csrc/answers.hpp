// What a rule makes of the sums it asked for: a few numbers a layer, in float64.
#pragma once

#include <cmath>

#include "layer.hpp"

namespace layerwise {

// In this order, so that nan stays nan.
inline double at_least(double x, double low) { return x < low ? low : x; }
inline double at_most(double x, double high) { return x > high ? high : x; }

// rules/lamb.py, rules/lars.py and rules/adafactor.py, before anything is measured.
inline Step settle(const Options& o, double t, double lr, double lam, double g_scale) {
  Step s{};
  s.t = t, s.lr = lr, s.lam = lam, s.g_scale = g_scale;
  s.keep = 1, s.lr_apply = lr;
  if (o.method == LAMB) {
    const double c1 = 1 - std::pow(o.b1, t), c2 = 1 - std::pow(o.b2, t);
    s.b1 = o.b1, s.a1 = o.grad_averaging ? 1 - o.b1 : 1;
    s.b2 = o.b2, s.a2 = 1 - o.b2;
    s.c1 = s.c2 = 1;
    if (o.correction == CORRECTED) s.c1 = 1 / c1, s.c2 = 1 / c2;
    if (o.correction == CORRECTED_LR) s.lr_apply = lr * (std::sqrt(c2) / c1);
    if (o.decay == IN_RATIO) s.lam_r = lam;
    if (o.decay == DECOUPLED) s.keep = 1 - lr * lam;
    if (o.decay == L2) s.lam_g = lam;
  }
  if (o.method == LARS) s.lr_apply = o.lr_in_momentum ? lr : 1;
  if (o.method == ADAFACTOR) {
    const double shifted = o.decay_offset ? at_least(t - double(o.decay_offset), 1) : t;
    s.b2 = 1 - std::pow(shifted, o.beta2_decay);
    if (o.beta2_cap >= 0) s.b2 = at_most(s.b2, o.beta2_cap);
    s.a2 = 1 - s.b2;
    s.rho = lr;
    if (o.relative) {
      const double rho = at_most(1 / std::sqrt(t), o.lr_caps ? lr : o.lr_cap);
      s.rho = (o.lr_caps ? 1 : lr) * (o.warmup ? at_most(rho, 1e-6 * t) : rho);
    }
  }
  return s;
}

inline double between(double x, double low, double high) {
  if (!std::isnan(low)) x = at_least(x, low);
  return std::isnan(high) ? x : at_most(x, high);
}

inline double shorter(double gg, double bound) { return at_least(std::sqrt(gg) / bound, 1); }

// LAMB's and LARS's ratio; what was measured goes into `stats`.
inline void answer_ratio(Layer& l, double* stats) {
  const Options& o = *l.o;
  const double pp = l.sums[0], xx = l.sums[1], norm_p = std::sqrt(pp), x = std::sqrt(xx);
  double ratio;
  if (o.method == LAMB) {
    const double phi = o.max_weight_norm > 0 ? at_most(norm_p, o.max_weight_norm) : norm_p;
    ratio = between(phi / (xx == 0 ? 1 : x), o.low, o.high);
  } else {
    const double d = (o.norm_decayed ? x : x + l.s->lam * norm_p) + o.eps;
    ratio = o.eta * norm_p / (xx == 0 ? 1 : d);
    if (!std::isnan(o.low) || !std::isnan(o.high)) ratio = between(ratio / l.s->lr, o.low, o.high);
  }
  if (pp == 0 || xx == 0) ratio = o.zero_norm_ratio;
  if (o.adapt == DECAYED && l.s->lam == 0) ratio = 1;
  if (o.adapt == NEVER) ratio = 1;
  l.scale = l.s->lr_apply * ratio;
  stats[0] = norm_p, stats[1] = x, stats[2] = ratio;
}

// Adafactor's alpha and clip. sums: Σp², Σu².
inline void answer_update(Layer& l, double* stats) {
  const Options& o = *l.o;
  const double n = at_least(l.entries, 1), rms_p = std::sqrt(l.sums[0] / n), rms = std::sqrt(l.sums[1] / n);
  const double scale = o.scale_parameter ? at_least(rms_p, o.eps2) : 1;
  l.clip = o.clip_threshold > 0 ? 1 / at_least(rms / o.clip_threshold, 1) : 1;
  l.scale = l.s->rho * scale;
  stats[0] = rms, stats[1] = scale * l.clip, stats[2] = rms_p;
}

}  // namespace layerwise
