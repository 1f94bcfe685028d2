"""Count the bytes of training published language models of 1.7 to 70 billion parameters, on the meta device.

Weights, gradients and state, whole and of the largest part of 8 and 64 devices, as `layerwise memory` counts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from layerwise.cli.memory import footprint
from layerwise.cli.models import PUBLISHED, on_meta
from rows import RESULTS, parser_of, provenance, read, show, supersede

TABLE = "large_models.csv"
GIB = 2**30
DEVICES = (1, 8, 64)
SMALL = {"master_weights": "split24", "state_dtype": "int8"}


class Kind(NamedTuple):
    """A row: an optimizer, the storage of its weights and state, and whether gradients are freed one by one."""

    label: str
    optimizer: str
    storage: Mapping[str, Any]
    low: bool = True
    freed: bool = False


KINDS = (
    Kind("AdamW or LAMB, float32", "Lamb", {}, low=False),
    Kind("LAMB, `split`, 8-bit state", "Lamb", {**SMALL, "master_weights": "split"}),
    Kind("LAMB, `split24`, 8-bit state", "Lamb", SMALL),
    Kind("the same, gradients freed", "Lamb", SMALL, freed=True),
    Kind("LARS, the same", "Lars", SMALL, freed=True),
    Kind("Muon and AdamW, `split24`, 8-bit state", "Muon", SMALL),
    Kind("Adafactor, rounded at random, gradients freed", "Adafactor", {"rounding": "stochastic"}, freed=True),
)


def rows_of(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a model."""
    import torch

    model = on_meta(name)
    n = sum(p.numel() for p in model.parameters())
    for kind in KINDS:
        model.to(torch.bfloat16 if kind.low else torch.float32)
        for devices in DEVICES:
            found = footprint(model, kind.optimizer, devices=devices, **kind.storage)
            gradients = found.largest_gradient if kind.freed else found.gradients
            parts = {"weights": found.weights, "gradients": gradients, "state": found.state}
            peak = found.released if kind.freed else found.peak
            yield {"model": name, "row": kind.label, "devices": devices, "parameters": n, **parts, "peak": peak}


def markdown() -> str:
    """Return the table of docs/small-memory.md, from the committed rows."""
    found = {(row["row"], row["model"], int(row["devices"])): row for row in read(RESULTS / TABLE)}
    heads = [f"{int(found[KINDS[0].label, name, 1]['parameters']) / 1e9:.1f} B" for name in PUBLISHED]
    lines = [f"| | weights + gradients + state | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for kind in KINDS:
        last = found[kind.label, [*PUBLISHED][-1], 1]
        each = " + ".join(
            f"{int(last[key]) / int(last['parameters']):.2f}" for key in ("weights", "gradients", "state")
        )
        cells = [
            "; ".join(_gib(int(found[kind.label, name, devices]["peak"])) for devices in DEVICES) for name in PUBLISHED
        ]
        lines.append(f"| {kind.label} | {each} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _gib(n: int) -> str:
    return f"{n / GIB:,.{0 if n >= 100 * GIB else 1 if n >= 10 * GIB else 2}f}"


def main() -> None:
    given = parser_of(__doc__, TABLE).parse_args()
    rows = [row for name in PUBLISHED for row in rows_of(name)]
    show("bytes", rows)
    if not given.no_write:
        supersede(RESULTS / TABLE, [{**row, **provenance()} for row in rows], "model", "row", "devices")
        print(markdown())


if __name__ == "__main__":
    main()
