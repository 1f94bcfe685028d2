"""What the figures of this run support: every sentence is made from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from demo.result import Result, Row
from demo.settings import AT_SMALL, Act

OURS = {1: "LARS", 2: "LAMB"}  # what the act is about
HOW = {
    "better": "{ours} did better than {others} with every one of {seeds} seeds.",
    "worse": "{ours} did worse than {others} with every one of {seeds} seeds.",
    "even": "These seeds show no clear difference of {ours} from {others}.",
}


@dataclass(frozen=True)
class Card:
    """A headline: the number that an act is about, and what its seeds say of it."""

    about: str
    figure: str
    text: str
    verdict: str

    def __str__(self) -> str:
        return f"{self.about}: {self.figure}. {self.text} {self.verdict}"


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


def verdicts(ours: Row, others: Sequence[Row]) -> str:
    """Say how ours did beside each of the others, those with the same verdict in one sentence."""
    found: dict[str, list[str]] = {}
    for other in others:
        found.setdefault(compared(ours, other), []).append(other.case.contender.name)
    name, seeds = ours.case.contender.name, len(ours.outcomes)
    return " ".join(HOW[how].format(ours=name, others=joined(names), seeds=seeds) for how, names in found.items())


def joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def whole(rows: Sequence[Row]) -> bool:
    """Return whether all seeds of all rows are there."""
    return all(row.done for row in rows)


# ---- headlines


def cards(result: Result) -> list[Card]:
    """Return the headlines that this run supports: none of a quick one, nor of an act that was not finished."""
    if result.quick:
        return []
    return [card for act in result.acts for card in (_of_batch if act.grows else _of_bytes)(result, act)]


def _of_batch(result: Result, act: Act) -> Iterator[Card]:
    """Compare ours with the first of the act, re-tuned at the large batch."""
    task, rows = act.task, result.rows(act, act.task.large, retuned=True)
    other, *_, ours = rows
    if whole(rows) and ours.mean is not None and other.mean is not None:
        accuracy = task.metric == "accuracy"
        apart = f"{ours.mean - other.mean:+.{1 if accuracy else 2}f}".replace("-", "−")  # as wide as the plus
        means = [
            f"{row.mean:.{1 if accuracy else 2}f}{task.unit} with {row.case.contender.name}" for row in (ours, other)
        ]
        yield Card(
            f"Act {act.number} · {OURS[act.number]} at batch {task.large:,}",
            f"{apart} {'points' if accuracy else 'nats'}",
            f"Test {task.metric} {', '.join(means)}, both re-tuned.{'' if accuracy else ' Lower is better.'}",
            verdicts(ours, rows[:-1]),
        )


def _of_bytes(result: Result, act: Act) -> Iterator[Card]:
    rows = result.rows(act)
    if not whole(rows) or any(row.mean is None for row in rows):
        return
    adamw, lamb, compact, bare = rows
    for row, beside in ((compact, lamb), (bare, adamw)):
        yield Card(
            f"Act {act.number} · {row.case.name}",
            f"{row.bytes:.1f} bytes",
            f"Weights and state for each parameter; {beside.case.name} keeps {beside.bytes:.1f}. Loss {row.mean:.2f}, "
            f"{beside.mean:.2f} with {beside.case.name}.",
            verdicts(row, [beside]),
        )


# ---- paragraphs


def paragraphs(result: Result) -> list[str]:
    """Return a paragraph for each act that was finished, one for the noise scale, and one for the limits.

    A quick run has the limits alone: it was trained for less than its settings were tuned for.
    """
    if result.quick:
        return [limits(result)]
    acts = (" ".join((_large_batch if act.grows else _bytes)(result, act)) for act in result.acts)
    return [*filter(None, acts), *_noise(result), limits(result)]


def _large_batch(result: Result, act: Act) -> Iterator[str]:
    """Compare ours with the others of the act: tuned at the small batch, scaled from it, tuned at the large one."""
    task = act.task
    small, scaled, tuned = (result.rows(act, *column) for column in act.columns)
    if not (whole(small) and whole(scaled)):
        return
    yield f"Act {act.number}. Test {task.metric} at batch {task.small:,}, where each was tuned: {_listed(small)}"
    yield (
        f"At batch {task.large:,}, in the same epochs, with these settings and the learning rate scaled by the "
        f"square-root rule: {_listed(scaled)}"
    )
    yield from _lost(result, scaled)
    if whole(tuned):
        yield f"Tuned at batch {task.large:,} itself, with the same budget for each: {_listed(tuned)}"


def _listed(rows: Sequence[Row]) -> str:
    """Say the figure of each row, and how the last did beside the others."""
    return f"{joined([f'{row.case.contender.name} {row}' for row in rows])}. {verdicts(rows[-1], rows[:-1])}"


def _lost(result: Result, rows: Sequence[Row]) -> Iterator[str]:
    """Say what each lost on the way from the small batch, which need not follow the order at the large one."""
    task = rows[0].case.task
    sign, unit = (-1, " points") if task.metric == "accuracy" else (1, " nats")
    moved = [(row.case.contender.name, x) for row in rows if (x := result.change(row)) is not None]
    if moved:
        lost = [f"{name} lost {max(0.0, sign * x):.{task.digits}f}{unit}" for name, x in moved]
        yield f"Compared with the small batch, {joined(lost)}."


def _bytes(result: Result, act: Act) -> Iterator[str]:
    rows = result.rows(act)
    if not whole(rows):
        return
    adamw, lamb, compact, bare = rows
    kept = [f"{row.case.name} keeps {row.bytes:.2f} bytes and ends at {row}" for row in rows]
    yield f"Act {act.number}. Weights and state for each parameter, without gradients, and test loss: {joined(kept)}."
    yield "LAMB 24+8 has 24-bit weights and 8-bit state; the bfloat16 weights of Adafactor are rounded stochastically."
    for row, others in ((lamb, [adamw]), (compact, [adamw, lamb]), (bare, [adamw])):
        yield verdicts(row, others)
    if compared(compact, lamb) == "better":
        yield "That fewer bytes are better than float32 is probably chance."


def _noise(result: Result) -> Iterator[str]:
    if result.noise is None:
        return
    run, noise = result.noise
    found = "above what can be measured" if not math.isfinite(noise.scale) else f"about {noise.scale:,.0f} sequences"
    yield (
        f"Gradient noise scale, {run} (seen in {noise.parts} parts a batch, averaged over its last hundred of "
        f"{noise.steps:,} steps or so): {found}. It is the batch size at which noise and signal in the gradient are "
        "equal: well below it doubling the batch nearly halves the steps that are needed, well above it a larger batch "
        "buys next to nothing."
    )


# ---- what does not follow


def beware(result: Result) -> Iterator[str]:
    if result.partial:
        yield "This run was interrupted: what it did not finish is missing."
    if result.quick:
        yield (
            "This was a quick run, and no conclusion is drawn from it: training was far shorter than what the settings "
            "were tuned for, and there is one seed. It shows how the demo works; without --quick it has results."
        )


def caption(result: Result) -> str:
    """Return the meaning of the tables' bytes, and of ±, or that there is none."""
    several = f"± is the standard deviation over {_seeds(result)}."
    spread = several if len(result.seeds) > 1 else "One seed, so without a spread."
    nats = "Losses are in nats a character. " if any(act.task.metric == "loss" for act in result.acts) else ""
    return f"{spread} {nats}Bytes are those of weights and state; gradients add 4 in float32 and 2 in bfloat16."


def limits(result: Result) -> str:
    text = (
        f"What this does not show. Small networks, one or two thousand examples, {_seeds(result)}: nothing follows for "
        "networks of another size or kind, nor for speed."
    )
    if any(act.grows for act in result.acts):
        text += (
            " In the same epochs the large batch takes few steps; large batches are usually trained for longer, and on "
            "many machines at once. At scale, momentum SGD and Adam with everything tuned for the batch match or "
            "exceed LARS and LAMB (Nado et al. 2021, arXiv 2102.06356)."
        )
    return text


def _seeds(result: Result) -> str:
    if len(result.seeds) == 1:
        return "one seed, so chance and effect look alike"
    return f"{AT_SMALL} seeds at the small batch and {len(result.seeds)} at the large one"
