"""The optimizers as classes that update named arrays in place.

Printed by `make generate` from the declarations in layerwise/rules: change those, not this file.
Each has a page with its formula, and "NumPy API" is the guide. help() describes all arguments.
"""

from collections.abc import Mapping
from typing import Any, Literal

from layerwise.layout.blocks import Split
from layerwise.numpy._optimizer import Optimizer
from layerwise.options.arguments import ByName, StateDtype
from layerwise.options.settings import Adapt, Bounds, Scheduled

__all__ = ["SGD", "Adafactor", "AdamMini", "AdamW", "Came", "Fromage", "Lamb", "Lans", "Lars", "Lion", "Muon"]
__all__ += ["NovoGrad", "ScaleSGD", "SinkGD", "StableAdamW"]

# fmt: off

class Adafactor(Optimizer):
    """Adafactor (Shazeer & Stern, arXiv 1804.04235): Adam's second moment from row and column means."""

    def __init__(
        self,
        lr: Scheduled | None = None,
        *,
        eps: tuple[float | None, float] = (1e-30, 0.001), eps_mode: Literal["add", "clamp"] = "add",
        clip_threshold: float | None = 1.0, beta2_decay: float = -0.8, beta2: Scheduled | None = None,
        beta2_cap: float | None = None, decay_offset: int = 0, beta1: float | None = None, momentum_dtype: Any = None,
        lr_in_momentum: bool = True, weight_decay: Scheduled = 0.0, decay_scale: Literal["lr", "step", "none"] = "lr",
        scale_parameter: bool | None = None, relative_step: bool | Literal["factor", "cap"] | None = None,
        lr_cap: float = 0.01, warmup_init: bool = False, factored: Any = "last", min_dim_size_to_factor: int = 0,
        caution: bool = False, max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None, skip_nonfinite: bool = False,
        master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class AdamMini(Optimizer):
    """Adam-mini (Zhang et al., arXiv 2406.16793): Adam with one second moment for each block of weights."""

    def __init__(
        self,
        lr: Scheduled = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-08,
        weight_decay: Scheduled = 0.0,
        *,
        eps_root: float = 0.0, max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None, skip_nonfinite: bool = False,
        master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class AdamW(Optimizer):
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101): Adam with decoupled weight decay, without a trust ratio."""

    def __init__(
        self,
        lr: Scheduled = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-08,
        weight_decay: Scheduled = 0.01,
        *,
        eps_root: float = 0.0, decay: Literal["decoupled", "l2"] | ByName[bool | float | str] = "decoupled",
        nesterov: bool = False, momentum_dtype: Any = None, max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, blocks: Split | ByName[Split] | None = None,
        skip_nonfinite: bool = False, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class Came(Optimizer):
    """CAME (Luo et al., arXiv 2307.02047): Adafactor with momentum, scaled by its confidence in each element."""

    def __init__(
        self,
        lr: Scheduled = 0.0002, betas: tuple[float, float] = (0.9, 0.999), beta3: float = 0.9999,
        eps: tuple[float, float] = (1e-30, 1e-16), weight_decay: Scheduled = 0.0,
        *,
        clip_threshold: float | None = 1.0, decay_scale: Literal["lr", "none"] = "lr", factored: Any = "last",
        min_dim_size_to_factor: int = 0, max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None, skip_nonfinite: bool = False,
        master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class Fromage(Optimizer):
    """Fromage (Bernstein et al., arXiv 2002.03432): a step as long as lr·‖p‖, and then all weights a little smaller."""

    def __init__(
        self,
        lr: Scheduled = 0.01, momentum: float = 0.0, weight_decay: Scheduled = 0.0,
        *,
        p_bound: float | None = None, min_norm: float = 0.0, max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None, skip_nonfinite: bool = False,
        master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class Lamb(Optimizer):
    """LAMB (You et al., arXiv 1904.00962): Adam's direction, scaled in each tensor to the length lr·‖p‖."""

    def __init__(
        self,
        lr: Scheduled = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-06,
        weight_decay: Scheduled = 0.0,
        *,
        eps_root: float = 0.0, bias_correction: bool | Literal["lr"] = True,
        decay: Literal["ratio", "decoupled", "l2"] | ByName[bool | float | str] = "ratio", peak_lr: float | None = None,
        grad_averaging: bool = True, trust_eps: float = 0.0, max_weight_norm: float | None = None,
        l2: float | ByName[float] = 0.0, keep_norm: bool | Literal["first"] = False, radial: float | None = None,
        adapt: Adapt | ByName[Adapt] = True, trust_clip: Bounds | None = None, zero_norm_ratio: float = 1.0,
        min_norm: float = 0.0, caution: bool = False, max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, blocks: Split | ByName[Split] | None = None,
        skip_nonfinite: bool = False, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class Lans(Optimizer):
    """LANS (Zheng et al., arXiv 2006.13484): LAMB with normalized gradients and Nesterov momentum in the direction."""

    def __init__(
        self,
        lr: Scheduled = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-06,
        weight_decay: Scheduled = 0.0,
        *,
        eps_root: float = 0.0, max_weight_norm: float | None = None, adapt: Adapt | ByName[Adapt] = True,
        trust_clip: Bounds | None = None, zero_norm_ratio: float = 1.0, min_norm: float = 0.0,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None, skip_nonfinite: bool = False,
        master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class Lars(Optimizer):
    """LARS (You, Gitman, Ginsburg, arXiv 1708.03888): momentum SGD with a learning rate for each tensor."""

    def __init__(
        self,
        lr: Scheduled = 1.0, momentum: float = 0.9, weight_decay: Scheduled = 0.0, trust_coefficient: float = 0.001,
        *,
        adapt: Adapt | ByName[Adapt] = True, eps: float = 0.0, nesterov: bool = False, dampening: float = 0.0,
        norm: Literal["split", "decayed"] = "split", trust_clip: tuple[float | None, float] | None = None,
        lr_in_momentum: bool = True, keep_norm: bool | Literal["first"] = False, radial: float | None = None,
        zero_norm_ratio: float = 1.0, min_norm: float = 0.0, l2: float | ByName[float] = 0.0, caution: bool = False,
        max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None, skip_nonfinite: bool = False,
        master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class Lion(Optimizer):
    """Lion (Chen et al., arXiv 2302.06675): the sign of a mixture of momentum and gradient."""

    def __init__(
        self,
        lr: Scheduled = 0.0001, betas: tuple[float, float] = (0.9, 0.99), weight_decay: Scheduled = 0.0,
        *,
        adapt: Adapt | ByName[Adapt] = False,
        decay: Literal["ratio", "decoupled", "l2"] | ByName[bool | float | str] = "ratio", momentum_dtype: Any = None,
        keep_norm: bool | Literal["first"] = False, radial: float | None = None, trust_clip: Bounds | None = None,
        zero_norm_ratio: float = 1.0, min_norm: float = 0.0, caution: bool = False, max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, blocks: Split | ByName[Split] | None = None,
        skip_nonfinite: bool = False, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class Muon(Optimizer):
    """Muon (Jordan et al. 2024; Liu et al., arXiv 2502.16982): momentum with all singular values brought to about 1."""

    def __init__(
        self,
        lr: Scheduled = 0.02, momentum: float = 0.95, weight_decay: Scheduled = 0.0,
        *,
        adapt: Adapt | ByName[Adapt] = False,
        decay: Literal["decoupled", "l2"] | ByName[bool | float | str] = "decoupled",
        nesterov: bool | Literal["corrected"] = True,
        scale: Literal["original", "match_rms_adamw"] | float = "original", ns_coefficients: Any = "jordan",
        ns_steps: int = 5, eps: float = 1e-07, dims: Any = "first", momentum_dtype: Any = None, ns_dtype: Any = None,
        keep_norm: bool | Literal["first"] = False, radial: float | None = None, trust_clip: Bounds | None = None,
        zero_norm_ratio: float = 1.0, min_norm: float = 0.0, max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, blocks: Split | ByName[Split] | None = None,
        skip_nonfinite: bool = False, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class NovoGrad(Optimizer):
    """NovoGrad (Ginsburg et al., arXiv 1905.11286): momentum SGD on gradients divided by a running norm."""

    def __init__(
        self,
        lr: Scheduled = 0.001, betas: tuple[float, float] = (0.95, 0.98), eps: float = 1e-08,
        weight_decay: Scheduled = 0.0,
        *,
        eps_root: float = 0.0, grad_averaging: bool = False, normalize: Literal["gradient", "momentum"] = "gradient",
        decay: Literal["momentum", "decoupled"] | ByName[bool | float | str] = "momentum",
        bias_correction: bool = False, v_start: Literal["first", "zero", "nonzero"] = "first",
        m_start: Literal["zero", "direction"] = "zero", max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, blocks: Split | ByName[Split] | None = None,
        skip_nonfinite: bool = False, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class ScaleSGD(Optimizer):
    """SCALE (Glentis et al., arXiv 2506.16659): SGD with the gradient of each output scaled to one size."""

    def __init__(
        self,
        lr: Scheduled = 0.001, weight_decay: Scheduled = 0.0,
        *,
        over: Literal["columns", "rows"] = "columns", norm: Literal["rms", "l2"] = "rms", momentum: float = 0.0,
        scale: float = 1.0, eps: float = 1e-08, dims: Any = "first", max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None, skip_nonfinite: bool = False,
        master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class SGD(Optimizer):
    """SGD with momentum (Polyak 1964; Sutskever et al., ICML 2013), without a trust ratio."""

    def __init__(
        self,
        lr: Scheduled = 0.001, momentum: float = 0.0, dampening: float = 0.0, weight_decay: Scheduled = 0.0,
        *,
        nesterov: bool = False, decay: Literal["l2", "decoupled"] | ByName[bool | float | str] = "l2",
        momentum_dtype: Any = None, max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, blocks: Split | ByName[Split] | None = None,
        skip_nonfinite: bool = False, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class SinkGD(Optimizer):
    """SinkGD (Scetbon et al., arXiv 2502.06742): SGD with the gradient's rows and columns scaled to one size."""

    def __init__(
        self,
        lr: Scheduled = 0.001, weight_decay: Scheduled = 0.0,
        *,
        iterations: int = 5, momentum: float = 0.0, scale: float = 1.0, eps: float = 1e-08, dims: Any = "first",
        max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None, skip_nonfinite: bool = False,
        master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...


class StableAdamW(Optimizer):
    """StableAdamW (Wortsman et al., arXiv 2304.13013): AdamW with shorter steps when v lags behind the gradient."""

    def __init__(
        self,
        lr: Scheduled = 0.001, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-08,
        weight_decay: Scheduled = 0.0,
        *,
        eps_root: float = 0.0, clip_threshold: float | None = 1.0, decay_scale: Literal["step", "lr", "none"] = "step",
        max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        lr_scale: float | ByName[float] | None = None, decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None, skip_nonfinite: bool = False,
        master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, shared_count: bool = False,
        engine: str | None = None,
    ) -> None: ...
