"""Axes of many ranks, along which whole tensors travel in two hops.

All-to-all connects every rank with every other. Among thousands that takes longer than the bytes, and more connections
than some networks have. In two hops a rank is connected with twice the root of them, and sends everything twice.
"""

from __future__ import annotations

from math import isqrt
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from layerwise.options import checks
from layerwise.torch.sharding._cuts import Axis

_most = [512]
_known: WeakKeyDictionary[Any, tuple[Axis, ...]] = WeakKeyDictionary()  # by process group


def set_most_peers(processes: int) -> None:
    """Set among how many processes matrices are exchanged directly, and not in two hops.

    All processes must set the same, before the first step of an optimizer. It matters to Muon alone.

    Args:
        processes: The number of processes along one mesh dimension.
    """
    _most[0] = int(checks.integer(2)("processes", processes, "Pass a number of processes such as 512."))


def hops_of(axis: Axis) -> tuple[Axis, ...]:
    """Return the axes in place of an axis: itself, or two if it has too many ranks for one.

    All of its ranks come here together the first time, as process groups are made.
    """
    n = len(axis.ranks)
    inner = max((k for k in range(2, isqrt(n) + 1) if n % k == 0), default=1)
    if n <= _most[0] or inner == 1:
        return (axis,)
    if axis.group not in _known:
        at = axis.ranks.index(dist.get_rank())
        places = range(at % inner, n, inner), range(at - at % inner, at - at % inner + inner)
        _known[axis.group] = tuple(_among(axis, some) for some in places)
    return _known[axis.group]


def _among(axis: Axis, places: range) -> Axis:
    """Return the axis of the ranks at some places of another."""
    ranks = tuple(axis.ranks[i] for i in places)
    group: Any = dist.new_group(ranks, backend=dist.get_backend(axis.group), use_local_synchronization=True)
    return Axis(ranks, group, axis.device_type)
