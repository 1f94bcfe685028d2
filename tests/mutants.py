"""Small deliberate errors in the mathematics, and what must catch each.

A mutant is one replacement in one file. `world` rebuilds the rules and the driver from source with it, so that the
oracles can be held against the result while the installed package stays as it is.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from inspect import getsource
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

from cases import CASES

MODULES = (
    "layerwise.rules.parts",
    *(case.rule.__name__ for case in CASES),
    "layerwise.drive.requests",
    "layerwise.drive.whole",
    "layerwise.drive.parts",
    "layerwise.drive",
    "layerwise.engines.rule",
)


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in the module; `caught_by` names every oracle that has to notice."""

    error: str
    module: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    def world(self) -> SimpleNamespace:
        sources = {name: getsource(import_module(name)) for name in MODULES}
        target = f"layerwise.{self.module}"
        assert sources[target].count(self.old) == 1, f"{self.error}: {self.old!r} is not there exactly once"
        return rebuilt({**sources, target: sources[target].replace(self.old, self.new)})


def rebuilt(sources: dict[str, str]) -> SimpleNamespace:
    """The rules and the driver made of these sources, and of one another."""
    built: dict[str, ModuleType] = {}
    with patch.dict(sys.modules):
        for name, source in sources.items():
            built[name] = sys.modules[name] = ModuleType(name)
            exec(compile(source, f"<{name}>", "exec"), built[name].__dict__)  # noqa: S102
    drive, engine = built["layerwise.drive"], built["layerwise.engines.rule"]
    rules = {case.name: built[case.rule.__name__] for case in CASES}
    return SimpleNamespace(rules=rules, local=drive.local, Run=drive.Run, RuleEngine=engine.RuleEngine)


def _rows(module: str, *rows: tuple[str, str, str, str]) -> list[Mutant]:
    return [Mutant(error, module, old, new, tuple(caught.split())) for error, old, new, caught in rows]


