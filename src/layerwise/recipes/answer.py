"""The answer to a question: a starting point, a rule to scale it, and a line for each setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from layerwise import schedules
from layerwise.recipes.advice import Line, Recommendation, format_number, format_percent
from layerwise.recipes.points import CURVES, Curve
from layerwise.recipes.question import KEPT, Question
from layerwise.rules.lamb import Lamb

LEGW = "sqrt rule, and warm-up of as many steps at every batch: You et al. 2019, arXiv 1901.08256"
FOLLOWED = 64  # the largest growth of the batch in the abstract, for LSTMs
LONGEST_WARMUP = max(curve.longest_warmup for curve in CURVES)

OF_ITS_TASK = "a learning rate belongs to its task; to scale your own, give the batch and the rate that were good"
FROM_CHECKPOINT = "it starts from a checkpoint; a run from scratch needs a warm-up, and maybe other betas"
EXEMPT = "there, biases and normalization have no weight decay and no trust ratio"
BORROWED = "no published settings of it by batch size are known to us; the rules are those for LAMB and LARS"
MATCHED = "a tuned Adam or Nesterov momentum can match LAMB and LARS at large batches (arXiv 2102.06356)"
LINEAR = "the LARS paper's abstract says that training may diverge with the linear rule (arXiv 1708.03888)"
KEPT_NORM = "keep_norm is for matrices: leave embeddings, normalization and biases to AdamW"
ANGLE = "√(lr·λ) for weights whose norm is kept: Wen et al. 2026, arXiv 2606.16899, and Levanter's adamh.py"


def recommend(
    optimizer: Any,
    batch: int,
    *,
    reference_batch: int | None = None,
    reference_lr: float | None = None,
    reference_warmup: float | None = None,
    reference_decay: float | None = None,
    total_samples: float | None = None,
    like: str | None = None,
    rule: Literal["sqrt", "linear"] = "sqrt",
) -> Recommendation:
    """Return settings for an optimizer at a batch size. Print them, or pass on their kwargs().

    With a reference, its learning rate and its warm-up are scaled to the batch; betas, momentum and weight decay stay
    yours. Without one, the nearest run of a published series is scaled.

    Args:
        optimizer: The optimizer's name or class.
        batch: The batch size, in examples.
        reference_batch: The batch size of a run of yours.
        reference_lr: Its learning rate.
        reference_warmup: Its warm-up, as a share of the run.
        reference_decay: Its weight decay, if it is a run of AdamW. The answer is then LAMB with `keep_norm`, whose
            learning rate is √(lr·λ) of that run.
        total_samples: The length of the run to come, in examples; it turns shares of the run into steps.
        like: The name of the published series to follow.
        rule: The rule by which the learning rate follows the batch.
    """
    q = Question(
        optimizer, batch, reference_batch, reference_lr, reference_warmup, reference_decay, total_samples, like, rule
    )
    steps = None if q.total_samples is None else schedules.samples(q.total_samples, batch=q.batch)
    series = q.followed_curve
    kept = {name: None if series is None else getattr(q.anchor, name) for name in KEPT}
    share, warmup = _warmup(q, steps)
    lines = (*_rates(q), warmup, *_decay(series, q.batch), *_kept(q))
    return Recommendation(
        q.optimizer,
        q.batch,
        q.lr,
        share,
        **kept,
        steps=steps,
        lines=lines,
        notes=tuple(_notes(q, kept["betas"], steps)),
        sources=tuple(_sources(q, lines)),
        keep_norm=None if q.reference_decay is None else True,
        run="" if series is None else f"{series.name}: {series.task}",
        power=None if series is None else series.power,
        end=0.0 if series is None else series.end,
        yours=q.yours,
    )


class Distance(NamedTuple):
    """The distance of a batch from another, in words, and whether it exceeds what was published."""

    distance: str
    extrapolated: bool = False


def _far(batch: int, curve: Curve | None) -> Distance:
    """Return the distance from the nearest point of a series; beyond all of them it is an extrapolation."""
    if curve is None:
        return Distance("nothing published", True)
    near, first, last = curve.nearest(batch).batch, curve.points[0].batch, curve.points[-1].batch
    words = "a published batch" if batch == near else f"{_times(batch, near)} the published {near:,}"
    return Distance(words, not first <= batch <= last)


def _from_yours(q: Question) -> Distance:
    """Return how far a rule is stretched, and its limit; either may exceed what was published."""
    batch, yours = q.batch, q.anchor.batch
    if batch == yours:
        return Distance("yours")
    end, outside = _far(batch, q.curve)
    stretched = max(batch, yours) > FOLLOWED * min(batch, yours)
    return Distance(f"{_times(batch, yours)} yours; {end}", stretched or outside)


def _times(batch: int, other: int) -> str:
    return f"{format_number(max(batch, other) / min(batch, other))}× {'above' if batch > other else 'below'}"


def _line(curve: Curve, batch: int, setting: str, value: str, why: str, **marks: bool) -> Line:
    """Return a setting that a series publishes, with the distance of the batch from that point."""
    far = _far(batch, curve)
    return Line(setting, value, why, far.distance, curve.name, **{"extrapolated": far.extrapolated, **marks})


def _rates(q: Question) -> Iterator[Line]:
    """Yield the learning rate; its growth in each series since the reference, or the rates of other series."""
    whose = (
        q.followed_curve.name if q.followed_curve else "yours" if not q.reference_decay else "√(lr·λ) of your AdamW run"
    )
    far, series = (_far(q.batch, q.followed_curve), whose) if q.followed_curve else (_from_yours(q), "")
    scaled = q.batch != q.anchor.batch
    why = f"{whose}, {format_number(q.anchor.lr)} at batch {q.anchor.batch:,}" + f", by the {q.rule} rule" * scaled
    beyond = far.extrapolated or (scaled and q.rule == "linear")  # no published series follows it
    yield Line("learning rate", format_number(q.lr), why, far.distance, series, beyond)
    for curve in q.curves:
        near, before = curve.nearest(q.batch), curve.nearest(q.anchor.batch)
        if q.reference is not None and before is not near:
            grown = near.lr / before.lr
            why = f"yours × {format_number(grown)}, as there from batch {before.batch:,} to {near.batch:,}"
            yield _line(
                curve, q.batch, f"as {curve.name}", format_number(q.reference.lr * grown), why, alternative=True
            )
        elif q.reference is None and curve is not q.followed_curve:
            why, marks = f"not scaled, at batch {near.batch:,}", {"alternative": True, "extrapolated": False}
            yield _line(curve, q.batch, curve.name, format_number(near.lr), why, **marks)


def _warmup(q: Question, steps: int | None) -> tuple[float | None, Line]:
    """Return the warm-up: the same number of steps at every batch, so a fraction of the run that grows with it.

    The user's run is assumed to start from scratch.
    """
    fitting = [one for one in (q.curve, *q.curves) if one and (one.from_scratch or q.reference is None)]
    if q.reference is not None and q.reference.warmup is not None:
        point, whose, series, far, ending = q.reference, "your", "", _from_yours(q), ""
    elif fitting:
        series, point, far = fitting[0].name, fitting[0].nearest(q.batch), _far(q.batch, fitting[0])
        whose, ending = f"{series}'s", "" if fitting[0].from_scratch else "; it starts from a checkpoint"
    else:
        return None, Line("warm-up", "keep yours", "give your warm-up, and it is scaled", "nothing published")
    wanted = (point.warmup or 0.0) * (q.batch / point.batch)
    share = min(wanted, LONGEST_WARMUP)
    why = "as many steps as " * (q.batch != point.batch)
    why += f"{whose} {format_percent(point.warmup or 0.0)} of the run at batch {point.batch:,}"
    why += f", but not more than the longest published, {format_percent(LONGEST_WARMUP)}" * (share < wanted)
    why += f"; here {round(share * steps):,} steps" if steps else ""
    return share, Line(
        "warm-up", format_percent(share), why + ending, far.distance, series, far.extrapolated or share < wanted
    )


def _decay(series: Curve | None, batch: int) -> Iterator[Line]:
    """Yield the decay after the warm-up in the cited series."""
    if series is not None and series.power is not None:
        value, why = f"polynomial of power {series.power:g} to {series.end:g}", f"{series.name}, after the warm-up"
        yield _line(series, batch, "decay of the rate", value, why, extrapolated=False)


def _kept(q: Question) -> Iterator[Line]:
    """Yield the settings that no rule scales: the nearest published run's, or yours with their changes in the
    series.
    """
    if q.reference_decay is not None:
        yield Line("keep norm", "True", "in place of weight decay", "nothing published by batch")
    elif q.curve is not None:
        series, near = q.curve.name, q.curve.nearest(q.batch)
        before = q.curve.nearest(q.reference.batch) if q.reference else near
        for setting in q.unscaled_options:
            value, was = _shown(getattr(near, setting)), _shown(getattr(before, setting))
            mine, marks = "keep yours", {"extrapolated": False}
            if not value:
                why = f"{series} does not say"
            elif q.reference is None:
                mine, why, marks = value, f"{series}, at batch {near.batch:,}", {}
            elif value == was:
                why = f"{series} kept {value}"
            else:
                why = f"or do as {series}, which went from {was} at batch {before.batch:,} to {value} at {near.batch:,}"
            yield _line(q.curve, q.batch, setting.replace("_", " "), mine, why, **marks)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return "/".join(map(_shown, value)) if isinstance(value, tuple) else format_number(value, 6)


def _notes(q: Question, betas: tuple[float, float] | None, steps: int | None) -> Iterator[str]:
    b2 = (betas or Lamb().betas)[1]
    if q.followed_curve is not None:
        yield OF_ITS_TASK
        if q.followed_curve.exempt:
            yield f"{q.followed_curve.name}: {EXEMPT}"
        if not q.followed_curve.from_scratch:
            yield f"{q.followed_curve.name}: {FROM_CHECKPOINT}"
    if q.has_option("betas") and steps is not None and steps * (1 - b2) < 1:
        yield f"beta2 = {b2:g} averages over about {1 / (1 - b2):,.0f} steps, and the run has {steps:,}"
    if q.rule == "linear":
        yield LINEAR
    if q.reference_decay is not None:
        yield KEPT_NORM
    yield MATCHED if q.curves else BORROWED


def _sources(q: Question, lines: Sequence[Line]) -> Iterator[str]:
    yield LEGW
    if q.reference_decay is not None:
        yield ANGLE
    named = {line.series for line in lines}
    yield from (f"{one.name}: {one.task}; {one.source}" for one in q.curves if one.name in named)
