"""The question, checked like hyperparameters and with the same messages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from layerwise.catalog.registry import BY_LOWER, ENTRIES
from layerwise.errors import ContradictionError
from layerwise.options.checks import NONE, Check, Checked, Contradiction, RefusedValue, integer, number, one_of, option
from layerwise.recipes.points import CURVES, Curve, Point

EXPONENTS = {"sqrt": 0.5, "linear": 1.0}
KEPT = ("betas", "momentum", "weight_decay")  # settings that no rule scales
FEWEST = 10  # the number of steps below which a warm-up and a decay do not fit
ABOVE_0, SHARE = number(0, above=True), number(0, 1)
WHOLE_RUN = "Pass the number of samples in the run: epochs times the size of the data set."
BATCH = "Pass the number of samples per step, over all devices and micro-batches."


def _optimizer(value: object) -> str:
    name = getattr(value, "__name__", value)  # a class or function of an API, or its name
    if not isinstance(name, str) or name.lower() not in BY_LOWER:
        raise RefusedValue
    return BY_LOWER[name.lower()]


def _samples(value: object) -> float | None:
    found = (ABOVE_0 | NONE).convert(value)
    return int(found) if found is not None and not found % 1 else found  # as an error shows it


@dataclass(frozen=True)
class Question(Checked):
    optimizer: str = option(
        None,
        Check(f"one of {', '.join(ENTRIES)}", _optimizer),
        "Pass its name or its class.",
    )
    batch: int = option(None, integer(1), BATCH)
    reference_batch: int | None = option(None, integer(1) | NONE, BATCH)
    reference_lr: float | None = option(None, ABOVE_0 | NONE, "Pass the best learning rate at reference_batch.")
    reference_warmup: float | None = option(
        None, SHARE | NONE, "Pass the fraction of the run that was warm-up, such as 0.05."
    )
    reference_decay: float | None = option(
        None,
        ABOVE_0 | NONE,
        "Pass the decoupled weight decay of an AdamW run at reference_lr, which LAMB with keep_norm should match.",
    )
    total_samples: float | None = option(None, Check("a finite number > 0 or None", _samples), WHOLE_RUN)
    like: str | None = option(
        None,
        one_of(*(curve.name for curve in CURVES), None),
        "Pass the name of a published series; layerwise.recipes.CURVES lists them.",
    )
    rule: Literal["sqrt", "linear"] = option("sqrt", one_of(*EXPONENTS), 'Pass "sqrt" unless you know better.')

    def __post_init__(self) -> None:
        super().__post_init__()
        if problem := next(self._incomplete(), None):
            raise ContradictionError(problem)

    def _incomplete(self) -> Iterator[str]:
        """Yield what is given without what it belongs to. Arguments are in backticks, which the command replaces by
        its options.
        """
        whose = self.optimizer
        alone = self.reference_batch is None and self.reference_lr is None
        if self.reference_batch is None and not alone:
            yield "`reference_lr` needs the batch that it was tuned at. Pass `reference_batch`, such as 256."
        if self.reference_lr is None and not alone:
            yield "`reference_batch` needs a learning rate that was tuned at that batch. Pass `reference_lr`."
        for name in ("reference_warmup", "reference_decay"):
            if alone and getattr(self, name) is not None:
                yield f"`{name}` belongs to a run of yours. Pass its `reference_batch` and `reference_lr` too."
        if alone and not self.curves:
            yield (
                f"no settings of {whose} by batch size are published, so only yours can be scaled. Pass "
                "`reference_batch` and `reference_lr`, of a run of yours."
            )
        if self.reference_decay is not None and not (self.has_option("keep_norm") and self.has_option("betas")):
            yield f"`reference_decay` is of AdamW, whose steps {whose}'s are not like. Use Lamb, or leave it out."

    def contradictions(self) -> Iterator[Contradiction]:
        whose = self.optimizer
        fewest = f"at least {FEWEST * self.batch:,}, {FEWEST} steps of batch {self.batch:,}"
        series = " or ".join(repr(curve.name) for curve in self.curves) or "None"
        named = next((curve for curve in CURVES if curve.name == self.like), None)
        yield (self.total_samples or math.inf) < FEWEST * self.batch, "total_samples", fewest, WHOLE_RUN
        if named is not None:
            yield named.optimizer != whose, "like", f"{series} for {whose}", f"That series is of {named.optimizer}."

    def has_option(self, setting: str) -> bool:
        return any(spec.name == setting for spec in fields(ENTRIES[self.optimizer].hyper))

    @property
    def unscaled_options(self) -> tuple[str, ...]:
        """The settings of the optimizer that no rule scales."""
        return tuple(filter(self.has_option, KEPT))

    @property
    def yours(self) -> tuple[str, ...]:
        """The settings that stay as in the user's run; a kept norm replaces decay."""
        if self.reference is None:
            return ()
        return tuple(one for one in self.unscaled_options if self.reference_decay is None or one != "weight_decay")

    @property
    def curves(self) -> tuple[Curve, ...]:
        return tuple(curve for curve in CURVES if curve.optimizer == self.optimizer)

    @property
    def curve(self) -> Curve | None:
        """The published series to use: the named one, or the first."""
        return next((curve for curve in self.curves if self.like in (None, curve.name)), None)

    @property
    def followed_curve(self) -> Curve | None:
        """The series whose run is the answer, if the user has none."""
        return None if self.reference else self.curve

    @property
    def reference(self) -> Point | None:
        if self.reference_batch is None or self.reference_lr is None:
            return None
        lr = self.reference_lr if self.reference_decay is None else math.sqrt(self.reference_lr * self.reference_decay)
        return Point(self.reference_batch, lr, self.reference_warmup)

    @property
    def anchor(self) -> Point:
        """The point to scale: the user's own, or the nearest published one."""
        if self.reference is not None:
            return self.reference
        assert self.curve is not None  # noqa: S101  `contradictions` has seen to it
        return self.curve.nearest(self.batch)

    @property
    def lr(self) -> float:
        """The anchor's learning rate, scaled to the batch."""
        return float(self.anchor.lr * (self.batch / self.anchor.batch) ** EXPONENTS[self.rule])
