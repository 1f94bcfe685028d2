"""Adafactor (Shazeer & Stern, arXiv 1804.04235): Adam's second moment from row and column means.

    b2 = 1 − t^beta2_decay
    G  = g² + eps1                           (of g within ±2^50)
    R ← b2·R + (1 − b2)·mean(G over columns)
    C ← b2·C + (1 − b2)·mean(G over rows)
    V  = R·C / mean(R)                       (a vector keeps V itself:  V ← b2·V + (1 − b2)·G)
    u  = g / √V
    û  = u / max(1, RMS(u)/d)
    p ← p − alpha·û,   alpha = rho·max(eps2, RMS(p)),   rho = min(lr_cap, 1/√t)

RMS(p) is of the p before the step and before its decay.

Departures, each an option:

    paper: matrices are factored     factored:  any two dimensions, or groups of them, of a tensor of any rank; or none
    paper: d = 1                     clip_threshold=None:  û = u
    paper: rho = min(1e-2, 1/√t)     lr:  rho = lr, and alpha = rho unless scale_parameter;   warmup_init:  and ≤ 1e-6·t
                                     relative_step="factor":  rho = lr·min(lr_cap, 1/√t);   "cap":  rho = min(lr, 1/√t)
    paper: G = g² + eps1, u = g/√V   eps_mode="clamp":  G = g²,  V = R·C/max(mean(R), eps1),  u = g/max(√V, eps1)
    paper: b2 → 1                    beta2_cap:  min(b2, cap);   decay_offset:  t − offset instead of t
    paper: b2 = 1 − t^beta2_decay    beta2:  what the user's function gives, which comes with `now`
    paper: no momentum               beta1:  e ← b1·e + (1 − b1)·alpha·û,  p ← p − e
                                     lr_in_momentum=False:  e ← b1·e + (1 − b1)·û,  p ← p − alpha·e
    paper: all of the step           caution:  e ← e·[e·g > 0] / max(share of these elements, 1e-3) as p moves by it
    paper: no decay                  weight_decay:  p ← p − w·lam·p − …,  w = lr, alpha or 1 by decay_scale

R, C and V are factors.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from layerwise.options import fields
from layerwise.options.checks import FLAG, NONE, Check, Contradiction, integer, number, one_of, pair, schedule
from layerwise.options.fields import LR, RATE, flag, option
from layerwise.options.settings import Caution, ClippedByNorm, Scheduled, StoredMomentum
from layerwise.options.values import Scalar, is_number, is_zero
from layerwise.rules.arrays import add, length, shrinking
from layerwise.rules.clipping import cautious, clip_of, prepare_gradient
from layerwise.rules.factors import (
    LARGEST,
    AverageCoefficients,
    factored_option,
    factored_update,
    fit_factored,
    min_dim_option,
    moment_shapes,
)
from layerwise.rules.requests import (
    Array,
    Asking,
    Coefficients,
    Functions,
    MeanSquare,
    Nonnegative,
    Now,
    Shape,
    Statistic,
    Stepped,
)
from layerwise.rules.scalars import at_least, at_most, choose, named, once_a_step, product

UNIT_OR_NONE = number(0, 1) | NONE
BETA2 = number(0, 1)


def _eps1(value: object) -> float | None:
    # With eps = 0, a gradient that is zero from the start would give 0/0.
    return None if value is None else float(number(0, above=True).convert(value))


EPS1 = Check("a finite number > 0 or None", _eps1)


@dataclass(frozen=True)
class Adafactor(Caution, StoredMomentum, ClippedByNorm):
    """Options of Adafactor. Its page in the documentation gives each its place in the formula."""

    settled_here: ClassVar[tuple[str, ...]] = ("lr", "relative_step", "scale_parameter", "momentum_dtype")
    optax_state: ClassVar[Mapping[str, str]] = {
        "exp_avg_sq_row": "v_row",
        "exp_avg_sq_col": "v_col",
        "exp_avg_sq": "v",
        "exp_avg": "ema",
    }

    lr: Scheduled | None = option(
        None,
        RATE | NONE,
        "Learning rate; None selects the paper's relative step.",
        LR + " None asks for the relative step.",
    )
    _: KW_ONLY
    eps: tuple[float | None, float] = option(
        (1e-30, 1e-3),
        pair(EPS1, number(0)),
        "Pair (eps1, eps2): eps1 is added to the squared gradient (None is the dtype's own epsilon); eps2 is a lower "
        "bound of the weights' root mean square.",
        "Pass eps=(eps1, eps2) such as (1e-30, 1e-3); None as eps1 is the dtype's own epsilon.",
    )
    eps_mode: Literal["add", "clamp"] = option(
        "add",
        one_of("add", "clamp"),
        'Add eps1 to the squared gradient ("add", the paper), or use it as a lower bound of the denominator ("clamp").',
        'Pass "add" for g² + eps1 (the paper) or "clamp" for max(√V, eps1).',
    )
    clip_threshold: float | None = fields.clip_threshold()
    beta2_decay: float = option(
        -0.8,
        number(-float("inf"), 0, to=True),
        "The exponent of the step t in 1 - beta2.",
        "It is the exponent of t in 1 - beta2: pass -0.8, not 0.8.",
    )
    # Not in the representation, by which processes compare settings: a function's differs between processes.
    beta2: Scheduled | None = option(
        None,
        BETA2 | schedule() | NONE,
        "The decay rate of the second moment, or a function of the step; None follows 1 - t**beta2_decay.",
        "Pass a number such as 0.999, a function of the step (0, 1, 2, …), or None for 1 - t**beta2_decay.",
        shown=False,
    )
    beta2_cap: float | None = option(
        None, UNIT_OR_NONE, "Upper bound of beta2; None is no bound.", "Pass a bound such as 0.999, or None."
    )
    decay_offset: int = option(
        0,
        integer(0, bits=63),
        "Subtract this from the step t in beta2, to fine-tune a model that was trained before.",
        "Pass the number of earlier steps, or 0.",
    )
    beta1: float | None = option(
        None,
        UNIT_OR_NONE,
        "Decay rate of the momentum; None means no momentum.",
        "Pass a number such as beta1=0.9, or None for none.",
    )
    momentum_dtype: Any = fields.momentum_dtype(optax_default="float32")
    lr_in_momentum: bool = flag(True, "Average steps, lr included, in the momentum; if False, average directions.")
    weight_decay: Scheduled = fields.weight_decay()
    decay_scale: Literal["lr", "step", "none"] = fields.decay_scale("lr", "step", "none", optax_default="none")
    scale_parameter: bool | None = option(
        None,
        FLAG | NONE,
        "Multiply the step by the root mean square of the weights; None turns this on with a relative step.",
        "Pass True, False, or None, which turns it on with a relative step.",
        optax_default=True,
    )
    relative_step: bool | Literal["factor", "cap"] | None = option(
        None,
        one_of(True, False, "factor", "cap", None),
        'Follow the step count: multiply min(lr_cap, 1/√t) by lr ("factor", True), or take min(lr, 1/√t) ("cap"); '
        "None turns this on when lr is None.",
        'Pass True, False, "factor" to multiply the relative step by lr, "cap" to bound it by lr, or None, which '
        "turns it on if lr is None.",
        optax_default=False,
    )
    lr_cap: float = option(
        1e-2,
        number(0, above=True),
        'Upper bound of the relative step; with "cap", the default of lr.',
        "Pass an upper bound of the relative step, such as 1e-2.",
    )
    warmup_init: bool = flag(False, "Also bound the relative step by 1e-6·t.")
    factored: Any = factored_option(optax_default=True)
    min_dim_size_to_factor: int = min_dim_option(optax_default=128)

    def __post_init__(self) -> None:
        super().__post_init__()
        lr, role = self.lr, self._role
        if lr is None:
            lr = self.lr_cap if role == "cap" else 1.0
        scaled = role is not False if self.scale_parameter is None else self.scale_parameter
        for name, value in (("lr", lr), ("relative_step", role), ("scale_parameter", scaled)):
            object.__setattr__(self, name, value)

    @property
    def _role(self) -> Literal[False, "factor", "cap"]:
        """The meaning of lr: the rate itself (False), or the relative step's factor or cap."""
        asked = self.relative_step
        if asked is None or asked is True:
            return "factor" if self.lr is None else False
        return asked

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        momentum, given, asked = self.beta1 is not None, self.lr is not None, self.relative_step
        way_out = (
            'Drop one of them, or choose what lr means: relative_step="cap" bounds the step by it, "factor" scales '
            "the step by it."
        )
        yield given and asked is True, "lr", "None when relative_step=True", way_out
        way_out = "Pass lr, such as 1e-3, or drop relative_step."
        yield not given and asked is False, "lr", "given when relative_step=False", way_out
        way_out = "Use it with relative_step, or warm lr up with a schedule."
        yield self.warmup_init and not self._role, "warmup_init", "False without a relative step", way_out
        twice = self.beta2 is not None and abs(self.beta2_decay + 0.8) > 1e-6  # it may come from a float32
        yield twice, "beta2", f"None with the exponent {self.beta2_decay}", "Drop one: both set it."
        constant = self.decay_offset and is_number(self.beta2)
        yield constant, "decay_offset", f"0 with beta2={self.beta2}", "A constant beta2 does not depend on the step."
        way_out = "Pass beta1, such as 0.9"
        yield (
            self.caution and not momentum,
            "caution",
            "False without momentum",
            (f"{way_out}: otherwise all elements agree."),
        )
        stored = self.momentum_dtype is not None and not momentum
        yield stored, "momentum_dtype", "None without momentum", f"{way_out}."

    @property
    def follows_step(self) -> bool:
        return callable(self.beta2)

    def beta2_of(self, t: Scalar, at_least: Callable[[Scalar, int], Scalar] = max) -> Scalar | None:
        if not callable(self.beta2):
            return self.beta2
        step = (t if is_zero(self.decay_offset) else at_least(t - self.decay_offset, 1)) - 1
        found = self.beta2(step)
        if hasattr(found, "dtype") and not (
            is_number(t) or is_number(found)
        ):  # on a device or traced: its value is not read
            return found
        return BETA2(f"beta2({step})", found, "A function must return such a number for every step.")

    def fit(self, shape: Shape, block_dims: Shape, machine_eps: float) -> Adafactor:
        eps1, eps2 = self.eps
        return fit_factored(self, shape, block_dims, eps=(machine_eps if eps1 is None else eps1, eps2))


