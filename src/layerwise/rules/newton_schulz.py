"""Newton–Schulz iterations, which bring the singular values of matrices to 1, and tensors as matrices.

    Z = a + b·G + c·G²,  G = x·xᵀ;   x ← Z·x

A product with x is expensive if one side of x is long. Since the new x has the Gram matrix Z·G·Z, several iterations, a
*stretch*, can be computed from one G, which has only as many rows and columns as the shorter side: their Z are
multiplied with one another, and with x only at the end. With k rows and s columns, a stretch of n iterations takes
k²·(2·s + (4·n − 3)·k) multiplications. If x is nearly square (2·s < 3·k), each iteration is a stretch of its own.

Stretches cannot be arbitrarily long. Rounding leaves an error in G as large as the last digits of its largest
eigenvalue, and each iteration of a stretch multiplies that error by up to a², as it does small eigenvalues. So a new
stretch, with G computed from x again, begins before that matters (the restarts of Gram Newton–Schulz, Zhang et al.
2026): the sooner, the fewer digits the products have.

In 16 bits x is first scaled to the norm UNIT: then G and all that is made of it fits float16, and stays far above the
small numbers that have fewer digits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod, sqrt
from typing import NamedTuple

from layerwise.options.values import Scalar
from layerwise.rules.arrays import is_complex, length, scaled
from layerwise.rules.products import HALVES, operand, product, quadratic, symmetric
from layerwise.rules.requests import Array, Asking, Functions, Gram, MeanSquare, Shape, WholeMatrices
from layerwise.rules.scalars import at_least

Polynomial = tuple[float, float, float]
Stretches = tuple[tuple[Polynomial, ...], ...]

MOST_GROWTH = 256.0  # of an error in G, within a stretch
MOST_IN_HALF = 32.0  # the same in 16 bits, for two of Jordan's iterations: a third makes the error three times as large
UNIT = 8.0  # the norm of x in 16 bits: its fourth power, and sums of such, fit float16
PER_NUMBER = 4000  # multiplications in the time in which an accelerator sends a number


class GramDims(NamedTuple):
    """The dimensions that count the rows of G, those that G sums over, and whether a rank works on whole matrices."""

    kept: Shape
    summed: Shape
    entries: int  # of a matrix, wherever its parts are
    whole: bool = True


def gram_dims(shape: Shape, rows: Shape, cols: Shape) -> GramDims:
    """Return the sides of a whole tensor: G sums over the longer one."""
    m, n = _length(shape, rows), _length(shape, cols)
    return GramDims(rows, cols, m * n) if m <= n else GramDims(cols, rows, m * n)


def sharded_gram_dims(
    sides: GramDims, shape: Shape, parts: Shape | None, stretches: Stretches, replicas: int
) -> GramDims:
    """Return the sides of a tensor that is cut into this many parts along each dimension, or anywhere (None).

    If only one side is cut, G can be summed over it: ranks add up their parts of G. Otherwise the matrix is brought
    together. The cheaper of the two is chosen by the numbers that are sent and the multiplications. Ranks share the
    work on whole matrices, each with some of them, and so do the `replicas` of the parts; with 0 replicas nothing is
    shared, and every rank works on all matrices.
    """
    if parts is None:
        return sides
    across, along = prod(parts[d] for d in sides.kept), prod(parts[d] for d in sides.summed)
    if (across > 1) == (along > 1):
        return sides
    kept, summed = (sides.summed, sides.kept) if across > 1 else (sides.kept, sides.summed)
    added = GramDims(kept, summed, sides.entries, whole=False)
    whole = _whole_costs(sides, shape, across * along, replicas, stretches)
    return sides if whole < _costs(added, shape, across * along, stretches) else added


def _costs(sides: GramDims, shape: Shape, parts: int, stretches: Stretches) -> float:
    """Return the work of a rank, in multiplications, if ranks add up their parts of G."""
    kept, summed = _length(shape, sides.kept), _length(shape, sides.summed)
    sent = 2 * len(stretches) * kept * kept
    return sent * PER_NUMBER + multiplications(kept, summed / parts, stretches)


def _whole_costs(sides: GramDims, shape: Shape, parts: int, replicas: int, stretches: Stretches) -> float:
    """Return the same if matrices are brought together, each on one of the ranks, which share the work."""
    kept, summed = _length(shape, sides.kept), _length(shape, sides.summed)
    sharing = max(1, parts * replicas)
    sent = 2 * kept * summed / sharing + (kept * summed / parts if replicas > 1 else 0)
    work = multiplications(kept, summed, least_work(tuple(chain(*stretches)), sides, shape))
    return sent * PER_NUMBER + work / sharing


def multiplications(kept: int, summed: float, stretches: Stretches) -> float:
    """Return the multiplications for a matrix, or for a part of it that has this many of the summed entries."""
    return kept * kept * sum(2 * summed + (4 * len(stretch) - 3) * kept for stretch in stretches)


def _length(shape: Shape, dims: Shape) -> int:
    return prod(shape[d] for d in dims)


def least_work(polynomials: Sequence[Polynomial], sides: GramDims, shape: Shape, dtype: str | None = None) -> Stretches:
    """Return the iterations of a whole tensor, divided into the stretches that take the fewest multiplications."""
    if 2 * _length(shape, sides.summed) < 3 * _length(shape, sides.kept):
        return tuple((one,) for one in polynomials)
    return in_stretches(polynomials, dtype)


def in_stretches(polynomials: Sequence[Polynomial], dtype: str | None = None) -> Stretches:
    """Return the iterations in the fewest stretches in which no error of G grows too much."""
    found: list[list[Polynomial]] = [[]]
    growth, most = 1.0, MOST_IN_HALF if dtype in HALVES else MOST_GROWTH
    for one in polynomials:
        if growth > most:
            found.append([])
            growth = 1.0
        found[-1].append(one)
        growth *= one[0] ** 2
    return tuple(map(tuple, found))


def as_matrices(xp: Functions, x: Array, kept: Shape, summed: Shape) -> Array:
    """Return a tensor as matrices, one for each entry along its other dimensions, which come first."""
    order = _order(x.ndim, kept, summed)
    others = [d for d in order if d not in kept and d not in summed]
    sizes = tuple(prod(x.shape[d] for d in some) for some in (others, kept, summed))
    return xp.reshape(_permuted(xp, x, order), sizes)


def from_matrices(xp: Functions, x: Array, shape: Shape, kept: Shape, summed: Shape) -> Array:
    """Return the tensor of which these are the matrices."""
    order = _order(len(shape), kept, summed)
    found = xp.reshape(x, tuple(shape[d] for d in order))
    return _permuted(xp, found, [order.index(d) for d in range(len(shape))])


def gram(xp: Functions, x: Array, kept: Shape, summed: Shape) -> Array:
    """Return x·xᵀ of each matrix."""
    x = as_matrices(xp, x, kept, summed)
    return symmetric(xp, x, xp.moveaxis(x.conj() if is_complex(x) else x, -1, -2))


def orthogonalized(
    xp: Functions, x: Array, sides: GramDims, stretches: Stretches, eps: Scalar, dtype: str | None = None
) -> Asking[Array]:
    """Return x / max(‖x‖, eps) with all singular values brought to about 1. Products have the digits of `dtype`."""
    own, unit = x.dtype, UNIT if dtype in HALVES else 1.0
    x = operand(xp, (yield from _of_norm(xp, x, sides, unit, eps)), dtype)
    if sides.whole:
        work, sent = WholeIterations(xp, sides, stretches, dtype), dtype if dtype in HALVES else None
        (x,) = yield (WholeMatrices(x, sides.kept, sides.summed, work, sent),)
    else:
        x = yield from _iterated(xp, x, sides, stretches, dtype)
    return scaled(1 / unit, xp.asarray(x, dtype=own))


def _of_norm(xp: Functions, x: Array, sides: GramDims, norm: float, eps: Scalar) -> Asking[Array]:
    """Return norm·x / max(‖x‖, eps) of each matrix. Unlike ‖x‖, the root of the mean square fits the dtype of x."""
    (mean,) = yield (MeanSquare(x, sides.kept + sides.summed),)
    entries = sqrt(max(1, sides.entries))
    return (norm / entries) * (x / at_least(xp, length(xp, mean, x), eps / entries))


def _iterated(xp: Functions, x: Array, sides: GramDims, stretches: Stretches, dtype: str | None) -> Asking[Array]:
    """Return the result of all iterations of an x of the norm 1; in 16 bits of the norm UNIT, as the result is."""
    kept, summed, shape = sides.kept, sides.summed, tuple(x.shape)
    for stretch in stretches:
        (G,) = yield (Gram(x, kept, summed),)
        Q = _polynomials(xp, operand(xp, G, dtype), stretch, UNIT if dtype in HALVES else 1.0, dtype)
        x = from_matrices(xp, product(xp, Q, as_matrices(xp, x, kept, summed), dtype), shape, kept, summed)
    return x


@dataclass(frozen=True, eq=False)
class WholeIterations:
    """The iterations of whole matrices as a function. Two that do the same are equal, so that both work at once."""

    xp: Functions
    sides: GramDims
    stretches: Stretches
    dtype: str | None = None

    @property
    def _does(self) -> Hashable:
        return self.sides, self.stretches, self.dtype

    def __hash__(self) -> int:
        return hash(self._does)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WholeIterations) and self._does == other._does

    def __call__(self, x: Array) -> Array:
        asking, answer = _iterated(self.xp, x, self.sides, self.stretches, self.dtype), None
        while True:
            try:
                [asked] = asking.send(answer)
            except StopIteration as end:
                return end.value
            answer = (gram(self.xp, *asked),)


def _polynomials(xp: Functions, G: Array, stretch: Sequence[Polynomial], unit: float, dtype: str | None) -> Array:
    """Return the product of the polynomials of a stretch, given G of an x that is `unit` times as long."""
    Q = None
    for i, (a, b, c) in enumerate(stretch):
        Z = quadratic(xp, G, a, b / unit**2, c / unit**4, dtype)
        Q = Z if Q is None else operand(xp, symmetric(xp, Z, Q), dtype)
        if i + 1 < len(stretch):
            G = operand(xp, symmetric(xp, operand(xp, symmetric(xp, Z, G), dtype), Z), dtype)
    return Q


def _order(ndim: int, kept: Shape, summed: Shape) -> list[int]:
    return [*(d for d in range(ndim) if d not in kept and d not in summed), *kept, *summed]


def _permuted(xp: Functions, x: Array, order: Sequence[int]) -> Array:
    """Return x with its dimensions in this order, by what all libraries have."""
    places = list(range(len(order)))
    for k, d in enumerate(order):
        at = places.index(d)
        if at != k:
            x = xp.moveaxis(x, at, k)
            places.insert(k, places.pop(at))
    return x
