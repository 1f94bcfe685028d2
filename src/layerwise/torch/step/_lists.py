"""Lists of tensors as the arrays of a rule: what it does with an array is a call or two for all tensors of a list.

One array of each tensor is a `Many`, in one of two forms, and numbers of each tensor, such as its norm, are another:

    each   separate tensors, as they are stored: `torch._foreach_` functions compute with them, and write in place
    flat   side by side in one buffer, as rows of 64 numbers that belong to one tensor: every function of PyTorch
           computes with that, and a number of each tensor is a column beside the rows

A list is copied into a buffer where a number of each tensor, or what `_foreach_` has no function for, meets it. Tensors
of one shape lie beside one another there, and are one tensor with a dimension more: what is summed along some
dimensions, or multiplied by rows and columns, takes a call for each shape. Buffers are used again within a step. Their
tensors stay for the next, their memory does not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from itertools import accumulate
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.torch.step import _namespace as one
from layerwise.torch.step._namespace import PURE, Tensors, held
from layerwise.torch.step._tensors import computing

WIDTH = 64  # numbers of a row
Shapes = tuple[tuple[int, ...], ...]
Dims = tuple[int, ...]


class Layout:
    """Where tensors of these shapes lie in a buffer, which has a row for each of them if they are single numbers."""

    def __init__(self, shapes: Shapes, strides: Shapes, runs: Sequence[tuple[int, int]], device: torch.device) -> None:
        self.shapes, self._strides, self._runs, self.device = shapes, strides, runs, device
        sizes = [*map(prod, shapes)]
        self.width = 1 if set(sizes) == {1} else WIDTH
        self._rows = [-(-n // self.width) for n in sizes]
        self._starts = [0, *accumulate(self._rows)]
        self.free: dict[torch.dtype, list[Buffer]] = {}

    @cached_property
    def tensor_of_row(self) -> Tensor:
        """The number of the tensor that each row belongs to."""
        return torch.repeat_interleave(torch.arange(len(self._rows)), torch.tensor(self._rows)).to(self.device)

    def buffer(self, dtype: torch.dtype) -> Buffer:
        """Return a buffer for such tensors, which goes back to `free` after its use."""
        free = self.free.setdefault(dtype, [])
        return free.pop().held() if free else Buffer(self, self.empty(dtype))

    def empty(self, dtype: torch.dtype) -> Tensor:
        return torch.empty((self._starts[-1], self.width), dtype=dtype, device=self.device)

    def each(self, flat: Tensor) -> list[Tensor]:
        """Return each tensor in a buffer's memory."""
        places = zip(self.shapes, self._strides, self._starts, strict=False)
        return [flat.as_strided(shape, strides, start * self.width) for shape, strides, start in places]

    def batches(self, flat: Tensor) -> list[Tensor]:
        """Return those of one shape together as a tensor with one more dimension, the first."""
        return [
            flat.as_strided(
                (n, *self.shapes[i]), (self._rows[i] * self.width, *self._strides[i]), self._starts[i] * self.width
            )
            for i, n in self._runs
        ]


class Buffer:
    """Memory for one array of each tensor, and the tensors in it."""

    def __init__(self, layout: Layout, flat: Tensor) -> None:
        self.flat, self.each, self.batches = flat, layout.each(flat), layout.batches(flat)
        self._memory, self._bytes = flat.untyped_storage(), flat.untyped_storage().nbytes()

    def held(self) -> Buffer:
        """Have the memory again."""
        if self._memory.nbytes() < self._bytes:
            self._memory.resize_(self._bytes)
        return self

    def give_back(self) -> None:
        """Give the memory back where PyTorch can take it from tensors that are still there."""
        if self.flat.device.type != "mps":
            self._memory.resize_(0)