class State(NamedTuple):
    exp_avg_sq_row: Statistic  # R, with size 1 along the columns; None where not factored
    exp_avg_sq_col: Statistic  # C, with size 1 along the rows; None where not factored
    exp_avg_sq: Nonnegative  # V; None where factored
    exp_avg: Array  # e; None without momentum


def shapes(h: Adafactor, shape: Shape) -> State:
    e = None if h.beta1 is None else shape
    return State(*moment_shapes(h.factored, shape), e)


@once_a_step
def coefficients(xp: Functions, h: Adafactor, now: Now) -> Coefficients:
    b2, clamps, by_step = _b2(xp, now, h), h.eps_mode == "clamp", h.decay_scale == "step"
    b1 = 0.0 if h.beta1 is None else h.beta1
    return named(
        b2=b2,  # V ← b2·V + a2·(g² + eps1), and R and C alike
        a2=1 - b2,
        eps1=0.0 if clamps else h.eps[0],
        least=h.eps[0] if clamps else 0.0,  # u = g / max(√V, least),  mean(R) ≥ least
        most=LARGEST,  # of |g|; no literal, of which GCC makes four times the instructions
        clips=0.0 if h.clip_threshold is None else 1.0,  # û = u / max(1, RMS(u)/threshold),  and u where this is 0
        threshold=1.0 if h.clip_threshold is None else h.clip_threshold,
        rho=_rho(xp, now, h),  # alpha = rho·max(eps2, RMS(p))
        eps2=h.eps[1],
        b1=b1,  # e ← b1·e + a1·û,  with alpha·û in place of û where `inside` is 1
        a1=1 - b1,
        inside=1.0 if h.lr_in_momentum else 0.0,
        lam=0.0 if by_step else _decay(now, h),  # p ← p − (lam + lam_alpha·alpha)·p
        lam_alpha=now.weight_decay if by_step else 0.0,
    )


