"""Gradients that leave the device as they arrive, and are added up in host memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.torch.offload._copies import Arrival, Pairs
from layerwise.torch.offload._ring import laid_out_as
from layerwise.torch.sharding._cuts import like, local

Out = Callable[[Pairs], list[Arrival]]


class Sum:
    """The gradients of one parameter, added up as a device would."""

    def __init__(self, g: Tensor, memory: Tensor) -> None:
        self.here = laid_out_as(local(g), memory)
        self.whole = like(g, self.here)
        self.arrivals: list[Arrival] = []
        self.counts = False  # whether a gradient has come since the last were forgotten

    def fits(self, g: Tensor) -> bool:
        """Return True if this gradient can be added."""
        return (g.shape, g.dtype) == (self.whole.shape, self.whole.dtype)


class Sums:
    """The sums of all parameters; of later passes' gradients, at most so many bytes are on their way."""

    def __init__(self, most: int, pinned: Callable[[Tensor], Callable[[int], Tensor]]) -> None:
        self._most, self._pinned = most, pinned
        self._sums: Any = WeakTensorKeyDictionary()
        self._coming: deque[tuple[Sum, Tensor, list[Arrival]]] = deque()
        self._free: dict[int, list[Tensor]] = {}

    @property
    def count(self) -> bool:
        """Whether there are any."""
        return any(one.counts for one in self._sums.values())

    def add(self, p: Tensor, out: Out) -> None:
        """Begin to add the parameter's gradient, which the device is rid of."""
        g: Any = p.grad
        here = local(g)
        size = here.numel() * here.element_size()
        one = self._sums.get(p)
        if one is None or not (one.counts or one.fits(g)):
            one = self._sums[p] = Sum(g, self._pinned(here)(size))
        if not one.counts:
            one.arrivals, one.counts = out([(here, one.here)]), True
        else:
            memory = self._free[size].pop() if self._free.get(size) else self._pinned(here)(size)
            self._coming.append((one, memory, out([(here, laid_out_as(one.here, memory))])))
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
        for arrival in one.arrivals:
            arrival.wait()
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
        for arrival in (*one.arrivals, *arrivals):
            arrival.wait()
        one.here.add_(laid_out_as(one.here, memory))
        self._free.setdefault(memory.numel(), []).append(memory)
