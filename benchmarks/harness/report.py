"""The report of the tables, shown and written. Every statement is made from the figures of this run.

It needs no package, because measurements on a GPU may have no other than PyTorch.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone

from harness.measure import Row, Table
from harness.timing import Timing
from layerwise.cli.info import processor, version_of
from layerwise.engines.processor import available_processors

PACKAGES = ("layerwise", "numpy", "jax", "optax", "torch", "transformers")


def origin(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return where figures come from: the machine, its load and versions."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": processor(),
        "cores": str(available_processors()),
        "load": f"{os.getloadavg()[0]:.2f}",  # what the machine was busy with before
        "python": platform.python_version(),
        **{name: version_of(name) or "" for name in packages},
    }


def cells(row: Row) -> dict[str, str]:
    """Return the cells of a row, by heading."""
    low_to_high = map(in_digits, (1e3 * x for x in row.timing.quartiles)) if row.timing.rounds else ()
    return {
        "implementation": row.label,
        "step ms": _median(row.timing, 1e3),
        "quartiles": "–".join(low_to_high),
        "ratio": f"{row.ratio.median:.2f}" if row.ratio.rounds else "",
        "host ms": _median(row.host, 1e3),
        "state, B/param": f"{row.state:.2f}",
        "peak MiB": "" if row.peak is None else in_digits(row.peak / 2**20),
    }


def lines(table: Table, of: Callable[[Row], Mapping[str, str]] = cells) -> Iterator[str]:
    """Yield a title, the table, and what it leaves out."""
    yield (
        f"{table.optimizer} on {table.name}: {table.parameters:,} parameters in {len(table.shapes):,} tensors, "
        f"{table.dtype} on {table.device}, {table.threads} thread{'s' * (table.threads != 1)}"
    )
    if table.rows:
        yield from aligned([*map(of, table.rows.values())])
    yield from (f"left out: {label}: {why}" for label, why in table.left_out.items())
    yield ""


def aligned(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return lines of aligned columns below their headings: names to the left, figures to the right."""
    cells = [list(rows[0]), *(list(row.values()) for row in rows)]
    first, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    return ["  ".join([name.ljust(first), *map(str.rjust, figures, widths)]).rstrip() for name, *figures in cells]


def _median(timing: Timing, scale: float) -> str:
    return in_digits(scale * timing.median) if timing.rounds else ""


def in_digits(x: float) -> str:
    """Return the number with three digits, or with all before the point."""
    digits = 0 if x >= 99.95 else 1 if x >= 9.995 else 2 if x >= 0.0995 else 3
    return f"{x:,.{digits}f}"


def common(table: Table) -> dict[str, object]:
    """Return what all rows of a table have in common."""
    own = {name: getattr(table, name) for name in ("parameters", "dtype", "device", "threads")}
    shapes = {"shapes": table.name, "tensors": len(table.shapes)}
    return {"optimizer": table.optimizer, **shapes, **own, "relative_to": table.base}


def figures(row: Row) -> dict[str, object]:
    """Return all figures of a row, as they are written."""
    return {
        "implementation": row.label,
        "rounds": len(row.timing.rounds),
        **_quartiles("step_ms", row.timing, 1e3),
        **_quartiles("ratio", row.ratio, 1),
        **_quartiles("host_ms", row.host, 1e3),
        "state_bytes_per_parameter": round(row.state, 4),
        "peak_bytes": row.peak,
    }


def _quartiles(name: str, timing: Timing, scale: float) -> dict[str, float | None]:
    names = (name, f"{name}_q1", f"{name}_q3")
    if not timing.rounds:
        return dict.fromkeys(names)
    return {key: round(scale * x, 5) for key, x in zip(names, (timing.median, *timing.quartiles), strict=True)}
