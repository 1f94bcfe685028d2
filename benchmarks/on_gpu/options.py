"""The option sets whose steps are compared with the rule's: each option away from its default, and some together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Options = dict[str, Any]

# Rates so large that what a step moves is far above what is lost by rounding.
USUAL: dict[str, Options] = {
    "Lamb": {"lr": 0.2, "weight_decay": 0.1},
    "Lars": {"lr": 1.0, "weight_decay": 0.1, "trust_coefficient": 0.2},
    "Adafactor": {"lr": 0.2, "weight_decay": 0.1, "scale_parameter": True},
}
GRADIENT: list[Options] = [
    {"max_grad_norm": 0.5},
    {"max_grad_norm_per_tensor": 0.3},
    {"max_grad_value": 0.4},
    {"maximize": True},
]
OTHERS: dict[str, list[Options]] = {
    "Lamb": [
        {"weight_decay": 0.0},
        {"betas": (0.5, 0.9)},
        {"betas": (0.0, 0.9)},
        {"eps": 1e-2},
        {"eps_root": 1e-3},
        {"bias_correction": False},
        {"bias_correction": "lr"},
        {"decay": "decoupled"},
        {"decay": "l2"},
        {"adapt": False},
        {"adapt": "decayed"},
        {"adapt": "decayed", "weight_decay": 0.0},
        {"trust_clip": (0.5, 1.5)},
        {"trust_clip": (None, 0.9)},
        {"max_weight_norm": 0.5},
        {"grad_averaging": False},
        {"zero_norm_ratio": 0.3},
        *GRADIENT,
        {"decay": "decoupled", "bias_correction": "lr", "max_grad_norm": 0.5, "grad_averaging": False},
    ],
    "Lars": [
        {"weight_decay": 0.0},
        {"momentum": 0.0},
        {"eps": 0.1},
        {"nesterov": True},
        {"dampening": 0.4},
        {"norm": "decayed"},
        {"lr_in_momentum": False},
        {"adapt": False},
        {"adapt": "decayed", "weight_decay": 0.0},
        {"trust_clip": (0.5, 1.5)},
        {"trust_clip": (0, 1)},
        {"zero_norm_ratio": 0.3},
        *GRADIENT,
        {"norm": "decayed", "nesterov": True, "lr_in_momentum": False, "max_grad_norm": 0.5},
    ],
    "Adafactor": [
        {"lr": None},
        {"lr": None, "warmup_init": True, "lr_cap": 0.8},
        {"scale_parameter": False},
        {"weight_decay": 0.0},
        {"eps": (1e-3, 0.5)},
        {"eps": (1e-3, 1e-3), "eps_mode": "clamp"},
        {"clip_threshold": None},
        {"clip_threshold": 0.5},
        {"beta2_decay": -0.5},
        {"beta2_cap": 0.3},
        {"decay_offset": 2},
        {"beta1": 0.9},
        {"beta1": 0.9, "lr_in_momentum": False},
        {"decay_scale": "step"},
        {"decay_scale": "none"},
        {"factored": "largest"},
        {"factored": "matrix"},
        {"factored": False},
        {"min_dim_size_to_factor": 4},
        *GRADIENT,
        {"lr": None, "beta1": 0.9, "factored": "largest", "decay_scale": "step", "max_grad_norm": 0.5},
    ],
}


@dataclass(frozen=True)
class Variant:
    """A way to make an optimizer and to step it."""

    optimizer: str
    given: Options = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    lr_on_device: bool = False
    scaled: float | None = None  # gradients, by a GradScaler

    @property
    def options(self) -> Options:
        return {**USUAL[self.optimizer], **self.given}

    def __str__(self) -> str:
        said = [f"{key}={value!r}" for key, value in self.given.items()] or ["as usual"]
        said += ["lr on the device"] * self.lr_on_device
        said += [] if self.scaled is None else [f"gradients times {self.scaled:g}"]
        return f"{self.optimizer}, {str(self.dtype).removeprefix('torch.')}: {', '.join(said)}"


def variants(optimizer: str, others: Mapping[str, list[Options]] = OTHERS) -> Iterator[Variant]:
    """All but the usual one."""
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        yield Variant(optimizer, dtype=dtype)
    yield Variant(optimizer, {"master_weights": True}, torch.bfloat16)
    yield Variant(optimizer, {"capturable": True})
    yield Variant(optimizer, {"capturable": True}, lr_on_device=True)
    yield Variant(optimizer, scaled=8.0)
    yield Variant(optimizer, {"blocks": {"stack": "each"}})
    for given in others[optimizer]:
        yield Variant(optimizer, given)
