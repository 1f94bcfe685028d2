"""The factored second moment of a matrix: a mean for each row, R, and for each column, C.

    R ← b·R + a·mean(x + eps over columns)
    C ← b·C + a·mean(x + eps over rows)
    V  = R·C / mean(R)

mean(R) is needed as soon as R is new, but costs no round of its own: it obeys the same recurrence as R, so it is
b·mean(old R) + a·mean(x + eps), and both can be requested together with the other sums.

Numbers of a gradient count as at most 2^50, so that R, C and sums of squares stay within float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING
from typing import Any, NamedTuple, TypeVar

from layerwise.options.checks import integer
from layerwise.options.fields import option
from layerwise.options.settings import Hyper, with_values
from layerwise.options.values import Scalar, is_zero
from layerwise.rules import factored_dims
from layerwise.rules.arrays import final, is_complex, mix, square
from layerwise.rules.factored_dims import Factored
from layerwise.rules.requests import Array, Asking, Functions, Mean, MeanSquare, Shape
from layerwise.rules.trust import norm_at_least

H = TypeVar("H", bound=Hyper)

LARGEST = 2.0**50  # the largest number of a gradient


def factored_option(optax_default: object = MISSING) -> Any:
    return option(
        "last",
        factored_dims.CHECK,
        'Which dimensions are rows and columns: the last two ("last"), the two largest ("largest"), those of matrices '
        'only ("matrix"), two dimensions or groups of them, or none (False): no dimensions.',
        factored_dims.WAY_OUT,
        optax_default=optax_default,
    )


def min_dim_option(optax_default: object = MISSING) -> Any:
    return option(
        0,
        integer(0, bits=63),
        "Factor a tensor only if it has at least this many rows and columns.",
        "Pass the smallest size worth factoring, such as 128, or 0.",
        optax_default=optax_default,
    )


def fit_factored(h: H, shape: Shape, block_dims: Shape, **values: object) -> H:
    """Return the settings with a tensor's rows and columns (False if it is not factored) and these values."""
    own: Any = h
    factored = factored_dims.dims(own.factored, shape, own.min_dim_size_to_factor, block_dims) or False
    return with_values(h, factored=factored, **values)


def moment_shapes(factored: Factored | None, shape: Shape) -> tuple[Shape | None, Shape | None, Shape | None]:
    """Return the shapes of R, C and V: of R and C for a factored tensor, otherwise of V; None for the rest."""
    if not factored:
        return None, None, shape
    rows, cols = factored
    return _without(shape, cols), _without(shape, rows), None


def _without(shape: Shape, dims: Shape) -> Shape:
    return tuple(1 if d in dims else n for d, n in enumerate(shape))


class AverageCoefficients(NamedTuple):
    """Numbers of an average: V ← b·V + a·(x + eps), √V and mean(R) at least `least`, of gradients within `most`."""

    b: Scalar
    a: Scalar
    eps: Scalar
    least: Scalar
    most: Scalar = LARGEST


Second = tuple[Array, Array, Array]  # R, C and V; None for those that do not exist


def factored_update(
    xp: Functions, g: Array, moment: Second, factored: Factored | None, k: AverageCoefficients, *others: MeanSquare
) -> Asking[tuple[Second, Array, Scalar, Sequence[Array]]]:
    """Return R, C and V updated with g², u = g / √V, mean(u²), and the answers to other requests."""
    R, C, V = moment
    if not factored:
        (V,) = final(xp, mix(xp, k.b, V, k.a, plus_eps(square(bounded_gradient(xp, g, k.most)), k.eps)))
        u = bounded_gradient(xp, g, k.most) / norm_at_least(
            xp, xp.sqrt(V), k.least
        )  # recomputed, which takes less than to store it
        del g
        uu, *answers = yield (MeanSquare(u), *others)
        return (None, None, V), u, uu, answers
    g = bounded_gradient(xp, g, k.most)
    answers = yield (*means(xp, square(g), R, *factored), *others)
    R, C, root_V = updated_factors(xp, R, C, answers[:4], k)
    u = g / root_V
    del g, root_V
    (uu,) = yield (MeanSquare(u),)
    return (R, C, None), u, uu, answers[4:]


def bounded_gradient(xp: Functions, g: Array, most: Scalar) -> Array:
    """Return the gradient with its finite numbers bounded, and nan for the others."""
    if is_complex(g):
        return bounded_gradient(xp, g.real, most) + 1j * bounded_gradient(xp, g.imag, most)
    return xp.clip(g, -most, most) + (g - g)


def means(xp: Functions, x: Array, R: Array, rows: Shape, cols: Shape) -> tuple[Mean, ...]:
    """Return the requests that `updated_factors` needs."""
    per_row = xp.sum(x, axis=cols, keepdims=True)
    return Mean(per_row, cols), Mean(x, rows), Mean(per_row, rows + cols), Mean(R, rows, once=cols)


def updated_factors(
    xp: Functions, R: Array, C: Array, answers: Sequence[Array], k: AverageCoefficients
) -> tuple[Array, Array, Array]:
    """Return R and C updated with the answers, and √V."""
    x_rows, x_cols, x_mean, R_mean = answers
    R, C, R_mean = (
        averaged_factor(xp, R, x_rows, k),
        averaged_factor(xp, C, x_cols, k),
        averaged_mean(xp, R_mean, x_mean, k),
    )
    # Two roots, because R·C would underflow in float32 for numbers near eps.
    return R, C, norm_at_least(xp, xp.sqrt(R / R_mean) * xp.sqrt(C), k.least)


def averaged_factor(xp: Functions, x: Array, mean: Scalar, k: AverageCoefficients) -> Array:
    """Return the new R or C, given a mean; mean(x + eps) is mean(x) + eps, so x + eps itself is not needed."""
    return mix(xp, k.b, x, k.a, plus_eps(mean, k.eps))


def averaged_mean(xp: Functions, R_mean: Scalar, x_mean: Scalar, k: AverageCoefficients) -> Scalar:
    """Return mean(R) by the same recurrence."""
    return norm_at_least(xp, k.b * R_mean + k.a * plus_eps(x_mean, k.eps), k.least)


def plus_eps(x: Scalar, eps: Scalar) -> Scalar:
    return x if is_zero(eps) else x + eps
