"""The arguments of each front beside the options of a formula: they are the same for all its optimizers.

Signatures and docstrings of the fronts are generated from these and from the options that rules declare.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from layerwise.hyper import Hyper


class Argument(NamedTuple):
    """An argument of a front: its name, its type and default as source, and its meaning in one sentence."""

    name: str
    type: str
    default: str
    means: str
    unless: str = ""  # an option: a rule that has it takes this argument in its place
    only_with: str = ""  # an option: only rules that have it take this argument


SKIPS = "Leave out a step whose gradients hold nan or inf, and count it in `skipped`."
JAX_MASK = (
    "The parameters that decay: a tree of booleans, a prefix of it, or a function of the parameters that returns one."
)

# How weights and state are stored, the same in all fronts.
STORAGE = (
    Argument(
        "master_weights",
        'bool | Literal["split", "split24"]',
        "False",
        "Hold more of bfloat16 and float16 weights than they show: a float32 copy (True), or beside each weight the 16 "
        'bits ("split") or the 8 bits ("split24") that it lacks.',
    ),
    Argument(
        "rounding",
        'Literal["nearest", "stochastic"] | None',
        "None",
        'How 16-bit weights and state are rounded; None is "nearest" for weights and "stochastic" for state that '
        "`state_dtype` or a checkpoint has in bfloat16.",
    ),
    Argument(
        "state_dtype",
        "StateDtype | Mapping[str, StateDtype] | None",
        "None",
        'How the state is stored: "float32", "bfloat16" or "int8" (8 bits in groups of 64), or a mapping from its '
        "names; None is as the arithmetic has it, or as a checkpoint brought it.",
    ),
    Argument("seed", "int", "0", "The seed of stochastic rounding, the same on all processes."),
)

TORCH = (
    Argument(
        "blocks",
        "BlocksByName | None",
        "None",
        "What counts as a layer within a parameter: blocks by name or pattern, such as {'*.qkv.weight': 3}; it needs "
        "named_parameters().",
    ),
    *STORAGE,
    Argument("skip_nonfinite", "bool", "False", SKIPS),
    Argument(
        "model_group",
        "ProcessGroup | None",
        "None",
        "Processes that have other tensors of the same model, as in a pipeline; they clip and skip together.",
    ),
    Argument(
        "reproducible",
        "bool",
        "False",
        "Take steps whose bits depend neither on the number of processes nor on how tensors are cut, by exact sums.",
    ),
    Argument("differentiable", "bool", "False", "Let autograd differentiate through the step, as in torch.optim."),
    Argument("capturable", "bool", "False", "Allow the step to be captured in a CUDA graph, as in torch.optim."),
    Argument(
        "fused",
        "bool | None",
        "None",
        "True insists on an engine with kernels, False uses PyTorch operations, and None takes the fastest available.",
    ),
)
# What a parameter group may say for itself.
OF_GROUP = ("master_weights", "rounding", "state_dtype", "seed", "differentiable", "capturable")

NUMPY = (
    Argument("lr_scale", "float | ByName[float] | None", "None", "Factor on lr, the same for all names or by name."),
    Argument(
        "decay",
        "ByName[bool | float] | None",
        "None",
        "Switch weight_decay on or off by name, or multiply it by a number.",
        unless="decay",
    ),
    Argument(
        "blocks", "Split | ByName[Split] | None", "None", "What counts as a layer within an array, the same or by name."
    ),
    Argument("skip_nonfinite", "bool", "False", SKIPS),
    *STORAGE,
    Argument("shared_count", "bool", "False", "Count steps once for all names instead of once for each."),
    Argument("engine", "str | None", "None", 'Engine to use: "rule" declines kernels, and None takes the fastest.'),
)
# Options that the NumPy front also takes by name.
BY_NAME = {
    "adapt": "Adapt | ByName[Adapt]",
    "decay": "{type} | ByName[bool | float | str]",
    "l2": "float | ByName[float]",
}

JAX = (
    Argument(
        "trust_ratio_mask",
        "ByLeaf",
        "None",
        "The parameters that have a trust ratio, given as the mask of weight decay is.",
        only_with="adapt",
    ),
    Argument("blocks", "ByLeaf", "None", "What counts as a layer within a leaf, given as the masks are."),
    *STORAGE[:-1],
    STORAGE[-1]._replace(
        type="int | None",
        default="None",
        means="The seed of stochastic rounding, known when a step is traced; None is 0.",
    ),
    Argument("stats", "bool", "False", "Keep what each step measures in the state, for `layerwise.jax.stats`."),
    Argument(
        "axis_name",
        "str | tuple[str, ...] | None",
        "None",
        "Under shard_map, the axes of the mesh that cut parameters.",
    ),
    Argument("specs", "ByLeaf", "None", "Under shard_map, which dimensions of each parameter are cut."),
)

# Arguments that take more in optax's form, or something else, than the option takes; `layerwise.jax` checks them.
OWN_FORM: dict[str, tuple[Argument, ...]] = {
    "Adafactor": (
        Argument(
            "learning_rate",
            "Rate | None",
            "None",
            "Learning rate; None is 1, or with relative_step=True or None the relative step of the paper. It may be a "
            "function of the step.",
        ),
        Argument("decay_rate", "Number", "0.8", "The decay rate of the second moment is 1 - t**-decay_rate at step t."),
        Argument(
            "weight_decay_rate",
            "Rate | None",
            "None",
            "Weight decay λ; None is 0. It may be a function of the step.",
        ),
        Argument(
            "eps",
            "Number | tuple[Number | None, Number]",
            "1e-30",
            "The number added to the squared gradient, or a pair of it and of the least root mean square that weights "
            "count with.",
        ),
        Argument(
            "factored",
            "Any",
            "True",
            'Which dimensions are rows and columns: the two largest (True, "largest"), the last two ("last"), those of '
            'matrices only ("matrix"), two dimensions or groups of them, or none (False).',
        ),
    ),
    "SGD": (Argument("momentum", "Number | None", "None", "Decay rate of the momentum buffer; None or 0 keeps none."),),
}


def optax_names(h: type[Hyper]) -> dict[str, str]:
    """Return by option the name of its argument in optax, where that is another."""
    return {one.name: one.metadata["optax"] for one in fields(h) if isinstance(one.metadata["optax"], str)}


def optax_pairs(h: type[Hyper]) -> dict[str, tuple[str, str]]:
    """Return by option the names of the two arguments of optax that make it up."""
    return {one.name: one.metadata["optax"] for one in fields(h) if isinstance(one.metadata["optax"], tuple)}


def optax_defaults(h: type[Hyper]) -> dict[str, Any]:
    """Return the options whose default in the JAX front is optax's, each with the default that it has elsewhere."""
    return {one.name: one.default for one in fields(h) if one.metadata["optax_default"] is not MISSING}