MUTANTS = [
    *_rows(
        "rules.lamb",
        ("trust ratio deleted", "(-lr * ratio, r)", "(-lr, r)", "reference vectors properties"),
        (
            "trust ratio upside down",
            "phi / (d if is_zero(h.trust_eps) else d + h.trust_eps)",
            "d / choose(xp, phi == 0, 1.0, phi)",
            "reference vectors properties",
        ),
        ("bias correction off by one", "xp, b2, t)", "xp, b2, t + 1)", "reference vectors limits"),
        ("bias correction of m left out", "add(xp, c1 * h.eps, c1, root_v)", "(root_v + h.eps)", "reference limits"),
        ("beta1 and beta2 swapped", "(b1, b2) = state, h.betas", "(b2, b1) = state, h.betas", "reference limits"),
        ("decay outside the ratio", "r = move(xp, u, lam, p) if", "r, p = u, p - lr * lam * p if", "reference"),
        ("decay sign", "move(xp, u, lam, p)", "move(xp, u, -lam, p)", "reference vectors limits"),
        (
            "decay of the decayed weights by l2",
            "l2 = h.l2 + lam if",
            "l2 = h.l2 + lr * lam if",
            "reference limits",
        ),
        ("eps inside the root", "add(xp, c1 * h.eps, c1", "add(xp, c1 * h.eps_root, c1", "reference vectors"),
        (
            "second moment of m",
            "mix(xp, b2, v, square(g))",
            "mix(xp, b2, v, square(m))",
            "reference limits",
        ),
        (
            "grad averaging ignored",
            "mix(xp, b1, m, g) if h.grad_averaging else",
            "mix(xp, b1, m, g) if True else",
            "reference",
        ),
        ("correction on lr upside down", "c2**0.5 / c1", "c1 / c2**0.5", "reference vectors"),
        (
            "clip of the weight norm ignored",
            "w if h.max_weight_norm is None else at_most(xp, w, h.max_weight_norm)",
            "w",
            "reference",
        ),
        ("zero weights never leave zero", "(w != 0) & (x != 0)", "(x != 0)", "reference"),
        ("L2 in place of the decay", "h.l2 + lam if", "lam if", "reference"),
        ("L2 left out where the decay is elsewhere", '"l2" else h.l2', '"l2" else 0.0', "reference"),
        ("floor under the weights alone", "floored(xp, norm_r, h)", "norm_r", "reference"),
        ("floor under the update alone", "floored(xp, norm_p, h)", "norm_p", "reference"),
        ("the ratio's eps ignored", "(d if is_zero(h.trust_eps) else d + h.trust_eps)", "d", "reference"),
        (
            "norm not rooted",
            "norm_p, norm_r = length(xp, pp, p), length(xp, rr, r)",
            "norm_p, norm_r = pp, rr",
            "reference vectors properties",
        ),
    ),
    *_rows(
        "rules.lars",
        ("trust coefficient left out", "eta * w", "w", "reference vectors"),
        ("weight norm left out", "eta * w", "eta", "reference vectors"),
        ("decay left out of the length", "(f + lam * w if", "(f if", "reference vectors"),
        ("L2 ignored", "if not is_zero(h.l2):", "if False:", "reference"),
        ("floor under the weights alone", "floored(xp, x, h)", "x", "reference"),
        ("floor under the gradient alone", "floored(xp, norm_p, h)", "norm_p", "reference"),
        ("no floor in the length", "f + lam * w if", "f + lam * norm_p if", "vectors"),
        ("norm of the decayed gradient always", "measured = g if split else r", "measured = r", "reference vectors"),
        (
            "lr outside the momentum",
            "(lr * ratio if h.lr_in_momentum else ratio) * r",
            "ratio * r",
            "reference vectors",
        ),
        (
            "momentum not kept",
            "_damped(xp, u, t, h), mu, b)",
            "_damped(xp, u, t, h), 0, b)",
            "reference vectors limits",
        ),
        ("nesterov is heavy ball", "add(xp, u, mu, b) if h.nesterov else b", "b", "reference limits"),
        (
            "buffer seeded with the raw gradient",
            "add(xp, _damped(xp, u, t, h), mu, b)",
            "choose(xp, t == 1, g, mu * b + u)",
            "reference vectors",
        ),
        ("dampening in the first step too", "t == 1, u,", "t == 0, u,", "reference limits"),
        ("decay added after the ratio", "r = g if is_zero(lam) else add(xp, g, lam, p)", "r = g", "reference limits"),
        ("ratio depends on the gradient's scale", "d = (f +", "d = (f * f +", "reference vectors properties"),
    ),
    *_rows(
        "rules.adafactor",
        (
            "rows and columns swapped",
            "G_rows, G_cols, G_mean,",
            "G_cols, G_rows, G_mean,",
            "reference vectors properties",
        ),
        (
            "clip inverted",
            "1.0 / at_least(xp, rms / h.clip_threshold, 1.0)",
            "1.0 / at_least(xp, rms * h.clip_threshold, 1.0)",
            "reference properties",
        ),
        (
            "clip raises small updates",
            "at_least(xp, rms / h.clip_threshold, 1.0)",
            "(rms / h.clip_threshold)",
            "reference properties",
        ),
        ("mean of R forgotten", "R / R_mean", "R", "reference vectors properties"),
        (
            "sum of R for its mean",
            "xp.sqrt(R / R_mean)",
            "xp.sqrt(R / (R_mean * R.shape[rows[0]]))",
            "reference properties",
        ),
        (
            "mean of R one step old",
            "R_mean = b2 * R_mean + (1 - b2) * _plus(G_mean, eps1)",
            "R_mean = R_mean + 0 * G_mean",
            "reference properties",
        ),
        ("eps1 not in the mean", "_plus(G_mean, eps1)", "G_mean", "reference"),
        ("eps1 not in the rows", "_plus(G_rows, eps1)", "G_rows", "reference"),
        (
            "beta2 counts from zero",
            "return 1 - t**h.beta2_decay",
            "return 1 - (t + 1) ** h.beta2_decay",
            "reference vectors",
        ),
        ("step count stands still", "return 1 - t**h.beta2_decay", "return 0.0", "reference vectors"),
        ("parameter scale left out", "_rho(xp, now, h) * scale", "_rho(xp, now, h)", "reference vectors"),
        (
            "eps2 added, not a floor",
            "at_least(xp, rms_p, h.eps[1])",
            "rms_p + h.eps[1]",
            "reference vectors",
        ),
        ("relative step not capped", "at_most(xp, now.t**-0.5, cap)", "now.t**-0.5", "reference vectors"),
        ("relative step never falls", "at_most(xp, now.t**-0.5, cap)", "cap", "reference"),
        (
            "lr multiplies the step that it bounds",
            '(1.0, now.lr) if h.relative_step == "cap" else (now.lr, h.lr_cap)',
            "now.lr, h.lr_cap",
            "reference",
        ),
        ("warm-up ignored", "at_most(xp, rho, 1e-6 * now.t) if h.warmup_init else rho", "rho", "reference"),
        (
            "decay outside any rate",
            '{"lr": factor * cap, "step": alpha, "none": 1.0}',
            '{"lr": 1.0, "step": 1.0, "none": 1.0}',
            "reference",
        ),
        (
            "momentum of the raw update",
            "(1 - h.beta1) * clip * (alpha if h.lr_in_momentum else 1.0)",
            "(1 - h.beta1) * (alpha if h.lr_in_momentum else 1.0)",
            "reference",
        ),
        ("a function for b2 ignored", "if now.beta2 is None else now.beta2", "", "reference"),
        ("offset forgotten", "t if is_zero(h.decay_offset) else at_least(xp, t - h.decay_offset, 1)", "t", "reference"),
    ),
    *_rows(
        "rules.lans",
        (
            "gradient not normalized",
            "return g / choose(xp, norm == 0, 1.0, norm)",
            "return g",
            "reference vectors properties",
        ),
        ("zero gradient divided by 0", "choose(xp, norm == 0, 1.0, norm)", "norm", "reference"),
        ("m of the raw gradient", "mix(xp, b1, m, g), mix", "mix(xp, b1, m, 2 * g), mix", "reference vectors"),
        ("v not squared", "mix(xp, b2, v, square(g))", "mix(xp, b2, v, abs(g))", "reference vectors limits"),
        ("m not corrected", "m / (one_minus_power(xp, b1, t) * d)", "m / d", "reference vectors"),
        ("v not corrected", "v / one_minus_power(xp, b2, t)", "v", "reference vectors limits"),
        (
            "the gradient's direction corrected",
            "g / d\n",
            "g / (one_minus_power(xp, b1, t) * d)\n",
            "reference vectors",
        ),
        ("no decay of c", "add(xp, c, lam, p)", "c", "reference vectors"),
        ("no decay of r", "add(xp, r, lam, p)", "r", "reference vectors"),
        (
            "weights of the two exchanged",
            "(-lr * (1 - b1) * ratio_c, c)",
            "(-lr * b1 * ratio_c, c)",
            "reference vectors",
        ),
        ("one ratio for both", "(-lr * (1 - b1) * ratio_c, c)", "(-lr * (1 - b1) * ratio_r, c)", "reference vectors"),
        ("bound of the weights ignored", "at_most(xp, w, h.max_weight_norm)", "w", "reference"),
        ("floor under the weights alone", "floored(xp, norm, h)", "norm", "reference"),
    ),
    *_rows(
        "rules.parts",
        ("elements not bounded", "g if h.value_bounds is None else xp.clip(g, *h.value_bounds)", "g", "reference"),
        (
            "lower bound taken for both",
            "xp.clip(g, *h.value_bounds)",
            "xp.clip(g, h.value_bounds[0], None)",
            "reference",
        ),
        ("maximize ignored", "        g = -g\n", "        g = g\n", "reference limits"),
        (
            "square of the global norm",
            "length(xp, gg, g) / h.max_grad_norm, 1.0)",
            "gg / h.max_grad_norm, 1.0)",
            "reference",
        ),
        (
            "clipping scales up",
            "g = g / at_least(xp, length(xp, gg, g) / h.max_grad_norm, 1.0)",
            "g = g / (length(xp, gg, g) / h.max_grad_norm)",
            "reference",
        ),
        ("gating turned round", "choose(xp, lam == 0,", "choose(xp, lam != 0,", "reference vectors"),
        ("upper bound ignored", "x if high is None else at_most(xp, x, high)", "x", "reference vectors"),
        (
            "zero norm gives zero",
            "choose(xp, defined, ratio, h.zero_norm_ratio)",
            "choose(xp, defined, ratio, 0.0)",
            "reference vectors",
        ),
    ),
    *_rows(
        "drive.requests",
        (
            "mean is a sum",
            "if partial.request in MEANS else total",
            "if False else total",
            "reference vectors properties slices",
        ),
        (
            "mean by one dimension too few",
            "for d in partial.dims)) if",
            "for d in partial.dims[1:])) if",
            "reference properties",
        ),
        ("sums forget the first term", "sum(terms[1:], terms[0])", "sum(terms[1:])", "reference slices"),
    ),
    *_rows(
        "drive.whole",
        ("slices keep their sums to themselves", "if run.cut in partials[0].dims:", "if False:", "slices"),
        ("slices are added along every dimension", "if run.cut in partials[0].dims:", "if len(totals) > 1:", "slices"),
    ),
    *_rows(
        "engines.rule",
        ("last slice not stepped", "for i in range(n)]", "for i in range(n - 1)]", "slices"),
        (
            "stats of the first slice's blocks only",
            "if dim not in task.jobs[0].block_dims or len(done) == 1:",
            "if True:",
            "slices",
        ),
    ),
]
