"""The optimizers as functions that return optax transformations, and their states.

Printed by `make generate` from the declarations in layerwise/rules: change those, not this file.
Each has a page with its formula, and "JAX API" is the guide. help() describes all arguments.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from optax import GradientTransformationExtraArgs

from layerwise.jax._make import ByLeaf, Number, Rate
from layerwise.options.arguments import StateDtype
from layerwise.options.settings import Adapt, Bounds

__all__ = ["AdafactorState", "AdamMiniState", "AdamWState", "CameState", "FromageState", "LambState", "LansState"]
__all__ += ["LarsState", "LionState", "MuonState", "NovoGradState", "SGDState", "ScaleSGDState", "SinkGDState"]
__all__ += ["StableAdamWState", "adafactor", "adammini", "adamw", "came", "fromage", "lamb", "lans", "lars", "lion"]
__all__ += ["muon", "novograd", "scalesgd", "sgd", "sinkgd", "stableadamw"]

# fmt: off

class AdafactorState(NamedTuple):
    """State of `adafactor`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    v_row: Any
    v_col: Any
    v: Any
    ema: Any
    stats: Any = None

def adafactor(
    learning_rate: Rate | None = None, min_dim_size_to_factor: int = 128, decay_rate: Number = 0.8,
    decay_offset: int = 0, multiply_by_parameter_scale: bool | None = True, clipping_threshold: Number | None = 1.0,
    momentum: Number | None = None, dtype_momentum: Any = "float32", weight_decay_rate: Rate | None = None,
    eps: Number | tuple[Number | None, Number] = 1e-30, factored: Any = True, weight_decay_mask: ByLeaf = None,
    *,
    eps_mode: Literal["add", "clamp"] = "add", beta2: Rate | None = None, beta2_cap: Number | None = None,
    lr_in_momentum: bool = True, decay_scale: Literal["lr", "step", "none"] = "none",
    relative_step: bool | Literal["factor", "cap"] | None = False, lr_cap: Number = 0.01, warmup_init: bool = False,
    caution: bool = False, max_grad_norm: Number | None = None, max_grad_norm_per_tensor: Number | None = None,
    max_grad_value: Number | Bounds | None = None, maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """Adafactor (Shazeer & Stern, arXiv 1804.04235): Adam's second moment from row and column means.

    The first 12 arguments are those of optax.adafactor.
    """


class AdamMiniState(NamedTuple):
    """State of `adammini`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    mu: Any
    nu: Any
    stats: Any = None

def adammini(
    learning_rate: Rate, b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-08, weight_decay: Rate = 0.0,
    *,
    mask: ByLeaf = None, eps_root: Number = 0.0, max_grad_norm: Number | None = None,
    max_grad_norm_per_tensor: Number | None = None, max_grad_value: Number | Bounds | None = None,
    maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """Adam-mini (Zhang et al., arXiv 2406.16793): Adam with one second moment for each block of weights."""


class AdamWState(NamedTuple):
    """State of `adamw`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    mu: Any
    nu: Any
    stats: Any = None

def adamw(
    learning_rate: Rate, b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-08, eps_root: Number = 0.0,
    mu_dtype: Any = None, weight_decay: Rate = 0.0001, mask: ByLeaf = None,
    *,
    nesterov: bool = False, decay: Literal["decoupled", "l2"] = "decoupled", max_grad_norm: Number | None = None,
    max_grad_norm_per_tensor: Number | None = None, max_grad_value: Number | Bounds | None = None,
    maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101): Adam with decoupled weight decay, without a trust ratio.

    The first 8 arguments are those of optax.adamw.
    """


class CameState(NamedTuple):
    """State of `came`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    exp_avg_sq_row: Any
    exp_avg_sq_col: Any
    exp_avg_sq: Any
    exp_avg: Any
    exp_avg_res_row: Any
    exp_avg_res_col: Any
    stats: Any = None

def came(
    learning_rate: Rate, b1: Number = 0.9, b2: Number = 0.999, beta3: Number = 0.9999,
    eps: tuple[Number, Number] = (1e-30, 1e-16), weight_decay: Rate = 0.0,
    *,
    mask: ByLeaf = None, clip_threshold: Number | None = 1.0, decay_scale: Literal["lr", "none"] = "lr",
    factored: Any = "last", min_dim_size_to_factor: int = 0, max_grad_norm: Number | None = None,
    max_grad_norm_per_tensor: Number | None = None, max_grad_value: Number | Bounds | None = None,
    maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """CAME (Luo et al., arXiv 2307.02047): Adafactor with momentum, scaled by its confidence in each element."""


class FromageState(NamedTuple):
    """State of `fromage`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    momentum_buffer: Any
    norm: Any
    stats: Any = None

def fromage(
    learning_rate: Rate, min_norm: Number = 1e-06,
    *,
    mask: ByLeaf = None, momentum: Number = 0.0, weight_decay: Rate = 0.0, p_bound: Number | None = None,
    max_grad_norm: Number | None = None, max_grad_norm_per_tensor: Number | None = None,
    max_grad_value: Number | Bounds | None = None, maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """Fromage (Bernstein et al., arXiv 2002.03432): a step as long as lr·‖p‖, and then all weights a little smaller.

    The first 2 arguments are those of optax.fromage.
    """


class LambState(NamedTuple):
    """State of `lamb`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    mu: Any
    nu: Any
    norm: Any
    stats: Any = None

def lamb(
    learning_rate: Rate, b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-06, eps_root: Number = 0.0,
    weight_decay: Rate = 0.0, mask: ByLeaf = None,
    *,
    bias_correction: bool | Literal["lr"] = True, decay: Literal["ratio", "decoupled", "l2"] = "ratio",
    peak_lr: Number | None = None, grad_averaging: bool = True, trust_eps: Number = 0.0,
    max_weight_norm: Number | None = None, l2: Number = 0.0, keep_norm: bool | Literal["first"] = False,
    radial: Number | None = None, adapt: Adapt = True, trust_clip: Bounds | None = None,
    zero_norm_ratio: Number = 1.0, min_norm: Number = 0.0, caution: bool = False,
    max_grad_norm: Number | None = None, max_grad_norm_per_tensor: Number | None = None,
    max_grad_value: Number | Bounds | None = None, maximize: bool = False,
    trust_ratio_mask: ByLeaf = None, blocks: ByLeaf = None,
    master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """LAMB (You et al., arXiv 1904.00962): Adam's direction, scaled in each tensor to the length lr·‖p‖.

    The first 7 arguments are those of optax.lamb.
    """


class LansState(NamedTuple):
    """State of `lans`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    mu: Any
    nu: Any
    stats: Any = None

def lans(
    learning_rate: Rate, b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-06, weight_decay: Rate = 0.0,
    *,
    mask: ByLeaf = None, eps_root: Number = 0.0, max_weight_norm: Number | None = None, adapt: Adapt = True,
    trust_clip: Bounds | None = None, zero_norm_ratio: Number = 1.0, min_norm: Number = 0.0,
    max_grad_value: Number | Bounds | None = None, maximize: bool = False,
    trust_ratio_mask: ByLeaf = None, blocks: ByLeaf = None,
    master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """LANS (Zheng et al., arXiv 2006.13484): LAMB with normalized gradients and Nesterov momentum in the direction."""


class LarsState(NamedTuple):
    """State of `lars`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    trace: Any
    norm: Any
    stats: Any = None

def lars(
    learning_rate: Rate, weight_decay: Rate = 0.0, weight_decay_mask: ByLeaf = True,
    trust_coefficient: Number = 0.001, eps: Number = 0.0, trust_ratio_mask: ByLeaf = True, momentum: Number = 0.9,
    nesterov: bool = False,
    *,
    adapt: Adapt | Literal["step"] = True, dampening: Number = 0.0, norm: Literal["split", "decayed"] = "decayed",
    trust_clip: tuple[Number | None, Number] | None = None, lr_in_momentum: bool = True,
    keep_norm: bool | Literal["first"] = False, radial: Number | None = None, zero_norm_ratio: Number = 1.0,
    min_norm: Number = 0.0, l2: Number = 0.0, caution: bool = False, max_grad_norm: Number | None = None,
    max_grad_norm_per_tensor: Number | None = None, max_grad_value: Number | Bounds | None = None,
    maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """LARS (You, Gitman, Ginsburg, arXiv 1708.03888): momentum SGD with a learning rate for each tensor.

    The first 8 arguments are those of optax.lars.
    """


class LionState(NamedTuple):
    """State of `lion`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    mu: Any
    norm: Any
    stats: Any = None

def lion(
    learning_rate: Rate, b1: Number = 0.9, b2: Number = 0.99, mu_dtype: Any = None, weight_decay: Rate = 0.001,
    mask: ByLeaf = None,
    *,
    adapt: Adapt = False, decay: Literal["ratio", "decoupled", "l2"] = "ratio",
    keep_norm: bool | Literal["first"] = False, radial: Number | None = None, trust_clip: Bounds | None = None,
    zero_norm_ratio: Number = 1.0, min_norm: Number = 0.0, caution: bool = False,
    max_grad_norm: Number | None = None, max_grad_norm_per_tensor: Number | None = None,
    max_grad_value: Number | Bounds | None = None, maximize: bool = False,
    trust_ratio_mask: ByLeaf = None, blocks: ByLeaf = None,
    master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """Lion (Chen et al., arXiv 2302.06675): the sign of a mixture of momentum and gradient.

    The first 6 arguments are those of optax.lion.
    """


class MuonState(NamedTuple):
    """State of `muon`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    mu: Any
    norm: Any
    stats: Any = None

def muon(
    learning_rate: Rate, momentum: Number = 0.95, weight_decay: Rate = 0.0,
    *,
    mask: ByLeaf = None, adapt: Adapt = False, decay: Literal["decoupled", "l2"] = "decoupled",
    nesterov: bool | Literal["corrected"] = True,
    scale: Literal["original", "match_rms_adamw"] | Number = "original", ns_coefficients: Any = "jordan",
    ns_steps: int = 5, eps: Number = 1e-07, dims: Any = "first", mu_dtype: Any = None, ns_dtype: Any = None,
    keep_norm: bool | Literal["first"] = False, radial: Number | None = None, trust_clip: Bounds | None = None,
    zero_norm_ratio: Number = 1.0, min_norm: Number = 0.0, max_grad_norm: Number | None = None,
    max_grad_norm_per_tensor: Number | None = None, max_grad_value: Number | Bounds | None = None,
    maximize: bool = False,
    trust_ratio_mask: ByLeaf = None, blocks: ByLeaf = None,
    master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """Muon (Jordan et al. 2024; Liu et al., arXiv 2502.16982): momentum with all singular values brought to about 1."""


class NovoGradState(NamedTuple):
    """State of `novograd`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    mu: Any
    nu: Any
    stats: Any = None

def novograd(
    learning_rate: Rate, b1: Number = 0.9, b2: Number = 0.25, eps: Number = 1e-06, eps_root: Number = 0.0,
    weight_decay: Rate = 0.0,
    *,
    mask: ByLeaf = None, grad_averaging: bool = False, normalize: Literal["gradient", "momentum"] = "gradient",
    decay: Literal["momentum", "decoupled"] = "momentum", bias_correction: bool = False,
    v_start: Literal["first", "zero", "nonzero"] = "first", m_start: Literal["zero", "direction"] = "zero",
    max_grad_norm: Number | None = None, max_grad_norm_per_tensor: Number | None = None,
    max_grad_value: Number | Bounds | None = None, maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """NovoGrad (Ginsburg et al., arXiv 1905.11286): momentum SGD on gradients divided by a running norm.

    The first 6 arguments are those of optax.novograd.
    """


class ScaleSGDState(NamedTuple):
    """State of `scalesgd`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    exp_avg: Any
    stats: Any = None

def scalesgd(
    learning_rate: Rate, weight_decay: Rate = 0.0,
    *,
    mask: ByLeaf = None, over: Literal["columns", "rows"] = "columns", norm: Literal["rms", "l2"] = "rms",
    momentum: Number = 0.0, scale: Number = 1.0, eps: Number = 1e-08, dims: Any = "first",
    max_grad_norm: Number | None = None, max_grad_norm_per_tensor: Number | None = None,
    max_grad_value: Number | Bounds | None = None, maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """SCALE (Glentis et al., arXiv 2506.16659): SGD with the gradient of each output scaled to one size."""


class SGDState(NamedTuple):
    """State of `sgd`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    trace: Any
    stats: Any = None

def sgd(
    learning_rate: Rate, momentum: Number | None = None, nesterov: bool = False, accumulator_dtype: Any = None,
    *,
    mask: ByLeaf = None, dampening: Number = 0.0, weight_decay: Rate = 0.0,
    decay: Literal["l2", "decoupled"] = "l2", max_grad_norm: Number | None = None,
    max_grad_norm_per_tensor: Number | None = None, max_grad_value: Number | Bounds | None = None,
    maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """SGD with momentum (Polyak 1964; Sutskever et al., ICML 2013), without a trust ratio.

    The first 4 arguments are those of optax.sgd.
    """


class SinkGDState(NamedTuple):
    """State of `sinkgd`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    exp_avg: Any
    stats: Any = None

def sinkgd(
    learning_rate: Rate, weight_decay: Rate = 0.0,
    *,
    mask: ByLeaf = None, iterations: int = 5, momentum: Number = 0.0, scale: Number = 1.0, eps: Number = 1e-08,
    dims: Any = "first", max_grad_norm: Number | None = None, max_grad_norm_per_tensor: Number | None = None,
    max_grad_value: Number | Bounds | None = None, maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """SinkGD (Scetbon et al., arXiv 2502.06742): SGD with the gradient's rows and columns scaled to one size."""


class StableAdamWState(NamedTuple):
    """State of `stableadamw`, under optax's names. Its trees are like the parameters'; None is what is not kept."""

    count: Any
    mu: Any
    nu: Any
    stats: Any = None

def stableadamw(
    learning_rate: Rate, b1: Number = 0.9, b2: Number = 0.99, eps: Number = 1e-08, weight_decay: Rate = 0.0,
    *,
    mask: ByLeaf = None, eps_root: Number = 0.0, clip_threshold: Number | None = 1.0,
    decay_scale: Literal["step", "lr", "none"] = "step", max_grad_norm: Number | None = None,
    max_grad_norm_per_tensor: Number | None = None, max_grad_value: Number | Bounds | None = None,
    maximize: bool = False,
    blocks: ByLeaf = None, master_weights: bool | Literal["split", "split24"] = False,
    rounding: Literal["nearest", "stochastic"] | None = None,
    state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int | None = None, stats: bool = False,
    axis_name: str | tuple[str, ...] | None = None, specs: ByLeaf = None,
) -> GradientTransformationExtraArgs:
    """StableAdamW (Wortsman et al., arXiv 2304.13013): AdamW with shorter steps when v lags behind the gradient."""
