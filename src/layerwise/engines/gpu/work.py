"""In which order one launch measures and applies: soon enough for the cache, and late enough that nobody waits."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.engines.gpu.call import Sizes
from layerwise.engines.gpu.layout import Group


class Work(NamedTuple):
    """The list of a launch, on the device."""

    items: Tensor
    size: int
    ticket: Tensor
    programs: int


def work_of(group: Group, sizes: Sizes) -> Work:
    """Of a group's chunks."""
    device = group.chunks.device
    several = device.type == "cuda"
    programs = sizes.each * (torch.cuda.get_device_properties(device).multi_processor_count if several else 1)
    items = in_order(group.chunks.cpu().numpy(), sizes.ahead * programs)
    ticket = torch.zeros(1, dtype=torch.int32, device=device)
    return Work(torch.from_numpy(items).to(device), len(items), ticket, min(programs, len(items)))


def in_order(pairs: np.ndarray, ahead: int) -> np.ndarray:
    """Of chunks, a layer and a number each, layer by layer: those to measure, and as ~number those to apply.

    A layer is applied, backwards, when so many chunks `ahead` of its last one have been handed out to be measured:
    by then it has probably been answered, and of what was measured last most is still in the cache.
    """
    parts, done = [pairs[:0]], 0
    starts = [0, *(np.flatnonzero(np.diff(pairs[:, 0])) + 1), len(pairs)]
    for first, end in pairwise(starts):
        parts += pairs[done : end + ahead], applied(pairs[first:end])
        done = end + ahead
    return np.concatenate(parts)


def applied(measured: np.ndarray) -> np.ndarray:
    return np.stack([measured[::-1, 0], ~measured[::-1, 1]], -1)
