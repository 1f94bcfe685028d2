"""Storage formats of lists of tensors: side by side in buffers, they are read and written as one array in a format.

What a format has for each tensor is a column beside the rows of a buffer: the keys of random bits, and the step. Groups
of 8 bits are such rows: each row of a tensor begins with a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.options.values import Scalar
from layerwise.storage import quantized_groups
from layerwise.storage.bits import Key
from layerwise.storage.formatted_arrays import FormattedArray, as_numbers
from layerwise.torch.arrays._lists import BufferLayout, Dims, Lists, Shapes, TensorList, row_major

MOST = 1 << 24  # numbers that are converted at once: integers on the way take many times their memory


class Rows(NamedTuple):
    """The indices of the numbers of some rows."""

    found: Tensor

    def numbers(self, *_: object) -> Tensor:
        """Return them."""
        return self.found


class StoredLists(Lists):
    """Lists of tensors, some of whose arrays are in a format, the same of all tensors."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__(jobs)
        self._known: dict[Hashable, Any] = {}

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what is the same in every step."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def by_extension(self, stored: Sequence[FormattedArray]) -> bool:
        """Return whether the compiled extension reads and writes these, which it does one by one."""
        return self.device.type == "cpu" and stored[0].extension is not None

    def read(self, stored: Sequence[Any]) -> TensorList:
        """Return one array of each tensor in the dtype of the arithmetic."""
        first = stored[0]
        if not isinstance(first, FormattedArray) or self.by_extension(stored):
            return super().read([*map(as_numbers, stored)])
        layout, plain = self._layout(stored), self.layout(tuple(one.shape for one in stored))
        arrays, found = self._in_buffers(stored, filled=True), TensorList(self, layout, layout.buffer(self.dtype))
        for rows in _pieces(layout):
            found.flat[rows].copy_(self._piece(first, arrays, rows).decode())
        return found if layout is plain else TensorList(self, plain, plain.buffer(self.dtype).filled(found.each))

    def encode(
        self, stored: Sequence[FormattedArray], new: TensorList, ts: Sequence[Scalar], skip: Tensor | None
    ) -> None:
        """Write numbers, and what stands beside them, in their format, at the step that each tensor takes."""
        first, layout = stored[0], self._layout(stored)
        buffer = layout.buffer(torch.float32)
        if first.format.coded:
            buffer.flat.zero_()  # behind the end of a row
        x, arrays = TensorList(self, layout, buffer.filled(new.each)), self._in_buffers(stored, filled=skip is not None)
        key, t = self._key(stored, layout), self._step(ts, layout)
        index: Any = None if key is None else self._index(layout)
        for rows in _pieces(layout):
            drawn = () if key is None else (Key(*(one[rows] for one in key)), index(rows))
            piece = self._piece(first, arrays, rows, *drawn)
            each = piece.encode(x.flat[rows], t if isinstance(t, int) or not t.ndim else t[rows])
            for array, found in zip(arrays, each, strict=False):
                old = array.flat[rows]
                old.copy_(found if skip is None else torch.where(skip, old, found))
        for array, places in zip(arrays, _places(stored), strict=True):
            torch._foreach_copy_(places, array.each)

    def _layout(self, stored: Sequence[FormattedArray]) -> BufferLayout:
        """Return the layout of numbers in a format: where groups are rows, if it has groups."""
        shapes, first = tuple(one.shape for one in stored), stored[0]
        plain = self.layout(shapes)
        if not first.format.coded:
            return plain

        if ("groups", shapes) not in self._layouts:
            strides = tuple(_in_groups(one.shape, one.row_dims) for one in stored)
            lie_so = (strides, quantized_groups.GROUP) == (plain.strides, plain.width)
            made = plain if lie_so else BufferLayout(shapes, strides, (), self.device, quantized_groups.GROUP)
            self._layouts["groups", shapes] = made
        return self._layouts["groups", shapes]

    def _layout_of_scales(self, shapes: Shapes) -> BufferLayout:
        """Return the layout of numbers one after the other, as many as groups are."""
        if ("scales", shapes) not in self._layouts:
            strides = tuple(map(row_major, shapes))
            self._layouts["scales", shapes] = BufferLayout(shapes, strides, (), self.device, 1)
        return self._layouts["scales", shapes]

    def _in_buffers(self, stored: Sequence[FormattedArray], filled: bool) -> list[TensorList]:
        """Return the arrays, and what stands beside them, as they are stored, or room for them."""
        layout, found = self._layout(stored), []
        for i, each in enumerate(_places(stored)):
            scales = i == 1 and stored[0].format.coded
            own = self._layout_of_scales(tuple(tuple(x.shape) for x in each)) if scales else layout
            buffer = own.buffer(each[0].dtype)
            found.append(TensorList(self, own, buffer.filled(each) if filled else buffer))
        return found

    def _piece(
        self,
        first: FormattedArray,
        arrays: Sequence[TensorList],
        rows: slice,
        key: Key | None = None,
        index: Any = None,
    ) -> FormattedArray:
        """Return some rows as one array in the format."""
        array, *beside = (one.flat[rows] for one in arrays)
        form = first.format._replace(beside=beside[0] if beside else None, key=key)
        return FormattedArray(array, form, index, 1, first.b)

    def _key(self, stored: Sequence[FormattedArray], layout: BufferLayout) -> Any:
        keys = tuple(one.format.key for one in stored)
        if keys[0] is None:
            return None

        def made() -> tuple[Tensor, ...]:
            each = torch.tensor(keys, dtype=torch.int64).to(self.device)
            return torch.split(torch.index_select(each, 0, layout.tensor_of_row), 1, dim=1)

        return self._once((layout, keys), made)

    def _step(self, ts: Sequence[Scalar], layout: BufferLayout) -> Scalar:
        """Return the step that all tensors take, or that of each row's tensor."""
        first = ts[0]
        if all(t is first for t in ts):
            return first
        if all(isinstance(t, int) for t in ts):
            if all(t == first for t in ts):
                return first
            column = torch.tensor(ts, dtype=torch.int64).to(self.device, non_blocking=True)
        else:
            each = (torch.as_tensor(t, device=self.device).reshape(()) for t in ts)
            column = torch.stack([*each]).to(torch.int64)
        return torch.index_select(column, 0, layout.tensor_of_row).unsqueeze(1)

    def _index(self, layout: BufferLayout) -> Callable[[slice], Rows]:
        """Return the function that returns the indices of some rows."""
        first = self._once(layout, lambda: self._firsts(layout))
        if first is not None:
            along = torch.arange(layout.width, device=self.device)
            return lambda rows: Rows(first[rows] + along)
        own: list[Any] = [job.storage for job in self._jobs]
        arange = partial(torch.arange, device=self.device)
        asarray = partial(torch.asarray, dtype=torch.int64, device=self.device)
        each = [asarray(one.index.numbers(arange, asarray)) for one in own]
        found = TensorList(self, layout, layout.buffer(torch.int64).filled(each))
        return lambda rows: Rows(found.flat[rows])

    def _firsts(self, layout: BufferLayout) -> Tensor | None:
        """Return the index of the first number of each row, as a column, if those of a row are consecutive."""
        found = []
        for job, shape, strides in zip(self._jobs, layout.shapes, layout.strides, strict=True):
            storage: Any = job.storage
            n = 0 if strides == row_major(shape) else storage.row_dims
            if not storage.index.is_row or strides != (row_major(shape) if n == 0 else _in_groups(shape, n)):
                return None
            along = torch.arange(0, prod(shape[n:]), layout.width)
            starts = torch.arange(prod(shape[:n]))[:, None] * prod(shape[n:])
            found.append((starts + along).reshape(-1) + storage.index.offset)
        return torch.cat(found).unsqueeze(1).to(self.device)


def _places(stored: Sequence[FormattedArray]) -> list[list[Tensor]]:
    """Return the arrays, and what stands beside them if anything does."""
    beside = [[one.format.beside for one in stored]] if stored[0].format.beside is not None else []
    return [[one.array for one in stored], *beside]


def _in_groups(shape: Dims, row_dims: int) -> tuple[int, ...]:
    """Return strides by which each row of a tensor begins a group."""
    within = row_major(shape[row_dims:])
    apart = quantized_groups.num_groups(prod(shape[row_dims:])) * quantized_groups.GROUP
    return tuple(n * apart for n in row_major(shape[:row_dims])) + within


def _pieces(layout: BufferLayout) -> Iterator[slice]:
    """Yield the rows of a buffer, as many as are converted at once."""
    most = max(1, MOST // layout.width)
    return (slice(start, start + most) for start in range(0, layout.rows, most))
