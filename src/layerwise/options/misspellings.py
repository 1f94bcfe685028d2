"""Advice about unknown keywords: the option that was probably meant, from other libraries' names or misspellings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from layerwise.errors import ArgumentError, UnknownOptionError

F = TypeVar("F", bound=Callable[..., Any])

# Synonyms: names that mean the same option in one of our APIs or in another library, and a remark on differences. For
# an unknown option, the first row that contains one of the optimizer's own options gives the answer.
SAME = (
    ("lr learning_rate", ""),
    ("momentum b1 beta1 beta_1", ""),
    ("b2 beta2 beta_2", ""),
    ("betas momentum b1 beta1 beta_1", "the first of a pair"),
    ("betas b2 beta2 beta_2", "the second of a pair"),
    ("eps epsilon", ""),
    ("eps epsilon_1 eps1", "the first of a pair"),
    ("eps epsilon_2 eps2", "the second of a pair"),
    ("beta2 decay_rate_fn", "a function of the step"),
    ("beta2_decay beta_2_decay", ""),
    ("beta2_decay beta_2_decay decay_rate", "0.8 in optax is -0.8 in other libraries"),
    ("weight_decay weight_decay_rate lamb_weight_decay wd", ""),
    ("trust_coefficient eta lars_coeff", ""),
    ("adapt always_adapt use_nvlamb", 'adapt=True always, adapt="decayed" only if weight_decay is not 0'),
    ("decay adam_w_mode", 'decay="l2" if it is False'),
    ("decay decoupled_decay decoupled_weight_decay weight_decouple", 'decay="decoupled"'),
    ("max_grad_norm global_clipnorm grad_clip clip_grad clip_grad_norm clip_norm gradient_clip_val max_norm", ""),
    ("max_grad_norm global_clipnorm grad_clip gradient_clipping", ""),
    ("max_grad_norm_per_tensor clipnorm", ""),
    ("max_grad_value clipvalue", ""),
    (
        "fused engine foreach",
        ('the fastest engine is picked automatically; fused=False and engine="rule" turn kernels off'),
    ),
    ("mask weight_decay_mask", ""),
    ("decay mask weight_decay_mask", "by name"),
    ("params parameters named_parameters", ""),
    ("momentum_dtype mu_dtype dtype_momentum accumulator_dtype", ""),
    ("scale_parameter multiply_by_parameter_scale", ""),
    ("master_weights multi_precision", ""),
    ("master_weights kahan_sum", 'master_weights="split" keeps the bits that a weight lacks'),
    ("state_dtype bits optim_bits", 'state_dtype="int8" is 8 bits'),
    ("state_dtype block_size block_wise", "groups of 64; `blocks` are the parts of a tensor that count as layers"),
    ("rounding stochastic_rounding bf16_stochastic_round", 'rounding="stochastic"'),
    ("bias_correction correct_bias debias", ""),
    ("decay_scale fixed_decay", 'decay_scale="none"'),
    ("peak_lr corrected_weight_decay", 'with decay="decoupled", the first lr'),
    ("trust_clip max_coeff min_coeff max_unorm", "bounds of the ratio, a pair"),
    ("max_weight_norm clamp_value", ""),
    ("eps_root eps_inside_sqrt", "the eps inside the root"),
    ("scale adjust_lr_fn consistent_rms rms_rate", ""),
    ("ns_coefficients muon_a muon_b muon_c", "(a, b, c)"),
    # Arguments of functions that make groups.
    ("no_decay skip skip_list no_weight_decay no_weight_decay_list decay_exempt exclude_from_weight_decay", ""),
    (
        "no_decay exclude_bias_n_norm exclude exclude_list exempt wd_ban_list",
        "`no_adapt` lists those without a trust ratio",
    ),
    ("no_adapt no_trust no_trust_ratio exclude_from_layer_adaptation exclude_from_lars lars_exclude", ""),
)
# Options of other libraries that no optimizer here has, with the way out.
NOT_HERE = {
    **dict.fromkeys(("amsgrad", "ams_bound"), "AMSGrad, which keeps the maximum of second moments, is not supported."),
    **dict.fromkeys(
        ("warmup", "warmup_steps", "num_training_steps", "lr_schedule", "lr_decay"),
        "For changing learning rates, use layerwise.schedules, which include a warm-up.",
    ),
    **dict.fromkeys(
        ("exclude_bias_n_norm", "exclude_from_weight_decay", "exclude_from_layer_adaptation", "no_decay", "skip_list"),
        "To choose which parameters have decay or a trust ratio, use groups (layerwise.torch.param_groups), "
        "names (layerwise.numpy) or masks (layerwise.jax).",
    ),
    **dict.fromkeys(
        ("percentile_clipping", "min_8bit_size", "is_paged", "cpu_offload", "set_grad_none"),
        "layerwise has no such option. Leave it out.",
    ),
    "reproducible": "Every step gives the same bits from run to run, with any number of threads. Leave it out.",
}


def explained(function: F) -> F:
    """Return the function with clear errors for unknown keywords, and for arguments that are given twice or missing.

    A class may explain in `_way_out` how it is created.
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
            _refuse(args, f"{of} got `{twice[0]}` twice: by name, and a {kind} by position.")
        if lacking := [name for name in required if name not in given and name not in kwargs]:
            _refuse(args, f"{of} is missing `{lacking[0]}`.")
        return function(*args, **kwargs)

    accepted = {*known, "self"}
    return checked  # type: ignore[return-value]


def _refuse(args: Sequence[Any], problem: str) -> None:
    way_out = getattr(type(args[0]), "_way_out", "") if args else ""
    raise ArgumentError(f"{problem} {way_out}".rstrip())


def needing_all(way_out: str) -> Callable[[F], F]:
    """Return a decorator for a method that explains how to call it if arguments are missing."""

    def done(method: F) -> F:
        _, *names = inspect.signature(method).parameters

        @wraps(method)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) + len(kwargs) < len(names):
                lacking = [f"`{name}`" for name in names[len(args) :] if name not in kwargs]
                raise ArgumentError(f"{method.__name__}() is missing {' and '.join(lacking)}. {way_out}")
            return method(self, *args, **kwargs)

        return called  # type: ignore[return-value]

    return done


def check_keywords(of: str, unknown: Collection[str], known: Collection[str]) -> None:
    """Raise an error for unknown keywords."""
    for name in unknown:
        raise UnknownOptionError(f"{of} has no option {name!r}. {advice(name, known)}")


def advice(name: str, known: Collection[str]) -> str:
    """Return advice about an unknown keyword: its probable meaning, or all known options."""
    if name in NOT_HERE and name not in known:
        return NOT_HERE[name]
    return guess(name, known) or f"Its options are {', '.join(known)}."


def guess(name: str, known: Collection[str], cutoff: float = 0.7) -> str:
    """Return "Did you mean …?" with a known keyword, or an empty string if none is similar."""
    for names, remark in SAME:
        own = names.split()
        if name in own and (found := [one for one in own if one in known]):
            return did_you_mean(found[:1], remark)
    return did_you_mean(nearest(name, known, cutoff=cutoff))


def nearest(name: object, known: Iterable[str], n: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return up to `n` similar names, ignoring case."""
    by_lower = {one.lower(): one for one in known}
    return [by_lower[one] for one in get_close_matches(str(name).lower(), by_lower, n, cutoff)]


def did_you_mean(names: Iterable[str], remark: str = "") -> str:
    """Return "Did you mean …?" with these names, or an empty string if there are none."""
    close = " or ".join(f"`{name}`" for name in names)
    return f"Did you mean {close}{f' ({remark})' if remark else ''}?" if close else ""
