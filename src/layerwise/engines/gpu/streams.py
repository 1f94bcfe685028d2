"""Memory that one stream allocates and another uses, which must stay until both are done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from layerwise.engines import Job

OURS = "layerwise.engines.gpu."


def stream_of(device: torch.device) -> Any:
    """Return the stream for the device's launches; None on devices without streams."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def held_by(*things: Any) -> list[Tensor]:
    """Return all tensors that these objects of the engine hold, except those of jobs."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    left = list(things)
    while left:
        thing = left.pop()
        if isinstance(thing, Tensor):
            found[id(thing)] = thing
        elif not isinstance(thing, (Job, type)) and id(thing) not in seen:
            seen.add(id(thing))
            left += _parts(thing)
    return list(found.values())


def _parts(thing: Any) -> Iterator[Any]:
    if isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, (list, tuple, set)):
        yield from thing
    elif type(thing).__module__.startswith(OURS):
        yield from vars(thing).values()
