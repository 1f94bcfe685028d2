"""What the figures of this run support: every sentence is made from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from demo.result import Result, Row
from demo.settings import AT_SMALL

HOW = {
    "better": "{ours} did better than {others} with every one of {seeds} seeds.",
    "worse": "{ours} did worse than {others} with every one of {seeds} seeds.",
    "even": "These seeds show no clear difference of {ours} from {others}.",
}


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


def conclusions(result: Result) -> Iterator[str]:
    """Say how ours did at each batch of each act that was finished.

    A quick run supports nothing: it was trained for less than its settings were tuned for.
    """
    if result.quick:
        return
    for act in result.acts:
        for heading, rows in result.columns(act).items():
            if all(row.done for row in rows):
                said = (verdicts(row, others) for row in rows if (others := _beside(row, rows)))
                yield f"Act {act.number}, {heading}: {' '.join(said)}"
    yield from _noise(result)


def _beside(ours: Row, rows: Sequence[Row]) -> list[Row]:
    """Return those that one of ours is compared with: all that are not ours, and itself in float32."""
    if not ours.case.contender.is_ours:
        return []
    return [row for row in rows if not row.case.contender.is_ours or row.case.contender is ours.case.contender.of]


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
