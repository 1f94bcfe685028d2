"""Lists of tensors as the arrays of a rule: an operation on an array is a call or two for all tensors of a list.

One array of each tensor is a `TensorList`. It has one of two forms:

    each   separate tensors, as they are stored: `torch._foreach_` functions compute with them, and write in place
    flat   side by side in one buffer, as rows that belong to one tensor each: any function of PyTorch computes with
           these, and a number of each tensor, such as its norm, is a column beside them

A list is copied into a buffer if it meets one number of each tensor, or an operation that `_foreach_` lacks. There,
tensors of one shape also form one tensor with an additional dimension, a *batch*: sums along dimensions, and products
with rows and columns, take one call for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.rules.requests import Array, Scalar
from layerwise.torch.arrays._library import arithmetic_dtype, in_range_of

Dims = tuple[int, ...]


class Lists:
    """Tensors that are stepped as one list, in the order of their jobs: those of one shape are adjacent."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, ps = jobs, [job.p for job in jobs]
        self.device, self.dtype = ps[0].device, arithmetic_dtype(ps[0].dtype)
        self._shapes: Shapes = tuple(tuple(p.shape) for p in ps)
        # In memory order, if there are no gaps between their numbers: `_foreach_` is fast if all have the same layout.
        self._strides = tuple(torch.empty_like(p, device="meta").stride() for p in ps)
        kinds = [*zip(self._shapes, self._strides, strict=True)]
        starts = [i for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
        self._runs = [(i, end - i) for i, end in zip(starts, [*starts[1:], len(ps)], strict=True)]
        self._layouts: dict[Hashable, BufferLayout] = {}
        self._counts: dict[Dims, Scalar] = {}
        self.shape = (0,) * max(map(len, self._shapes)) + (len(ps),)

    @staticmethod
    def list_key(array: Tensor) -> Hashable:
        """Return the key that an array must share with others in its list."""
        return array.dtype, array.device

    def layout(self, shapes: Shapes) -> BufferLayout:
        """Return the one layout of arrays of these shapes."""
        if shapes not in self._layouts:
            strides = self._strides if shapes == self._shapes else tuple(map(row_major, shapes))
            self._layouts[shapes] = BufferLayout(shapes, strides, self._runs, self.device)
        return self._layouts[shapes]

    @cached_property
    def numbers(self) -> BufferLayout:
        """The layout of one number of each tensor."""
        return self.layout(tuple((1,) * len(shape) for shape in self._shapes))

    def read(self, stored: Sequence[Any]) -> TensorList:
        """Return one array of each tensor in the dtype of the arithmetic."""
        layout = self.layout(tuple(tuple(x.shape) for x in stored))
        if all(x.dtype == self.dtype and x.device == self.device for x in stored):
            return TensorList(self, layout, list(stored))
        return TensorList(self, layout, layout.buffer(self.dtype).filled(stored))

    def write(self, stored: Sequence[Tensor], new: TensorList) -> None:
        """Round an array of each tensor into its place, unless it is already there."""
        if new.each[0] is not stored[0]:
            torch._foreach_copy_(list(stored), new.each)

    def joined_number(self, values: Sequence[Scalar]) -> Scalar:
        """Return a number of each tensor, or one number if all are equal."""
        found = self._column(values)
        return TensorList(self, self.numbers, found) if isinstance(found, Tensor) and found.ndim else found

    def _column(self, values: Sequence[Scalar]) -> Scalar:
        first, tensors = values[0], [x for x in values if isinstance(x, Tensor)]
        if all(x is first for x in values) or not (tensors or any(x != first for x in values)):
            return first.to(self.device, self.dtype) if tensors else first
        if not tensors:
            return torch.tensor(values, dtype=self.dtype).to(self.device, non_blocking=True).unsqueeze(1)
        return torch.stack([torch.as_tensor(x, dtype=self.dtype, device=self.device).reshape(1) for x in values])

    def num_entries(self, dims: Dims) -> Scalar:
        """Return the number of entries that each whole tensor has along some dimensions."""
        if dims not in self._counts:
            each = [max(1, prod(n for d, n in enumerate(job.whole) if d in dims)) for job in self._jobs]
            self._counts[dims] = self._column(each)
        found = self._counts[dims]
        return TensorList(self, self.numbers, found) if isinstance(found, Tensor) else found

    def give_back(self) -> None:
        """Free the memory of unused buffers."""
        for layout in self._layouts.values():
            layout.give_back()


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def _operator(
    function: Callable[..., Tensor], of_lists: Callable[..., Sequence[Tensor]] | None = None, takes_tensor: bool = False
) -> Callable[..., TensorList]:
    """Return a function of arrays of each tensor, and of numbers, which may be one for each tensor as well.

    It combines PyTorch's function of tensors and its function of lists, which may not accept a number on the device.
    """

    def operator(x: TensorList, *others: Scalar) -> TensorList:
        several = [y for y in (x, *others) if isinstance(y, TensorList)]
        if any(y.layout is not x.layout for y in several):
            return apply_broadcasting(function, x, *others)
        odd = not takes_tensor and any(isinstance(y, Tensor) for y in others)
        if of_lists is None or odd or all(y.is_flat for y in several):
            return apply_in_rows(function, x, *others)
        given = [y.each if isinstance(y, TensorList) else in_range_of(y, x.dtype) for y in others]
        return x.like(list(of_lists(x.each, *given)))

    return operator


class TensorList:
    """One array of each tensor: as a list, in a buffer, or as the rows of an unshared buffer."""

    def __init__(self, of: Lists, layout: BufferLayout, form: list[Tensor] | Buffer | Tensor) -> None:
        self.of, self.layout, self._form = of, layout, form

    def like(self, form: list[Tensor] | Buffer | Tensor) -> TensorList:
        """Return another array of the same shapes."""
        return TensorList(self.of, self.layout, form)

    def __del__(self) -> None:
        if isinstance(self._form, Buffer):
            self.layout.free[self._form.flat.dtype].append(self._form)

    @property
    def is_flat(self) -> bool:
        return not isinstance(self._form, list)

    @property
    def dtype(self) -> torch.dtype:
        return self._form[0].dtype if isinstance(self._form, list) else self.flat.dtype

    @property
    def each(self) -> list[Tensor]:
        return self._form if isinstance(self._form, list) else self._buffer.each

    @property
    def flat(self) -> Tensor:
        return self._form if isinstance(self._form, Tensor) else self._buffer.flat

    @property
    def batches(self) -> list[Tensor]:
        return self._buffer.batches

    @property
    def _buffer(self) -> Buffer:
        """The buffer that holds this from now on."""
        if not isinstance(self._form, Buffer):
            buffer = self.layout.buffer(self.dtype)
            if isinstance(self._form, list):
                buffer.filled(self._form)
            else:
                buffer.flat.copy_(self._form)
            self._form = buffer
        return self._form

    def beside(self, layout: BufferLayout) -> Tensor:
        """Return the rows of this, or its column next to the rows of a layout."""
        if self.layout is layout:
            return self.flat
        return torch.index_select(self.flat, 0, layout.tensor_of_row)

    def entry(self, k: int) -> Tensor:
        """Return one tensor's array."""
        return self.flat[k].view(self.layout.shapes[k]) if self.layout.width == 1 else self.each[k]

    def worked(self, work: Callable[[Tensor], Tensor]) -> TensorList:
        """Return what is made of the tensors of each shape, along whose last dimension they are."""
        buffer = self.layout.buffer(self.dtype)
        for batch, new in zip(self.batches, buffer.batches, strict=True):
            new.copy_(work(batch.movedim(0, -1)).movedim(-1, 0))
        return self.like(buffer)

    def rows(self) -> list[Tensor]:
        """Return the numbers of each tensor in float64, in the order of its dimensions."""
        if self.layout.width == 1:
            return list(self.flat.to(torch.float64).unbind())
        return [x.reshape(-1).to(torch.float64) for x in self.each]

    def of_rows(self, rows: Sequence[Tensor]) -> TensorList:
        """Return an array like this of such numbers."""
        if self.layout.width == 1:
            return self.like(torch.cat(list(rows)).unsqueeze(1).to(self.dtype))
        each = [x.reshape(shape) for x, shape in zip(rows, self.layout.shapes, strict=True)]
        return self.like(self.layout.buffer(self.dtype).filled(each))

    __add__ = _operator(torch.add, torch._foreach_add, takes_tensor=True)
    __mul__ = _operator(torch.mul, torch._foreach_mul, takes_tensor=True)
    __sub__ = _operator(torch.sub, torch._foreach_sub)
    __truediv__ = _operator(torch.div, torch._foreach_div, takes_tensor=True)
    __pow__ = _operator(torch.pow)
    __neg__ = _operator(torch.neg, torch._foreach_neg)
    __abs__ = _operator(torch.abs, torch._foreach_abs)
    __lt__ = _operator(torch.lt)
    __gt__ = _operator(torch.gt)
    __le__ = _operator(torch.le)
    __ge__ = _operator(torch.ge)
    __eq__: Any = _operator(torch.eq)
    __ne__: Any = _operator(torch.ne)
    __and__ = _operator(torch.bitwise_and)
    __or__ = _operator(torch.bitwise_or)
    __radd__, __rmul__, __rand__, __ror__ = __add__, __mul__, __and__, __or__
    __hash__ = object.__hash__
    reciprocal = _operator(torch.reciprocal, torch._foreach_reciprocal)
    sqrt = _operator(torch.sqrt, torch._foreach_sqrt)
    expm1 = _operator(torch.expm1, torch._foreach_expm1)

    def __rsub__(self, other: Scalar) -> Array:
        return -self + other

    def __rtruediv__(self, other: Scalar) -> Array:
        return self.reciprocal() * other

    def __rpow__(self, other: Scalar) -> TensorList:
        return apply_in_rows(torch.pow, other, self)


TESTS = {torch.lt, torch.gt, torch.le, torch.ge, torch.eq, torch.ne, torch.bitwise_and, torch.bitwise_or}


def apply_in_rows(function: Callable[..., Tensor], *args: Scalar) -> TensorList:
    """Return a function of arrays, of numbers of each of their tensors, and of plain numbers, computed in rows."""
    several = [x for x in args if isinstance(x, TensorList)]
    first = max(several, key=lambda x: x.layout.width)
    dtype = next((x.dtype for x in several if x.dtype.is_floating_point), first.dtype)
    given = [x.beside(first.layout) if isinstance(x, TensorList) else in_range_of(x, dtype) for x in args]
    takes_no_out = function is torch.where and not all(isinstance(x, Tensor) for x in given)
    if first.layout.width == 1 or function in TESTS or takes_no_out:
        return first.like(function(*given))
    buffer = first.layout.buffer(dtype)
    function(*given, out=buffer.flat)
    return first.like(buffer)


def apply_broadcasting(function: Callable[..., Tensor], x: TensorList, y: TensorList) -> TensorList:
    """Return a function of two arrays of different shapes: of numbers of each tensor, or of rows and columns."""
    if 1 in (x.layout.width, y.layout.width):
        return apply_in_rows(function, x, y)
    both = zip(x.layout.shapes, y.layout.shapes, strict=True)
    layout = x.of.layout(tuple(tuple(n if m == 1 else m for n, m in zip(*shapes, strict=True)) for shapes in both))
    buffer = layout.buffer(x.dtype)
    for a, b, new in zip(x.batches, y.batches, buffer.batches, strict=True):
        function(a, b, out=new)
    return TensorList(x.of, layout, buffer)


WIDTH = 64  # numbers per row
RESIZED = ("cpu", "cuda", "xpu", "meta")  # devices on which memory can be freed while its tensors stay
Shapes = tuple[tuple[int, ...], ...]
Runs = Sequence[tuple[int, int]]  # the first tensor of each shape, and their number


class BufferLayout:
    """The layout of tensors of these shapes in a buffer: each in rows of its own, or single numbers in one row each.

    The tensors of a run have one shape, and are adjacent.
    """

    def __init__(
        self, shapes: Shapes, strides: Shapes, runs: Runs, device: torch.device, width: int | None = None
    ) -> None:
        self.shapes, self.device, self.strides, self._runs = shapes, device, strides, runs
        self.width = width or (1 if {*map(prod, shapes)} == {1} else WIDTH)
        self._rows = [-(-_extent(*each) // self.width) for each in zip(shapes, strides, strict=True)]
        self._starts = [0, *accumulate(self._rows)]
        self.free: dict[torch.dtype, list[Buffer]] = {}
        """Buffers that are not in use."""

    @property
    def rows(self) -> int:
        return self._starts[-1]

    @cached_property
    def tensor_of_row(self) -> Tensor:
        """The number of the tensor that each row belongs to."""
        return torch.repeat_interleave(torch.arange(len(self._rows)), torch.tensor(self._rows)).to(self.device)

    def buffer(self, dtype: torch.dtype) -> Buffer:
        """Return a buffer, which goes back to `free` after its use."""
        free = self.free.setdefault(dtype, [])
        return free.pop().held() if free else Buffer(self, dtype)

    def empty(self, dtype: torch.dtype) -> Tensor:
        """Return the memory of a buffer, as rows."""
        return torch.empty((self.rows, self.width), dtype=dtype, device=self.device)

    def each(self, flat: Tensor) -> list[Tensor]:
        """Return each tensor in a buffer's memory."""
        places = zip(self.shapes, self.strides, self._starts, strict=False)
        return [flat.as_strided(shape, strides, start * self.width) for shape, strides, start in places]

    def batches(self, flat: Tensor) -> list[Tensor]:
        """Return the tensors of each run as one, with a first dimension that counts them."""
        found = []
        for first, n in self._runs:
            shape, strides = (n, *self.shapes[first]), (self._rows[first] * self.width, *self.strides[first])
            found.append(flat.as_strided(shape, strides, self._starts[first] * self.width))
        return found

    def give_back(self) -> None:
        """Free the memory of unused buffers, if that is possible."""
        if self.device.type in RESIZED:
            for buffer in (one for free in self.free.values() for one in free):
                memory = buffer.flat.untyped_storage()
                if memory.resizable():  # NumPy may have measurements in it
                    memory.resize_(0)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many numbers lie from the first of a tensor to the last."""
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if prod(shape) else 0


class Buffer:
    """This memory, and the tensors in it. The tensors stay when it is freed: creating them takes longer than a step."""

    def __init__(self, layout: BufferLayout, dtype: torch.dtype) -> None:
        self.flat = flat = layout.empty(dtype)
        self.each, self.batches = layout.each(flat), layout.batches(flat)
        self._bytes = flat.untyped_storage().nbytes()

    def held(self) -> Buffer:
        """Allocate the memory again."""
        memory = self.flat.untyped_storage()
        if memory.nbytes() < self._bytes:
            memory.resize_(self._bytes)
        return self

    def filled(self, tensors: Sequence[Tensor]) -> Buffer:
        """Copy these numbers into the buffer."""
        torch._foreach_copy_(self.each, list(tensors))
        return self
