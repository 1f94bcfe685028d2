"""What the figures of this run support: every sentence is made from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from demo.result import Result, Row
from demo.settings import Act

CAVEATS = (
    "Small networks, little data and {seeds}: nothing follows for other networks, nor for speed. "
    "A difference that is not named above may be chance. At scale, well-tuned Adam and Nesterov momentum match or "
    "exceed LAMB and LARS (Nado et al. 2021, arXiv 2102.06356)."
)


def compared(a: Row, b: Row) -> Literal["better", "worse", "even"]:
    """Return whether `a` did better than `b`, worse, or neither.

    `a` is better if even its worst seed is better than the best of `b`.
    """
    if a.mean is None or b.mean is None:
        return "even" if a.mean is b.mean else "worse" if a.mean is None else "better"
    sign = 1 if a.case.task.metric == "accuracy" else -1
    mine, other = ([sign * x for x in row.figures] for row in (a, b))
    if min(mine) > max(other):
        return "better"
    return "worse" if max(mine) < min(other) else "even"


def joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def headline(result: Result, act: Act) -> str:
    """Return the figures of an act at its last batch, the best first; with bytes where these differ."""
    task, rows = act.task, result.last(act)
    sign = -1 if task.metric == "accuracy" else 1
    best = sorted(rows, key=lambda row: math.inf if row.mean is None else sign * row.mean)
    stored = any(row.case.contender.of for row in rows)
    bytes_of = [f" in {row.bytes:.3g}" if stored and row.bytes else "" for row in best]
    found = [f"{row.case.name} {row.brief}{kept}" for row, kept in zip(best, bytes_of, strict=True)]
    found[0] += " bytes a parameter" * bool(bytes_of[0])
    return f"{task.metric.capitalize()} at batch {act.batches[-1]:,}: {', '.join(found)}"


def verdict(row: Row, rows: Sequence[Row]) -> str:
    """Say which of the others one of ours did better or worse than with every seed; nothing of PyTorch's own.

    One seed says nothing.
    """
    found: dict[str, list[str]] = {"better": [], "worse": []}
    for other in rows if row.case.contender.is_ours and not row.case.once else ():
        if not other.case.contender.is_ours:
            found.get(compared(row, other), []).append(other.case.name)
    return ", ".join(f"{how} than {joined(names)}" for how, names in found.items() if names)


def clear(result: Result, act: Act) -> str:
    """Say what every seed agrees about, at the last batch."""
    rows = result.last(act)
    found = [f"{row.case.name} is {said}" for row in rows if (said := verdict(row, rows))]
    return f"With every seed, {'; '.join(found)}." if found else "No difference is clear with every seed."


def story(result: Result) -> Iterator[tuple[Act, str, str]]:
    """Yield each act that was finished, with its headline and what is clear of it.

    A quick run supports nothing: it was trained for less than its settings were tuned for.
    """
    for act in () if result.quick else result.acts:
        if all(row.done for row in result.last(act)):
            yield act, headline(result, act), clear(result, act)


def beware(result: Result) -> Iterator[str]:
    if result.partial:
        yield "This run was interrupted: what it did not finish is missing."
    if result.quick:
        yield (
            "This was a quick run, and no conclusion is drawn from it: training was far shorter than what the settings "
            "were tuned for, and there is one seed. It shows how the demo works; without --quick it has results."
        )


def caption(result: Result) -> str:
    """Return the meaning of the table's bytes, and of ±, or that there is none."""
    spread = "± is the standard deviation over seeds." if len(result.seeds) > 1 else "One seed, so without a spread."
    return f"{spread} Losses are in nats a character. Bytes are those of weights and state, without gradients."


def caveats(result: Result) -> str:
    """Return what this does not show, in three sentences."""
    rows = [row for act in result.acts for row in result.last(act)]
    counts = sorted({str(len(row.case.seeds(result.seeds))) for row in rows})
    return CAVEATS.format(seeds="one seed" if counts == ["1"] else f"{' or '.join(counts)} seeds")
