"""Tensors of an accelerator in host memory: the weights that engines step there."""

from __future__ import annotations

from torch import Tensor

from layerwise.torch.offload._ring import laid_out_as
from layerwise.torch.sharding._cuts import is_dtensor, like, local


class OnHost:
    """Host memory for a tensor: a tensor, or a DTensor with its local part there."""

    def __init__(self, x: Tensor, memory: Tensor) -> None:
        x = x.detach()
        self.here = laid_out_as(local(x), memory).data  # whose writes are counted apart from those of others
        self.whole = like(x, self.here)

    def fits(self, x: Tensor) -> bool:
        """Return True if this can hold a tensor."""
        here, cut = local(x), is_dtensor(x)
        return (here.shape, here.dtype, cut) == (self.here.shape, self.here.dtype, is_dtensor(self.whole))


class Twin(OnHost):
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
