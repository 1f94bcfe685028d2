"""Small deliberate errors in the mathematics, and what must catch each.

A mutant is one replacement in one file. `world` rebuilds the rules and the driver from source with it, so that the
oracles can be held against the result while the installed package stays as it is.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import getsource
from types import CodeType, ModuleType, SimpleNamespace
from unittest.mock import patch

from cases import CASES, Case

MODULES = (
    "layerwise.rules.parts",
    "layerwise.rules.factors",
    "layerwise.rules.lines",
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
        own = [case for case in CASES if case.rule.__name__ == target]  # an error in one rule is in no other
        return rebuilt({**sources, target: sources[target].replace(self.old, self.new)}, own or CASES)


def rebuilt(sources: dict[str, str], cases: list[Case] = CASES) -> SimpleNamespace:
    """The driver and the rules of these cases made of sources, and of one another."""
    built: dict[str, ModuleType] = {}
    others = {case.rule.__name__ for case in CASES} - {case.rule.__name__ for case in cases}
    with patch.dict(sys.modules):
        for name, source in sources.items():
            if name not in others:
                built[name] = sys.modules[name] = ModuleType(name)
                exec(_compiled(source, name), built[name].__dict__)  # noqa: S102
    drive, engine = built["layerwise.drive"], built["layerwise.engines.rule"]
    rules = {case.name: built.get(case.rule.__name__, case.rule) for case in CASES}
    return SimpleNamespace(rules=rules, cases=cases, local=drive.local, Run=drive.Run, RuleEngine=engine.RuleEngine)


@cache
def _compiled(source: str, name: str) -> CodeType:
    return compile(source, f"<{name}>", "exec")


def _rows(module: str, *rows: tuple[str, str, str, str]) -> list[Mutant]:
    return [Mutant(error, module, old, new, tuple(caught.split())) for error, old, new, caught in rows]


MUTANTS = [
    *_rows(
        "rules.lamb",
        ("trust ratio deleted", "size = k.lr * ratio", "size = k.lr", "reference vectors properties"),
        ("bias correction off by one", "xp, b2, now.t)", "xp, b2, now.t + 1)", "reference vectors limits"),
        ("bias correction of m left out", "k.eps, k.c1, root_v", "k.eps / k.c1, 1.0, root_v", "reference limits"),
        ("bias correction of v turned round", "c2=1 / c2 if", "c2=c2 if", "reference vectors limits"),
        ("bias correction always", "corrected = h.bias_correction is True", "corrected = True", "reference"),
        (
            "correction of lr besides the moments'",
            "corrected = h.bias_correction is True",
            "corrected = h.bias_correction is not False",
            "reference vectors",
        ),
        ("beta1 and beta2 swapped", "(b1, b2), lr, lam = h.betas", "(b2, b1), lr, lam = h.betas", "reference limits"),
        (
            "decay outside the ratio",
            "r = u if is_zero(k.lam) else move(xp, u, k.lam, unless_off(xp, k.lam, p))",
            "r, p = u, p - k.lr * k.lam * p",
            "reference",
        ),
        ("decay sign", "move(xp, u, k.lam, ", "move(xp, u, -k.lam, ", "reference vectors limits"),
        ("decay in the ratio always", 'lam=lam if h.decay == "ratio" else 0.0', "lam=lam", "reference limits"),
        ("decay of the decayed weights by l2", "l2=h.l2 + lam if", "l2=h.l2 + lr * lam if", "reference limits"),
        ("decoupled decay without lr", "return lr * lam if", "return lam if", "reference limits"),
        ("decoupled decay always", '    if h.decay != "decoupled":\n        return 0.0\n', "", "reference"),
        ("the fading of decay ignored", "lr * lam * (lr / h.peak_lr)", "lr * lam", "reference"),
        ("fading decay without lr", "lr * lam * (lr", "lam * (lr", "reference"),
        ("caution ignored", "u, agreeing[", "_, agreeing[", "reference"),
        (
            "norm not kept",
            "R, moves = yield from kept_norm(xp, h.keep_norm, R, p, norms[0], r, norms[1], size)",
            "moves = ((-size, r),)",
            "reference",
        ),
        ("decoupled decay left out of the norm", "p = add(xp, p, a, x)", "pass", "reference"),
        ("eps inside the root", "c1 * h.eps if", "c1 * h.eps_root if", "reference vectors"),
        ("eps not corrected", "c1 * h.eps if corrected else h.eps", "h.eps", "reference"),
        ("eps under the root ignored", "eps_root=h.eps_root", "eps_root=0.0", "reference vectors"),
        (
            "second moment of m",
            "mix(xp, k.b2, v, k.a2, square(g))",
            "mix(xp, k.b2, v, k.a2, square(m))",
            "reference limits",
        ),
        ("second moment is a sum", "a2=1 - b2", "a2=1.0", "reference limits"),
        ("grad averaging ignored", "a1=1 - b1 if h.grad_averaging else 1.0", "a1=1 - b1", "reference"),
        ("gradients never averaged", "a1=1 - b1 if h.grad_averaging else 1.0", "a1=1.0", "reference limits"),
        ("correction on lr upside down", "c2**0.5 / c1", "c1 / c2**0.5", "reference vectors"),
        ("L2 in place of the decay", "h.l2 + lam if", "lam if", "reference"),
        ("L2 left out where the decay is elsewhere", '"l2" else h.l2', '"l2" else 0.0', "reference"),
        (
            "floor under the weights alone",
            "(floored(xp, norm, k.trust.min_norm) for norm in (norm_p, norm_r))",
            "(floored(xp, norm_p, k.trust.min_norm), norm_r)",
            "reference",
        ),
        (
            "floor under the update alone",
            "(floored(xp, norm, k.trust.min_norm) for norm in (norm_p, norm_r))",
            "(norm_p, floored(xp, norm_r, k.trust.min_norm))",
            "reference",
        ),
        (
            "norm not rooted",
            "norm_p, norm_r = length(xp, pp, p), length(xp, rr, r)",
            "norm_p, norm_r = pp, rr",
            "reference vectors properties",
        ),
    ),
    *_rows(
        "rules.lars",
        ("caution ignored", "moved, stats[", "_, stats[", "reference"),
        ("caution by the decayed gradient", "cautious(xp, moved, g)", "cautious(xp, moved, r)", "reference"),
        ("trust coefficient left out", "k.eta * w", "w", "reference vectors"),
        ("weight norm left out", "k.eta * w", "k.eta", "reference vectors"),
        (
            "decay left out of the length",
            "else f + k.lam_w * unless_off(xp, k.lam_w, w))",
            "else f)",
            "reference vectors",
        ),
        ("decay twice in the length of both", "lam_w=lam if split else 0.0", "lam_w=lam", "reference vectors"),
        ("L2 ignored", "g = plus(xp, g, k.l2, p)", "pass", "reference"),
        ("eps ignored", "eps=h.eps", "eps=0.0", "reference"),
        (
            "floor under the weights alone",
            "(floored(xp, norm, k.trust.min_norm) for norm in (norm_p, norm_x))",
            "(floored(xp, norm_p, k.trust.min_norm), norm_x)",
            "reference",
        ),
        (
            "floor under the gradient alone",
            "(floored(xp, norm, k.trust.min_norm) for norm in (norm_p, norm_x))",
            "(norm_p, floored(xp, norm_x, k.trust.min_norm))",
            "reference",
        ),
        ("no floor in the length", "f + k.lam_w * unless_off(xp, k.lam_w, w)", "f + k.lam_w * norm_p", "vectors"),
        ("norm of the decayed gradient always", "lam_x=0.0 if split else lam", "lam_x=lam", "reference vectors"),
        ("norm of the bare gradient always", "lam_x=0.0 if split else lam", "lam_x=0.0", "reference vectors"),
        ("lr outside the momentum", "lr=lr if h.lr_in_momentum else 1.0", "lr=1.0", "reference vectors"),
        ("lr inside the momentum and outside", "pace=1.0 if h.lr_in_momentum else lr", "pace=lr", "reference vectors"),
        ("lr neither inside nor outside", "pace=1.0 if h.lr_in_momentum else lr", "pace=1.0", "reference"),
        ("bounds of the ratio not by lr", "unit=lr if clips else 1.0", "unit=1.0", "reference vectors"),
        ("bounds of the ratio ignored", "trust=trust if clips else", "trust=", "reference"),
        ("momentum not kept", "k.damped * u, k.mu, b)", "k.damped * u, 0, b)", "reference vectors limits"),
        ("nesterov is heavy ball", "add(xp, u, k.mu, b) if h.nesterov else b", "b", "reference limits"),
        (
            "buffer seeded with the raw gradient",
            "add(xp, u if is_one(k.damped) else k.damped * u, k.mu, b)",
            "choose(xp, now.t == 1, g, k.mu * b + u)",
            "reference vectors",
        ),
        (
            "decay added after the ratio",
            "r = plus(xp, g, k.lam, p)",
            "r = g",
            "reference limits",
        ),
        (
            "ratio depends on the gradient's scale",
            "d = (f if is_zero(k.lam_w) else f +",
            "d = (f * f if is_zero(k.lam_w) else f * f +",
            "reference vectors properties",
        ),
    ),
    *_rows(
        "rules.adafactor",
        ("caution ignored", "moved, stats[", "_, stats[", "reference"),
        ("updates clipped unasked", "clips=0.0 if h.clip", "clips=1.0 if h.clip", "reference"),
        ("eps1 added where it is a floor too", "eps1=0.0 if clamps else h.eps[0]", "eps1=h.eps[0]", "reference"),
        ("no floor", "least=h.eps[0] if clamps else 0.0", "least=0.0", "reference"),
        (
            "beta2 counts from zero",
            "return 1 - t**h.beta2_decay",
            "return 1 - (t + 1) ** h.beta2_decay",
            "reference vectors",
        ),
        ("step count stands still", "return 1 - t**h.beta2_decay", "return 0.0", "reference vectors"),
        ("beta2 not capped", "b2 if h.beta2_cap is None else at_most(xp, b2, h.beta2_cap)", "b2", "reference"),
        ("second moment is a sum", "a2=1 - b2", "a2=1.0", "reference vectors"),
        ("parameter scale left out", "alpha = k.rho * scale", "alpha = k.rho", "reference vectors"),
        ("eps2 added, not a floor", "at_least(xp, rms_p, k.eps2)", "rms_p + k.eps2", "reference vectors"),
        ("eps1 for eps2", "eps2=h.eps[1]", "eps2=h.eps[0]", "reference"),
        ("relative step not capped", "at_most(xp, now.t**-0.5, cap)", "now.t**-0.5", "reference vectors"),
        ("relative step never falls", "at_most(xp, now.t**-0.5, cap)", "cap", "reference"),
        (
            "lr multiplies the step that it bounds",
            '(1.0, now.lr) if h.relative_step == "cap" else (now.lr, h.lr_cap)',
            "now.lr, h.lr_cap",
            "reference",
        ),
        ("warm-up ignored", "at_most(xp, rho, 1e-6 * now.t) if h.warmup_init else rho", "rho", "reference"),
        ("decay outside any rate", '(factor * cap if h.decay_scale == "lr" else 1.0)', "1.0", "reference"),
        ("decay by lr always", '(factor * cap if h.decay_scale == "lr" else 1.0)', "(factor * cap)", "reference"),
        ("no decay by the step", "lam_alpha=now.weight_decay if by_step else 0.0", "lam_alpha=0.0", "reference"),
        ("decay by the step and without it", "lam=0.0 if by_step else _decay", "lam=_decay", "reference"),
        (
            "decay by the step always",
            "lam_alpha=now.weight_decay if by_step else 0.0",
            "lam_alpha=now.weight_decay",
            "reference",
        ),
        ("decay by the step whatever its size", "k.lam + k.lam_alpha * alpha", "k.lam + k.lam_alpha", "reference"),
        ("momentum of the raw update", "k.a1 * clip * choose(", "k.a1 * choose(", "reference"),
        ("momentum is a sum", "a1=1 - b1", "a1=1.0", "reference"),
        ("momentum of whole steps always", "inside=1.0 if h.lr_in_momentum else 0.0", "inside=1.0", "reference"),
        ("momentum of directions always", "inside=1.0 if h.lr_in_momentum else 0.0", "inside=0.0", "reference"),
        ("a function for b2 ignored", " if now.beta2 is None else now.beta2", "", "reference"),
        ("offset forgotten", "t if is_zero(h.decay_offset) else at_least(xp, t - h.decay_offset, 1)", "t", "reference"),
    ),
    *_rows(
        "rules.lans",
        ("gradient not normalized", "return g / size", "return g", "reference vectors properties"),
        ("zero gradient divided by 0", "choose(xp, norm == 0, 1.0, norm)", "norm", "reference"),
        ("m of the raw gradient", "mix(xp, k.b1, m, k.a1, g)", "mix(xp, k.b1, m, k.a1, 2 * g)", "reference vectors"),
        (
            "v not squared",
            "mix(xp, k.b2, v, k.a2, square(g))",
            "mix(xp, k.b2, v, k.a2, abs(g))",
            "reference vectors limits",
        ),
        ("second moment is a sum", "a2=1 - b2", "a2=1.0", "reference vectors limits"),
        ("m not corrected", "c1=1 / one_minus_power(xp, b1, now.t)", "c1=1.0", "reference vectors"),
        ("v not corrected", "c2=1 / one_minus_power(xp, b2, now.t)", "c2=1.0", "reference vectors limits"),
        ("correction of v turned round", "c2=1 / one_minus_power", "c2=one_minus_power", "reference vectors limits"),
        ("the gradient's direction corrected", "g / d\n", "k.c1 * g / d\n", "reference vectors"),
        ("eps under the root ignored", "eps_root=h.eps_root", "eps_root=0.0", "reference"),
        ("no decay of c", "plus(xp, c, k.lam, p)", "c", "reference vectors"),
        ("no decay of r", "plus(xp, r, k.lam, p)", "r", "reference vectors"),
        ("weights of the two exchanged", "lr_c=now.lr * (1 - b1)", "lr_c=now.lr * b1", "reference vectors"),
        ("whole weight of r", "lr_r=now.lr * b1", "lr_r=now.lr", "reference vectors"),
        ("one ratio for both", "(-k.lr_c * ratio_c, c)", "(-k.lr_c * ratio_r, c)", "reference vectors"),
        (
            "floor under the weights alone",
            "(floored(xp, norm, k.trust.min_norm) for norm in (norm_p, norm_r, norm_c))",
            "(floored(xp, norm_p, k.trust.min_norm), norm_r, norm_c)",
            "reference",
        ),
    ),
    *_rows(
        "rules.novograd",
        ("v is a sum of squares", "(1 - b2) * one)", "one)", "reference vectors"),
        ("first squares damped", "choose(xp, now.t == 1, one, (1 - b2) * one)", "(1 - b2) * one", "reference vectors"),
        ("v started where it is not asked for", "(k.reseeds != 0)", "(k.reseeds == 0)", "reference"),
        ("norm not squared", "norm * norm", "norm", "reference vectors properties limits"),
        ("v not corrected", "c2=1 / c2 if h.bias_correction else 1.0", "c2=1.0", "reference"),
        ("m not corrected", "now.lr / c1 if", "now.lr if", "reference"),
        ("eps under the root ignored", "eps_root=h.eps_root", "eps_root=0.0", "reference"),
        ("eps inside the root", "+ k.eps_root) + k.eps", "+ k.eps_root + k.eps)", "reference vectors"),
        (
            "momentum divided always",
            'inside=1.0 if h.normalize == "gradient" else 0.0',
            "inside=0.0",
            "reference limits",
        ),
        ("momentum divided too", "choose(xp, inside, 1.0, 1 / d)", "1 / d", "reference vectors properties limits"),
        ("grad averaging ignored", "a1 = 1 - b1 if h.grad_averaging else 1.0", "a1 = 1.0", "reference"),
        ("first direction weighed", "now.t == 1, one, a1 * one)", "now.t == 1, a1 * one, a1 * one)", "reference"),
        ("decay inside where it is decoupled", "lam=0.0 if decoupled else lam", "lam=lam", "reference"),
        ("decay not averaged", "plus(xp, u, k.a1 * k.lam, p)", "plus(xp, u, k.lam, p)", "reference"),
        ("no decay of the weights", "shrink=now.lr * lam if decoupled else 0.0", "shrink=0.0", "reference"),
    ),
    *_rows(
        "rules.adammini",
        ("a second moment of each element", "(gg,) = yield (MeanSquare(g),)", "gg = g * g", "reference vectors"),
        ("second moment is a sum", "a2=1 - b2", "a2=1.0", "reference vectors limits"),
        ("mean not squared", "(rms * rms)", "rms", "reference vectors limits properties"),
        ("m not corrected", "now.lr / one_minus_power(xp, b1, now.t)", "now.lr", "reference vectors limits"),
        ("v not corrected", "c2=1 / one_minus_power(xp, b2, now.t)", "c2=1.0", "reference vectors limits"),
        ("eps under the root ignored", "eps_root=h.eps_root", "eps_root=0.0", "reference"),
        ("decay without lr", "now.lr * now.weight_decay", "now.weight_decay", "reference vectors limits"),
        ("decay sign", "shrinking(xp, k.shrink, p)", "shrinking(xp, -k.shrink, p)", "reference vectors limits"),
    ),
    *_rows(
        "rules.factors",
        (
            "rows and columns swapped",
            "x_rows, x_cols, x_mean,",
            "x_cols, x_rows, x_mean,",
            "reference vectors properties",
        ),
        ("mean of R forgotten", "xp.sqrt(R / R_mean)", "xp.sqrt(R)", "reference vectors properties"),
        (
            "sum of R for its mean",
            "xp.sqrt(R / R_mean)",
            "xp.sqrt(R / (R_mean * R.shape[-2]))",
            "reference properties",
        ),
        (
            "mean of R one step old",
            "k.b * R_mean + k.a * plus(x_mean, k.eps)",
            "R_mean + 0 * x_mean",
            "reference properties",
        ),
        ("eps not in the mean", "plus(x_mean, k.eps)", "x_mean", "reference"),
        ("eps not in the rows", "plus(x_rows, k.eps)", "x_rows", "reference"),
        ("eps not in the columns", "plus(x_cols, k.eps)", "x_cols", "reference"),
        ("mean of the columns' mean", "Mean(per_row, rows + cols)", "Mean(per_row, cols)", "reference"),
    ),
    *_rows(
        "rules.came",
        ("distance from the gradient's square", "square(u - m)", "square(u)", "reference vectors properties limits"),
        ("distance from the momentum before", "square(u - m)", "square(u - state.exp_avg)", "reference vectors"),
        ("no confidence", "r = m / root_S", "r = m", "reference vectors properties"),
        ("confidence in the update", "r = m / root_S", "r = u / root_S", "reference vectors properties"),
        ("momentum of the update before its clip", "u = clip * u", "pass", "reference vectors"),
        ("momentum is a sum", "a1=1 - b1", "a1=1.0", "reference vectors properties"),
        ("instability is a sum", "Averaging(b3, 1 - b3,", "Averaging(b3, 1.0,", "reference vectors properties"),
        ("decay rate of V for S", "S=Averaging(b3, 1 - b3,", "S=Averaging(b2, 1 - b2,", "reference vectors limits"),
        ("eps1 for eps2", "1 - b3, eps2, 0.0)", "1 - b3, eps1, 0.0)", "reference limits"),
        ("decay outside any rate", 'now.lr if h.decay_scale == "lr" else 1.0', "1.0", "reference vectors limits"),
        ("decay by lr always", '(now.lr if h.decay_scale == "lr" else 1.0)', "now.lr", "reference"),
        ("bound ignored", "clip_of(xp, rms, h.clip_threshold)", "clip_of(xp, rms, 1.0)", "reference"),
    ),
    *_rows(
        "rules.lines",
        ("momentum of nothing", "if m is None:", "if True:", "reference vectors"),
        ("momentum is a sum", "a=1 - h.momentum", "a=1.0", "reference"),
        ("lines added up", "root(xp, lines)", "root(xp, xp.sum(lines))", "reference vectors properties"),
        ("squares not rooted", "unit * root(xp, lines)", "unit * lines", "reference vectors properties"),
        (
            "lines of no size divided by 0",
            "at_least(xp, unit * root(xp, lines), k.eps)",
            "root(xp, lines)",
            "reference",
        ),
        ("vector not divided", "return x / at_least(xp, unit * rms, k.eps), rms", "return x, rms", "reference vectors"),
        ("scale ignored", "-k.lr * k.scale", "-k.lr", "reference"),
        ("scale of the decay", "shrinking(xp, k.lam, p)", "shrinking(xp, k.lam * k.scale, p)", "reference"),
        ("decay without lr", "lam=now.lr * now.weight_decay", "lam=now.weight_decay", "reference"),
    ),
    *_rows(
        "rules.scalesgd",
        ("never the norm", "h.dims, k, h.norm)", "h.dims, k)", "reference vectors"),
        ("all of it one line", "(xp, x, h.dims,", "(xp, x, (),", "reference vectors properties"),
        (
            "step and weights exchanged",
            "moves_of(xp, p, x, k)",
            "moves_of(xp, x, p, k)",
            "reference vectors properties",
        ),
        ("momentum forgotten", "State(m)", "State(state.exp_avg)", "reference"),
        ("gradient not made ready", "clipped(xp, ready(xp, g, h, now), h)", "clipped(xp, g, h)", "reference"),
    ),
    *_rows(
        "rules.sinkgd",
        ("rows alone", "in others:", "in others[:0]:", "reference vectors properties limits"),
        ("columns first", "first, *others = h.dims", "first, *others = h.dims[::-1]", "reference vectors"),
        ("an iteration too few", "in others:", "in others[2:]:", "reference vectors limits"),
        (
            "step and weights exchanged",
            "moves_of(xp, p, x, k)",
            "moves_of(xp, x, p, k)",
            "reference vectors properties limits",
        ),
        ("momentum forgotten", "State(m)", "State(state.exp_avg)", "reference"),
        ("gradient not made ready", "clipped(xp, ready(xp, g, h, now), h)", "clipped(xp, g, h)", "reference"),
    ),
    *_rows(
        "rules.stableadamw",
        ("step not divided", "size, stats = k.lr * ratio, ", "size, stats = k.lr, ", "reference vectors properties"),
        ("bound ignored", "clip_of(xp, rms, k.threshold)", "clip_of(xp, rms, 1.0)", "reference"),
        ("v not floored", "xp.clip(root_v, k.eps, None)", "(root_v + k.eps)", "reference"),
        ("m measured", "MeanSquare(g / xp", "MeanSquare(m / xp", "reference vectors properties"),
        ("decay rates not corrected", "(1 - b) / one_minus_power(xp, b, now.t)", "1 - b", "reference vectors limits"),
        ("corrected by a step too many", "xp, b, now.t)", "xp, b, now.t + 1)", "reference vectors limits"),
        ("second moment is a sum", "b2=1 - a2", "b2=1.0", "reference vectors limits"),
        (
            "v not squared",
            "mix(xp, k.b2, v, k.a2, square(g))",
            "mix(xp, k.b2, v, k.a2, abs(g))",
            "reference vectors limits",
        ),
        ("eps left out of the direction", "m / (root_v + k.eps)", "m / root_v", "reference"),
        ("eps under the root ignored", "v if is_zero(k.eps_root) else v + k.eps_root", "v", "reference"),
        ("decay by the whole rate", "k.lam + k.lam_size * size", "k.lam + k.lam_size * k.lr", "reference vectors"),
        ("decay by the step always", 'lam if h.decay_scale == "step" else 0.0', "lam", "reference"),
        ("decay outside any rate", '"lr": lr * lam', '"lr": lam', "reference"),
    ),
    *_rows(
        "rules.parts",
        ("clip inverted", "rms / threshold, 1.0)", "rms * threshold, 1.0)", "reference properties"),
        (
            "clip raises small updates",
            "at_least(xp, rms / threshold, 1.0)",
            "(rms / threshold)",
            "reference properties",
        ),
    ),
    *_rows(
        "rules.adamw",
        ("bias correction off by one", "xp, b2, now.t)", "xp, b2, now.t + 1)", "reference vectors limits"),
        ("m not corrected", "else lr / c1", "else lr", "reference vectors properties limits"),
        ("NAdam corrected twice", "lr=lr if h.nesterov else lr / c1", "lr=lr / c1", "reference vectors properties"),
        ("m of NAdam corrected as that of Adam", "b1, now.t + 1)", "b1, now.t)", "reference vectors properties"),
        ("gradient of NAdam not corrected", "(1 - b1) / c1", "1 - b1", "reference vectors properties"),
        ("decay without lr", "shrink=lr * lam if", "shrink=lam if", "reference vectors limits"),
        ("decay both ways", 'l2=lam if h.decay == "l2" else 0.0', "l2=lam", "reference vectors limits"),
        ("decay sign", "shrinking(xp, k.shrink, p)", "shrinking(xp, -k.shrink, p)", "reference vectors limits"),
        ("eps under the root ignored", "eps_root=h.eps_root", "eps_root=0.0", "reference vectors"),
        ("eps ignored", "eps=h.eps,", "eps=0.0,", "reference vectors limits"),
        ("second moment is a sum", "a2=1 - b2", "a2=1.0", "reference vectors limits"),
        ("second moment of m", "k.a2, square(g)", "k.a2, square(m)", "reference vectors limits"),
    ),
    *_rows(
        "rules.sgd",
        ("momentum not kept", "else k.damped * g, k.mu, b)", "else k.damped * g, 0, b)", "reference vectors limits"),
        ("nesterov is heavy ball", "add(xp, g, k.mu, b) if h.nesterov else b", "b", "reference vectors limits"),
        ("dampening left out", "g if is_one(k.damped) else k.damped * g", "g", "reference vectors limits"),
        ("decay without lr", "shrink=lr * lam if", "shrink=lam if", "reference vectors"),
        ("decay both ways", 'if h.decay == "decoupled" else 0.0', "", "reference limits"),
        ("decay sign", "shrinking(xp, k.shrink, p)", "shrinking(xp, -k.shrink, p)", "reference vectors"),
        ("decay of the gradient left out", 'l2=lam if h.decay == "l2" else 0.0', "l2=0.0", "reference vectors limits"),
    ),
    *_rows(
        "rules.parts",
        ("dampening in the first step too", "t == 1, one,", "t == 0, one,", "reference limits"),
        ("dampening of the rest", "(1 - dampening) * one", "dampening * one", "reference limits"),
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
            "length(xp, gg, g), model)",
            "gg, model)",
            "reference",
        ),
        (
            "clipping scales up",
            "else g / at_least(xp, norm / bound, 1.0)",
            "else g / (norm / bound)",
            "reference",
        ),
        (
            "trust ratio upside down",
            "phi / (d if is_zero(k.eps) else d + k.eps)",
            "d / choose(xp, phi == 0, 1.0, phi)",
            "reference vectors properties",
        ),
        ("the ratio's eps ignored", "(d if is_zero(k.eps) else d + k.eps)", "d", "reference"),
        ("the ratio's eps never asked for", 'getattr(h, "trust_eps", 0.0)', "0.0", "reference"),
        ("clip of the weight norm ignored", "phi = at_most(xp, w, k.max_norm)", "phi = w", "reference"),
        ("clip of the weight norm never asked for", "inf if most is None else most", "inf", "reference"),
        ("clip of the weight norm from below", "phi = at_most(xp, w", "phi = at_least(xp, w", "reference"),
        ("zero weights never leave zero", "(w != 0) & (x != 0), k)", "(x != 0), k)", "reference"),
        (
            "gating turned round",
            "choose(xp, lam == 0,",
            "choose(xp, lam != 0,",
            "reference vectors",
        ),
        ("gating ignored", "choose(xp, k.adapts == 0, one_like(xp, ratio), ratio)", "ratio", "reference vectors"),
        ("gating always", 'if h.adapt == "decayed" else float(h.adapt)', "", "reference vectors"),
        ("upper bound ignored", "inf if high is None else high", "inf", "reference vectors"),
        ("lower bound ignored", "-inf if low is None else low", "-inf", "reference"),
        ("norm kept before the step", "_factor(xp, wanted, left)", "_factor(xp, wanted, longest)", "reference"),
        ("kept norm of the weights alone", "q = add(xp, add(xp, p, f_less_1, p), -short, r)", "q = p", "reference"),
        ("caution by positive elements alone", " | ((u < 0) & (g < 0))", "", "reference"),
        ("caution where they disagree", "(u > 0) & (g > 0)", "(u > 0) & (g < 0)", "reference"),
        ("caution's share ignored", "u * agrees / size", "u * agrees", "reference"),
        ("caution's share not bounded", "at_least(xp, share, LEAST_SHARE)", "share", "reference"),
        ("floor ignored", "norm if is_zero(low) else at_least(xp, norm, low)", "norm", "reference vectors"),
        (
            "zero norm gives zero",
            "choose(xp, defined, ratio, k.undefined)",
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
        ("last slice not stepped", "for i in range(n + 1)]", "for i in range(n)]", "slices"),
        (
            "stats of the first slice's blocks only",
            "if dim not in task.jobs[0].block_dims or len(done) == 1:",
            "if True:",
            "slices",
        ),
    ),
]
