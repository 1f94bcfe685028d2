"""The optimizers under test, one row each: everything that tests of all of them go through."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import reference

from layerwise import hyper, numpy, rules

Options = dict[str, Any]

GRADIENT = {
    "max_grad_norm": (None, 0.5),
    "max_grad_norm_per_tensor": (None, 0.3),
    "max_grad_value": (None, 0.4),
    "maximize": (False, True),
}
LAMB = {
    "lr": (0.1, 0.01),
    "betas": ((0.9, 0.999), (0.0, 0.5), (0.5, 0.0)),
    "eps": (1e-6, 1e-2),
    "weight_decay": (0.0, 0.1),
    "eps_root": (0.0, 1e-3),
    "bias_correction": (True, False, "lr"),
    "decay": ("ratio", "decoupled", "l2"),
    "adapt": (True, False, "decayed"),
    "trust_clip": (None, (0.5, 1.5), (None, 0.9), (1.2, None)),
    "max_weight_norm": (None, 0.5),
    "grad_averaging": (True, False),
    "zero_norm_ratio": (1.0, 0.3),
    **GRADIENT,
}
LARS = {
    "lr": (0.1, 1.0),
    "momentum": (0.9, 0.0),
    "weight_decay": (0.0, 0.1),
    "trust_coefficient": (1e-3, 0.5),
    "eps": (0.0, 0.1),
    "nesterov": (False, True),
    "dampening": (0.0, 0.4),
    "norm": ("split", "decayed"),
    "lr_in_momentum": (True, False),
    "adapt": (True, False, "decayed"),
    "trust_clip": (None, (0.5, 1.5), (None, 0.9)),
    "zero_norm_ratio": (1.0, 0.3),
    **GRADIENT,
}
ADAFACTOR = {
    "lr": (None, 0.1),
    "eps": ((1e-30, 1e-3), (1e-3, 0.5), (None, 1e-3)),
    "eps_mode": ("add", "clamp"),
    "clip_threshold": (1.0, None, 0.5, 2.0),
    "beta2_decay": (-0.8, -0.5),
    "beta2_cap": (None, 0.3),
    "decay_offset": (0, 2),
    "beta1": (None, 0.9),
    "lr_in_momentum": (True, False),
    "weight_decay": (0.0, 0.1),
    "decay_scale": ("lr", "step", "none"),
    "scale_parameter": (None, True, False),
    "relative_step": (None, "factor", "cap"),
    "lr_cap": (1e-2, 0.8),  # 0.8 is above 1/√t from the second step on
    "warmup_init": (False, True),
    "factored": ("last", "largest", "matrix", False, (0, 1), (-1, 0), ((0,), (1, 2))),
    "min_dim_size_to_factor": (0, 4),
    "momentum_dtype": (None,),  # how it is stored concerns a front, not the rule
    **GRADIENT,
}


def _as_is(options: Options) -> Options:
    return options


def _consistent_lars(options: Options) -> Options:
    if options["nesterov"]:
        return {**options, "momentum": options["momentum"] or 0.9, "dampening": 0.0}
    return options


def _consistent_adafactor(options: Options) -> Options:
    relative = options["lr"] is None or options["relative_step"] is not None
    return {**options, "warmup_init": options["warmup_init"] and relative}


@dataclass(frozen=True)
class Case:
    """One optimizer: its rule, hyperparameters and reference, and values for each of its options, a usual one first."""

    hyper: type[Any]
    rule: ModuleType
    reference: type[Any]
    numpy: type[Any]
    options: dict[str, tuple[Any, ...]]
    consistent: Callable[[Options], Options] = _as_is
    smooth: Options = field(default_factory=dict)  # options under which a step has a derivative also at zero

    @property
    def name(self) -> str:
        return self.hyper.__name__

    def usual(self) -> Options:
        return {name: values[0] for name, values in self.options.items()}

    def drawn(self, seed: int) -> Options:
        """Options drawn at random: each at its usual value half of the time, so that draws stay unlike one another."""
        draw = random.Random(f"{self.name} {seed}")
        return self.consistent(
            {name: values[0] if draw.random() < 0.5 else draw.choice(values) for name, values in self.options.items()}
        )


CASES = [
    Case(hyper.Lamb, rules.lamb, reference.Lamb, numpy.Lamb, LAMB, smooth={"eps_root": 1e-8}),
    Case(hyper.Lars, rules.lars, reference.Lars, numpy.Lars, LARS, _consistent_lars),
    Case(
        hyper.Adafactor,
        rules.adafactor,
        reference.Adafactor,
        numpy.Adafactor,
        ADAFACTOR,
        _consistent_adafactor,
        smooth={"eps": (1e-8, 1e-3)},
    ),
]
