"""Tensors of an accelerator in host memory: weights that engines step there, and gradients that are added up there."""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.torch.offload import _copies
from layerwise.torch.offload._copies import Arrival, wait_for
from layerwise.torch.offload._ring import laid_out_as
from layerwise.torch.sharding._cuts import is_dtensor, like, local


class HostMemory:
    """Host memory for a tensor: a tensor, or a DTensor with its local part there."""

    def __init__(self, x: Tensor, memory: Tensor) -> None:
        x = x.detach()
        self.here = laid_out_as(local(x), memory).data  # whose writes are counted apart from those of others
        self.whole = like(x, self.here)

    def fits(self, x: Tensor) -> bool:
        """Return True if this can hold a tensor."""
        here, cut = local(x), is_dtensor(x)
        return (here.shape, here.dtype, cut) == (self.here.shape, self.here.dtype, is_dtensor(self.whole))


class Twin(HostMemory):
    """The weights of one parameter on the host."""

    _seen: tuple[int, int, int] | None = None

    def is_current(self, p: Tensor) -> bool:
        """Return True if the parameter was not written to since the two were the same."""
        return self._seen == _written(p)

    def is_same(self, p: Tensor) -> None:
        """Note that the two are the same from now on."""
        self._seen = _written(p)


def _written(p: Tensor) -> tuple[int, int, int]:
    here = local(p)
    return p._version, here._version, here.data_ptr()


class Sum(HostMemory):
    """The gradients of one parameter, added up as a device would."""

    arrivals: list[Arrival]
    counts = False  # whether a gradient has come since the last were forgotten


class Sums:
    """The sums of all parameters; of later passes' gradients, at most so many bytes are on their way."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sums: Any = WeakTensorKeyDictionary()
        self._coming: deque[tuple[Sum, Tensor, list[Arrival]]] = deque()
        self._free: dict[int, list[Tensor]] = {}

    @property
    def count(self) -> bool:
        """Whether there are any."""
        return any(one.counts for one in self._sums.values())

    def add(self, p: Tensor) -> None:
        """Begin to add the parameter's gradient, which the device is rid of."""
        g: Any = p.grad
        here, size = local(g), local(g).nbytes
        one = self._sums.get(p)
        if one is None or not (one.counts or one.fits(g)):
            one = self._sums[p] = Sum(g, _copies.pinned(size, [here]))
        if not one.counts:
            one.arrivals, one.counts = _copies.begin([(here, one.here)]), True
        else:
            memory = self._free[size].pop() if self._free.get(size) else _copies.pinned(size, [here])
            self._coming.append((one, memory, _copies.begin([(here, laid_out_as(one.here, memory))])))
            while sum(memory.numel() for _, memory, _ in self._coming) > self._most:
                self._take()
        p.grad = None

    def of(self, p: Tensor) -> Tensor | None:
        """Return the sum of a parameter's gradients, or None without any."""
        while self._coming:
            self._take()
        one = self._sums.get(p)
        if one is None or not one.counts:
            return None
        wait_for(one.arrivals)
        found: Tensor = one.whole
        return found

    def forget(self) -> None:
        """Begin again."""
        for _, memory, _ in self._coming:
            self._free.setdefault(memory.numel(), []).append(memory)
        self._coming.clear()
        for one in self._sums.values():
            one.counts = False

    def _take(self) -> None:
        """Add the gradient that left first."""
        one, memory, arrivals = self._coming.popleft()
        wait_for((*one.arrivals, *arrivals))
        one.here.add_(laid_out_as(one.here, memory))
        self._free.setdefault(memory.numel(), []).append(memory)
