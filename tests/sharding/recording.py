"""What ranks do that write down what their steps measure."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from sharding.counting import Collectives, Seen

from layerwise.torch import monitor
from layerwise.torch.tools._records import rows_of
from sharding import runs

Rows = dict[tuple[str, str, str], list[float]]


def recorded(front: Any, layout: str | None, path: Path | None) -> tuple[list[Seen], Rows]:
    """The collectives of each step, and the rows written there, if they are to be."""
    params, grads = runs.prepared(layout, torch.float64)
    opt, found = runs.made(front, params, {}), []
    with nullcontext() if path is None else monitor(opt, path):
        for one in grads:
            runs.give(params, one)
            with Collectives() as collectives:
                opt.step()
            found.append(collectives.seen)
    return found, {} if path is None else rows(path)


def of_rank(front: Any, layout: str, folder: Path, watched: int) -> tuple[list[Seen], Rows]:
    """The same with one table for each of the first so many ranks."""
    rank = torch.distributed.get_rank()
    return recorded(front, layout, folder / f"{rank}.csv" if rank < watched else None)


def rows(path: Path) -> Rows:
    """The numbers of a table by step, name and block."""
    keys = ("step", "name", "block")
    found = {tuple(row.pop(key) for key in keys): list(row.values()) for row in rows_of(path)}
    return {key: [float(x) for x in values if x] for key, values in found.items()}  # type: ignore[misc]
