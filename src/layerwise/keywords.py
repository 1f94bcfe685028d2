"""Unknown keywords: their likely meaning, from other libraries' names or misspellings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, TypeVar

from layerwise.elsewhere import did_you_mean, nearest
from layerwise.errors import ArgumentError, UnknownOptionError
from layerwise.spelling import alike

F = TypeVar("F", bound=Callable[..., Any])

# What others call an option, what it is here (the first that the optimizer takes), and a remark. Its names in the APIs
# here are in `spelling`.
_MEANT = (
    ("betas", "b1 beta1", "the second is b2 in LAMB, beta2 in Adafactor"),
    ("decay_rate_fn", "beta2", "a function of the step"),
    ("decay_rate", "beta2_decay", "0.8 there is -0.8 here, which transformers' already is"),
    ("beta2_decay", "decay_rate", "-0.8 there is 0.8 here"),
    ("eps1 eps2", "eps", "eps=(eps1, eps2)"),
    ("wd", "weight_decay weight_decay_rate", ""),
    ("trust_coeff trust_coef eta lars_coeff", "trust_coefficient", ""),
    ("always_adapt use_nvlamb", "adapt", 'adapt=True always, adapt="decayed" where weight_decay is not 0'),
    ("adam_w_mode", "decay", 'decay="l2" where it is False'),
    ("decoupled_decay decoupled_weight_decay weight_decouple", "decay", 'decay="decoupled"'),
    ("max_grad_norm", "global_clipnorm grad_clip", ""),
    (
        "grad_clip clip_grad clip_grad_norm clip_norm gradient_clip_val gradient_clipping max_norm",
        "max_grad_norm global_clipnorm grad_clip",
        "by tensor and by value are others",
    ),
    ("foreach", "engine", "no foreach is needed: the fastest engine is picked"),
    ("fused", "engine", 'engine="rule" declines fused kernels'),
    ("engine", "fused", "fused=False is the rule"),
    ("multi_precision", "master_weights", ""),
    ("mask", "weight_decay_mask decay", ""),
    ("weight_decay_mask", "mask decay", ""),
    ("parameters", "params", ""),
    ("named_parameters", "params parameters", ""),
    ("bits optim_bits", "state_dtype", 'state_dtype="int8" is 8 bits'),
    (
        "block_size block_wise",
        "state_dtype",
        "its groups have 64 numbers; `blocks` are parts of a tensor that count as layers",
    ),
    ("stochastic_rounding bf16_stochastic_round", "rounding", 'rounding="stochastic"'),
    ("kahan_sum", "master_weights", 'master_weights="split" keeps the bits that a weight lacks'),
    ("cautious", "caution", ""),
    ("correct_bias debias", "bias_correction", ""),
    ("fixed_decay", "decay_scale", 'decay_scale="none"'),
    ("corrected_weight_decay", "peak_lr", 'with decay="decoupled", the first lr'),
    ("max_coeff min_coeff", "trust_clip", "trust_clip=(min_coeff, max_coeff)"),
    ("clamp_value", "max_weight_norm", ""),
    ("max_unorm", "trust_clip", "bounds of the ratio"),
    ("eps_inside_sqrt", "eps_root", "the eps that is inside the root"),
    ("ns_coeffs", "ns_coefficients", ""),
    ("adjust_lr_fn consistent_rms rms_rate", "scale", ""),
    ("muon_a muon_b muon_c", "ns_coefficients", "(a, b, c)"),
    # Of functions that make groups.
    ("skip skip_list no_weight_decay no_weight_decay_list decay_exempt", "no_decay", ""),
    ("exclude_from_weight_decay exclude_bias_n_norm wd_ban_list", "no_decay", ""),
    ("exclude exclude_list exempt", "no_decay", "those without weight decay; `no_adapt` are without a trust ratio"),
    ("no_trust no_trust_ratio exclude_from_layer_adaptation exclude_from_lars lars_exclude", "no_adapt", ""),
)
MEANT = {name: (tuple(ours.split()), remark) for theirs, ours, remark in _MEANT for name in theirs.split()}
# What others have and no optimizer here has, with the way out.
NOT_HERE = {
    **dict.fromkeys(("amsgrad", "ams_bound"), "AMSGrad, the maximum of second moments, is not among the options."),
    **dict.fromkeys(
        ("warmup", "warmup_steps", "num_training_steps", "lr_schedule", "lr_decay"),
        "Learning rates follow schedules: layerwise.schedules has them, with their warm-up.",
    ),
    **dict.fromkeys(
        ("exclude_bias_n_norm", "exclude_from_weight_decay", "exclude_from_layer_adaptation", "no_decay", "skip_list"),
        "Which parameters decay and which have a trust ratio is said in groups (layerwise.torch.param_groups), by name "
        "(layerwise.numpy) or by masks (layerwise.jax).",
    ),
    **dict.fromkeys(
        ("percentile_clipping", "min_8bit_size", "is_paged", "cpu_offload", "set_grad_none"),
        "It has no counterpart. Leave it out.",
    ),
    "reproducible": "A step has the same bits from run to run and for any number of threads without it. Leave it out.",
}


def explained(function: F) -> F:
    """Return the function with errors for unknown keywords, and for arguments that are given twice or not at all.

    A class says in `_way_out` how it is made.
    """
    parameters = inspect.signature(function).parameters
    placed, known = [*parameters], [name for name in parameters if name != "self"]
    required = {name for name in known if parameters[name].default is inspect.Parameter.empty}
    of = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= accepted:
            check_keywords(of, [name for name in kwargs if name not in accepted], known)
        given = placed[: len(args)]
        if twice := [name for name in given if name in kwargs]:
            kind = type(args[given.index(twice[0])]).__name__
            _refuse(args, f"{of} was given `{twice[0]}` twice: by name, and {kind} in its place.")
        if lacking := [name for name in required if name not in given and name not in kwargs]:
            _refuse(args, f"{of} was not given `{lacking[0]}`.")
        return function(*args, **kwargs)

    accepted = {*known, "self"}
    return checked  # type: ignore[return-value]


def _refuse(args: Sequence[Any], problem: str) -> None:
    way_out = getattr(type(args[0]), "_way_out", "") if args else ""
    raise ArgumentError(f"{problem} {way_out}".rstrip())


def needing_all(way_out: str) -> Callable[[F], F]:
    """Return a decorator of a method that says how it is called if arguments are missing."""

    def done(method: F) -> F:
        _, *names = inspect.signature(method).parameters

        @wraps(method)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) + len(kwargs) < len(names):
                lacking = [f"`{name}`" for name in names[len(args) :] if name not in kwargs]
                raise ArgumentError(f"{method.__name__}() was not given {' and '.join(lacking)}. {way_out}")
            return method(self, *args, **kwargs)

        return called  # type: ignore[return-value]

    return done


def check_keywords(of: str, unknown: Collection[str], known: Collection[str]) -> None:
    """Raise an error for unknown keywords."""
    for name in unknown:
        raise UnknownOptionError(f"{of} has no option {name!r}. {advice(name, known)}")


def advice(name: str, known: Collection[str]) -> str:
    """Return what to do about an unknown keyword: its likely meaning, or all that are known."""
    if name in NOT_HERE and name not in known:
        return NOT_HERE[name]
    return guess(name, known) or f"It takes {', '.join(known)}."


def guess(name: str, known: Collection[str], cutoff: float = 0.7) -> str:
    """Return the question whether a known keyword was meant, or an empty string if none is likely."""
    called, remark = MEANT.get(name, ((), ""))
    said = {**alike().get(name, {}), **dict.fromkeys(called, remark)}
    close = next(([one] for one in said if one in known), []) or nearest(name, known, cutoff=cutoff)
    return did_you_mean(close, said.get(close[0], "") if close else "")
