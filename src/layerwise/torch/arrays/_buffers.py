"""Memory for one array of each tensor of a list, which is used again within a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

WIDTH = 64  # numbers of a row
RESIZED = ("cpu", "cuda", "xpu", "meta")  # devices on which memory can be taken from tensors that stay
Shapes = tuple[tuple[int, ...], ...]
Runs = Sequence[tuple[int, int]]  # the first tensor of each shape, and how many there are


class Layout:
    """Where tensors of these shapes lie in a buffer: each in rows of its own, or in one row each if they are numbers.

    Those of a run have one shape, and lie beside one another.
    """

    def __init__(self, shapes: Shapes, strides: Shapes, runs: Runs, device: torch.device) -> None:
        self.shapes, self.device, self._strides, self._runs = shapes, device, strides, runs
        sizes = [*map(prod, shapes)]
        self.width = 1 if set(sizes) == {1} else WIDTH
        self._rows = [-(-n // self.width) for n in sizes]
        self._starts = [0, *accumulate(self._rows)]
        self.free: dict[torch.dtype, list[Buffer]] = {}
        """Buffers that nobody uses."""

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
        return torch.empty((self._starts[-1], self.width), dtype=dtype, device=self.device)

    def each(self, flat: Tensor) -> list[Tensor]:
        """Return each tensor in a buffer's memory."""
        places = zip(self.shapes, self._strides, self._starts, strict=False)
        return [flat.as_strided(shape, strides, start * self.width) for shape, strides, start in places]

    def batches(self, flat: Tensor) -> list[Tensor]:
        """Return the tensors of each run as one, with a first dimension that counts them."""
        found = []
        for first, n in self._runs:
            shape, strides = (n, *self.shapes[first]), (self._rows[first] * self.width, *self._strides[first])
            found.append(flat.as_strided(shape, strides, self._starts[first] * self.width))
        return found

    def give_back(self) -> None:
        """Give back the memory of buffers that nobody uses, where that is possible."""
        if self.device.type in RESIZED:
            for buffer in (one for free in self.free.values() for one in free):
                buffer.flat.untyped_storage().resize_(0)


class Buffer:
    """Such memory, and the tensors in it. They stay when it is given back: to make them takes longer than a step."""

    def __init__(self, layout: Layout, dtype: torch.dtype) -> None:
        self.flat = flat = layout.empty(dtype)
        self.each, self.batches = layout.each(flat), layout.batches(flat)
        self._bytes = flat.untyped_storage().nbytes()

    def held(self) -> Buffer:
        """Have the memory again."""
        memory = self.flat.untyped_storage()
        if memory.nbytes() < self._bytes:
            memory.resize_(self._bytes)
        return self

    def filled(self, tensors: Sequence[Tensor]) -> Buffer:
        """Hold the numbers of these."""
        torch._foreach_copy_(self.each, list(tensors))
        return self
