// Answers: the few numbers a layer that a rule makes of its totals, in float64.
#pragma once

#include <cmath>

#include "layer.hpp"

namespace layerwise {

// In this order, so that nan stays nan.
inline double at_least(double x, double low) { return x < low ? low : x; }
inline double at_most(double x, double high) { return x > high ? high : x; }

// The coefficients: what rules/lamb.py, rules/lars.py and rules/adafactor.py compute before they measure.
inline Coefficients coefficients_of(const Options& o, double t, double lr, double lam, double g_scale, double beta2) {
  Coefficients c{};
  c.t = t, c.lr = lr, c.lam = lam, c.g_scale = g_scale, c.beta2 = beta2;
  c.shrink = 1, c.lr_apply = lr;
  if (o.method == LAMB) {
    const double c1 = 1 - std::pow(o.b1, t), c2 = 1 - std::pow(o.b2, t);
    c.b1 = o.b1, c.a1 = o.grad_averaging ? 1 - o.b1 : 1;
    c.b2 = o.b2, c.a2 = 1 - o.b2;
    c.c1 = c.c2 = 1;
    if (o.correction == CORRECTED) c.c1 = 1 / c1, c.c2 = 1 / c2;
    if (o.correction == CORRECTED_LR) c.lr_apply = lr * (std::sqrt(c2) / c1);
    if (o.decay == IN_RATIO) c.lam_r = lam;
    if (o.decay == DECOUPLED) c.shrink = 1 - lr * lam;
    c.lam_g = o.decay == L2 ? o.l2 + lam : o.l2;
  }
  if (o.method == LARS) {
    c.lr_apply = o.lr_in_momentum ? lr : 1;
    c.lam_r = o.l2 + lam;
    c.lam_x = o.norm_decayed ? c.lam_r : o.l2;
  }
  if (o.method == ADAFACTOR) {
    const double shifted = o.decay_offset ? at_least(t - double(o.decay_offset), 1) : t;
    c.b2 = std::isnan(beta2) ? 1 - std::pow(shifted, o.beta2_decay) : beta2;
    if (o.beta2_cap >= 0) c.b2 = at_most(c.b2, o.beta2_cap);
    c.a2 = 1 - c.b2;
    c.rho = lr;
    if (o.relative) {
      const double rho = at_most(1 / std::sqrt(t), o.lr_caps ? lr : o.lr_cap);
      c.rho = (o.lr_caps ? 1 : lr) * (o.warmup ? at_most(rho, 1e-6 * t) : rho);
    }
  }
  return c;
}

inline double between(double x, double low, double high) {
  return at_most(at_least(x, low), high);
}

inline double shorter(double gg, double bound) { return at_least(std::sqrt(gg) / bound, 1); }

// Computes LAMB's or LARS's ratio, and puts the measurements into `stats`.
inline void answer_ratio(Layer& l, double* stats) {
  const Options& o = *l.o;
  const double norm_p = std::sqrt(l.sums[0]), norm_x = std::sqrt(l.sums[1]);
  const double w = at_least(norm_p, o.min_norm), x = at_least(norm_x, o.min_norm);
  double ratio;
  if (o.method == LAMB) {
    const double phi = o.max_weight_norm > 0 ? at_most(w, o.max_weight_norm) : w;
    ratio = between(phi / ((x == 0 ? 1 : x) + o.trust_eps), o.low, o.high);
  } else {
    const double d = (o.norm_decayed ? x : x + l.c->lam * w) + o.eps;
    ratio = o.eta * w / (x == 0 ? 1 : d);
    if (std::isfinite(o.low) || std::isfinite(o.high)) ratio = between(ratio / l.c->lr, o.low, o.high);
  }
  if (w == 0 || x == 0) ratio = o.zero_norm_ratio;
  if (o.adapt == DECAYED && l.c->lam == 0) ratio = 1;
  if (o.adapt == NEVER) ratio = 1;
  l.scale = l.c->lr_apply * ratio;
  stats[0] = norm_p, stats[1] = norm_x, stats[2] = ratio;
}

// Computes Adafactor's alpha and clip from Σp² and Σu².
inline void answer_update(Layer& l, double* stats) {
  const Options& o = *l.o;
  const double n = at_least(l.entries, 1), rms_p = std::sqrt(l.sums[0] / n), rms = std::sqrt(l.sums[1] / n);
  const double scale = o.scale_parameter ? at_least(rms_p, o.eps2) : 1;
  l.clip = o.clip_threshold > 0 ? 1 / at_least(rms / o.clip_threshold, 1) : 1;
  l.scale = l.c->rho * scale;
  stats[0] = rms, stats[1] = scale * l.clip, stats[2] = rms_p;
}

}  // namespace layerwise
