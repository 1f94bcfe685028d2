"""What the figures of this run show, and what they do not: every sentence is made from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from layerwise.cli.demo.result import Result, Row, change, shown
from layerwise.cli.demo.settings import AT_SMALL, Act

NADO = "Nado et al. 2021, arXiv 2102.06356"
Verdict = Literal["better", "worse", "even"]


def paragraphs(result: Result) -> list[str]:
    """One for each act that has figures, one for the noise scale, and one for what does not follow."""
    shown = [" ".join(_OF[act.number](result, act)) for act in result.acts]
    return [*_beware(result), *filter(None, shown), *_noise(result), " ".join(_not_shown(result))]


def _beware(result: Result) -> Iterator[str]:
    if result.partial:
        yield "This run was interrupted: what it did not finish is missing."
    if result.quick:
        yield (
            "This was a quick run: it shows how the demo goes, and next to nothing of the optimizers, because training "
            "was far shorter than what the learning rates were tuned for."
        )


def caption(result: Result) -> str:
    """What ± is in the tables, where there is any."""
    several = len(result.seeds) > 1
    return (
        f"± is the standard deviation over {how_many_seeds(result)}." if several else "One seed, so without a spread."
    )


def compared(a: Row, b: Row) -> Verdict:
    """Whether `a` did better than `b`: with several seeds, if even its worst seed did better than the best of b's.

    One seed says nothing of its spread, so there the difference decides.
    """
    if a.mean is None or b.mean is None:
        return "even" if a.mean is b.mean else "worse" if a.mean is None else "better"
    sign = 1 if a.case.task.metric == "accuracy" else -1
    mine, other = ([sign * x for x in row.figures] for row in (a, b))
    if min(mine) > max(other):
        return "better"
    return "worse" if max(mine) < min(other) else "even"


def _large_batch(result: Result, act: Act, ours: str, theirs: str) -> Iterator[str]:
    """Two contenders, from the small batch to the large one."""
    task = act.task
    small = {name: result.get(act, name, task.small) for name in (ours, theirs)}
    mine, other = (result.get(act, name, task.large) for name in (ours, theirs))
    if mine is None or other is None or None in small.values():
        return
    went = [f"{row.case.name} from {_figure(small[row.case.name])} to {_figure(row)}" for row in (other, mine)]
    what = "test accuracy" if task.metric == "accuracy" else "test loss"
    yield (
        f"Act {act.number}. From batch {task.small:,} to {task.large:,}, in the same epochs and with the learning rate "
        f"scaled by the square-root rule, {what} went {' and '.join(went)}."
    )
    yield _verdict(result, mine, other)
    retuned = result.get(act, theirs, task.large, retuned=True)
    if retuned is not None:
        yield _retuned(mine, retuned, theirs)


def _verdict(result: Result, mine: Row, other: Row) -> str:
    a, b = mine.case.name, other.case.name
    verdict = compared(mine, other)
    if verdict == "even":
        return f"At the large batch {a} and {b} cannot be told apart by these seeds."
    every = f" with every one of {len(mine.figures)} seeds" if len(mine.figures) > 1 else ", with one seed"
    return f"At the large batch {a} did {verdict} than {b}{every}{_lost(result, mine, other)}."


def _lost(result: Result, mine: Row, other: Row) -> str:
    """Who lost more on the way from the small batch, which need not be who is worse off at the large one."""
    moved, theirs = change(result, mine), change(result, other)
    if moved is None or theirs is None:
        return ""
    sign = 1 if mine.case.task.metric == "accuracy" else -1
    if sign * moved >= 0:
        return ", and lost nothing on the way from the small batch"
    less = sign * moved > sign * theirs
    return f", and lost {'less' if less else 'more'} than it on the way from the small batch"


def _retuned(mine: Row, retuned: Row, name: str) -> str:
    ours = f"{mine.case.name} with the scaled one"
    how = {
        "better": f"it does less well than {ours}",
        "worse": f"it does better than {ours}",
        "even": f"these seeds do not tell it from {ours}",
    }[compared(mine, retuned)]
    return f"{name} with a learning rate tuned at the large batch itself reaches {_figure(retuned)}: {how}."


def _first(result: Result, act: Act) -> Iterator[str]:
    yield from _large_batch(result, act, "LARS", "SGD")


def _second(result: Result, act: Act) -> Iterator[str]:
    yield from _large_batch(result, act, "LAMB", "AdamW")


def _third(result: Result, act: Act) -> Iterator[str]:
    adamw, bare, moved = (
        result.get(act, name, act.task.small) for name in ("AdamW", "Adafactor", "Adafactor+momentum")
    )
    if adamw is None or bare is None or moved is None:
        return
    yield (
        f"Act {act.number}. AdamW keeps {_bytes(adamw)} of state for each parameter and ends at a loss of "
        f"{_figure(adamw)}; Adafactor with momentum keeps {_bytes(moved)} and {_ends(moved, adamw)}; without momentum "
        f"it keeps {_bytes(bare)} and {_ends(bare, adamw)}."
    )
    yield {
        "better": "Momentum was worth its memory to the loss: what is saved without it is paid for there.",
        "worse": "Momentum did the loss no good here.",
        "even": "What momentum was worth to the loss cannot be seen from these seeds.",
    }[compared(moved, bare)]


def _ends(row: Row, other: Row) -> str:
    how = {
        "better": "lower than AdamW's",
        "worse": "higher than AdamW's",
        "even": "not to be told apart from AdamW's",
    }[compared(row, other)]
    return f"ends at {_figure(row)}, {how}"


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


def _not_shown(result: Result) -> Iterator[str]:
    yield (
        f"What this does not show. Small networks, one or two thousand examples, {how_many_seeds(result)}: nothing "
        "follows for networks of another size or kind, nor for speed, since runs share the machine."
    )
    if any(act.grows for act in result.acts):
        yield (
            "Each learning rate was tuned once at the small batch and then only scaled; in the same epochs the large "
            "batch takes few steps, and who trains with it usually trains for longer."
        )
        yield (
            "At scale, momentum SGD and Adam with everything tuned for the batch match or exceed LARS and LAMB "
            f"({NADO})."
        )


def how_many_seeds(result: Result) -> str:
    if len(result.seeds) == 1:
        return "one seed, so that chance is not to be told from effect"
    return f"{AT_SMALL} seeds at the small batch and {len(result.seeds)} at the large one"


def _figure(row: Row | None) -> str:
    return "–" if row is None else shown(row)


def _bytes(row: Row) -> str:
    state = row.bytes_per_parameter or 0.0
    return f"{state:.3f} bytes" if state < 1 else f"{state:.2f} bytes"


_OF = {1: _first, 2: _second, 3: _third}
