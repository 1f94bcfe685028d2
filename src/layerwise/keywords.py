"""Unknown keywords: their likely meaning, from other libraries' names or misspellings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, TypeVar

from layerwise.elsewhere import nearest
from layerwise.errors import UnknownOptionError
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
    ("foreach", "fused engine", "no foreach is needed: the fastest engine is picked"),
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
    ("adjust_lr_fn consistent_rms", "scale", ""),
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
    """Return the function with an error for unknown keywords that names what may be meant."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    of = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= accepted:
            check_keywords(of, [name for name in kwargs if name not in accepted], known)
        return function(*args, **kwargs)

    accepted = {*known, "self"}
    return checked  # type: ignore[return-value]


def check_keywords(of: str, unknown: Collection[str], known: Collection[str]) -> None:
    """Raise an error for unknown keywords."""
    for name in unknown:
        raise UnknownOptionError(f"{of} has no option {name!r}. {meant(name, known)}")


def meant(name: str, known: Collection[str], cutoff: float = 0.7) -> str:
    """Return a sentence with the likely meaning of a keyword."""
    if name in NOT_HERE and name not in known:
        return NOT_HERE[name]
    called, remark = MEANT.get(name, ((), ""))
    said = {**alike().get(name, {}), **dict.fromkeys(called, remark)}
    close = next(([one] for one in said if one in known), []) or nearest(name, known, cutoff=cutoff)
    if not close:
        return f"It takes {', '.join(known)}."
    aside = f" ({said[close[0]]})" if said.get(close[0]) else ""
    return f"Is {' or '.join(f'`{one}`' for one in close)} meant{aside}?"