class Lists:
    """The tensors of these jobs, as long as they are stepped together: those of one shape are side by side."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, ps = jobs, [job.p for job in jobs]
        self.device, self.dtype = ps[0].device, computing(ps[0].dtype)
        self.shapes: Shapes = tuple(tuple(p.shape) for p in ps)
        # As they lie in memory, if nothing lies between their numbers: `_foreach_` is fast where all lie alike.
        self._strides = tuple(torch.empty_like(p, device="meta").stride() for p in ps)
        starts = [i for i, shape in enumerate(self.shapes) if i == 0 or self._kind(i) != self._kind(i - 1)]
        self._runs = [(i, end - i) for i, end in zip(starts, [*starts[1:], len(ps)], strict=True)]
        self._layouts: dict[Shapes, Layout] = {}
        self._counts: dict[Dims, Any] = {}
        self.shape = (0,) * max(map(len, self.shapes)) + (len(ps),)
        """The dimensions that requests count, and one more for the tensors."""

    def _kind(self, i: int) -> Any:
        return self.shapes[i], self._strides[i]

    def layout(self, shapes: Shapes) -> Layout:
        if shapes not in self._layouts:
            strides = self._strides if shapes == self.shapes else tuple(map(_strides, shapes))
            self._layouts[shapes] = Layout(shapes, strides, self._runs, self.device)
        return self._layouts[shapes]

    @cached_property
    def numbers(self) -> Layout:
        """The layout of one number of each tensor."""
        return self.layout(tuple((1,) * len(shape) for shape in self.shapes))

    @staticmethod
    def alike(array: Tensor) -> Hashable:
        """Return what an array must share with those beside it."""
        return array.dtype, array.device

    def read(self, stored: Sequence[Tensor]) -> Many:
        """Return an array of each tensor in the dtype of the arithmetic."""
        layout = self.layout(tuple(tuple(x.shape) for x in stored))
        if all(x.dtype == self.dtype and x.device == self.device for x in stored):
            return Many(self, layout, list(stored))
        return Many(self, layout, buffer=_copied(layout, self.dtype, stored))

    def write(self, stored: Sequence[Tensor], new: Any) -> None:
        """Round an array of each tensor into its place, if it is not there already."""
        if new.each[0] is not stored[0]:
            torch._foreach_copy_(list(stored), new.each)

    def number(self, values: Sequence[Any]) -> Any:
        """Return a number of each tensor, or one number if it is the same of all."""
        found = self.column(values)
        return Many(self, self.numbers, flat=found) if isinstance(found, Tensor) and found.ndim else found

    def column(self, values: Sequence[Any]) -> Any:
        """Return the same as a tensor, or a number."""
        first = values[0]
        if all(x is first or (not isinstance(x, Tensor) and x == first) for x in values):
            return first.to(self.device, self.dtype) if isinstance(first, Tensor) else first
        if not any(isinstance(x, Tensor) for x in values):
            return torch.tensor(values, dtype=self.dtype).to(self.device, non_blocking=True).unsqueeze(1)
        each = [torch.as_tensor(x, dtype=self.dtype, device=self.device).reshape(1) for x in values]
        return torch.stack(each)

    def count(self, dims: Dims) -> Any:
        """Return how many entries each tensor has along some dimensions, in whole."""
        if dims not in self._counts:
            found = [max(1, prod(n for d, n in enumerate(job.whole) if d in dims)) for job in self._jobs]
            self._counts[dims] = self.column(found)
        found = self._counts[dims]
        return found if isinstance(found, int) else Many(self, self.numbers, flat=found)

    def give_back(self) -> None:
        """Give the memory of buffers back that nobody uses."""
        for layout in self._layouts.values():
            for buffers in layout.free.values():
                for buffer in buffers:
                    buffer.give_back()


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def _copied(layout: Layout, dtype: torch.dtype, tensors: Sequence[Tensor]) -> Buffer:
    buffer = layout.buffer(dtype)
    torch._foreach_copy_(buffer.each, list(tensors))
    return buffer


class Many:
    """One array of each tensor of a list."""

    def __init__(
        self,
        of: Lists,
        layout: Layout,
        each: list[Tensor] | None = None,
        flat: Tensor | None = None,
        buffer: Buffer | None = None,
    ) -> None:
        self.of, self.layout, self._each, self._flat, self._buffer = of, layout, each, flat, buffer

    def __del__(self) -> None:
        if self._buffer is not None:
            self.layout.free[self._buffer.flat.dtype].append(self._buffer)

    @property
    def is_flat(self) -> bool:
        return self._each is None

    @property
    def dtype(self) -> torch.dtype:
        known = self._each[0] if self._each is not None else self._flat
        return self._in_buffer.flat.dtype if known is None else known.dtype

    @property
    def each(self) -> list[Tensor]:
        return self._in_buffer.each if self._each is None else self._each

    @property
    def flat(self) -> Tensor:
        return self._in_buffer.flat if self._flat is None else self._flat

    @property
    def batches(self) -> list[Tensor]:
        return self._in_buffer.batches

    @property
    def _in_buffer(self) -> Buffer:
        if self._buffer is None:
            self._buffer = buffer = self.layout.buffer(self.dtype)
            if self._each is not None:
                torch._foreach_copy_(buffer.each, self._each)
            else:
                buffer.flat.copy_(self.flat)
            self._each = self._flat = None
        return self._buffer

    def spread(self, layout: Layout) -> Tensor:
        """Return what stands for this beside the rows of a layout: a column, if it is a number of each tensor."""
        if self.layout is layout:
            return self.flat
        return torch.index_select(self.flat, 0, layout.tensor_of_row)

    def entry(self, k: int) -> Tensor:
        """Return one tensor's array."""
        return self.flat[k].view(self.layout.shapes[k]) if self.layout.width == 1 else self.each[k]

    def rows(self) -> list[Tensor]:
        """Return the numbers of each tensor in float64, in the order of its dimensions."""
        if self.layout.width == 1:
            return [*self.flat.to(torch.float64).unbind()]
        return [x.reshape(-1).to(torch.float64) for x in self.each]

    def of_rows(self, rows: Sequence[Tensor]) -> Many:
        """Return an array like this from the numbers of each tensor."""
        if self.layout.width == 1:
            return Many(self.of, self.layout, flat=torch.cat(list(rows)).unsqueeze(1).to(self.dtype))
        each = [x.reshape(shape) for x, shape in zip(rows, self.layout.shapes, strict=True)]
        return Many(self.of, self.layout, buffer=_copied(self.layout, self.dtype, each))

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __rtruediv__(self, other: Any) -> Any:
        return reciprocal(self) * other

    def __rpow__(self, other: Any) -> Any:
        return on_flats(torch.pow, other, self)


