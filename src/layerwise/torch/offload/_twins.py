"""The weights of parameters on an accelerator, in host memory, where engines step them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.torch.offload._ring import ALIGNED, HOST, laid_out_as
from layerwise.torch.sharding._cuts import is_dtensor, like, local

Written = tuple[int, int, int]


class Twin:
    """The weights of one parameter on the host: a tensor, or a DTensor with its local part there."""

    def __init__(self, p: Tensor, memory: Tensor) -> None:
        self.here = laid_out_as(local(p.detach()), memory).data  # whose writes are counted apart from those of others
        self.whole = like(p.detach(), self.here)
        self._seen: Written | None = None

    def fits(self, p: Tensor) -> bool:
        """Return True if this can hold the parameter as it is now."""
        here, cut = local(p), is_dtensor(p)
        return (here.shape, here.dtype, cut) == (self.here.shape, self.here.dtype, is_dtensor(self.whole))

    def is_current(self, p: Tensor) -> bool:
        """Return True if the parameter was not written to since the two were the same."""
        return self._seen == _written(p)

    def is_same(self, p: Tensor) -> None:
        """Note that the two are the same from now on."""
        self._seen = _written(p)


def _written(p: Tensor) -> Written:
    here = local(p)
    return p._version, here._version, here.data_ptr()


class Twins:
    """The twins of all parameters that have stepped. Parameters in the host's memory have none."""

    def __init__(self) -> None:
        self._found: Any = WeakTensorKeyDictionary()

    def __len__(self) -> int:
        return len(self._found)

    def make(self, params: Iterable[Tensor], pinned: Callable[[int], Tensor]) -> None:
        """Make those that are missing, or all of them not."""
        new = [p for p in params if p.device != HOST and not (p in self._found and self._found[p].fits(p))]
        sizes = [-(-_bytes(local(p)) // ALIGNED) * ALIGNED for p in new]
        memory = pinned(sum(sizes)) if new else torch.empty(0, dtype=torch.uint8)
        for p, end, size in zip(new, accumulate(sizes), sizes, strict=True):
            self._found[p] = Twin(p, memory[end - size : end - size + _bytes(local(p))])

    def of(self, p: Tensor) -> Tensor:
        """Return what is stepped in a parameter's place."""
        return p if p.device == HOST else self._found[p].whole

    def pairs(self, params: Sequence[Tensor]) -> list[tuple[Tensor, Twin]]:
        """Return the parameters that have twins, with them."""
        return [(p, self._found[p]) for p in params if p.device != HOST]


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()
