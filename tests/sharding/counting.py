"""Which collectives are called, as the dispatcher sees them, by whomever and by whichever interface."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
WAITING = ("wait_tensor", "_wrap_tensor_autograd")
Seen = list[tuple[str, int]]


class Collectives(TorchDispatchMode):
    """Notes the name of every collective, and how many numbers it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen = []
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # its own calls come by again, and collectives are among those
        name = func.overloadpacket.__name__
        if func.namespace in NAMESPACES and name not in WAITING:
            given = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
            self.seen.append((name, sum(x.numel() for x in given)))
            self.bytes += sum(x.nbytes for x in given)
        return func(*args, **(kwargs or {}))
