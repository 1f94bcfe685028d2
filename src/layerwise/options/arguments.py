"""The arguments of each API beside the options of a formula: they are the same for all its optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

V = TypeVar("V")
ByName = Mapping[str, V] | Callable[[str], V | None]
"""Values by name: a mapping, whose keys may be patterns such as "*.bias", or a function of the name. The default counts
where a mapping has no key for a name, or the function returns None."""
StateDtype = Literal["float32", "bfloat16", "int8"]
"""The storage of a part of the state: as it is computed, in 16 bits, or in 8 bits with a scale for each 64 numbers."""

# Of PyTorch, with their defaults.
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
PROCESSES = ("model_group", "replica_group")  # of them, the process groups
# What a parameter group may say for itself.
OF_GROUP = ("master_weights", "rounding", "state_dtype", "seed", "differentiable", "capturable", "blocks")
# What Keras does itself, before the gradient comes to a rule or after it.
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
# What a parameter group of Paddle may say for itself, besides options.
OF_PADDLE_GROUP = ("params", "learning_rate", "weight_decay", "grad_clip", "exclude_from_weight_decay_fn", "name")
