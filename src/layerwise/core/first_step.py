"""Warnings at a tensor's first step about runs that cannot work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from layerwise.catalog.hidden_matrices import warn_of_nonhidden
from layerwise.engines import Stats
from layerwise.engines.measurements import has_trust_ratio
from layerwise.errors import warn
from layerwise.options.by_name import Name
from layerwise.options.settings import Hyper

# A step of this fraction of an epsilon moves three in ten of normally distributed 16-bit weights; the others lie more
# than two steps away from where they would be rounded to the next number.
LEAST = 1 / 7
SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


class FirstStep(NamedTuple):
    """The first step of a tensor."""

    name: Name
    h: Hyper
    measured: Stats
    weight_decay: float
    peak: float | None = None  # of the learning rate, as far as it is known
    # The dtype of 16-bit weights that are rounded to nearest, without a remainder.
    rounded_to: str | None = None
    misplaced: bool = False  # True if it is not a hidden matrix, but its rule is for these
    is_whole: bool = False  # a matrix that the rule should step in blocks

    @property
    def has_ratio(self) -> bool:
        """True if the step had a measured trust ratio."""
        return has_trust_ratio(self.h, self.weight_decay) and "weight_norm" in self.measured

    @property
    def starts_at_zero(self) -> bool:
        """True if the ratio keeps the tensor, or one of its blocks, at zero."""
        h: Any = self.h
        if not self.has_ratio or h.min_norm or (h.trust_clip is not None and h.trust_clip[0]):
            return False
        return bool(np.any(np.asarray(self.measured["weight_norm"]) == 0))

    @property
    def step_fraction(self) -> float:
        """The length of a step at the peak rate, as the largest fraction of a block's norm."""
        if (whole := self.h.step_per_lr) is not None:
            return whole * self.peak if self.peak else np.nan
        norm, length = (np.asarray(self.measured[key]) for key in ("weight_norm", "update_norm"))
        with np.errstate(all="ignore"):
            moved = np.asarray(self.measured["trust_ratio"]) * length / norm / (1 - getattr(self.h, "momentum", 0.0))
        return float(np.max(moved) * self.peak) if self.peak else np.nan

    @property
    def rate_is_too_high(self) -> bool:
        """True if the step has no trust ratio, but the rate is one for steps with a ratio."""
        exempt = not has_trust_ratio(self.h, self.weight_decay)
        return exempt and self.peak is not None and self.peak >= self.h.large_without_ratio

    @property
    def warns_once(self) -> bool:
        """True if one warning covers all such tensors of a run."""
        return self.rate_is_too_high or self.is_whole

    @property
    def stalls(self) -> bool:
        """True if rounding loses the step of nearly all weights."""
        if self.rounded_to not in SPACING or not self.has_ratio:
            return False
        return 0 < self.step_fraction < LEAST * SPACING[self.rounded_to]


class WaysOut(NamedTuple):
    """An API's ways out, for tensors that stay at zero, tensors whose steps rounding loses, tensors without a ratio
    whose steps are too long, tensors that are not hidden matrices, and tensors without blocks.
    """

    exempt: str
    finer: str = ""
    slower: str = ""
    others: str = ""
    blocks: str = ""


def warn_of_first_steps(firsts: Sequence[FirstStep], ways_out: WaysOut) -> None:
    """Warn about tensors that will hardly move, or move too far."""
    exempt, finer, slower, others, blocks = ways_out
    if odd := [one for one in firsts if one.misplaced]:
        warn_of_nonhidden(odd[0].h.optimizer, [one.name for one in odd], others)
    if whole := [one for one in firsts if one.is_whole]:
        name, one_each = whole[0].h.optimizer, "one learning rate for all weights of each of these tensors"
        warn(f"{name} has {one_each}, which tends to cost accuracy: {_few(whole)}. {blocks}")
    if fast := [one for one in firsts if one.rate_is_too_high]:
        rate, large = max(one.peak or 0.0 for one in fast), fast[0].h.large_without_ratio
        warn(
            f"steps of {_few(fast)} have no trust ratio. Without a ratio, training tends to diverge from "
            f"lr={large:g} on, and lr is {rate:g}. {slower}"
        )
    zeros = [one for one in firsts if one.starts_at_zero]
    # Those that may be exempt from the ratio, and those that should keep it.
    for zero in filter(None, ([one for one in zeros if bool(one.h.of_small) is keeps] for keeps in (False, True))):
        kept = ", ".join(f"{name}={value}" for name, value in zero[0].h.of_small.items())
        way_out = f"Pass {kept} for them: it is the lower bound of the norm." if kept else exempt
        warn(
            f"{_few(zero)} began at zero, and will hardly move: with a trust ratio each step is a fraction of "
            f"the tensor's norm. {way_out}",
        )
    if still := [one for one in firsts if one.stalls]:
        first = still[0]
        warn(
            f"most weights of {_few(still)} will not move as long as lr is at most {first.peak:g}: a step of "
            f"{first.name} is then {100 * first.step_fraction:.2g} % of its norm, and rounding to {first.rounded_to} "
            f"loses it. {finer}",
        )


def _few(firsts: Sequence[FirstStep]) -> str:
    found = [str(one.name) for one in firsts]
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
