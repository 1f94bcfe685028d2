"""LAMB, LARS and Adafactor as optax transformations: optax's own calls and numbers, and what it does not have.

>>> import jax.numpy as jnp, optax
>>> from layerwise.jax import lamb
>>> params = {"w": jnp.array([3.0, 4.0])}
>>> opt = lamb(0.1)
>>> updates, state = opt.update({"w": jnp.ones(2)}, opt.init(params), params)
>>> [round(float(x), 4) for x in optax.apply_updates(params, updates)["w"]]
[2.6464, 3.6464]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from layerwise import hyper, rules
from layerwise.checks import FLAG, number
from layerwise.errors import ContradictionError, sentence
from layerwise.hyper import Adapt, Bounds
from layerwise.jax._mesh import as_mesh
from layerwise.jax._options import is_traced, options
from layerwise.jax._presets import NAMES, preset
from layerwise.jax._state import AdafactorState, LambState, LarsState
from layerwise.jax._stats import stats
from layerwise.jax._transform import Mask, Transformation
from layerwise.keywords import explained

Rate = float | jax.Array | Callable[[Any], Any]
Number = float | jax.Array
Optional = float | jax.Array | None
ByLeaf = Any  # a tree like the parameters, a prefix of it, or a callable of the parameters that returns one
"""What `mask`, `trust_ratio_mask`, `blocks` and `specs` take."""

__all__ = ["AdafactorState", "LambState", "LarsState", "adafactor", "lamb", "lars", "preset", "stats"]


@explained
def lamb(
    learning_rate: Rate,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-6,
    eps_root: Number = 0.0,
    weight_decay: Rate = 0.0,
    mask: ByLeaf = None,
    *,
    trust_ratio_mask: ByLeaf = None,
    bias_correction: bool | Literal["lr"] = True,
    decay: Literal["ratio", "decoupled", "l2"] = "ratio",
    adapt: Adapt = True,
    trust_clip: Bounds | None = None,
    max_weight_norm: Optional = None,
    grad_averaging: bool = True,
    zero_norm_ratio: Number = 1.0,
    max_grad_norm: Optional = None,
    max_grad_norm_per_tensor: Optional = None,
    max_grad_value: Optional = None,
    maximize: bool = False,
    blocks: ByLeaf = None,
    stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None,
    specs: ByLeaf = None,
) -> optax.GradientTransformationExtraArgs:
    """LAMB; docs/optimizers/lamb.md has the formula, docs/jax.md the rest. The first seven arguments are optax's.

    `mask` says what decays and `trust_ratio_mask` what has a trust ratio, each a tree, a prefix, or a callable of the
    parameters; `blocks` likewise says which stack layers. `stats=True` keeps in the state what a step measures.
    Under shard_map `axis_name` names the axes that cut parameters, and `specs` which dimension they cut.
    """
    given = {**locals(), "lr": learning_rate, "betas": (_beta("b1", b1, 0.9), _beta("b2", b2, 0.999))}
    return _made(rules.lamb, hyper.Lamb, LambState, given, Mask("mask", mask))


@explained
def lars(
    learning_rate: Rate,
    weight_decay: Rate = 0.0,
    weight_decay_mask: ByLeaf = True,
    trust_coefficient: Number = 0.001,
    eps: Number = 0.0,
    trust_ratio_mask: ByLeaf = True,
    momentum: Number = 0.9,
    nesterov: bool = False,
    *,
    dampening: Number = 0.0,
    norm: Literal["split", "decayed"] = "decayed",
    lr_in_momentum: bool = True,
    adapt: Adapt = True,
    trust_clip: Bounds | None = None,
    zero_norm_ratio: Number = 1.0,
    max_grad_norm: Optional = None,
    max_grad_norm_per_tensor: Optional = None,
    max_grad_value: Optional = None,
    maximize: bool = False,
    blocks: ByLeaf = None,
    stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None,
    specs: ByLeaf = None,
) -> optax.GradientTransformationExtraArgs:
    """LARS; docs/optimizers/lars.md has the formula, docs/jax.md the rest, and `lamb` what is said of parameters.

    The first eight arguments are optax's, and norm="decayed" is its ratio.
    """
    given = {**locals(), "lr": learning_rate}
    if nesterov is True and not is_traced(momentum) and momentum == 0:
        given["nesterov"] = False  # without momentum it is the same, and optax allows it
    return _made(rules.lars, hyper.Lars, LarsState, given, Mask("weight_decay_mask", weight_decay_mask))


@explained
def adafactor(
    learning_rate: Rate | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: Number = 0.8,
    decay_offset: int = 0,
    multiply_by_parameter_scale: bool | None = True,
    clipping_threshold: Optional = 1.0,
    momentum: Optional = None,
    dtype_momentum: Any = jnp.float32,
    weight_decay_rate: Rate | None = None,
    eps: Number | tuple[Optional, Number] = 1e-30,
    factored: Any = True,
    weight_decay_mask: ByLeaf = None,
    *,
    eps_mode: Literal["add", "clamp"] = "add",
    beta2_cap: Optional = None,
    lr_in_momentum: bool = True,
    decay_scale: Literal["lr", "step", "none"] = "none",
    relative_step: bool | Literal["factor", "cap"] | None = False,
    lr_cap: Number = 1e-2,
    warmup_init: bool = False,
    max_grad_norm: Optional = None,
    max_grad_norm_per_tensor: Optional = None,
    max_grad_value: Optional = None,
    maximize: bool = False,
    blocks: ByLeaf = None,
    stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None,
    specs: ByLeaf = None,
) -> optax.GradientTransformationExtraArgs:
    """Adafactor; docs/optimizers/adafactor.md has the formula, docs/jax.md the rest, and `lamb` what is said of
    parameters.

    The first twelve arguments are optax's. learning_rate=None is 1 as there, and the paper's relative step with
    relative_step=True, or None, which is on when learning_rate is None. With "factor" the learning rate multiplies
    the relative step, with "cap" it bounds it. `eps` may be (eps1, eps2); `factored` also takes what it takes in the
    other fronts, True being "largest".
    """
    if learning_rate is not None and relative_step is True:
        way_out = 'Drop one, or say what it is: relative_step="cap" bounds the step by it, "factor" scales it.'
        raise ContradictionError(sentence("learning_rate", "None when relative_step=True", learning_rate, way_out))
    given = {
        **locals(),
        "lr": 1.0 if learning_rate is None and relative_step is False else learning_rate,
        "beta2_decay": _negative("decay_rate", decay_rate),
        "scale_parameter": multiply_by_parameter_scale,
        "clip_threshold": clipping_threshold,
        "beta1": momentum,
        "momentum_dtype": None if momentum is None else _dtype_name(dtype_momentum),
        "weight_decay": 0.0 if weight_decay_rate is None else weight_decay_rate,
        "eps": eps if isinstance(eps, (tuple, list)) else (_eps1(eps), 1e-3),
        "factored": "largest" if factored is True else factored,
    }
    needs_specs = None if factored is False else "factored statistics"
    mask = Mask("weight_decay_mask", weight_decay_mask)
    return _made(rules.adafactor, hyper.Adafactor, AdafactorState, given, mask, needs_specs)


def _made(
    rule: Any,
    cls: type[hyper.Settings],
    state: type[Any],
    given: dict[str, Any],
    mask: Mask,
    needs_specs: str | None = None,
) -> optax.GradientTransformationExtraArgs:
    checked = options(cls, given, {"betas": "b1, b2", **NAMES[cls.optimizer]})
    ratio_mask = given.get("trust_ratio_mask")
    if given.get("adapt") is False and not (ratio_mask is None or ratio_mask is True):
        raise ContradictionError(
            sentence("trust_ratio_mask", "None when adapt=False", ratio_mask, "The mask alone says it all.")
        )
    if needs_specs is None and given["blocks"] is not None:
        needs_specs = "blocks"
    return Transformation(
        rule=rule,
        state=state,
        options=checked,
        decay_mask=mask._replace(given=True if mask.given is None else mask.given),
        ratio_mask=True if ratio_mask is None else ratio_mask,
        blocks=given["blocks"],
        stats=FLAG("stats", given["stats"], hyper.SWITCH),
        mesh=as_mesh(given["axis_name"], given["specs"], needs_specs),
    ).as_optax()


def _beta(argument: str, value: Any, usual: float) -> Any:
    return value if is_traced(value) else number(0, 1)(argument, value, f"Pass a number such as {argument}={usual}.")


def _eps1(value: Any) -> Any:
    return value if is_traced(value) else hyper.EPS1("eps", value, "Pass a number such as eps=1e-30, or (eps1, eps2).")


def _negative(argument: str, value: Any) -> Any:
    return (
        -value if is_traced(value) else -number(0)(argument, value, "Pass a number such as 0.8; 1 − t^−0.8 is beta2.")
    )


def _dtype_name(dtype: Any) -> Any:
    # inject_hyperparams takes a dtype for a schedule, because it can be called, and hands over what it returned.
    return hyper.Adafactor.check("momentum_dtype", getattr(dtype, "dtype", dtype), "dtype_momentum")
