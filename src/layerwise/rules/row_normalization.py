"""Code shared by rules that divide each row or column by its own root mean square."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from layerwise.options import fields
from layerwise.options.checks import number
from layerwise.options.fields import option
from layerwise.options.settings import ClippedByNorm
from layerwise.options.values import Scalar, is_zero
from layerwise.rules import factored_dims
from layerwise.rules.arrays import final, length, mix, shrinking, square
from layerwise.rules.requests import Array, Asking, Coefficients, Functions, Mean, MeanSquare, Now, Shape, Stepped
from layerwise.rules.scalars import at_least, named, once_a_step, product, root


def dims_option() -> Any:
    return option(
        "first",
        factored_dims.LINES,
        'Which dimensions are rows and columns: the first and all others ("first"), the last two ("last"), two '
        "dimensions or groups of them, or none (False), which treats the tensor as a single row.",
        factored_dims.WAY_OUT_OF_LINES,
    )


@dataclass(frozen=True, kw_only=True)
class RowNormalization(ClippedByNorm):
    """Options of rules whose step has the same size in every row or column."""

    optax_state: ClassVar[Mapping[str, str]] = {}

    momentum: float = option(
        0.0,
        number(0, 1),
        "Decay rate of a running mean that replaces the gradient; 0 means none, and no state.",
        "Pass a number such as momentum=0.9, or 0 for none.",
    )
    scale: float = option(
        1.0,
        number(0, above=True),
        "A factor on the step but not on the decay: the step is lr·scale times the direction.",
        "Pass a number such as scale=0.05, or 1.",
    )
    eps: float = fields.eps(1e-8, "Lower bound of the size that each row or column is divided by.", above=True)
    dims: Any = dims_option()


class State(NamedTuple):
    exp_avg: Array  # m; None without momentum


def shapes(h: RowNormalization, shape: Shape) -> State:
    return State(None if is_zero(h.momentum) else shape)


@once_a_step
def coefficients(xp: Functions, h: RowNormalization, now: Now) -> Coefficients:
    return named(
        b=h.momentum,  # m ← b·m + a·g
        a=1 - h.momentum,
        eps=h.eps,
        scale=h.scale,
        lr=now.lr,  # p ← p − lam·p − lr·scale·x
        lam=product(now.lr, now.weight_decay),
    )


def with_momentum(xp: Functions, g: Array, m: Array, k: Coefficients) -> tuple[Array, Array]:
    """Return the array to divide, and the momentum if the rule has one."""
    if m is None:
        return g, None
    (m,) = final(xp, mix(xp, k.b, m, k.a, g))
    return m, m


def divided_by_rms(
    xp: Functions, x: Array, along: Shape, k: Coefficients, unit: Scalar = 1.0, measured: bool = True
) -> Asking[tuple[Array, Scalar]]:
    """Return x divided by max(unit·RMS, eps) along some dimensions, and RMS(x) if `measured`.

    Without dimensions x is a single row. The measurement needs no extra round, but needs sums over all parts.
    """
    if not along:
        (xx,) = yield (MeanSquare(x),)
        rms = length(xp, xx, x)
        return x / at_least(xp, unit * rms, k.eps), rms
    per_line = xp.sum(square(x), axis=along, keepdims=True)
    lines, *whole = yield (Mean(per_line, along), *((Mean(per_line),) if measured else ()))
    return x / at_least(xp, unit * root(xp, lines), k.eps), root(xp, whole[0]) if measured else None


def normalized_step(
    xp: Functions, p: Array, x: Array, m: Array, rms: Array, k: Coefficients, unit: Scalar = 1.0
) -> Stepped:
    """Return the step along x. Its trust ratio is the factor on lr, if no row is below eps."""
    moves = (*shrinking(xp, k.lam, p), (-k.lr * k.scale, x))
    return Stepped(moves, State(m), {"update_rms": rms, "trust_ratio": k.scale / at_least(xp, unit * rms, k.eps)})
