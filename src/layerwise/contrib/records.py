"""Writers of a step's measurements: dashboards, which take numbers by name, and tables."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from io import StringIO
from pathlib import Path

import numpy as np

from layerwise.contrib._files import PATH_ERRORS, printable, replace_text
from layerwise.engines import Stats
from layerwise.errors import HyperparameterError, sentence
from layerwise.rules.requests import Array

Ways = Mapping[str, Callable[[Array], Array]]

QUANTITIES = ("trust_ratio", "weight_norm", "update_norm", "update_rms")
COLUMNS = ("step", "name", "block", *QUANTITIES, "clipped")
OVER_BLOCKS: Ways = {"min": np.min, "median": np.median, "max": np.max}
Record = Mapping[str, Stats]  # by parameter and quantity: numbers, or arrays of one per block
Write = Callable[[int, Record], None]


def writing_to(writer: object) -> Write:
    if isinstance(writer, (str, os.PathLike)):
        return CsvFile(_as_table(Path(writer)))
    for method, made in (("add_scalar", _to_tensorboard), ("log", _to_log)):
        if callable(getattr(writer, method, None)):
            return made(getattr(writer, method))
    way_out = "Pass a SummaryWriter, a run, or 'run.csv'."
    raise HyperparameterError(sentence("writer", "a path, or an object with add_scalar or log", writer, way_out))


def _as_table(path: Path) -> Path:
    """Return the path of a table, recognized by its suffix."""
    if path.suffix.lower() != ".csv":
        raise HyperparameterError(
            sentence("writer", "a path that ends in .csv", str(path), ("The monitor writes rows of CSV."))
        )
    try:
        with suppress(FileNotFoundError):
            path.stat()
    except PATH_ERRORS as problem:
        raise HyperparameterError(
            sentence("writer", "the path of a file", printable(path), f"It cannot be written: {printable(problem)}.")
        ) from None
    if not path.parent.is_dir():
        raise HyperparameterError(
            f"`writer` is {str(path)!r}, but the folder {str(path.parent)!r} does not exist. Create it first."
        )
    return path


def _to_tensorboard(add_scalar: Callable[..., object]) -> Write:
    def write(step: int, record: Record) -> None:
        for tag, x in scalars(record).items():
            add_scalar(tag, x, step)

    return write


def _to_log(log: Callable[..., None]) -> Write:
    # The step is one of the numbers: the run's own count belongs to its other logging.
    return lambda step, record: log({"optimizer_step": step, **scalars(record)})


def scalars(record: Record) -> dict[str, float]:
    """Return single numbers: the minimum, median and maximum over blocks, and the fraction of clipped layers."""
    found: dict[str, float] = {}
    for quantity in QUANTITIES:
        for name, measured in record.items():
            if quantity in measured:
                tag, x = f"{quantity}/{name}", measured[quantity]
                found |= _named(tag, OVER_BLOCKS, x) if np.ndim(x) else {tag: float(x)}
    clipped = np.concatenate([np.ravel(measured["clipped"]) for measured in record.values()] or [np.empty(0)])
    return found | _named("clipped", {"share": np.mean}, clipped)


def _named(tag: str, ways: Ways, x: Array) -> dict[str, float]:
    here = x[~np.isnan(x)]  # blocks on other processes are unknown
    return {f"{tag}/{way}": float(of(here)) for way, of in ways.items()} if here.size else {}


class CsvFile:
    """A CSV file with a row for each layer and step. A step that is taken again replaces the rows that follow it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: int | None = None
        if path.exists():
            list(rows_of(path))

    def __call__(self, step: int, record: Record) -> None:
        if self._last is None or step <= self._last:
            self._begin(step)
        with self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(_as_csv(_rows(step, record)))
        self._last = step

    def _begin(self, step: int) -> None:
        """Keep the file's rows before this step for a resumed run; drop them for a new run."""
        before = [row for row in rows_of(self.path) if int(row["step"]) < step] if self.path.exists() else []
        replace_text(self.path, _as_csv([COLUMNS, *(list(row.values()) for row in before)]))


def _rows(step: int, record: Record) -> Iterator[list[object]]:
    for name, measured in record.items():
        blocked = np.ndim(measured["trust_ratio"]) > 0
        columns = [np.ravel(measured[key]).tolist() if key in measured else None for key in COLUMNS[3:]]
        for i, ratio in enumerate(np.ravel(measured["trust_ratio"])):
            if not (blocked and np.isnan(ratio)):  # a block on another process
                yield [step, name, i if blocked else "", *("" if x is None else x[i] for x in columns)]


def _as_csv(rows: Iterable[Iterable[object]]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def rows_of(path: Path, way_out: str = "another path") -> Iterator[dict[str, str]]:
    """Yield the rows of such a file, without one that was cut off in the middle."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        if tuple(next(lines, ())) != COLUMNS:
            raise HyperparameterError(f"{str(path)!r} is a file, but not a table that monitor wrote. Pass {way_out}.")
        yield from (dict(zip(COLUMNS, line, strict=True)) for line in lines if len(line) == len(COLUMNS))
