"""The names of options: in each API, and in other libraries, by which a wrong call is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, NamedTuple

from layerwise.options.settings import Hyper

Names = tuple[str, ...]  # the name of an option's argument, or the two names of a pair
OF_PAIR = ("the first of a pair", "the second of a pair")


class OptionNames(NamedTuple):
    """An option, or what only some APIs take, and its other names. In an API two names stand for the two of a pair."""

    own: str
    others: str = ""  # names in other libraries, and in APIs that have the option as well
    remark: str = ""  # what differs besides
    optax: str = ""
    paddle: str = ""
    keras: str = ""  # Keras's own argument, which stands in place of the option
    beside: str = ""  # Keras's name, beside the option
    of: str = ""  # the optimizers whose option APIs call so; if none are named, all

    def hints(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield what is said of names, and those names."""
        yield self.remark, self.others.split()
        for api in APIS:
            names = getattr(self, api).split()
            yield from (
                zip(OF_PAIR, ([name] for name in names), strict=True) if is_pair(names) else [(self.remark, names)]
            )


APIS = ("optax", "paddle", "keras", "beside")
# An option that an optimizer lacks is answered with the first row that has one of its own.
ROWS = (
    OptionNames("lr", optax="learning_rate", paddle="learning_rate", keras="learning_rate"),
    OptionNames("beta1", "b1 beta_1", optax="momentum"),
    OptionNames("beta2", "b2 beta_2"),
    OptionNames("betas", optax="b1 b2", paddle="beta1 beta2", beside="beta_1 beta_2"),
    OptionNames("betas", "momentum", OF_PAIR[0]),
    OptionNames("beta2_decay", beside="beta_2_decay"),
    OptionNames("beta2_decay", "beta_2_decay", "0.8 in optax is -0.8 in other libraries", optax="decay_rate"),
    OptionNames("eps", paddle="epsilon", beside="epsilon"),
    OptionNames("eps", beside="epsilon_1 epsilon_2"),
    OptionNames("eps", "eps1", OF_PAIR[0]),
    OptionNames("eps", "eps2", OF_PAIR[1]),
    OptionNames("beta2", "decay_rate_fn", "a function of the step"),
    OptionNames("weight_decay", "wd"),
    OptionNames("weight_decay", optax="weight_decay_rate", of="Adafactor"),
    OptionNames("weight_decay", paddle="lamb_weight_decay", of="Lamb"),
    OptionNames("clip_threshold", optax="clipping_threshold", of="Adafactor"),
    OptionNames("scale_parameter", optax="multiply_by_parameter_scale"),
    OptionNames("momentum_dtype", optax="mu_dtype", of="AdamW Lion Muon"),
    OptionNames("momentum_dtype", optax="dtype_momentum", of="Adafactor"),
    OptionNames("momentum_dtype", optax="accumulator_dtype", of="SGD"),
    OptionNames("trust_coefficient", "eta lars_coeff"),
    OptionNames("adapt", "always_adapt use_nvlamb", 'adapt=True always, adapt="decayed" only if weight_decay is not 0'),
    OptionNames("decay", "adam_w_mode", 'decay="l2" if it is False'),
    OptionNames("decay", "decoupled_decay decoupled_weight_decay weight_decouple", 'decay="decoupled"'),
    OptionNames(
        "max_grad_norm",
        "grad_clip clip_grad clip_grad_norm clip_norm gradient_clip_val gradient_clipping max_norm",
        keras="global_clipnorm",
    ),
    OptionNames("max_grad_norm_per_tensor", keras="clipnorm"),
    OptionNames("max_grad_value", keras="clipvalue"),
    OptionNames("fused", "engine", "without it the fastest is picked; fused=False turns kernels off"),
    OptionNames("engine", "fused foreach", 'without it the fastest is picked; engine="rule" turns kernels off'),
    OptionNames("mask", "weight_decay_mask"),
    OptionNames("iterations", "steps iters num_iters num_iterations"),
    OptionNames("ns_steps", "steps iters num_iters num_iterations iterations"),
    OptionNames("momentum", "beta"),
    OptionNames("params", "parameters named_parameters"),
    OptionNames("master_weights", "multi_precision"),
    OptionNames("master_weights", "kahan_sum", 'master_weights="split" keeps the bits that a weight lacks'),
    OptionNames("state_dtype", "bits optim_bits", 'state_dtype="int8" is 8 bits'),
    OptionNames(
        "state_dtype", "block_size block_wise", "groups of 64; `blocks` are parts of a tensor that count as layers"
    ),
    OptionNames("rounding", "stochastic_rounding bf16_stochastic_round", 'rounding="stochastic"'),
    OptionNames("bias_correction", "correct_bias debias"),
    OptionNames("decay_scale", "fixed_decay", 'decay_scale="none"'),
    OptionNames("peak_lr", "corrected_weight_decay", 'with decay="decoupled", the first lr'),
    OptionNames("trust_clip", "max_coeff min_coeff max_unorm", "bounds of the ratio, a pair"),
    OptionNames("max_weight_norm", "clamp_value"),
    OptionNames("eps_root", "eps_inside_sqrt", "the eps inside the root"),
    OptionNames("scale", "adjust_lr_fn consistent_rms rms_rate"),
    OptionNames("ns_coefficients", "muon_a muon_b muon_c", "(a, b, c)"),
    # Of functions that make groups.
    OptionNames(
        "no_decay", "skip skip_list no_weight_decay no_weight_decay_list decay_exempt exclude_from_weight_decay"
    ),
    OptionNames(
        "no_decay",
        "exclude_bias_n_norm exclude exclude_list exempt wd_ban_list",
        "`no_adapt` lists those without a trust ratio",
    ),
    OptionNames("no_adapt", "no_trust no_trust_ratio exclude_from_layer_adaptation exclude_from_lars lars_exclude"),
)


