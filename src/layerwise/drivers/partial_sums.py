"""A rule's requests, a slice's partial sums of them, and the answer made from a total."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from layerwise.rules.arrays import square
from layerwise.rules.newton_schulz import gram
from layerwise.rules.requests import (
    Array,
    Asking,
    Functions,
    Gram,
    Keep,
    Mean,
    MeanSquare,
    ModelSquares,
    Request,
    Scalar,
    Sum,
    T,
    WholeMatrices,
)

Dims = tuple[int, ...]
Requests = tuple[Request, ...]
Answer = tuple[Array, ...]
PLAIN = (Sum, Mean)  # sums of plain terms; all others sum squares
MEANS = (Mean, MeanSquare)
AT_ONCE = 1 << 20  # elements of matrices that are multiplied at once, if they are not one: processors lose by more


class TensorRun(NamedTuple):
    """The rules that step one tensor: one rule for the whole tensor, or one for each slice along a dimension."""

    rules: tuple[Asking[Any], ...]
    shape: Dims  # of the whole tensor
    block_dims: Dims = ()  # dimensions that count blocks, each of which the rule treats as a tensor of its own
    together: bool = False  # whether the rules will request a sum over the whole model (h.needs_model_sum)
    cut: int | None = None  # the dimension along which the tensor is sliced
    jobs: Dims = (0,)  # the jobs of this tensor: several are stacked along the last dimension
    counted: Callable[[Dims], Scalar] | None = None  # entries along dimensions, if shapes differ
    alike: Hashable = None  # equal for tensors that step side by side, so that work on whole matrices is done at once

    def num_entries(self, dims: Dims) -> Scalar:
        """Return the number of entries along some dimensions."""
        return max(1, prod(self.shape[d] for d in dims)) if self.counted is None else self.counted(dims)


class PartialSum(NamedTuple):
    """A slice's share of a request's total, summed at once so that the terms can be freed."""

    request: type[Request]
    dims: Dims
    sum: Array
    once: Dims = ()
    whole: WholeMatrices | None = None  # the operation on parts that are brought together


def next_requests(rule: Asking[T], answer: Answer | None) -> Requests:
    """Take a rule to its next requests. Keep the state that it hands over by `Keep`."""
    requests = rule.send(answer)
    while isinstance(requests, Keep):
        requests = rule.send(requests.state)
    return requests


def request_dims(request: Request, ndim: int, block_dims: Dims) -> Dims:
    """Return the dimensions of the tensor that a request runs over."""
    if isinstance(request, ModelSquares):
        return tuple(range(ndim))
    if isinstance(request, Gram):
        return request.summed
    if isinstance(request, WholeMatrices):
        return request.kept + request.summed
    named: Dims | None = getattr(request, "dims", None)
    return tuple(d for d in range(ndim) if d not in block_dims) if named is None else named


def counted_once_dims(request: Request) -> Dims:
    """Return the dimensions along which a request's terms are the same everywhere, and count once."""
    return getattr(request, "once", ())


def partial_sum(xp: Functions, request: Request, dims: Dims) -> Array:
    """Sum the local terms of a request over these dimensions."""
    if isinstance(request, PLAIN):
        return _summed(xp, request.terms, dims)
    if isinstance(request, Gram):
        return gram(xp, *request)
    squares = sum_of_squares(xp, request.terms, dims)
    # Tensors of any number of dimensions are added to it.
    return xp.reshape(squares, ()) if isinstance(request, ModelSquares) else squares


def partial_sums(xp: Functions, run: TensorRun, requests: Requests) -> tuple[PartialSum, ...]:
    """Sum the terms of a slice's requests."""
    return tuple(_partial_sum(xp, run, request) for request in requests)


def _partial_sum(xp: Functions, run: TensorRun, request: Request) -> PartialSum:
    dims = request_dims(request, len(run.shape), run.block_dims)
    if isinstance(request, WholeMatrices):
        return PartialSum(WholeMatrices, dims, request.terms, whole=request)
    here = partial_sum(xp, request, dims)
    # A single number becomes a Python float if it is in host memory, so that arithmetic on it is cheap.
    if hasattr(xp, "as_number") and len(dims) == len(run.shape) and not isinstance(request, Gram):
        here = xp.as_number(here)
    return PartialSum(type(request), dims, here, once=counted_once_dims(request))


def sum_of_squares(xp: Functions, terms: Array, dims: Dims) -> Array:
    """Sum the squares of the terms over these dimensions, by the library's own function if there is one."""
    return xp.squares(terms, dims) if hasattr(xp, "squares") else _summed(xp, square(terms), dims)


def _summed(xp: Functions, terms: Array, dims: Dims) -> Array:
    # An empty tuple of dimensions means "all" to some namespaces and "none" to others.
    return xp.sum(terms, axis=dims, keepdims=True) if dims else terms


def answer_of(run: TensorRun, partial: PartialSum, total: Array) -> Array:
    """Return the answer to a request, given its total over all slices."""
    return total / run.num_entries(partial.dims) if partial.request in MEANS else total


def apply_works(xp: Functions, wholes: Sequence[WholeMatrices], kind: Callable[[Array], Hashable]) -> list[Array]:
    """Return what the works make of whole tensors: equal work on those of one kind, up to a size, is done at once."""
    if len(wholes) == 1:
        [(x, _, _, work, _)] = wholes
        return [x.worked(work) if hasattr(x, "worked") else work(x)]  # the former of several tensors
    alike: dict[Hashable, list[int]] = {}
    for i, one in enumerate(wholes):
        alike.setdefault((one.work, kind(one.terms)), []).append(i)
    made: dict[int, Array] = {}
    for places in alike.values():
        most = max(1, AT_ONCE // max(1, prod(wholes[places[0]].terms.shape)))
        for start in range(0, len(places), most):
            some = places[start : start + most]
            made |= zip(some, _worked(xp, [wholes[i].terms for i in some], wholes[some[0]].work), strict=True)
    return [made[i] for i in range(len(wholes))]


def _worked(xp: Functions, each: Sequence[Array], work: Callable[[Array], Array]) -> Iterable[Array]:
    if len(each) == 1:
        return [work(each[0])]
    made = xp.moveaxis(work(xp.moveaxis(xp.stack(each), 0, -1)), -1, 0)
    return getattr(xp, "unstack", list)(made)


def on_device_of(xp: Functions, x: Array, like: Array) -> Array:
    """Return `x` on the device of `like`, if the library has several."""
    return xp.beside(x, like) if hasattr(xp, "beside") else x