class Elementwise(NamedTuple):
    """A function of arrays of one shape: on one tensor, and on lists."""

    of_one: Callable[..., Tensor]
    of_lists: Callable[..., Any] | None = None
    takes_tensor: bool = False  # whether that on lists takes one number on the device for all

    def __call__(self, x: Many, *others: Any) -> Many:
        several = [y for y in others if isinstance(y, Many)]
        if any(y.layout is not x.layout for y in several):
            return _across(self.of_one, x, *others)
        lists = [y for y in (x, *several) if not y.is_flat]
        odd = not self.takes_tensor and any(isinstance(y, Tensor) for y in others)
        if self.of_lists is None or not lists or odd:
            return on_flats(self.of_one, x, *others)
        return Many(x.of, x.layout, self.of_lists(x.each, *map(_as_list, others, [x.dtype] * len(others))))


def _as_list(x: Any, dtype: torch.dtype) -> Any:
    return x.each if isinstance(x, Many) else held(x, dtype)


def on_flats(function: Callable[..., Tensor], *args: Any) -> Many:
    """Return a function of arrays and numbers of the same tensors, computed in rows."""
    several = [x for x in args if isinstance(x, Many)]
    first = max(several, key=lambda x: x.layout.width)
    dtype = next((x.dtype for x in several if x.dtype.is_floating_point), first.dtype)
    given = [x.spread(first.layout) if isinstance(x, Many) else held(x, dtype) for x in args]
    odd = function is torch.where and not all(isinstance(x, Tensor) for x in given)  # takes no `out`
    if first.layout.width == 1 or function in TESTS or odd:
        return Many(first.of, first.layout, flat=function(*given))
    buffer = first.layout.buffer(dtype)
    function(*given, out=buffer.flat)
    return Many(first.of, first.layout, buffer=buffer)