def _b2(xp: Functions, now: Now, h: Adafactor) -> Scalar:
    b2 = _by_power(xp, now.t, h) if now.beta2 is None else now.beta2
    return b2 if h.beta2_cap is None else at_most(xp, b2, h.beta2_cap)


def _by_power(xp: Functions, t: Scalar, h: Adafactor) -> Scalar:
    t = t if is_zero(h.decay_offset) else at_least(xp, t - h.decay_offset, 1)
    return 1 - t**h.beta2_decay


def _rho(xp: Functions, now: Now, h: Adafactor) -> Scalar:
    if not h.relative_step:
        return now.lr
    factor, cap = _factor_and_cap(now, h)
    rho = at_most(xp, now.t**-0.5, cap)
    return factor * (at_most(xp, rho, 1e-6 * now.t) if h.warmup_init else rho)


def _factor_and_cap(now: Now, h: Adafactor) -> tuple[Scalar, Scalar]:
    """Return the factor of the relative step and its bound; lr is one of them."""
    return (1.0, now.lr) if h.relative_step == "cap" else (now.lr, h.lr_cap)


def _decay(now: Now, h: Adafactor) -> Scalar:
    """Return the fraction by which p decays, whatever the size of its step."""
    factor, cap = _factor_and_cap(now, h) if h.relative_step else (now.lr, 1.0)
    return product(factor * cap if h.decay_scale == "lr" else 1.0, now.weight_decay)


