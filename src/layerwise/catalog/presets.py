"""Named presets: keyword arguments that make an optimizer equal to another implementation.

A preset leaves lr to you, unless the learning rate *is* the recipe. Descriptions come from reading or running the
packages, for the coverage table of the documentation and the parity tests. The name before the dot is the package's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import takewhile
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar

from layerwise.catalog.registry import BY_LOWER, ENTRIES
from layerwise.errors import ArgumentError, PresetError
from layerwise.options.by_name import INSTEAD, is_by_name
from layerwise.options.misspellings import check_keywords, did_you_mean, nearest
from layerwise.options.settings import Hyper, options_in_order

Options = Mapping[str, Any]  # of a rule, by name


@dataclass(frozen=True, eq=False)
class Preset:
    """A preset of an optimizer: its options, its differences from our defaults, and what it does not reproduce.

    Attributes:
        name: The name, with that of the package before the dot.
        optimizer: The name of the optimizer's class.
        options: Its options.
        differs: Its differences from our defaults, in words.
        not_reproduced: Its behaviour that these options do not reproduce, in words.
    """

    name: str
    optimizer: str
    options: Options
    differs: str
    not_reproduced: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def __str__(self) -> str:
        rest = f" Not reproduced: {self.not_reproduced}" if self.not_reproduced else ""
        return f"{self.name} ({self.optimizer}): {self.differs}{rest}"


Row = tuple[str, Options, str, str]  # the optimizer, its options, the implementation, and what to know


def _of(optimizer: str) -> Callable[..., Row]:
    """Return a function that builds a row for a preset of this optimizer: its options and two remarks."""
    return lambda options, differs, not_reproduced="": (optimizer, options, differs, not_reproduced)


of: Any = SimpleNamespace(**{lower: _of(name) for lower, name in BY_LOWER.items()})
_APEX = {"weight_decay": 0.01, "max_grad_norm": 1.0}
_TIMM = {**_APEX, "adapt": "decayed"}
_T5X = {"factored": "largest", "min_dim_size_to_factor": 128, "scale_parameter": True, "relative_step": False}
_BIG_VISION = {
    "factored": "largest",
    "relative_step": False,
    "clip_threshold": None,
    "beta1": 0.9,
    "beta2_cap": 0.999,
    "momentum_dtype": "bfloat16",
    "lr_in_momentum": False,
}
_CAP = {"relative_step": "cap", "decay_scale": "lr"}

_ROWS: dict[str, Row] = {
    "paper.Lamb": of.lamb({}, "arXiv 1904.00962: our defaults."),
    "optax.lamb": of.lamb({}, "the paper; the ratio on every leaf, masked or not."),
    "axonml.LAMB": of.lamb({}, "the paper.", "a negative weight_decay, which it ignores, is an error in layerwise."),
    "tfa.LAMB": of.lamb({}, "the paper; its exclusion lists are `adapt` and `decay` by name."),
    "apex.FusedLAMB": of.lamb(
        {**_APEX, "adapt": "decayed"},
        "global clipping at 1, decay 0.01, and no ratio where weight_decay is 0.",
        "its step count per group (layerwise counts per tensor); p.grad is not overwritten.",
    ),
    "apex.FusedLAMB-nvlamb": of.lamb(
        _APEX,
        "apex.FusedLAMB with use_nvlamb=True: the ratio everywhere.",
        "its step count per group (layerwise counts per tensor); p.grad is not overwritten.",
    ),
    "timm.Lamb": of.lamb(
        _TIMM,
        "as apex.FusedLAMB; always_adapt is adapt=True, trust_clip is trust_clip=(None, 1), decoupled_decay is "
        'decay="decoupled", and corrected_weight_decay also needs peak_lr, its first lr.',
        "its step count per group; norms in the parameter's dtype.",
    ),
    "timm.clamb": of.lamb({**_TIMM, "caution": True}, "timm.Lamb with caution.", "as for timm.Lamb."),
    "timm.clambw": of.lamb(
        {**_TIMM, "decay": "decoupled", "caution": True},
        "timm.Lamb with caution and decay outside the ratio.",
        "as for timm.Lamb.",
    ),
    "timm.lambcd": of.lamb(
        {**_TIMM, "decay": "decoupled"},
        "timm.Lamb with decay outside the ratio that fades as lr² does: pass peak_lr, the lr that was passed to timm.",
        "as for timm.Lamb.",
    ),
    "paddle.Lamb": of.lamb(
        {"weight_decay": 0.01, "adapt": "decayed"},
        "decay 0.01, and no ratio where it is 0, unless always_adapt=True: adapt=True.",
        "β, ε and λ rounded to float32, and β-powers as running products; global clipping per group.",
    ),
    "keras.Lamb": of.lamb(
        {"eps": 1e-7, "decay": "decoupled"},
        "decay outside the ratio and before it; eps 1e-7.",
        "the step count in the variable's dtype, inexact beyond 256 in bfloat16; means of float64 taken in float32.",
    ),
    "deepspeed.FusedLamb": of.lamb(
        {"eps": 1e-8, "bias_correction": "lr", "trust_clip": (0.01, 10.0)},
        "bias correction on the step, outside the ratio; the ratio within [0.01, 10]; eps_inside_sqrt is eps_root.",
    ),
    "paper.AdamH": of.lamb(
        {"eps": 1e-8, "keep_norm": "first"},
        "arXiv 2606.16899: Adam on a sphere, for matrices. Every tensor keeps the norm that it starts with; an lr to "
        "try is √(lr·λ) of an AdamW run.",
    ),
    "levanter.AdamH": of.lamb(
        {"betas": (0.9, 0.95), "eps": 1e-8, "max_grad_norm": 1.0, "keep_norm": True},
        "LAMB that restores the norm that every tensor had before the step; stacked layers are blocks.",
        "its Adam for embeddings, norms and biases: use a group with another rule; zeros stay zeros in "
        "layerwise, and clipping uses the norm of what AdamH alone steps.",
    ),
    "paper.Lars": of.lars({}, "arXiv 1708.03888: our defaults."),
    "yscv.Lars": of.lars(
        {"momentum": 0.0}, "the paper without momentum.", "a nan norm gives the ratio 1; in layerwise the ratio is nan."
    ),
    "optax.lars": of.lars({"norm": "decayed"}, "measures against ‖g + λp‖."),
    "timm.Lars": of.lars(
        {"momentum": 0.0, "eps": 1e-8, "lr_in_momentum": False, "adapt": "decayed"},
        "lr outside the momentum, no momentum by default, and plain SGD where weight_decay is 0 unless adapt=True "
        "(always_adapt).",
        "trust_clip with lr > 1 when a norm is 0: it moves by g, layerwise by lr·g.",
    ),
    "mlperf.LARS": of.lars(
        {"weight_decay": 1e-4, "eps": 1e-7},
        "decay 1e-4; its epsilon of 0 becomes 1e-7. Its skip list is `adapt` and `decay` by name.",
    ),
    "simclr.LARS": of.lars({"norm": "decayed"}, "measures against ‖g + λp‖; exclusions are by name."),
    "apex.LARC": of.lars(
        {"trust_coefficient": 0.02, "eps": 1e-8, "trust_clip": (None, 1.0), "lr_in_momentum": False},
        "around SGD with momentum 0.9: coefficient 0.02, the rate min(ratio, lr); clip=False is trust_clip=None.",
        "it drops weight decay when a norm is 0; layerwise keeps it.",
    ),
    "paper.Came": of.came({}, "arXiv 2307.02047, algorithm 2: our defaults."),
    "came_pytorch.CAME": of.came(
        {},
        "the paper, by its first author; the third of its betas is beta3, and its lr has no default.",
        "state in float32 for 16-bit weights, unless master_weights or state_dtype says otherwise.",
    ),
    "pytorch_optimizer.CAME": of.came(
        {},
        'the paper; the third of its betas is beta3, fixed_decay is decay_scale="none".',
        "weight_decouple=False; ams_bound.",
    ),
    "paper.ScaleSGD": of.scalesgd({}, "arXiv 2506.16659, algorithm 1: our defaults."),
    "mem_eff_pt.SCALE": of.scalesgd(
        {},
        'the paper, by its authors; its last layer has momentum=0.9, and its embedding over="rows".',
        "AdamW for tensors of one dimension.",
    ),
    "paper.SinkGD": of.sinkgd({}, "arXiv 2502.06742, algorithms 3 and 4: our defaults."),
    "axolotl.SinkGD": of.sinkgd(
        {"scale": 0.05, "dims": "last"},
        "the paper, with 0.05 of an lr shared with AdamW; stacks of matrices along the leading dimensions. Its "
        "decay is scaled too, so weight_decay is 0.05 times its own.",
        "AdamW for tensors of one dimension; spectral norms; a lower bound on norms of lines (layerwise bounds "
        "their root mean squares).",
    ),
    "kellerjordan.Muon": of.muon(
        {"ns_dtype": "bfloat16"},
        "github.com/KellerJordan/Muon: our defaults, iterations in bfloat16.",
        "eps added to the norm; filters of convolutions, whose scale goes by their last two dimensions.",
    ),
    "moonlight.Muon": of.muon(
        {"scale": "match_rms_adamw", "weight_decay": 0.1, "ns_dtype": "bfloat16"},
        "arXiv 2502.16982: steps as long as AdamW's, decay 0.1, iterations in bfloat16.",
        "eps added to the norm; a momentum buffer that is 1/(1 − momentum) times as long; its AdamW for "
        "embeddings, the head and vectors: use another group of `Mixed`.",
    ),
    "keras.Muon": of.muon(
        {"scale": "match_rms_adamw", "weight_decay": 0.004, "ns_dtype": "float32"},
        "steps as long as AdamW's, and decay 0.004; muon_a, muon_b and muon_c are ns_coefficients, rms_rate is scale.",
        "eps added to the norm; eps of its AdamW divided by √(1 − β₂^t), and decay of that AdamW without "
        "adam_lr_ratio; except in the Keras API, all of its AdamW: use another group of `Mixed`.",
    ),
    "mlx.Muon": of.muon(
        {"decay": "l2", "weight_decay": 0.01, "ns_dtype": "float32"},
        "decay 0.01 on the gradient.",
        "eps added to the norm; vectors, which step by their momentum; filters, whose scale goes by their last two "
        "dimensions.",
    ),
    "torch.Muon": of.muon(
        {"weight_decay": 0.1, "ns_dtype": "bfloat16"},
        'decay 0.1, iterations in bfloat16; adjust_lr_fn is scale, "original" where it is None.',
        "the order in which bfloat16 rounds; it refuses tensors that do not have two dimensions.",
    ),
    "optax.muon": of.muon(
        {"nesterov": "corrected", "eps": 1e-8, "dims": (1, 0), "ns_dtype": "float32"},
        "momentum with Adam's bias correction; weights of inputs by outputs, so that rows are the second "
        "dimension. beta is momentum, ns_coeffs is ns_coefficients, consistent_rms is scale.",
        "eps added to the norm; adaptive; preconditioning; its AdamW for tensors that are not matrices, which "
        "layerwise steps as single rows.",
    ),
    "paper.StableAdamW": of.stableadamw({}, "arXiv 2304.13013, algorithm 2: our defaults."),
    "optimi.StableAdamW": of.stableadamw(
        {"weight_decay": 0.01, "eps": 1e-6},
        "decay 0.01, eps 1e-6; decouple_lr with max_lr is weight_decay divided by max_lr.",
        "Kahan summation, replaced by master_weights and rounding; its step count per group.",
    ),
    "pytorch_optimizer.StableAdamW": of.stableadamw(
        {"weight_decay": 0.01},
        "decay 0.01.",
        "weight_decouple=False; Kahan summation, replaced by master_weights and rounding; its step count per group.",
    ),
    "torch.AdamW": of.adamw({}, "our defaults: lr·λ taken off the weights.", "amsgrad."),
    "torch.Adam": of.adamw({"decay": "l2", "weight_decay": 0.0}, "decay on the gradient, 0 unless given.", "amsgrad."),
    "keras.AdamW": of.adamw(
        {"weight_decay": 0.004, "eps": 1e-7}, "decay 0.004, eps 1e-7.", "eps divided by √(1 − β₂^t); amsgrad."
    ),
    "optax.adamw": of.adamw({"weight_decay": 1e-4}, "decay 1e-4; nesterov is NAdam."),
    "torch.SGD": of.sgd({}, "our defaults: decay on the gradient."),
    "optax.sgd": of.sgd({}, "our defaults; its momentum of None is 0."),
    "paper.Adafactor": of.adafactor({}, "arXiv 1804.04235: our defaults."),
    "transformers.Adafactor": of.adafactor(
        {"decay_scale": "step"},
        "the paper; decay by the whole step size.",
        "state in the gradient's dtype when it is float64 or float32 (layerwise uses the parameter's).",
    ),
    "transformers.Adafactor-T5": of.adafactor(
        {"lr": 1e-3, "scale_parameter": False, "relative_step": False, "decay_scale": "step"},
        "the T5 fine-tuning recipe: an absolute lr of 1e-3, clipped at 1.",
    ),
    "timm.cadafactor": of.adafactor(
        {"min_dim_size_to_factor": 17, "decay_scale": "step", "beta1": 0.9, "caution": True},
        "timm's Adafactor with momentum and caution; its min_dim_size_to_factor must be exceeded, layerwise's "
        "must be reached.",
        "with three or more dimensions it factors the first two if both exceed 16: use factored=(0, 1) for those.",
    ),
    "torch.Adafactor": of.adafactor(
        {**_CAP, "eps": (None, 1e-3), "eps_mode": "clamp", "lr_cap": 1e-2},
        "its lr, 0.01 by default, caps a relative step; eps1 is a lower bound, and is the dtype's own epsilon.",
        "the epsilon of one tensor leaking into the next of another dtype; state in the gradient's dtype.",
    ),
    "keras.Adafactor": of.adafactor(
        {**_CAP, "lr_cap": 1e-3},
        "its learning_rate, 0.001 by default, caps a relative step; relative_step=False has no effect there.",
        "with weight_decay it measures RMS(p) after the decay, layerwise before; V kept in full; means of "
        "float64 in float32.",
    ),
    "mlx.Adafactor": of.adafactor(
        {"decay_scale": "step"},
        "the paper; decay by the whole step size. With relative_step=False and an lr, pass scale_parameter=True.",
        "an lr with relative_step=True, which it ignores; state in the dtype of the parameter.",
    ),
    "optax.adafactor": of.adafactor(
        {**_T5X, "decay_scale": "none"},
        "an absolute lr (its None is lr=1.0) times RMS(p); the two largest dimensions from 128; decay by λ itself.",
        "β₂ computed in float32; with decay_offset > 0 it starts with nan, while layerwise uses t − offset ≥ 1.",
    ),
    "t5x.Adafactor": of.adafactor(
        {**_T5X, "decay_scale": "none"},
        "an absolute lr times RMS(p); the two largest dimensions from 128; decay by λ itself. "
        "Rules for more dimensions are factored=(rows, columns).",
        "max_parameter_scale, and a min_dim_size_to_factor that its explicit rules ignore.",
    ),
    "big_vision.scale_by_adafactor": of.adafactor(
        {**_BIG_VISION, "min_dim_size_to_factor": 32},
        "the Adafactor of Scaling Vision Transformers: an absolute lr outside a momentum of û in bfloat16, β₂ at most "
        "0.999, no clip, no RMS(p); the two largest dimensions from 32. Its config.wd is weight_decay=wd / lr.",
        "β₂ computed in float32; the product of momentum and its decay rate rounded to bfloat16.",
    ),
    "timm.AdafactorBigVision": of.adafactor(
        {**_BIG_VISION, "min_dim_size_to_factor": 16},
        'the same from 16; unscaled_wd is decay_scale="none".',
        "momentum rounded before it is used; corrected_weight_decay; eps 1e-7 for float16.",
    ),
    "rlx.Adafactor": of.adafactor(
        {"factored": "matrix", "decay_scale": "step"},
        "the formula its documentation intends; matrices only are factored.",
        "its errors: V too small by the number of rows, an inverted clip for thresholds other than 1, β₂ stuck "
        "at 0 unless end_iteration is called, an RMS that ignores nan.",
    ),
    "paper.Lion": of.lion({}, "arXiv 2302.06675: our defaults."),
    "optax.lion": of.lion({"weight_decay": 1e-3}, "the paper; decay 1e-3."),
    "lion_pytorch.Lion": of.lion(
        {"decay": "decoupled"},
        "the paper, with decay before the step; with decoupled_weight_decay, pass its weight_decay over its first lr.",
    ),
    "timm.Lion": of.lion(
        {"decay": "decoupled"},
        "the paper, with decay before the step.",
        "corrected_weight_decay, and signs of real and imaginary parts of their own.",
    ),
    "paper.NovoGrad": of.novograd({}, "arXiv 1905.11286: our defaults."),
    "optax.novograd": of.novograd({"betas": (0.9, 0.25), "eps": 1e-6}, "the paper; β = (0.9, 0.25), eps 1e-6."),
    "apex.FusedNovoGrad": of.novograd(
        {
            "betas": (0.9, 0.999),
            "grad_averaging": True,
            "bias_correction": True,
            "normalize": "momentum",
            "decay": "decoupled",
        },
        "m of unnormalized gradients, normalized afterwards, with bias corrections and decoupled decay; "
        'reg_inside_moment=True is normalize="gradient", decay="momentum", and init_zero=True is v_start="zero".',
        "norm_type=0, the largest element in place of the norm; its step count per group.",
    ),
    "timm.NvNovoGrad": of.novograd(
        {"v_start": "nonzero"},
        'the paper; v starts from the first gradient that is not 0, and decoupled_decay is decay="decoupled".',
        "amsgrad and corrected_weight_decay.",
    ),
    "pytorch_optimizer.NovoGrad": of.novograd(
        {"m_start": "direction"},
        'the paper; with grad_averaging the first direction has full weight; weight_decouple is decay="decoupled".',
        "adam_debias, which multiplies lr by √(1 − β₂^t); fixed_decay.",
    ),
    "paper.AdamMini": of.adammini({}, "arXiv 2406.16793: our defaults, with `blocks` for its partition."),
    "adam_mini.Adam_mini": of.adammini(
        {},
        "the paper; its partition, based on names of parameters, becomes `blocks`, and its exclusions from decay "
        "become `decay`.",
        "state in the dtype of the parameter.",
    ),
}
NO_PRESET = {
    "bitsandbytes": 'its LAMB and LARS are other algorithms, as the page "Coming from another implementation" says'
}
_PRESETS = {name: Preset(name, *row) for name, row in _ROWS.items()}


def preset(name: str, /, **overrides: object) -> dict[str, Any]:
    """Return keyword arguments for the optimizer of a preset: `Lamb(params, **preset("apex.FusedLAMB"))`.

    `Lamb.like("apex.FusedLAMB", params)` does the same for that optimizer, and also takes options.

    Args:
        name: The name of the preset.
        **overrides: Options that replace the preset's, or are added to them.

    >>> preset("optax.lars", trust_coefficient=0.02)
    {'norm': 'decayed', 'trust_coefficient': 0.02}
    """
    one = find_preset(name)
    settings = ENTRIES[one.optimizer].hyper
    known = options_in_order(settings)
    check_keywords(f"preset({name!r})", overrides.keys() - known, known)
    for option, value in overrides.items():
        if not (option in INSTEAD and is_by_name(value)):
            settings.check(option, value)
    return {**one.options, **overrides}


L = TypeVar("L", bound="Like")


class Like:
    """A mixin that creates an optimizer by the name of another implementation."""

    _hyper: type[Hyper]

    @classmethod
    def like(cls: type[L], name: str, /, *args: object, **options: object) -> L:
        """Return an optimizer that is equal to another implementation: `Lamb.like("timm.Lamb", params, lr=1e-3)`.

        Args:
            name: The name of a preset of this class; `presets()` lists all.
            *args: Arguments of the class, as without `like`.
            **options: Arguments of the class, in place of the preset's or besides them.
        """
        one, own = find_preset(name), getattr(cls, "_hyper", None)
        if own is None or own.optimizer != one.optimizer:
            raise PresetError(
                f"preset {name!r} is for {one.optimizer}, not for {cls.__name__}. Use {one.optimizer}.like({name!r}, "
                "…)."
            )
        unnamed, given = arguments_by_name(cls, args, options)
        needed = [one.name for one in signature(cls).parameters.values() if one.default is one.empty]
        if not unnamed and needed and needed[0] not in given:
            call = f"{cls.__name__}.like({name!r}, model.parameters(), lr=1e-3)"
            raise ArgumentError(f"{cls.__name__}.like is missing `{needed[0]}`. Call {call}.")
        return cls(*unnamed, **cls._like(name, given))

    @classmethod
    def _like(cls, name: str, given: Mapping[str, object]) -> dict[str, Any]:
        """Return all arguments, by their names in this API."""
        return {**preset(name), **given}


def arguments_by_name(
    function: Callable[..., object], args: Sequence[object], options: Mapping[str, object]
) -> tuple[Sequence[object], Mapping[str, object]]:
    """Return arguments by name, or unchanged if some have no name or the call is wrong: Python then raises the
    error.
    """
    params = signature(function).parameters.values()
    names = [one.name for one in takewhile(lambda one: one.kind is one.POSITIONAL_OR_KEYWORD, params)]
    placed = dict(zip(names, args, strict=False))
    unnamed = len(args) > len(names) or placed.keys() & options.keys()
    return (args, options) if unnamed else ((), {**placed, **options})


def find_preset(name: str) -> Preset:
    if not isinstance(name, str) or name not in _PRESETS:
        if why := NO_PRESET.get(str(name).partition(".")[0]):
            raise PresetError(f"{name!r} has no preset: {why}.")
        hint = did_you_mean(nearest(name, _PRESETS, cutoff=0.4)) or f"Pass one such as {next(iter(_PRESETS))!r}."
        raise PresetError(f"no preset is named {name!r}. {hint} presets() lists them all.")
    return _PRESETS[name]


def presets() -> list[Preset]:
    """Return all presets; print one to see its differences from our defaults and its limits."""
    return list(_PRESETS.values())
