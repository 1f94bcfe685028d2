"""A line for each setting: the origin of its value, and the distance of the batch from published ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from layerwise.recipes.advice import Line
from layerwise.recipes.numbers import number, percent
from layerwise.recipes.points import CURVES, Curve, Point
from layerwise.recipes.question import EXPONENTS, Question
from layerwise.rules.lamb import Lamb

LEGW = "sqrt rule, and warm-up of as many steps at every batch: You et al. 2019, arXiv 1901.08256"
FOLLOWED = 64  # times larger a batch, says its abstract of LSTMs
LONGEST_WARMUP = max(curve.longest_warmup for curve in CURVES)

OF_ITS_TASK = "a learning rate belongs to its task; to scale your own, give the batch and the rate that were good"
FROM_CHECKPOINT = "it starts from a checkpoint; a run from scratch needs a warm-up, and maybe other betas"
EXEMPT = "there, biases and normalization have no weight decay and no trust ratio"
BORROWED = "no published settings of it by batch size are known to us; the rules are those for LAMB and LARS"
MATCHED = "a tuned Adam or Nesterov momentum can match LAMB and LARS at large batches (arXiv 2102.06356)"
LINEAR = "the LARS paper's abstract says that training may diverge with the linear rule (arXiv 1708.03888)"


OF_ADAMW = "√(lr·λ) of your AdamW run"
KEPT_NORM = "keep_norm is for matrices: leave embeddings, normalization and biases to AdamW"
ANGLE = "√(lr·λ) for weights whose norm is kept: Wen et al. 2026, arXiv 2606.16899, and Levanter's adamh.py"


class Warmup(NamedTuple):
    share: float | None  # of the run
    line: Line


def rates(q: Question) -> Iterator[Line]:
    """Yield the learning rate, what the other rule would make of it, and what published runs had."""
    anchor = q.anchor
    if q.reference is not None:
        whose, distance, beyond = "yours" if q.reference_decay is None else OF_ADAMW, *_from_yours(q)
    else:
        whose, distance, beyond = q.series.name, *_distance(q.batch, q.series)
    start = f"{whose}, {number(anchor.lr)} at batch {anchor.batch:,}"
    series = "" if q.reference else whose
    if q.batch == anchor.batch:
        yield Line("learning rate", number(anchor.lr), start, distance, series, beyond)
    else:
        for rule in sorted(EXPONENTS, key=lambda rule: rule != q.rule):
            name = "learning rate" if rule == q.rule else f"{rule} rule"
            why = f"{start}, by the {rule} rule"
            far = beyond or rule == "linear"  # which no published series follows
            yield Line(name, number(q.scaled(rule)), why, distance, series, far, alternative=rule != q.rule)
    yield from _published(q)


def _published(q: Question) -> Iterator[Line]:
    """Yield the growth of the rate in each series since the reference; without one, the rates of the other series."""
    for curve in q.curves:
        near, (distance, beyond) = curve.nearest(q.batch), _distance(q.batch, curve)
        if q.reference is not None:
            before = curve.nearest(q.reference.batch)
            grown = near.lr / before.lr
            why = f"yours × {number(grown)}, as there from batch {before.batch:,} to {near.batch:,}"
            line = Line(f"as {curve.name}", number(q.reference.lr * grown), why, distance, extrapolated=beyond)
            shown = before is not near
        else:
            line = Line(curve.name, number(near.lr), f"not scaled, at batch {near.batch:,}", distance)
            shown = curve is not q.curve
        if shown:
            yield replace(line, series=curve.name, alternative=True)


def warmup(q: Question, steps: int | None) -> Warmup:
    """Return the warm-up: the same number of steps at every batch, so a share of the run that grows with it.

    The user's run is assumed to start from scratch.
    """
    if q.reference is not None and q.reference.warmup is not None:
        return _grown(q, steps, q.reference, "yours", *_from_yours(q))
    fitting = [one for one in (q.curve, *q.curves) if one and (one.from_scratch or q.reference is None)]
    if not fitting:
        return Warmup(None, Line("warm-up", "keep yours", "give what it was, and it is scaled", "nothing published"))
    curve = fitting[0]
    found = _grown(q, steps, curve.nearest(q.batch), curve.name, *_distance(q.batch, curve))
    why = found.line.why if curve.from_scratch else f"{found.line.why}; it starts from a checkpoint"
    return Warmup(found.share, replace(found.line, why=why, series=curve.name))


def _grown(q: Question, steps: int | None, point: Point, whose: str, distance: str, beyond: bool) -> Warmup:
    wanted = (point.warmup or 0.0) * (q.batch / point.batch)
    share = min(wanted, LONGEST_WARMUP)
    why = f"{whose}, {percent(point.warmup or 0.0)} of the run at batch {point.batch:,}"
    if q.batch != point.batch:
        why += ", as many steps"
    if share < wanted:
        why += f", but not more than the longest published, {percent(LONGEST_WARMUP)}"
    if steps:
        why += f"; here {round(share * steps):,} steps"
    return Warmup(share, Line("warm-up", percent(share), why, distance, "", beyond or share < wanted))


def decay(q: Question) -> Iterator[Line]:
    """Yield what follows the warm-up in the series that is cited."""
    if q.reference is None and q.series.power is not None:
        value, (distance, _) = (
            f"polynomial of power {q.series.power:g} to {q.series.end:g}",
            _distance(q.batch, q.series),
        )
        yield Line("decay of the rate", value, f"{q.series.name}, after the warm-up", distance, q.series.name)


def kept(q: Question) -> Iterator[Line]:
    """Yield the settings that no rule scales: the nearest published run's, or yours and their changes there."""
    if q.reference_decay is not None:
        yield Line("keep norm", "True", "in place of weight decay", "nothing published by batch")
        return
    if q.curve is None:
        return
    near, (distance, beyond) = q.curve.nearest(q.batch), _distance(q.batch, q.curve)
    before = q.curve.nearest(q.reference.batch) if q.reference else None
    for setting in q.kept:
        value, name, series = getattr(near, setting), setting.replace("_", " "), q.curve.name
        if value is None:
            yield Line(name, "keep yours", f"{series} does not say", distance, series)
        elif before is None:
            yield Line(name, _shown(value), f"{series}, at batch {near.batch:,}", distance, series, beyond)
        elif getattr(before, setting) == value:
            yield Line(name, "keep yours", f"{series} kept {_shown(value)}", distance, series)
        else:
            was = f"{_shown(getattr(before, setting))} at batch {before.batch:,}"
            moved = f"{series} went from {was} to {_shown(value)} at {near.batch:,}"
            yield Line(name, "keep yours", f"or try: {moved}", distance, series)


