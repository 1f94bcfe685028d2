"""The requests that a rule may make of its driver, and the numbers that it receives."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

from layerwise.options.values import Scalar as Scalar

Array = Any  # of the library whose functions the rule is given
RuleState = tuple[Array, ...]  # a rule's State, which is a named tuple
Shape = tuple[int, ...]
Nonnegative = Annotated[Array, "never negative"]  # its name in the state
Statistic = Annotated[Nonnegative, "of rows or columns"]
# One number per tensor or block: size 1 in the other dimensions.
PerLayer = Annotated[Nonnegative, "of a layer"]
T = TypeVar("T")


class Functions(Protocol):
    """The functions of an array library that rules and storage formats use, by NumPy's names.

    Some namespaces have merged passes besides (`arrays.py`, `products.py`).
    """

    @property
    def float64(self) -> object: ...
    def sqrt(self, x: Array, /) -> Array: ...
    def expm1(self, x: Array, /) -> Array: ...
    def ones_like(self, x: Array, /) -> Array: ...
    def where(self, condition: Array, yes: Scalar, no: Scalar, /) -> Array: ...
    def clip(self, x: Array, low: Scalar, high: Scalar, /) -> Array: ...
    def sum(self, x: Array, /, *, axis: Shape, keepdims: bool) -> Array: ...
    def asarray(self, x: Scalar, /, *, dtype: Any) -> Array: ...
    def reshape(self, x: Array, shape: Shape, /) -> Array: ...
    def moveaxis(self, x: Array, source: int, destination: int, /) -> Array: ...
    def eye(self, n: int, /, *, dtype: Any) -> Array: ...
    def amax(self, x: Array, axis: int, /) -> Array: ...
    def all(self, x: Array, axis: int, /) -> Array: ...
    def floor(self, x: Array, /) -> Array: ...
    def round(self, x: Array, /) -> Array: ...
    def zeros_like(self, x: Array, /) -> Array: ...
    def full_like(self, x: Array, value: float, /) -> Array: ...
    def broadcast_to(self, x: Array, shape: Shape, /) -> Array: ...
    def stack(self, arrays: Sequence[Array], axis: int = 0, /) -> Array: ...
    @property
    def concat(self) -> Callable[..., Array]: ...


class Coefficients(Protocol):
    """Numbers of a step by their names, as a rule's `coefficients` returns them: a named tuple."""

    _fields: tuple[str, ...]

    def __getattr__(self, name: str, /) -> Scalar: ...
    def __getitem__(self, place: int, /) -> Scalar: ...


class Sum(NamedTuple):
    """The sum of `terms` over the whole tensor, or the whole of each block."""

    terms: Array


class Mean(NamedTuple):
    """The mean of `terms` over the dimensions `dims` of the tensor, each kept with size 1.

    None means the whole tensor, or the whole of each block. A rule may already have summed along some of the `dims`:
    they have size 1 in `terms`, and are still listed. Along the dimensions `once` the terms have size 1 because they
    are constant there: parts of the tensor along these hold equal numbers, which count once.
    """

    terms: Array
    dims: Shape | None = None
    once: Shape = ()


class ModelSquares(NamedTuple):
    """The sum of the squares of `terms` over every tensor of the step. Read it with `length`."""

    terms: Array


class Squares(NamedTuple):
    """The sum of the squares of `terms` over the whole tensor, or over each block. Read it with `length`.

    Its form may differ from that of `terms`: the squares of numbers that fit a dtype need not fit it.
    """

    terms: Array


class MeanSquare(NamedTuple):
    """The same sum, divided by the number of entries: of the whole, or along the dimensions `dims` of the tensor."""

    terms: Array
    dims: Shape | None = None


class Gram(NamedTuple):
    """The matrix x·xᵀ. x is the matrix of the `terms`, with the dimensions `kept` as rows and `summed` as columns.

    There is one for each entry along the other dimensions. It is a sum over the dimensions `summed` of the tensor.
    """

    terms: Array
    kept: Shape
    summed: Shape


class WholeMatrices(NamedTuple):
    """The result of `work` on the whole matrices of a tensor: an array of its shape. Each part gets its own part back.

    The matrices have the dimensions `kept` as rows and `summed` as columns, and must be whole; other dimensions count
    them. The driver decides who does the work: one of the processes with a part, or all of them. Tensors of one shape
    with equal work may be stacked along a new last dimension. The terms and the result have no more digits than
    `dtype`, in which they may be sent.
    """

    terms: Array
    kept: Shape
    summed: Shape
    work: Callable[[Array], Array]
    dtype: str | None = None  # None: the dtype of the terms


class Keep(NamedTuple):
    """State that is final before the step is. The answer is that state, where it is stored from now on.

    A rule only returns the answer, and computes with the value that it passed: the stored one may be rounded, or be
    several arrays. An engine that steps in place stores it at once, so that the old and the new state do not take
    memory at the same time.
    """

    state: RuleState


class Now(NamedTuple):
    """The values that change from step to step: Python numbers, or floating-point arrays of the tensor's own dtype."""

    t: Scalar  # the step count of this tensor, from 1
    lr: Scalar  # the learning rate, or the factor on a step size that follows t
    weight_decay: Scalar
    g_scale: Scalar = 1.0  # the factor that multiplied the gradient, against underflow
    beta2: Scalar | None = None  # the decay of a second moment, if it is a user's function; None: the rule's


Moves = tuple[tuple[Scalar, Array], ...]


class Stepped(NamedTuple):
    """The return value of a rule."""

    moves: Moves  # p ← p + a·x for each (a, x), one after the other
    state: RuleState
    stats: dict[str, Array]  # the answers and numbers derived from them, per tensor or block


Request = Sum | Mean | Squares | MeanSquare | ModelSquares | Gram | WholeMatrices
Asking = Generator[tuple[Request, ...] | Keep, Any, T]
