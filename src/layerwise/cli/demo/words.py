"""The statements that the figures of this run support: every sentence is made from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from layerwise.cli.demo.result import Result, Row, change, shown
from layerwise.cli.demo.settings import AT_SMALL, Act

NADO = "Nado et al. 2021, arXiv 2102.06356"
Verdict = Literal["better", "worse", "even"]


def paragraphs(result: Result) -> list[str]:
    """Return a paragraph for each act that has figures, one for the noise scale, and one for the limits.

    A quick run has the limits alone: it was trained for less than its settings were tuned for.
    """
    if result.quick:
        return [*beware(result), limits(result)]
    shown = [" ".join(_OF[act.number](result, act)) for act in result.acts]
    return [*beware(result), *filter(None, shown), *_noise(result), limits(result)]


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
    several = len(result.seeds) > 1
    spread = (
        f"± is the standard deviation over {how_many_seeds(result)}." if several else "One seed, so without a spread."
    )
    nats = "Losses are in nats a character. " if any(act.task.metric == "loss" for act in result.acts) else ""
    return f"{spread} {nats}Bytes are those of weights and state; gradients add 4 in float32 and 2 in bfloat16."


def compared(a: Row, b: Row) -> Verdict:
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


def _large_batch(result: Result, act: Act, ours: str) -> Iterator[str]:
    """Compare ours with the others of the act: tuned at the small batch, scaled from it, tuned at the large one."""
    task, names = act.task, [contender.name for contender in act.contenders]
    small, scaled, tuned = (
        {name: row for name in names if (row := result.get(act, name, batch, retuned=retuned))}
        for batch, retuned in ((task.small, False), (task.large, False), (task.large, True))
    )
    if len(small) < len(names) or len(scaled) < len(names):
        return
    what = "Test accuracy" if task.metric == "accuracy" else "Test loss"
    yield (
        f"Act {act.number}. {what} at batch {task.small:,}, where each was tuned: {_listed(small)}. "
        f"{verdicts(small, ours)}"
    )
    yield (
        f"At batch {task.large:,}, in the same epochs, with these settings and the learning rate scaled by the "
        f"square-root rule: {_listed(scaled)}. {verdicts(scaled, ours)} {_lost(result, scaled)}"
    )
    if len(tuned) == len(names):
        yield (
            f"Tuned at batch {task.large:,} itself, with the same budget for each: {_listed(tuned)}. "
            f"{verdicts(tuned, ours)}"
        )


def _listed(rows: Mapping[str, Row]) -> str:
    return joined([f"{name} {_figure(row)}" for name, row in rows.items()])


def joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def verdicts(rows: Mapping[str, Row], ours: str) -> str:
    """Say how ours did beside each of the others, those with the same verdict in one sentence."""
    found: dict[Verdict, list[str]] = {}
    for name, row in rows.items():
        if name != ours:
            found.setdefault(compared(rows[ours], row), []).append(name)
    every = f"with every one of {rows[ours].seeds} seeds"
    how = {
        "better": "{ours} did better than {others} {every}.",
        "worse": "{ours} did worse than {others} {every}.",
        "even": "These seeds show no clear difference of {ours} from {others}.",
    }
    return " ".join(how[v].format(ours=ours, others=joined(names), every=every) for v, names in found.items())


def _lost(result: Result, rows: Mapping[str, Row]) -> str:
    """Say what each lost on the way from the small batch, which need not follow the order at the large one."""
    sign = 1 if next(iter(rows.values())).case.task.metric == "accuracy" else -1
    digits, unit = (1, " points") if sign == 1 else (3, " nats")
    moved = {name: change(result, row) for name, row in rows.items()}
    lost = [f"{name} lost {max(0.0, -sign * x):.{digits}f}{unit}" for name, x in moved.items() if x is not None]
    return f"Compared with the small batch, {joined(lost)}." if lost else ""


def _first(result: Result, act: Act) -> Iterator[str]:
    yield from _large_batch(result, act, "LARS")


def _second(result: Result, act: Act) -> Iterator[str]:
    yield from _large_batch(result, act, "LAMB")


def _third(result: Result, act: Act) -> Iterator[str]:
    rows = {c.name: row for c in act.contenders if (row := result.get(act, c.name, act.task.small))}
    if len(rows) < len(act.contenders):
        return
    adamw, lamb, compact, bare = rows.values()
    yield (
        f"Act {act.number}. Weights and state for each parameter, in bytes, without gradients: AdamW keeps "
        f"{_bytes(adamw)} and ends at a loss of {_figure(adamw)}; LAMB in float32 keeps {_bytes(lamb)} and "
        f"{_ends(lamb, adamw)}; LAMB with 24-bit weights and 8-bit state keeps {_bytes(compact)} and "
        f"{_ends(compact, adamw)}; Adafactor with bfloat16 weights, rounded stochastically, keeps {_bytes(bare)} and "
        f"{_ends(bare, adamw)}."
    )
    yield {
        "better": "LAMB ended lower in fewer bytes, probably by chance.",
        "worse": "LAMB ended higher in fewer bytes.",
        "even": "These seeds show no clear difference between LAMB in fewer bytes and in float32.",
    }[compared(compact, lamb)]


def _ends(row: Row, other: Row) -> str:
    how = {
        "better": "lower than AdamW's",
        "worse": "higher than AdamW's",
        "even": "with no clear difference from AdamW",
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


def limits(result: Result) -> str:
    return " ".join(_not_shown(result))


def _not_shown(result: Result) -> Iterator[str]:
    yield (
        f"What this does not show. Small networks, one or two thousand examples, {how_many_seeds(result)}: nothing "
        "follows for networks of another size or kind, nor for speed."
    )
    if any(act.grows for act in result.acts):
        yield (
            "In the same epochs the large batch takes few steps; large batches are usually trained for longer, and on "
            "many machines at once."
        )
        yield (
            "At scale, momentum SGD and Adam with everything tuned for the batch match or exceed LARS and LAMB "
            f"({NADO})."
        )


def how_many_seeds(result: Result) -> str:
    if len(result.seeds) == 1:
        return "one seed, so chance and effect look alike"
    return f"{AT_SMALL} seeds at the small batch and {len(result.seeds)} at the large one"


def _figure(row: Row | None) -> str:
    return "–" if row is None else shown(row)


def _bytes(row: Row) -> str:
    return f"{row.bytes_per_parameter or 0.0:.2f} bytes"


_OF = {1: _first, 2: _second, 3: _third}
