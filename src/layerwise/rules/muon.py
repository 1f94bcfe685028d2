"""Muon (Jordan et al. 2024; Liu et al., arXiv 2502.16982): momentum with all singular values brought to about 1.

    m ← b·m + (1 − b)·g
    u = b·m + (1 − b)·g                      ahead, as Nesterov's;  else u = m
    x = u / max(‖u‖, eps)
    x ← a·x + (b·x·xᵀ + c·(x·xᵀ)²)·x         ns_steps times, with the coefficients of each
    r = scale·x
    p ← p − lr·lam·p − lr·r

`dims` says which dimensions are rows and columns; further dimensions count matrices. A vector is a single row, whose
only singular value is ‖u‖. The iterations are in matrices.py.

Departures, each an option:

    Jordan: √max(1, rows/columns)    scale="match_rms_adamw":  0.2·√max(rows, columns), as in arXiv 2502.16982;  or
                                     another number than 0.2
    Jordan: 3.4445, −4.7750, 2.0315  ns_coefficients:  "polar_express" (arXiv 2505.16932), or those of each iteration
    Jordan: steps as long as r       adapt:  p ← p − lr·ratio·r,  ratio = ‖p‖ / ‖r‖;   trust_clip, min_norm: its bounds;
                                     keep_norm, radial:  as in lion.py
    lam off the weights              decay="l2":  g ← g + lam·p instead, as in MLX
    Jordan: u of m and g             nesterov="corrected":  b·m/(1 − b^(t+1)) + (1 − b)·g/(1 − b^t), as in optax

Heavy ball, m ← b·m + g, is the same but for eps: x does not depend on the length of u. Jordan divides by ‖u‖ + eps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import chain, islice, repeat
from math import prod, sqrt
from typing import Any, ClassVar, Literal, NamedTuple

from layerwise.options import fields
from layerwise.options.checks import (
    NONE,
    Check,
    Contradiction,
    RefusedValue,
    as_float,
    dtype,
    integer,
    members_of_sequence,
    number,
    one_of,
)
from layerwise.options.fields import option
from layerwise.options.settings import Adapt, ClippedByNorm, Scheduled, StepLength, StoredMomentum, with_values
from layerwise.options.values import is_one, is_zero
from layerwise.rules import factored_dims
from layerwise.rules.arrays import add_overwriting, add_unless_off, after_moves, final, mix, shrinking
from layerwise.rules.clipping import prepare_gradient
from layerwise.rules.newton_schulz import (
    Polynomial,
    gram_dims,
    in_stretches,
    least_work,
    orthogonalized,
    sharded_gram_dims,
)
from layerwise.rules.products import HALVES
from layerwise.rules.requests import Array, Asking, Coefficients, Functions, Now, PerLayer, Shape, Stepped
from layerwise.rules.row_normalization import dims_option
from layerwise.rules.scalars import named, once_a_step, one_minus_power, product
from layerwise.rules.trust import Length, scaled_moves, trust_coefficients

JORDAN = ((3.4445, -4.7750, 2.0315),)
SAFETY = 1.01  # the paper's code divides the argument of all polynomials but the last by this
POLAR_EXPRESS = (
    *(
        (a / SAFETY, b / SAFETY**3, c / SAFETY**5)
        for a, b, c in (
            (8.28721201814563, -23.595886519098837, 17.300387312530933),
            (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
            (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
            (3.3184196573706015, -2.488488024314874, 0.51004894012372),
            (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
            (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
            (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
        )
    ),
    (1.875, -1.25, 0.375),
)
NAMED = {"jordan": JORDAN, "polar_express": POLAR_EXPRESS}
_name = one_of(*NAMED).convert


def _coefficients(value: object) -> object:
    """Return three numbers, or three for each iteration."""
    if isinstance(value, str):
        return _name(value)
    each = members_of_sequence(value)
    try:
        return _three(each)
    except RefusedValue:
        return tuple(_three(members_of_sequence(one)) for one in each) or _three(())


def _three(values: tuple[object, ...]) -> Polynomial:
    if len(values) != 3:
        raise RefusedValue
    a, b, c = map(as_float, values)
    return a, b, c


COEFFICIENTS = Check('"jordan", "polar_express", three numbers, or three for each iteration', _coefficients)


@dataclass(frozen=True)
class Muon(StoredMomentum, StepLength, ClippedByNorm):
    """Options of Muon. Its page in the documentation gives each its place in the formula."""

    of_matrices: ClassVar[bool] = True
    optax_state: ClassVar[Mapping[str, str]] = {"momentum_buffer": "mu"}

    lr: Scheduled = fields.lr(0.02)
    momentum: float = fields.momentum(0.95)
    weight_decay: Scheduled = fields.weight_decay()
    _: KW_ONLY
    adapt: Adapt = fields.adapt(False)
    decay: Literal["decoupled", "l2"] = fields.decay("as in MLX")
    nesterov: bool | Literal["corrected"] = option(
        True,
        one_of(True, False, "corrected"),
        "Look one step ahead, as Nesterov's momentum does (True), with both terms corrected for their bias "
        '("corrected"), or not (False).',
        'Pass True, False, or "corrected" as in optax.',
    )
    scale: Literal["original", "match_rms_adamw"] | float = option(
        "original",
        one_of("original", "match_rms_adamw") | number(0, above=True),
        'The factor on the step but not on the decay: √max(1, rows/columns) ("original"), 0.2·√max(rows, columns) '
        '("match_rms_adamw"), or another number than 0.2.',
        'Pass "original", "match_rms_adamw" for steps as long as AdamW\'s, or a number such as 0.2.',
    )
    ns_coefficients: Any = option(
        "jordan",
        COEFFICIENTS,
        'Coefficients (a, b, c) of an iteration, or of each, the last of which are repeated: "jordan" for (3.4445, '
        '-4.775, 2.0315), "polar_express" for those of arXiv 2505.16932.',
        'Pass "jordan", "polar_express", (a, b, c), or a list of such.',
    )
    ns_steps: int = option(
        5,
        integer(1, bits=7),
        "Number of iterations that bring singular values to about 1.",
        "Pass a number of iterations such as ns_steps=5.",
    )
    eps: float = fields.eps(1e-7, "Lower bound of the norm that the momentum is divided by.", above=True)
    dims: Any = dims_option()
    momentum_dtype: Any = fields.momentum_dtype()
    ns_dtype: Any = option(
        None,
        NONE | dtype("float32", *HALVES),
        "The dtype of the products that bring singular values to 1, or its name; float64 tensors have float64 for "
        "float32. None chooses 16 bits where the device multiplies these faster.",
        'Pass "bfloat16", "float16" or "float32", or None to choose by device.',
    )

    settled_here: ClassVar[tuple[str, ...]] = ("momentum_dtype", "ns_dtype")

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        stored = self.momentum_dtype is not None and is_zero(self.momentum)
        yield stored, "momentum_dtype", "None without momentum", "Pass momentum, such as 0.95."

    @property
    def reads_weights(self) -> bool:
        return self.decay == "l2" or self.adapt is not False or bool(self.keep_norm) or self.radial is not None

    @property
    def adds_products(self) -> bool:
        return not self.dims.whole

    def with_fast_dtype(self, quick: str | None) -> Muon:
        return self if self.ns_dtype is not None or quick is None else with_values(self, ns_dtype=quick)

    def fit(self, shape: Shape, block_dims: Shape, machine_eps: float) -> Muon:
        own = tuple(d for d in range(len(shape)) if d not in block_dims)
        rows, cols = factored_dims.dims(self.dims, shape, block_dims=block_dims) or ((), own)
        each = NAMED[self.ns_coefficients] if isinstance(self.ns_coefficients, str) else self.ns_coefficients
        each = each if isinstance(each[0], tuple) else (each,)
        polynomials = tuple(islice(chain(each, repeat(each[-1])), self.ns_steps))
        sides = gram_dims(shape, rows, cols)
        return with_values(
            super().fit(shape, block_dims, machine_eps),
            dims=sides,
            scale=_scale(self.scale, prod(shape[d] for d in rows), prod(shape[d] for d in cols)),
            ns_coefficients=least_work(polynomials, sides, shape, self.ns_dtype),
        )

    def for_shards(self, shape: Shape, parts: Shape | None, replicas: int) -> Muon:
        few = in_stretches(tuple(chain(*self.ns_coefficients)), self.ns_dtype)  # each costs a sum over the parts
        sides = sharded_gram_dims(self.dims, shape, parts, few, replicas)
        return with_values(self, dims=sides, ns_coefficients=self.ns_coefficients if sides.whole else few)


def _scale(how: Any, rows: int, cols: int) -> float:
    if how == "original":
        return sqrt(max(1.0, rows / max(1, cols)))
    return (0.2 if how == "match_rms_adamw" else how) * sqrt(max(rows, cols))


class State(NamedTuple):
    momentum_buffer: Array  # m; None without momentum
    norm: PerLayer = None  # R; None unless keep_norm="first"


def shapes(h: Muon, shape: Shape) -> State:
    return State(momentum_buffer=None if is_zero(h.momentum) else shape, norm=h.shape_of_norm(shape))


@once_a_step
def coefficients(xp: Functions, h: Muon, now: Now) -> Coefficients:
    b, lam = h.momentum, now.weight_decay
    ahead, beside = b, 1 - b
    if h.nesterov == "corrected":
        ahead = ahead / one_minus_power(xp, b, now.t + 1)
        beside = beside / one_minus_power(xp, b, now.t)
    return named(
        l2=lam if h.decay == "l2" else 0.0,  # g ← g + l2·p
        b=b,  # m ← b·m + a·g
        a=1 - b,
        ahead=ahead,  # u = ahead·m + beside·g
        beside=beside,
        eps=h.eps,
        scale=h.scale,  # r = scale·x
        lr=now.lr,  # p ← p − lam·p − lr·ratio·r
        lam=product(now.lr, lam) if h.decay == "decoupled" else 0.0,
        trust=trust_coefficients(xp, h, lam),
    )


def step(xp: Functions, p: Array, g: Array, state: State, h: Muon, now: Now) -> Asking[Stepped]:
    k, (m, R) = coefficients(xp, h, now), state
    u = g = add_unless_off(xp, (yield from prepare_gradient(xp, g, h, now)), k.l2, p)
    if m is not None:
        (m,) = final(xp, mix(xp, k.b, m, k.a, g))
        u = add_overwriting(xp, k.ahead * m, k.beside, g) if h.nesterov else m
    del g
    x = yield from orthogonalized(xp, u, h.dims, h.ns_coefficients, k.eps, h.ns_dtype)
    r = x if is_one(k.scale) else k.scale * x
    moves = shrinking(xp, k.lam, p)
    p = after_moves(xp, p, moves)
    R, moves, stats = yield from scaled_moves(xp, h, Length(k.lr, k.trust), R, p, r, moves)
    return Stepped(moves, State(m, R), stats)
