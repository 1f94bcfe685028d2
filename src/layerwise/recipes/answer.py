"""The answer to a question: one point to start from, and one rule to scale it."""

from __future__ import annotations

from typing import Any, Literal

from layerwise import schedules
from layerwise.recipes import lines
from layerwise.recipes.advice import Recommendation
from layerwise.recipes.points import Point
from layerwise.recipes.question import Question


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
    kept = q.anchor if q.reference is None else Point(q.batch, q.reference.lr, None)
    steps = None if q.total_samples is None else schedules.samples(q.total_samples, batch=q.batch)
    warmup = lines.warmup(q, steps)
    shown = (*lines.rates(q), warmup.line, *lines.decay(q), *lines.kept(q), *lines.cost(q))
    series = None if q.reference else q.series
    return Recommendation(
        q.optimizer,
        q.batch,
        q.scaled(q.rule),
        warmup.share,
        kept.betas,
        kept.momentum,
        kept.weight_decay,
        steps,
        shown,
        notes=tuple(lines.notes(q, kept, steps)),
        sources=tuple(lines.sources(q, shown)),
        keep_norm=None if q.reference_decay is None else True,
        run="" if series is None else f"{series.name}: {series.task}",
        power=None if series is None else series.power,
        end=0.0 if series is None else series.end,
        yours=q.yours,
    )
