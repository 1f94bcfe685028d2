"""What optimizers take in each API besides the options of a formula: names, types, defaults and meanings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

V = TypeVar("V")
ByName = Mapping[str, V] | Callable[[str], V | None]
"""Values by name: a mapping, whose keys may be patterns such as "*.bias", or a function of the name. The default
applies if a mapping has no key for a name, or if the function returns None.
"""
StateDtype = Literal["float32", "bfloat16", "int8"]
"""The storage of a part of the state: in the dtype of the arithmetic, in 16 bits, or in 8 bits with a scale for every
64 numbers.
"""
REQUIRED: Any = object()


class Argument(NamedTuple):
    """An argument of an optimizer: its name, its type as source, its default, and its meaning in one sentence."""

    name: str
    type: str
    default: Any
    means: str
    keyword: bool = True  # whether it is given by name alone
    unless: str = ""  # an option: a rule that has it takes this argument in its place
    only_with: str = ""  # an option: only rules that have it take this argument


SKIPS = "Skip a step if any gradient contains nan or inf, and count it in `skipped`."

# How weights and state are stored, the same in all APIs.
STORAGE = (
    Argument(
        "master_weights",
        'bool | Literal["split", "split24"]',
        False,
        "Keep extra precision for bfloat16 and float16 weights: a float32 copy (True), or the 16 bits "
        '("split") or 8 bits ("split24") that each weight lacks.',
    ),
    Argument(
        "rounding",
        'Literal["nearest", "stochastic"] | None',
        None,
        'Rounding of 16-bit weights and state. None is "nearest" for weights, except "split24", and '
        '"stochastic" for these and for state stored in bfloat16 or 8 bits by `state_dtype` or a checkpoint.',
    ),
    Argument(
        "state_dtype",
        "StateDtype | Mapping[str, StateDtype] | None",
        None,
        'Storage of the state: "float32", "bfloat16" or "int8" (8 bits in groups of 64), or a mapping from names of '
        "state to these. None keeps the dtype of the arithmetic, or that of a loaded checkpoint.",
    ),
    Argument("seed", "int", 0, "The seed of stochastic rounding, the same on all processes."),
)

PARAMS = Argument(
    "params",
    "Any",
    REQUIRED,
    "Parameters, named parameters, or groups of them with options of their own.",
    keyword=False,
)
TORCH = (
    Argument(
        "blocks",
        "BlocksByName | None",
        None,
        "Blocks within parameters, by name or pattern, such as {'*.qkv.weight': 3}; each counts as a layer. Needs "
        "named_parameters().",
    ),
    *STORAGE,
    Argument("skip_nonfinite", "bool", False, SKIPS),
    Argument(
        "model_group",
        "ProcessGroup | None",
        None,
        "Processes with other tensors of the same model, as in a pipeline; they clip and skip together.",
    ),
    Argument(
        "replica_group",
        "ProcessGroup | None",
        None,
        "Processes with the same tensors, as under DDP; they take steps together and divide products of matrices.",
    ),
    Argument("differentiable", "bool", False, "Let autograd differentiate through the step, as in torch.optim."),
    Argument("capturable", "bool", False, "Allow the step to be captured in a CUDA graph, as in torch.optim."),
    Argument(
        "fused",
        "bool | None",
        None,
        "True requires an engine with kernels, False uses PyTorch operations, None picks the fastest available.",
    ),
    Argument(
        "foreach",
        "bool | None",
        None,
        "True steps lists of tensors by PyTorch's foreach functions, False does not, None does on accelerators for "
        "what has no kernels.",
    ),
    Argument(
        "offload",
        "bool",
        False,
        "Keep the state of parameters on an accelerator in the host's memory, and step them there.",
    ),
)
# Arguments that a parameter group may set for itself.
OF_GROUP = ("master_weights", "rounding", "state_dtype", "seed", "differentiable", "capturable", "blocks")
PROCESSES = ("model_group", "replica_group")  # the process groups
# What Keras does itself, before the gradient comes to a rule or after it; the same as in its own optimizers.
KERAS = (
    Argument("clipnorm", "float | None", None, "Scale each variable's gradient down to at most this norm."),
    Argument("clipvalue", "float | None", None, "Clip every element of the gradient to [-c, c]."),
    Argument("global_clipnorm", "float | None", None, "Scale all gradients down to at most this common norm."),
    Argument("use_ema", "bool", False, "Keep a moving average of the weights."),
    Argument("ema_momentum", "float", 0.99, "Decay rate of that average."),
    Argument(
        "ema_overwrite_frequency",
        "int | None",
        None,
        "The number of steps between copies of the average into the weights.",
    ),
    Argument("loss_scale_factor", "float | None", None, "The factor of the loss, by which gradients are divided."),
    Argument(
        "gradient_accumulation_steps", "int | None", None, "The number of batches whose mean gradient makes a step."
    ),
    Argument("name", "str | None", None, "The name of the optimizer and its variables."),
)
# Of rules for matrices, which leave the rest of a model to AdamW: as far as Keras's Muon has them, by its names.
KERAS_REST = (
    Argument(
        "exclude_layers",
        "Sequence[str] | None",
        None,
        "Variables step by AdamW if their paths match one of these regular expressions; None is the last matrix alone.",
    ),
    Argument("exclude_embeddings", "bool", True, 'Variables step by AdamW if their paths contain "embedding".'),
    Argument(
        "adam_lr_ratio",
        "float | None",
        None,
        "AdamW's learning rate, as a factor on this one; None is 0.05, or 1 if `scale` makes steps as long as AdamW's.",
    ),
    Argument("adam_beta_1", "float", 0.9, "The first of AdamW's `betas`."),
    Argument("adam_beta_2", "float", 0.999, "The second of AdamW's `betas`."),
    Argument("adam_weight_decay", "float | None", None, "AdamW's weight decay; None is `weight_decay`."),
    Argument("epsilon", "float", 1e-7, "AdamW's `eps`."),
)
NUMPY = (
    Argument("lr_scale", "float | ByName[float] | None", None, "Factor on lr, for all names or by name."),
    Argument(
        "decay",
        "ByName[bool | float] | None",
        None,
        "Switch weight_decay on or off by name, or multiply it by a number.",
        unless="decay",
    ),
    Argument(
        "blocks", "Split | ByName[Split] | None", None, "Blocks within arrays, for all or by name; each is a layer."
    ),
    Argument("skip_nonfinite", "bool", False, SKIPS),
    *STORAGE,
    Argument("shared_count", "bool", False, "Count steps once for all names instead of once for each name."),
    Argument("engine", "str | None", None, 'Engine to use: "rule" avoids kernels, and None picks the fastest.'),
)
# Types of options that the NumPy API also takes by name.
BY_NAME = {
    "adapt": "Adapt | ByName[Adapt]",
    "decay": "{type} | ByName[bool | float | str]",
    "l2": "float | ByName[float]",
}

MASK = Argument(
    "mask",
    "ByLeaf",
    None,
    "Which parameters decay: a tree of booleans, a prefix of one, or a function that returns it.",
)
JAX = (
    Argument(
        "trust_ratio_mask",
        "ByLeaf",
        None,
        "The parameters that use the trust ratio, in the same form as the mask of weight decay.",
        only_with="adapt",
    ),
    Argument("blocks", "ByLeaf", None, "Blocks within leaves, in the same form as the masks; each is a layer."),
    *STORAGE[:-1],
    STORAGE[-1]._replace(
        type="int | None",
        default=None,
        means="The seed of stochastic rounding, a constant of the traced step; None is 0.",
    ),
    Argument("stats", "bool", False, "Store the measurements of each step in the state, for `layerwise.jax.stats`."),
    Argument(
        "axis_name", "str | tuple[str, ...] | None", None, "Under shard_map, the mesh axes that shard parameters."
    ),
    Argument("specs", "ByLeaf", None, "Under shard_map, the sharded dimensions of each parameter."),
)

# Paddle's own arguments stand where its optimizers have them, and mean the same.
PADDLE = (
    Argument("parameters", "Any", None, 'Parameters, or groups of them: dicts with "params" and options of their own.'),
    Argument(
        "grad_clip",
        "GradientClipBase | None",
        None,
        "How gradients are clipped; a group may have its own, as in Paddle.",
    ),
    Argument(
        "exclude_from_weight_decay_fn",
        "Callable[[Tensor], bool] | None",
        None,
        "A function of a parameter, True if it has no weight decay.",
    ),
    Argument("multi_precision", "bool", False, "Hold a float32 copy of float16 and bfloat16 parameters."),
    Argument("name", "str | None", None, "A word that the names of the state contain, as in Paddle."),
    Argument(
        "blocks",
        "BlocksByName | None",
        None,
        "Layers within a parameter: blocks by its name or a pattern, such as {'linear_0.w_*': 3}.",
    ),
    Argument("skip_nonfinite", "bool", False, SKIPS),
    Argument(
        "engine", "str | None", None, 'Engine to use: "rule" uses Paddle\'s operations, and None takes the fastest.'
    ),
)
# What each API takes besides the options of a formula.
OF_APIS = {"torch": TORCH, "jax": JAX, "numpy": NUMPY, "paddle": PADDLE, "keras": KERAS}
MEANS = {one.name: one.means for own in OF_APIS.values() for one in own}
# Arguments that a parameter group of Paddle may set for itself, besides options.
OF_PADDLE_GROUP = ("params", "learning_rate", "weight_decay", "grad_clip", "exclude_from_weight_decay_fn", "name")
ALWAYS_ADAPT = Argument(
    "always_adapt",
    "bool",
    False,
    "Use the trust ratio everywhere; by default parameters without weight decay do without it.",
)
PADDLE_ORDER = {
    "Lamb": "learning_rate lamb_weight_decay beta1 beta2 epsilon parameters grad_clip exclude_from_weight_decay_fn "
    "multi_precision always_adapt name"
}
# Of an optimizer that optax has: its arguments in their order, of which those after a star are given by name.
OPTAX_ORDER = {
    "Adafactor": "learning_rate min_dim_size_to_factor decay_rate decay_offset multiply_by_parameter_scale "
    "clipping_threshold momentum dtype_momentum weight_decay_rate eps factored weight_decay_mask",
    "AdamW": "learning_rate b1 b2 eps eps_root mu_dtype weight_decay mask * nesterov",
    "Fromage": "learning_rate min_norm",
    "Lamb": "learning_rate b1 b2 eps eps_root weight_decay mask",
    "Lars": "learning_rate weight_decay weight_decay_mask trust_coefficient eps trust_ratio_mask momentum nesterov",
    "Lion": "learning_rate b1 b2 mu_dtype weight_decay mask",
    "NovoGrad": "learning_rate b1 b2 eps eps_root weight_decay",
    "SGD": "learning_rate momentum nesterov accumulator_dtype",
}
# Arguments that take more in optax's form, or something else, than the option takes; `layerwise.jax` checks them.
OWN_FORM: dict[str, tuple[Argument, ...]] = {
    "Adafactor": (
        Argument(
            "learning_rate",
            "Rate | None",
            None,
            "Learning rate, or a function of the step. None is 1, or the relative step if relative_step is not False.",
        ),
        Argument("decay_rate", "Number", 0.8, "The decay rate of the second moment is 1 - t**-decay_rate at step t."),
        Argument("weight_decay_rate", "Rate | None", None, "Weight decay λ, or a function of the step; None is 0."),
        Argument(
            "eps",
            "Number | tuple[Number | None, Number]",
            1e-30,
            "What is added to the squared gradient, or a pair of that and a lower bound of the weights' RMS.",
        ),
        Argument(
            "factored",
            "Any",
            True,
            'Which dimensions are rows and columns: the two largest (True, "largest"), the last two ("last"), those of '
            'matrices only ("matrix"), two dimensions or groups of them, or none (False): no factoring.',
        ),
    ),
    "Lars": (MASK._replace(name="weight_decay_mask", default=True), JAX[0]._replace(default=True)),
    "SGD": (Argument("momentum", "Number | None", None, "Decay rate of the momentum buffer; None or 0 is none."),),
}