def cost(q: Question) -> Iterator[Line]:
    """Yield the published cost of a larger batch: the target took more training."""
    if q.curve is None or not q.curve.unit:
        return
    before = q.curve.nearest(q.reference.batch) if q.reference else q.curve.points[0]
    near, (distance, beyond) = q.curve.nearest(q.batch), _distance(q.batch, q.curve)
    if near is not before and near.cost and before.cost:
        why = (
            f"{q.curve.name}, {before.cost:g} {q.curve.unit} at batch {before.batch:,}, {near.cost:g} at {near.batch:,}"
        )
        value = f"× {near.cost / before.cost:.2f}"
        yield Line("training needed", value, why, distance, q.curve.name, beyond, alternative=True)


def notes(q: Question, kept: Point, steps: int | None) -> Iterator[str]:
    if q.reference is None:
        yield OF_ITS_TASK
        if q.series.exempt:
            yield f"{q.series.name}: {EXEMPT}"
        if not q.series.from_scratch:
            yield f"{q.series.name}: {FROM_CHECKPOINT}"
    b2 = (kept.betas or Lamb().betas)[1]
    if q.has("betas") and steps is not None and steps * (1 - b2) < 1:
        yield f"beta2 = {b2:g} averages over about {1 / (1 - b2):,.0f} steps, and the run has {steps:,}"
    if q.rule == "linear":
        yield LINEAR
    if q.reference_decay is not None:
        yield KEPT_NORM
    yield MATCHED if q.curves else BORROWED


def sources(q: Question, lines: Sequence[Line]) -> Iterator[str]:
    yield LEGW
    if q.reference_decay is not None:
        yield ANGLE
    named = {line.series for line in lines}
    yield from (f"{one.name}: {one.task}; {one.source}" for one in q.curves if one.name in named)


def _distance(batch: int, curve: Curve) -> tuple[str, bool]:
    """Return the distance of a batch from the nearest point of a series, and whether it is beyond all of them."""
    near = curve.nearest(batch).batch
    beyond = not curve.points[0].batch <= batch <= curve.points[-1].batch
    return "a published batch" if batch == near else f"{_times(batch, near)} the published {near:,}", beyond


def _from_yours(q: Question) -> tuple[str, bool]:
    """Return how far a rule is stretched and where that ends, and True if either is more than was published."""
    batch, yours = q.batch, q.anchor.batch
    if batch == yours:
        return "yours", False
    stretched = max(batch, yours) > FOLLOWED * min(batch, yours)
    end, outside = _distance(batch, q.curve) if q.curve else ("nothing published", True)
    return f"{_times(batch, yours)} yours; {end}", stretched or outside


def _times(batch: int, other: int) -> str:
    return f"{number(max(batch, other) / min(batch, other))}× {'above' if batch > other else 'below'}"


def _shown(value: Any) -> str:
    return "/".join(map(_shown, value)) if isinstance(value, tuple) else number(value, 6)