def step(xp: Functions, p: Array, g: Array, state: State, h: Adafactor, now: Now) -> Asking[Stepped]:
    k = coefficients(xp, h, now)
    g = yield from prepare_gradient(xp, g, h, now)
    wanted = (MeanSquare(p),) if h.scale_parameter else ()
    average = AverageCoefficients(k.b2, k.a2, k.eps1, k.least, k.most)
    measured = factored_update(xp, g, state[:3], h.factored, average, *wanted)
    g = g if h.caution else None  # only p and u are kept during the sums
    moment, u, uu, answers = yield from measured
    rms = length(xp, uu, u)
    clip = 1.0 if is_zero(k.clips) else choose(xp, k.clips == 0, 1.0, clip_of(xp, rms, k.threshold))
    rms_p = length(xp, answers[0], p) if h.scale_parameter else None
    scale = at_least(xp, rms_p, k.eps2) if h.scale_parameter else 1.0
    alpha = k.rho * scale

    size, moved, e = _averaged(xp, u, alpha, clip, state.exp_avg, k)
    moved, agreeing = yield from cautious(xp, moved, g, h)
    stats = {"update_rms": rms, "trust_ratio": scale * clip, **agreeing}
    lam = k.lam if is_zero(k.lam_alpha) else k.lam + k.lam_alpha * alpha
    moves = *shrinking(xp, lam, p), (-size, moved)
    if h.scale_parameter:
        stats["weight_rms"] = rms_p
    return Stepped(moves, State(*moment, e), stats)


def _averaged(
    xp: Functions, u: Array, alpha: Scalar, clip: Scalar, e: Array, k: Coefficients
) -> tuple[Scalar, Array, Array]:
    """Return the step as a number times an array, and the momentum if there is one: of alpha·û, or of û."""
    if e is None:
        return alpha * clip, u, None
    inside = k.inside == 1
    e = add(xp, k.b1 * e, k.a1 * clip * choose(xp, inside, alpha, 1.0), u)
    return choose(xp, inside, 1.0, alpha), e, e