def _across(function: Callable[..., Tensor], x: Many, *others: Any) -> Many:
    """Return a function of arrays of other shapes: of numbers of each tensor, or of rows and columns."""
    (y,) = others
    if 1 in (x.layout.width, y.layout.width):
        return on_flats(function, x, y)
    shapes = tuple(
        tuple(n if m == 1 else m for n, m in zip(*both, strict=True))
        for both in zip(x.layout.shapes, y.layout.shapes, strict=True)
    )
    layout = x.of.layout(shapes)
    buffer = layout.buffer(x.dtype)
    for a, b, new in zip(x.batches, y.batches, buffer.batches, strict=True):
        function(a, b, out=new)
    return Many(x.of, layout, buffer=buffer)


OPERATORS = {
    "add": Elementwise(torch.add, torch._foreach_add, True),
    "mul": Elementwise(torch.mul, torch._foreach_mul, True),
    "sub": Elementwise(torch.sub, torch._foreach_sub),
    "truediv": Elementwise(torch.div, torch._foreach_div, True),
    "pow": Elementwise(torch.pow),
    **{name: Elementwise(getattr(torch, name)) for name in ("lt", "gt", "le", "ge", "eq", "ne")},
    "and": Elementwise(torch.bitwise_and),
    "or": Elementwise(torch.bitwise_or),
    "neg": Elementwise(torch.neg, torch._foreach_neg),
    "abs": Elementwise(torch.abs, torch._foreach_abs),
}
TESTS = {OPERATORS[name].of_one for name in ("lt", "gt", "le", "ge", "eq", "ne", "and", "or")}
reciprocal = Elementwise(torch.reciprocal, torch._foreach_reciprocal)
for _name, _function in OPERATORS.items():
    setattr(Many, f"__{_name}__", lambda x, *others, function=_function: function(x, *others))
for _name in ("add", "mul", "and", "or"):
    setattr(Many, f"__r{_name}__", lambda x, other, function=OPERATORS[_name]: function(x, other))


sqrt = Elementwise(torch.sqrt, torch._foreach_sqrt)


def _add(x: Many, y: Any, a: float = 1.0) -> Many:
    """Return x + a·y, in the place of x."""
    if isinstance(y, Many) and y.layout is not x.layout:
        return x + a * y
    if x.is_flat and not (isinstance(y, Many) and not y.is_flat):
        x.flat.add_(y.flat if isinstance(y, Many) else y, alpha=a)
    elif isinstance(y, (int, float)):
        torch._foreach_add_(x.each, a * y)
    else:
        torch._foreach_add_(x.each, y.each if isinstance(y, Many) else y, alpha=a)
    return x


def _add_scaled(x: Any, a: Any, y: Many) -> Many:
    """Return x + a·y."""
    if not isinstance(y, Many):  # a number of all tensors beside one of each
        return x + a * y
    if not (isinstance(x, Many) and isinstance(a, (int, float)) and x.layout is y.layout):
        return _add(y * a, x)
    a = held(a, x.dtype)
    if not (x.is_flat and y.is_flat):
        return Many(x.of, x.layout, list(torch._foreach_add(x.each, y.each, alpha=a)))
    return on_flats(partial(torch.add, alpha=a), x, y)


def _move(x: Many, a: Any, y: Many) -> Many:
    return _add(x, y, held(a, x.dtype)) if isinstance(a, (int, float)) else _add(x, y * a)


