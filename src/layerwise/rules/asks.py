"""The requests that a rule may make of its driver, and the numbers that it receives."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Annotated, Any, NamedTuple, TypeVar

Array = Any  # of whichever namespace the rule is given
Scalar = Any  # a Python number, or a zero-dimensional array where it is traced or lives on a device
Shape = tuple[int, ...]
Nonnegative = Annotated[Array, "never negative"]  # of a state
Statistic = Annotated[Nonnegative, "of rows or columns"]
# One number of the tensor, or of each of its blocks: size 1 in other dimensions.
PerLayer = Annotated[Nonnegative, "of a layer"]
T = TypeVar("T")


class Sum(NamedTuple):
    """The sum of `terms` over the whole tensor, or the whole of each block."""

    terms: Array


class Mean(NamedTuple):
    """The sum of `terms` over `dims` of the tensor, each kept with size 1, divided by its number of entries along them.

    None stands for the whole tensor, or the whole of each block. A rule may already have summed along some of the
    `dims` where it holds the data: they have size 1 in `terms`, and are still named. Along the dimensions `once` the
    terms have size 1 because they are the same everywhere: parts along these have the same numbers, which count once.
    """

    terms: Array
    dims: Shape | None = None
    once: Shape = ()


class ModelSum(NamedTuple):
    """The sum of the squares of `terms` over every tensor of the step, to be read by `length`."""

    terms: Array


class Squares(NamedTuple):
    """The sum of the squares of `terms` over the whole tensor, or the whole of each block, to be read by `length`.

    Its form may differ from that of `terms`: squares of numbers that a dtype holds need not fit it.
    """

    terms: Array


class MeanSquare(NamedTuple):
    """The same, divided by the number of entries."""

    terms: Array


class Gram(NamedTuple):
    """The matrix x·xᵀ, where x are the `terms` as a matrix of the dimensions `kept` by those `summed`.

    Of each entry along further dimensions there is one. It is a sum over the dimensions `summed` of the tensor.
    """

    terms: Array
    kept: Shape
    summed: Shape


class Whole(NamedTuple):
    """What `work` makes of the matrices of a tensor: an array of its shape, of which each part has its own back.

    They are of the dimensions `kept` by those `summed`, and have to be whole; further dimensions count them. Who does
    the work is the driver's to decide: one of those with a part, or all of them. Tensors of one shape whose work is
    equal may be stacked along a new last dimension. The terms, and what the work makes of them, have no more digits
    than `dtype`, in which they may be sent.
    """

    terms: Array
    kept: Shape
    summed: Shape
    work: Callable[[Array], Array]
    dtype: str | None = None  # None: that of the terms


class Keep(NamedTuple):
    """State that is final before the step is. The answer is that state, in the place that stores it from now on.

    A rule returns the answer, and computes with what it had before: what is stored may be rounded, or several arrays.
    An engine that steps in place stores it at once, and the state that it replaces takes no more memory.
    """

    state: Any  # the rule's State


class Now(NamedTuple):
    """The numbers that change from step to step: Python numbers, or floating arrays of the tensor's own dtype."""

    t: Scalar  # this tensor's own step, counted from 1
    lr: Scalar  # learning rate; where the step size follows t instead, what multiplies it
    weight_decay: Scalar
    g_scale: Scalar = 1.0  # what the gradient was multiplied with on its way here, as against underflow
    beta2: Scalar | None = None  # the decay of a second moment that follows a function of the user; None: the rule's


Moves = tuple[tuple[Scalar, Array], ...]


class Stepped(NamedTuple):
    """The return value of a rule."""

    moves: Moves  # p ← p + a·x for each (a, x), one after the other
    state: Any  # the rule's State
    stats: dict[str, Array]  # its answers and what it made of them, per tensor or block


Request = Sum | Mean | Squares | MeanSquare | ModelSum | Gram | Whole
Asking = Generator[tuple[Request, ...] | Keep, Any, T]
