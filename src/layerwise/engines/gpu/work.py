"""In which order one launch measures and applies: soon enough for the cache, and late enough that nobody waits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.engines.gpu.layout import Group


class Work(NamedTuple):
    """The list of a launch, on the device."""

    items: Tensor
    size: int
    ticket: Tensor
    programs: int


def work_of(group: Group, chunk: int, share: int, each: int) -> Work:
    """Of a group's chunks, where layers of `share` bytes are applied together and multiprocessors run `each`."""
    device = group.chunks.device
    several = device.type == "cuda"
    programs = each * (torch.cuda.get_device_properties(device).multi_processor_count if several else 1)
    held = chunk * sum(dtype.itemsize for dtype in group.kind.dtypes)
    items = in_order(group.pairs, share // held, programs)
    ticket = torch.zeros(1, dtype=torch.int32, device=device)
    return Work(torch.from_numpy(items).to(device), len(items), ticket, min(programs, len(items)))


def in_order(pairs: np.ndarray, share: int, ahead: int) -> np.ndarray:
    """Of chunks, a layer and a number each, layer by layer: those to measure, and as ~number those to apply.

    Together go the layers of a `share` of chunks, or one layer that is larger. They are applied, backwards, when
    `ahead` more chunks have been handed out, and their own have probably been measured.
    """
    parts, done = [pairs[:0]], 0
    for first, end in pairwise(cuts(pairs[:, 0], share)):
        parts += pairs[done : end + ahead], applied(pairs[first:end])
        done = end + ahead
    return np.concatenate(parts)


def cuts(layers: np.ndarray, share: int) -> Iterator[int]:
    """Where those that go together begin, and where the last ones end."""
    starts, first = [0, *(np.flatnonzero(np.diff(layers)) + 1), len(layers)], 0
    yield first
    for start, end in pairwise(starts):
        if first < start and end - first > share:
            yield (first := start)
    yield len(layers)


def applied(measured: np.ndarray) -> np.ndarray:
    return np.stack([measured[::-1, 0], ~measured[::-1, 1]], -1)
