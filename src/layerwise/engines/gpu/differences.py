"""The differences between the kernels' and the rule's results for the same jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.storage import Format

# Two roundings of stored numbers, and the difference that two ways to the same sum may make.
STORED = {torch.float64: 2.0**-51, torch.float32: 2.0**-22, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
COMPUTED = {torch.float64: 2.0**-42, torch.float32: 2.0**-15}
DRAWN = 0.02  # of numbers rounded at random, which may be others where what was rounded differs a little
LACKING = 0.02  # of what a remainder may be, on average: by other bits it would be a quarter


class Part(NamedTuple):
    """One stored tensor of a job."""

    name: str
    x: Tensor
    format: Format | None


def _parts(job: Job) -> list[Part]:
    names, arrays = ("the weights", *job.state._fields), (job.p, *job.state)
    formats = [None] * len(names) if job.storage is None else job.storage.formats
    found = [Part(*each) for each in zip(names, arrays, formats, strict=True) if each[1] is not None]
    beside = [Part(f"what is beside {one.name}", one.format.beside, None) for one in found if one.format is not None]
    return found + [one for one in beside if one.x is not None]


def stored(job: Job) -> list[Tensor]:
    return [part.x for part in _parts(job)]


def difference(own: Job, other: Job, before: Sequence[Tensor]) -> str:
    """Return the difference between the kernels' job and the rule's in words, or an empty string."""
    computed = COMPUTED[torch.float64 if own.p.dtype is torch.float64 else torch.float32]
    for part, y, old in zip(_parts(own), stored(other), before, strict=True):
        shape = tuple(part.x.shape)
        if not (part.x.is_floating_point() or _is_nearly(part, y)):
            return f"{part.name} of {shape} is another integer than the rule's"
        if part.x.is_floating_point() and (worst := _worst(part.x, y, old, computed)):
            return f"{part.name} of {shape} differ from the rule's by {worst:.1e} of the largest"
        if part.format is not None and part.format.key is not None and float((part.x != y).double().mean()) > DRAWN:
            return f"{part.name} of {shape} are rounded by other random bits than the rule's"
    return ""


def _is_nearly(part: Part, y: Tensor) -> bool:
    """Return True if integers are right: codes up to one, and remainders as far as weights are."""
    if part.format is not None:
        return bool(((part.x.int() - y.int()).abs() <= 1).all())
    one = 1 << 8 * part.x.element_size()
    apart = (part.x.long() - y.long()) % one
    return float(torch.minimum(apart, one - apart).double().mean()) <= LACKING * one


def _worst(x: Tensor, y: Tensor, old: Tensor, computed: float) -> float:
    """Return the largest difference that is no rounding, in units of the largest number, or 0."""
    a, b = x.double(), y.double()
    room = STORED[x.dtype] * (old.double().abs() + b.abs()) + computed * (b.abs().max() if b.numel() else 0)
    right = ((a - b).abs() <= room) | (a == b) | (a.isnan() & b.isnan())
    return 0.0 if bool(right.all()) else float(((a - b).abs() / b.abs().max())[~right].max())