@cache
def synonyms() -> list[tuple[Sequence[str], str]]:
    """Return names of one thing, the option first, and what differs besides."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in ROWS:
        for remark, names in row.hints():
            if names:
                found.setdefault((row.own, remark), [row.own]).extend(names)
    return [(names, remark) for (_, remark), names in found.items()]


@cache
def _called(api: str, h: type[Hyper]) -> dict[str, Names]:
    """Return the names that an API has for options of a rule, with a number for each name."""
    usual: dict[str, Any] = {spec.name: spec.default for spec in fields(h)}
    rows = ((row, tuple(getattr(row, api).split())) for row in ROWS if not row.of or h.optimizer in row.of.split())
    return {
        row.own: names
        for row, names in rows
        if row.own in usual and len(names) == (len(usual[row.own]) if isinstance(usual[row.own], tuple) else 1)
    }


@dataclass(frozen=True)
class ApiNames:
    """The names of options in one API."""

    api: str

    def renamed_options(self, h: type[Hyper]) -> Mapping[str, Names]:
        """Return the names of a rule's options that are called otherwise, by option."""
        kind: Any = h
        found = _called(self.api, kind)
        # The epsilon of rules for matrices is that of the AdamW beside them, as in Keras.
        return {k: v for k, v in found.items() if k != "eps"} if self.api == "beside" and h().of_matrices else found

    def in_messages(self, h: type[Hyper]) -> dict[str, str]:
        """Return each option's name, if it differs."""
        return {option: ", ".join(names) for option, names in self.renamed_options(h).items()}

    def as_arguments(self, h: type[Hyper], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options as arguments, under the names that they have in this API."""
        found: dict[str, object] = {}
        for option, value in options.items():
            names = self.renamed_options(h).get(option, (option,))
            found |= {names[0]: value} if len(names) == 1 else dict(zip(names, value, strict=True))
        return found

    def arguments(self, h: type[Hyper]) -> list[str]:
        """Return the names of all arguments that are options."""
        return [name for spec in fields(h) for name in self.renamed_options(h).get(spec.name, (spec.name,))]


def is_pair(names: Sequence[str]) -> bool:
    return len(names) > 1


def checked_pair(
    h: type[Hyper],
    option: str,
    names: Names,
    given: Mapping[str, object],
    is_free: Callable[[object], bool] | None = None,
) -> tuple[object, ...]:
    """Return an option that is a pair of numbers, each checked under its own name, or its default if missing.

    `is_free` tells for which values nothing is known yet.
    """
    spec: Any = h.__dataclass_fields__[option]
    found = []
    for name, check, usual in zip(names, spec.metadata["check"].members, spec.default, strict=True):
        value = given.get(name, usual)
        free = is_free is not None and is_free(value)
        found.append(value if free else check(name, value, f"Pass a number such as {name}={usual}."))
    return tuple(found)


OPTAX, PADDLE = ApiNames("optax"), ApiNames("paddle")
OF_KERAS, KERAS = ApiNames("keras"), ApiNames("beside")  # Keras's own arguments; names beside the options
PADDLE_PRESETS = {"Lamb": "paddle.Lamb"}  # the preset with the defaults of Paddle's optimizer


def optax_defaults(h: type[Hyper]) -> dict[str, object]:
    """Return the options whose default in the JAX API is optax's, each with its default in the other APIs."""
    return {one.name: one.default for one in fields(h) if one.metadata["optax_default"] is not MISSING}
