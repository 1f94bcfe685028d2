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
    """Return settings for `optimizer`, a name or class, at `batch`: print them, or pass on their kwargs().

    With a reference, the learning rate that was good at another batch is scaled, and so is its warm-up (a share of the
    run); betas, momentum and weight decay stay yours. Without one the nearest run of the published series `like` is
    taken and scaled. `total_samples` makes steps of shares. With `reference_decay` the reference is an AdamW run with
    that weight decay, and the answer LAMB with `keep_norm`, whose learning rate is √(lr·λ) of it.
    """
    q = Question(
        optimizer, batch, reference_batch, reference_lr, reference_warmup, reference_decay, total_samples, like, rule
    )
    kept = q.anchor if q.reference is None else Point(q.batch, q.reference.lr, None)
    steps = None if q.total_samples is None else schedules.samples(q.total_samples, batch=q.batch)
    warmup = lines.warmup(q, steps)
    shown = (*lines.rates(q), warmup.line, *lines.kept(q), *lines.cost(q))
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
    )
