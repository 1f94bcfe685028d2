"""Arguments of each API besides the options of a formula. They are the same for all of its optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

V = TypeVar("V")
ByName = Mapping[str, V] | Callable[[str], V | None]
"""Values by name: a mapping, whose keys may be patterns such as "*.bias", or a function of the name. The default
applies if a mapping has no key for a name, or if the function returns None.
"""
StateDtype = Literal["float32", "bfloat16", "int8"]
"""The storage of a part of the state: in the dtype of the arithmetic, in 16 bits, or in 8 bits with a scale for every
64 numbers.
"""

# PyTorch's own arguments, with their defaults.
TORCH: dict[str, Any] = {
    "blocks": None,
    "master_weights": False,
    "rounding": None,
    "state_dtype": None,
    "seed": 0,
    "skip_nonfinite": False,
    "model_group": None,
    "replica_group": None,
    "differentiable": False,
    "capturable": False,
    "fused": None,
    "foreach": None,
    "offload": False,
}
PROCESSES = ("model_group", "replica_group")  # the process groups among them
# Arguments that a parameter group may set for itself.
OF_GROUP = ("master_weights", "rounding", "state_dtype", "seed", "differentiable", "capturable", "blocks")
# Keras's own arguments; Keras handles them before or after the rule.
KERAS = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
    "name",
)
# Arguments that a parameter group of Paddle may set for itself, besides options.
OF_PADDLE_GROUP = ("params", "learning_rate", "weight_decay", "grad_clip", "exclude_from_weight_decay_fn", "name")
