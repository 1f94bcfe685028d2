"""The row of an optimizer in the table that tests of all optimizers go through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Options = dict[str, Any]
World = Any  # a namespace of rules and drivers, the installed ones or a mutant's; see tests/oracles.py

# Values of the options that rules share, a usual one first.
SHARED: dict[str, tuple[Any, ...]] = {
    "adapt": (True, False, "decayed"),
    "trust_clip": (None, (0.5, 1.5), (None, 0.9), (1.2, None)),
    "zero_norm_ratio": (1.0, 0.3),
    "min_norm": (0.0, 1.2),
    "l2": (0.0, 0.3),
    "max_grad_norm": (None, 0.5, 8.0),
    "max_grad_norm_per_tensor": (None, 0.3),
    "max_grad_value": (None, 0.4, (-0.1, 0.5), (None, 0.3), (0.05, None)),
    "maximize": (False, True),
    "caution": (False, True),
    "keep_norm": (False, True, "first"),
    "radial": (None, 0.0, 0.6),
}


def unchanged(options: Options) -> Options:
    return options


def floor_below_bound(options: Options) -> Options:
    """Return the options without a floor under both norms that is above the bound of the weights'."""
    too_high = options["max_weight_norm"] is not None and options["min_norm"] > options["max_weight_norm"]
    return {**options, "min_norm": 0.0} if too_high else options


def one_hold_of_norm(options: Options) -> Options:
    """Return the options without a brake of the norm if they keep it."""
    return {**options, "radial": None} if options["keep_norm"] else options


@dataclass(frozen=True)
class Case:
    """All that tests know of one optimizer and cannot ask its rule.

    Args:
        reference: The paper's algorithm in float64, element by element, written without looking at the rule.
        options: Values of every option of its own, a usual one first; `SHARED` has those of the others.
        busy: Options under which every part of its state matters.
        vectors: Holds the rule against numbers that other implementations or a calculation by hand gave.
        properties: Holds the rule against what the theory says of every step.
        limits: Holds the rule against an optimizer that it becomes under some options; None if there is none.
        consistent: Options drawn at random, made free of contradictions.
        measured: Options under which a first step is as long as lr·trust_ratio·update_norm says; None if none is.
        relative: Options under which a step of any direction is lr times as long as the weights.
        by_ratio: Whether a step is by a ratio that is no option.
        jumps: Whether a step jumps where a number changes its sign.
        whole: Options under which every part of its state is as large as the parameter.
        fixed: Options that a run cannot change alone: they decide what state there is, or go with others.
        smooth: Options under which a step has a derivative also at zero.
        learns_at: A learning rate, with the busy options, at which a small network learns.
        magnifies: By how much more than other optimizers it magnifies rounding to float32.
        shows_with: By option, or (option, value), options beside which it shows, where it does not show alone.
    """

    reference: type[Any]
    options: dict[str, tuple[Any, ...]]
    busy: Options
    vectors: Callable[[World], None]
    properties: Callable[[World], None]
    limits: Callable[[World], None] | None = None
    consistent: Callable[[Options], Options] = unchanged
    measured: Options | None = field(default_factory=dict)
    relative: Options = field(default_factory=dict)
    by_ratio: bool = False
    jumps: bool = False
    whole: Options = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    smooth: Options = field(default_factory=dict)
    learns_at: float = 0.02
    magnifies: float = 1.0
    shows_with: dict[Any, Options] = field(default_factory=dict)