def _mix(b: Any, x: Many, y: Many) -> Many:
    if isinstance(b, Many):
        x = x * b
    elif x.is_flat:
        x.flat.mul_(b)
    else:
        torch._foreach_mul_(x.each, b)
    return _move(x, 1 - b, y)


def _clip(x: Many, low: float | None, high: float | None) -> Many:
    if x.is_flat:
        return on_flats(torch.clip, x, low, high)
    for bound, function in ((low, torch._foreach_clamp_min), (high, torch._foreach_clamp_max)):
        x = x if bound is None else Many(x.of, x.layout, list(function(x.each, held(bound, x.dtype))))
    return x


def _asarray(x: Many, dtype: torch.dtype) -> Many:
    return x if x.dtype == dtype else Many(x.of, x.layout, flat=x.flat.to(dtype))


def _sum(x: Many, axis: Dims, keepdims: bool) -> Many:
    return _along(x, axis, x.dtype, partial(torch.sum, keepdim=keepdims))


def _along(x: Many, dims: Dims, dtype: torch.dtype, function: Callable[..., Any]) -> Many:
    """Return a sum of each tensor along some dimensions, which are kept with size 1."""
    layout = x.of.layout(tuple(tuple(1 if d in dims else n for d, n in enumerate(shape)) for shape in x.layout.shapes))
    if layout is x.layout:  # along which nothing has another size
        return x
    buffer = layout.buffer(dtype)
    for batch, found in zip(x.batches, buffer.batches, strict=True):
        within = [d + 1 for d in dims if d + 1 < batch.ndim]
        if within:
            function(batch, within, out=found)
        else:
            found.copy_(batch)
    return Many(x.of, layout, buffer=buffer)


def _squares(x: Many, dims: Dims) -> Any:
    """Return sums of squares in float64; one for all tensors where `dims` has the dimension that counts them."""
    wide = one.wide_dtype(x.of.device)
    if all(d in dims for d in range(len(x.of.shape) - 1)):
        norms = Many(x.of, x.of.numbers, flat=torch.stack(torch._foreach_norm(x.each, 2, wide)).unsqueeze(1))
    else:  # of each block
        norms = _along(x, dims, wide, partial(_norm, dtype=wide))
    norms = _asarray(norms, wide)
    squares = norms * norms
    return squares.flat.sum() if len(x.of.shape) - 1 in dims else squares


def _norm(x: Tensor, dims: list[int], dtype: torch.dtype, out: Tensor) -> None:
    torch.linalg.vector_norm(x, 2, dims, True, dtype=dtype, out=out)


def _either(plain: Callable[..., Any], of_lists: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors, or of lists of them."""

    def function(*args: Any, **options: Any) -> Any:
        return (of_lists if any(isinstance(x, Many) for x in args) else plain)(*args, **options)

    return function


OF_LISTS: dict[str, Callable[..., Any]] = {
    "sqrt": sqrt,
    "expm1": Elementwise(torch.expm1, torch._foreach_expm1),
    "sum": _sum,
    "where": partial(on_flats, torch.where),
    "clip": _clip,
    "ones_like": lambda x: Many(x.of, x.layout, flat=torch.ones_like(x.flat)),
    "asarray": _asarray,
    "reshape": lambda x, shape: x.flat.reshape(shape),  # numbers of each tensor, in one dimension
    "squares": _squares,
    "add_scaled": _add_scaled,
}
EITHER = {name: _either(PURE[name], function) for name, function in OF_LISTS.items()}
EITHER["length"] = _either(torch.sqrt, sqrt)  # which has a derivative of no number at 0, and needs none


class ListsOfTensors(Tensors):
    """Tensors as the rule engine reads and writes them, and what a rule does with lists of them."""

    pure: Any = SimpleNamespace(**{**PURE, **EITHER})
    xp: Any = SimpleNamespace(**{**PURE, **EITHER}, mix=_either(one.mix, _mix), move=_either(one.move, _move))
