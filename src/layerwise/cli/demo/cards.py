"""The headlines of the report: a number for each thing that an act is about, and what its seeds say of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layerwise.cli.demo.result import Result, Row
from layerwise.cli.demo.settings import Act
from layerwise.cli.demo.words import Verdict, compared, joined


@dataclass(frozen=True)
class Card:
    about: str
    figure: str
    text: str
    verdict: str


def cards(result: Result) -> list[Card]:
    """Return the headlines that this run supports: none of a quick one, nor of an act that was not finished."""
    return [] if result.quick else [card for act in result.acts for card in _OF[act.number](result, act)]


def _rows(result: Result, act: Act, batch: int, retuned: bool = False) -> dict[str, Row]:
    """Return the rows of all contenders, by name, or nothing where a seed is missing."""
    found = {c.name: row for c in act.contenders if (row := result.get(act, c.name, batch, retuned))}
    return found if len(found) == len(act.contenders) else {}


def _first(result: Result, act: Act) -> Iterator[Card]:
    rows = _rows(result, act, act.task.large, retuned=True)
    if not rows or rows["LARS"].mean is None or rows["SGD"].mean is None:
        return
    ours, theirs = rows["LARS"].mean, rows["SGD"].mean
    yield Card(
        f"Act 1 · LARS at batch {act.task.large:,}",
        f"{_signed(ours - theirs, 1)} points",
        f"Test accuracy {ours:.1f} % with LARS, {theirs:.1f} % with SGD, both re-tuned.",
        _verdicts(rows, "LARS"),
    )


def _second(result: Result, act: Act) -> Iterator[Card]:
    rows = _rows(result, act, act.task.large, retuned=True)
    if not rows or rows["LAMB"].mean is None or rows["AdamW"].mean is None:
        return
    ours, theirs = rows["LAMB"].mean, rows["AdamW"].mean
    yield Card(
        f"Act 2 · LAMB at batch {act.task.large:,}",
        f"{_signed(ours - theirs, 2)} nats",
        f"Test loss {ours:.2f} with LAMB, {theirs:.2f} with AdamW, both re-tuned. Lower is better.",
        _verdicts(rows, "LAMB"),
    )


def _third(result: Result, act: Act) -> Iterator[Card]:
    rows = _rows(result, act, act.task.small)
    if not rows or any(row.mean is None for row in rows.values()):
        return
    adamw, lamb, compact, bare = rows.values()
    for row, beside in ((compact, lamb), (bare, adamw)):
        how = {
            "better": f"Its loss is lower than {beside.case.name}'s with every seed.",
            "worse": f"Its loss is {(row.mean or 0.0) - (beside.mean or 0.0):.2f} nats higher.",
            "even": "Its loss shows no clear difference.",
        }[compared(row, beside)]
        yield Card(
            f"Act 3 · {row.case.name}",
            f"{row.bytes_per_parameter or 0.0:.1f} bytes",
            f"Weights and state for each parameter; {beside.case.name} keeps {beside.bytes_per_parameter or 0.0:.1f}.",
            how,
        )


def _verdicts(rows: dict[str, Row], ours: str) -> str:
    """Say in one short sentence how ours did beside each of the others."""
    found: dict[Verdict, list[str]] = {}
    for name, row in rows.items():
        if name != ours:
            found.setdefault(compared(rows[ours], row), []).append(name)
    how = {
        "better": "better than {} with every seed",
        "worse": "worse than {} with every seed",
        "even": "no clear difference from {}",
    }
    said = "; ".join(how[verdict].format(joined(names)) for verdict, names in found.items())
    return f"{said[0].upper()}{said[1:]}."


def _signed(x: float, digits: int) -> str:
    """Return the number with its sign, the minus as wide as the plus."""
    return f"{x:+.{digits}f}".replace("-", "−")


_OF = {1: _first, 2: _second, 3: _third}
