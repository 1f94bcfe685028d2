"""What a rule may ask of whoever drives it, and what it is told."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

Array = Any  # of whichever namespace the rule is given
Scalar = Any  # a Python number, or a zero-dimensional array where it is traced or lives on a device
Shape = tuple[int, ...]
T = TypeVar("T")


class Mean(NamedTuple):
    """The sum of `terms` over `dims` of the tensor, each kept with size 1, divided by its number of entries along them.

    None stands for the whole tensor, or the whole of each block. A rule may already have summed along some of the
    `dims` where it holds the data: they have size 1 in `terms`, and are still named.
    """

    terms: Array
    dims: Shape | None = None


class ModelSum(NamedTuple):
    """The sum of the squares of `terms` over every tensor of the step, to be read by `length`."""

    terms: Array


class Squares(NamedTuple):
    """The sum of the squares of `terms` over the whole tensor, or the whole of each block, to be read by `length`.

    It may be in another form than `terms`: squares of numbers that their dtype holds need not fit it.
    """

    terms: Array


class MeanSquare(NamedTuple):
    """The same, divided by the number of entries."""

    terms: Array


class Keep(NamedTuple):
    """State that is final before the step is. It is answered with that state, wherever it is kept from now on.

    Whoever steps in place puts it there at once, and it is no longer held beside what it replaces.
    """

    state: Any  # the rule's State


class Now(NamedTuple):
    """What changes from step to step: Python numbers, or floating arrays of the tensor's own dtype."""

    t: Scalar  # this tensor's own step, counted from 1
    lr: Scalar  # learning rate; where the step size follows t instead, what multiplies it
    weight_decay: Scalar
    g_scale: Scalar = 1.0  # what the gradient was multiplied with on its way here, as against underflow
    beta2: Scalar | None = None  # the decay of a second moment that follows a function of the user; None: the rule's


Moves = tuple[tuple[Scalar, Array], ...]


class Stepped(NamedTuple):
    """What a rule returns."""

    moves: Moves  # p ← p + a·x for each (a, x), one after the other
    state: Any  # the rule's State
    stats: dict[str, Array]  # what it was told and made of it, per tensor or block


Asking = Generator[tuple[Mean | Squares | MeanSquare | ModelSum, ...] | Keep, Any, T]
