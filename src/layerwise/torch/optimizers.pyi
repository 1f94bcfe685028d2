"""The optimizers as classes of `torch.optim.Optimizer`.

Printed by `make generate` from the declarations in layerwise/rules: change those, not this file.
Each has a page with its formula, and "PyTorch API" is the guide. help() describes all arguments.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from torch import Tensor
from torch.distributed import ProcessGroup

from layerwise.layout.blocks import BlocksByName
from layerwise.options.arguments import StateDtype
from layerwise.options.settings import Adapt, Bounds, Scheduled
from layerwise.torch._optimizer import Optimizer

__all__ = ["SGD", "Adafactor", "AdamMini", "AdamW", "Came", "Fromage", "Lamb", "Lans", "Lars", "Lion", "Muon"]
__all__ += ["NovoGrad", "ScaleSGD", "SinkGD", "StableAdamW"]

# fmt: off

Rate: TypeAlias = float | Tensor
"""A number, or a tensor of one, as a captured CUDA graph reads it."""

class Adafactor(Optimizer):
    """Adafactor (Shazeer & Stern, arXiv 1804.04235): Adam's second moment from row and column means.

    Args:
        lr: Learning rate; None selects the paper's relative step.
        eps: Pair (eps1, eps2): eps1 is added to the squared gradient (None is the dtype's own epsilon); eps2 is a
            lower bound of the weights' root mean square.
        eps_mode: Add eps1 to the squared gradient ("add", the paper), or use it as a lower bound of the denominator
            ("clamp").
        clip_threshold: Scale an update down if its root mean square exceeds this; None turns this off.
        beta2_decay: The exponent of the step t in 1 - beta2.
        beta2: The decay rate of the second moment, or a function of the step; None follows 1 - t**beta2_decay.
        beta2_cap: Upper bound of beta2; None is no bound.
        decay_offset: Subtract this from the step t in beta2, to fine-tune a model that was trained before.
        beta1: Decay rate of the momentum; None means no momentum.
        momentum_dtype: The dtype that stores the momentum, or its name; None uses the dtype of the other state.
        lr_in_momentum: Average steps, lr included, in the momentum; if False, average directions.
        weight_decay: Weight decay λ.
        decay_scale: Multiply weight_decay by the learning rate ("lr"), the step size ("step"), or 1 ("none").
        scale_parameter: Multiply the step by the root mean square of the weights; None turns this on with a
            relative step.
        relative_step: Follow the step count: multiply min(lr_cap, 1/√t) by lr ("factor", True), or take min(lr,
            1/√t) ("cap"); None turns this on when lr is None.
        lr_cap: Upper bound of the relative step; with "cap", the default of lr.
        warmup_init: Also bound the relative step by 1e-6·t.
        factored: Which dimensions are rows and columns: the last two ("last"), the two largest ("largest"), those
            of matrices only ("matrix"), two dimensions or groups of them, or none (False): no dimensions.
        min_dim_size_to_factor: Factor a tensor only if it has at least this many rows and columns.
        caution: Move only elements whose direction and gradient have the same sign, and scale the step up to make
            up for the others (arXiv 2411.16085).
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate | None = None,
        *,
        eps: tuple[float | None, float] = (1e-30, 0.001), eps_mode: Literal["add", "clamp"] = "add",
        clip_threshold: float | None = 1.0, beta2_decay: float = -0.8, beta2: Scheduled | None = None,
        beta2_cap: float | None = None, decay_offset: int = 0, beta1: float | None = None, momentum_dtype: Any = None,
        lr_in_momentum: bool = True, weight_decay: Rate = 0.0, decay_scale: Literal["lr", "step", "none"] = "lr",
        scale_parameter: bool | None = None, relative_step: bool | Literal["factor", "cap"] | None = None,
        lr_cap: float = 0.01, warmup_init: bool = False, factored: Any = "last", min_dim_size_to_factor: int = 0,
        caution: bool = False, max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class AdamMini(Optimizer):
    """Adam-mini (Zhang et al., arXiv 2406.16793): Adam with one second moment for each block of weights.

    Args:
        lr: Learning rate.
        betas: Decay rates of the first moment m and of the second moment v.
        eps: Added to the root of v, which m is divided by.
        weight_decay: Weight decay λ.
        eps_root: Added inside the root of the denominator.
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-08,
        weight_decay: Rate = 0.0,
        *,
        eps_root: float = 0.0, max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class AdamW(Optimizer):
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101): Adam with decoupled weight decay, without a trust ratio.

    Args:
        lr: Learning rate.
        betas: Decay rates of the first moment m and of the second moment v.
        eps: Added to the denominator of the step, outside the root.
        weight_decay: Weight decay λ.
        eps_root: Added inside the root of the denominator.
        decay: Apply weight_decay to the weights, times lr ("decoupled"), or to the gradient ("l2", Adam).
        nesterov: Use Nesterov's momentum, as in NAdam.
        momentum_dtype: The dtype that stores the momentum, or its name; None uses the dtype of the other state.
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-08,
        weight_decay: Rate = 0.01,
        *,
        eps_root: float = 0.0, decay: Literal["decoupled", "l2"] = "decoupled", nesterov: bool = False,
        momentum_dtype: Any = None, max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class Came(Optimizer):
    """CAME (Luo et al., arXiv 2307.02047): Adafactor with momentum, scaled by its confidence in each element.

    Args:
        lr: Learning rate.
        betas: Decay rates of the first moment m and of the second moment v.
        beta3: Decay rate of the instability, which measures the confidence.
        eps: Pair (eps1, eps2): eps1 is added to the squared gradient, eps2 to the squared distance between û and m.
        weight_decay: Weight decay λ.
        clip_threshold: Scale an update down if its root mean square exceeds this; None turns this off.
        decay_scale: Multiply weight_decay by the learning rate ("lr") or 1 ("none").
        factored: Which dimensions are rows and columns: the last two ("last"), the two largest ("largest"), those
            of matrices only ("matrix"), two dimensions or groups of them, or none (False): no dimensions.
        min_dim_size_to_factor: Factor a tensor only if it has at least this many rows and columns.
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.0002, betas: tuple[float, float] = (0.9, 0.999), beta3: float = 0.9999,
        eps: tuple[float, float] = (1e-30, 1e-16), weight_decay: Rate = 0.0,
        *,
        clip_threshold: float | None = 1.0, decay_scale: Literal["lr", "none"] = "lr", factored: Any = "last",
        min_dim_size_to_factor: int = 0, max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class Fromage(Optimizer):
    """Fromage (Bernstein et al., arXiv 2002.03432): a step as long as lr·‖p‖, and then all weights a little smaller.

    Args:
        lr: Learning rate.
        momentum: Decay rate of the momentum buffer; 0 means no buffer.
        weight_decay: Weight decay λ.
        p_bound: Scale the weights down after a step if their norm exceeds this times their first norm; None is no
            bound.
        min_norm: Lower bound of both norms in the ratio.
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.01, momentum: float = 0.0, weight_decay: Rate = 0.0,
        *,
        p_bound: float | None = None, min_norm: float = 0.0, max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class Lamb(Optimizer):
    """LAMB (You et al., arXiv 1904.00962): Adam's direction, scaled in each tensor to the length lr·‖p‖.

    Args:
        lr: Learning rate.
        betas: Decay rates of the first moment m and of the second moment v.
        eps: Added to the denominator of the direction, outside the root.
        weight_decay: Weight decay λ.
        eps_root: Added inside the root of the denominator.
        bias_correction: Correct m and v for their start at 0: in the direction (True), not at all (False), or on
            the step ("lr").
        decay: Apply weight_decay to the update, inside the trust ratio ("ratio"), to the weights first
            ("decoupled"), or to the gradient ("l2").
        peak_lr: Also multiply decoupled decay by lr/peak_lr, so that it fades like lr²; needs decay="decoupled".
            None does not.
        grad_averaging: Multiply the gradient by 1 - b1 as it enters m.
        trust_eps: Added to the denominator of the trust ratio.
        max_weight_norm: Upper bound of the weights' norm in the trust ratio; None is no bound.
        l2: L2 penalty, added to the gradient in addition to weight_decay.
        keep_norm: Rescale the weights after each step to their norm before that step (True) or before the first
            step ("first"); arXiv 2606.16899.
        radial: The factor on the part of a step that is along the weights, and so changes their norm; None leaves
            it.
        adapt: Use the trust ratio for all tensors (True), for none (False), or where weight_decay is not 0
            ("decayed").
        trust_clip: Bounds (low, high) of the trust ratio; None on a side leaves it unbounded.
        zero_norm_ratio: The trust ratio of a tensor if either norm is 0.
        min_norm: Lower bound of both norms in the trust ratio.
        caution: Move only elements whose direction and gradient have the same sign, and scale the step up to make
            up for the others (arXiv 2411.16085).
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-06,
        weight_decay: Rate = 0.0,
        *,
        eps_root: float = 0.0, bias_correction: bool | Literal["lr"] = True,
        decay: Literal["ratio", "decoupled", "l2"] = "ratio", peak_lr: float | None = None, grad_averaging: bool = True,
        trust_eps: float = 0.0, max_weight_norm: float | None = None, l2: float = 0.0,
        keep_norm: bool | Literal["first"] = False, radial: float | None = None, adapt: Adapt = True,
        trust_clip: Bounds | None = None, zero_norm_ratio: float = 1.0, min_norm: float = 0.0, caution: bool = False,
        max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class Lans(Optimizer):
    """LANS (Zheng et al., arXiv 2006.13484): LAMB with normalized gradients and Nesterov momentum in the direction.

    Args:
        lr: Learning rate.
        betas: Decay rates of the first moment m and of the second moment v.
        eps: Added to the denominator of both directions.
        weight_decay: Weight decay λ.
        eps_root: Added inside the root of the denominator.
        max_weight_norm: Upper bound of the weights' norm in the trust ratio; None is no bound.
        adapt: Use the trust ratio for all tensors (True), for none (False), or where weight_decay is not 0
            ("decayed").
        trust_clip: Bounds (low, high) of the trust ratio; None on a side leaves it unbounded.
        zero_norm_ratio: The trust ratio of a tensor if either norm is 0.
        min_norm: Lower bound of both norms in the trust ratio.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-06,
        weight_decay: Rate = 0.0,
        *,
        eps_root: float = 0.0, max_weight_norm: float | None = None, adapt: Adapt = True,
        trust_clip: Bounds | None = None, zero_norm_ratio: float = 1.0, min_norm: float = 0.0,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class Lars(Optimizer):
    """LARS (You, Gitman, Ginsburg, arXiv 1708.03888): momentum SGD with a learning rate for each tensor.

    Args:
        lr: Learning rate; at 1 a tensor moves by trust_coefficient of its norm.
        momentum: Decay rate of the momentum buffer; 0 means no buffer.
        weight_decay: Weight decay λ.
        trust_coefficient: The factor on the trust ratio (η in the paper).
        adapt: Use the trust ratio for all tensors (True), for none (False), or where weight_decay is not 0
            ("decayed"); "step" makes the whole step, momentum and all, exactly lr·trust_coefficient·‖p‖ long.
        eps: Added to the denominator of the trust ratio.
        nesterov: Use Nesterov's momentum; needs momentum > 0 and dampening = 0.
        dampening: From the second step on, multiply what enters the momentum buffer by 1 - dampening.
        norm: Divide ‖p‖ by ‖g‖ + λ‖p‖ ("split", the paper) or by ‖g + λp‖ ("decayed").
        trust_clip: Bounds (low, high) of the trust ratio divided by lr; None as low is no lower bound.
        lr_in_momentum: Multiply by lr inside the momentum buffer (the paper), not outside.
        keep_norm: Rescale the weights after each step to their norm before that step (True) or before the first
            step ("first"); arXiv 2606.16899.
        radial: The factor on the part of a step that is along the weights, and so changes their norm; None leaves
            it.
        zero_norm_ratio: The trust ratio of a tensor if either norm is 0.
        min_norm: Lower bound of both norms in the trust ratio.
        l2: L2 penalty, added to the gradient in addition to weight_decay.
        caution: Move only elements whose direction and gradient have the same sign, and scale the step up to make
            up for the others (arXiv 2411.16085).
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 1.0, momentum: float = 0.9, weight_decay: Rate = 0.0, trust_coefficient: float = 0.001,
        *,
        adapt: Adapt | Literal["step"] = True, eps: float = 0.0, nesterov: bool = False, dampening: float = 0.0,
        norm: Literal["split", "decayed"] = "split", trust_clip: tuple[float | None, float] | None = None,
        lr_in_momentum: bool = True, keep_norm: bool | Literal["first"] = False, radial: float | None = None,
        zero_norm_ratio: float = 1.0, min_norm: float = 0.0, l2: float = 0.0, caution: bool = False,
        max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class Lion(Optimizer):
    """Lion (Chen et al., arXiv 2302.06675): the sign of a mixture of momentum and gradient.

    Args:
        lr: Learning rate.
        betas: Decay rates of the first moment m and of the second moment v.
        weight_decay: Weight decay λ.
        adapt: Use the trust ratio for all tensors (True), for none (False), or where weight_decay is not 0
            ("decayed").
        decay: Apply weight_decay to the update, inside the trust ratio ("ratio"), to the weights first
            ("decoupled"), or to the gradient ("l2").
        momentum_dtype: The dtype that stores the momentum, or its name; None uses the dtype of the other state.
        keep_norm: Rescale the weights after each step to their norm before that step (True) or before the first
            step ("first"); arXiv 2606.16899.
        radial: The factor on the part of a step that is along the weights, and so changes their norm; None leaves
            it.
        trust_clip: Bounds (low, high) of the trust ratio; None on a side leaves it unbounded.
        zero_norm_ratio: The trust ratio of a tensor if either norm is 0.
        min_norm: Lower bound of both norms in the trust ratio.
        caution: Move only elements whose direction and gradient have the same sign, and scale the step up to make
            up for the others (arXiv 2411.16085).
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.0001, betas: tuple[float, float] = (0.9, 0.99), weight_decay: Rate = 0.0,
        *,
        adapt: Adapt = False, decay: Literal["ratio", "decoupled", "l2"] = "ratio", momentum_dtype: Any = None,
        keep_norm: bool | Literal["first"] = False, radial: float | None = None, trust_clip: Bounds | None = None,
        zero_norm_ratio: float = 1.0, min_norm: float = 0.0, caution: bool = False, max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class Muon(Optimizer):
    """Muon (Jordan et al. 2024; Liu et al., arXiv 2502.16982): momentum with all singular values brought to about 1.

    Args:
        lr: Learning rate.
        momentum: Decay rate of the momentum buffer; 0 means no buffer.
        weight_decay: Weight decay λ.
        adapt: Use the trust ratio for all tensors (True), for none (False), or where weight_decay is not 0
            ("decayed").
        decay: Apply weight_decay to the weights, times lr ("decoupled"), or to the gradient ("l2", as in MLX).
        nesterov: Look one step ahead, as Nesterov's momentum does (True), with both terms corrected for their bias
            ("corrected"), or not (False).
        scale: The factor on the step but not on the decay: √max(1, rows/columns) ("original"), 0.2·√max(rows,
            columns) ("match_rms_adamw"), or another number than 0.2.
        ns_coefficients: Coefficients (a, b, c) of an iteration, or of each, the last of which are repeated:
            "jordan" for (3.4445, -4.775, 2.0315), "polar_express" for those of arXiv 2505.16932.
        ns_steps: Number of iterations that bring singular values to about 1.
        eps: Lower bound of the norm that the momentum is divided by.
        dims: Which dimensions are rows and columns: the first and all others ("first"), the last two ("last"), two
            dimensions or groups of them, or none (False), which treats the tensor as a single row.
        momentum_dtype: The dtype that stores the momentum, or its name; None uses the dtype of the other state.
        ns_dtype: The dtype of the products that bring singular values to 1, or its name; float64 tensors have
            float64 for float32. None chooses 16 bits where the device multiplies these faster.
        keep_norm: Rescale the weights after each step to their norm before that step (True) or before the first
            step ("first"); arXiv 2606.16899.
        radial: The factor on the part of a step that is along the weights, and so changes their norm; None leaves
            it.
        trust_clip: Bounds (low, high) of the trust ratio; None on a side leaves it unbounded.
        zero_norm_ratio: The trust ratio of a tensor if either norm is 0.
        min_norm: Lower bound of both norms in the trust ratio.
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.02, momentum: float = 0.95, weight_decay: Rate = 0.0,
        *,
        adapt: Adapt = False, decay: Literal["decoupled", "l2"] = "decoupled",
        nesterov: bool | Literal["corrected"] = True,
        scale: Literal["original", "match_rms_adamw"] | float = "original", ns_coefficients: Any = "jordan",
        ns_steps: int = 5, eps: float = 1e-07, dims: Any = "first", momentum_dtype: Any = None, ns_dtype: Any = None,
        keep_norm: bool | Literal["first"] = False, radial: float | None = None, trust_clip: Bounds | None = None,
        zero_norm_ratio: float = 1.0, min_norm: float = 0.0, max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class NovoGrad(Optimizer):
    """NovoGrad (Ginsburg et al., arXiv 1905.11286): momentum SGD on gradients divided by a running norm.

    Args:
        lr: Learning rate.
        betas: Decay rates of the momentum m and of the squared norm v.
        eps: Added to the root of v, which the gradient is divided by.
        weight_decay: Weight decay λ.
        eps_root: Added inside the root of the denominator.
        grad_averaging: Multiply what enters m by 1 - b1.
        normalize: Divide the gradient by the root of v before it enters m ("gradient"), or divide m ("momentum").
        decay: Apply weight_decay to the momentum ("momentum"), or to the weights directly ("decoupled").
        bias_correction: Correct m and v as if both had started at 0.
        v_start: Start v from the first squared norm ("first"), from 0 ("zero"), or from the first that is not 0
            ("nonzero").
        m_start: Start m from 0 ("zero"), or from the first direction at full weight ("direction").
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.001, betas: tuple[float, float] = (0.95, 0.98), eps: float = 1e-08,
        weight_decay: Rate = 0.0,
        *,
        eps_root: float = 0.0, grad_averaging: bool = False, normalize: Literal["gradient", "momentum"] = "gradient",
        decay: Literal["momentum", "decoupled"] = "momentum", bias_correction: bool = False,
        v_start: Literal["first", "zero", "nonzero"] = "first", m_start: Literal["zero", "direction"] = "zero",
        max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class ScaleSGD(Optimizer):
    """SCALE (Glentis et al., arXiv 2506.16659): SGD with the gradient of each output scaled to one size.

    Args:
        lr: Learning rate.
        weight_decay: Weight decay λ.
        over: Divide each row by its own size, measured over the columns ("columns"), or each column ("rows").
        norm: The size of a line: its root mean square ("rms") or its norm ("l2").
        momentum: Decay rate of a running mean that replaces the gradient; 0 means none, and no state.
        scale: A factor on the step but not on the decay: the step is lr·scale times the direction.
        eps: Lower bound of the size that each row or column is divided by.
        dims: Which dimensions are rows and columns: the first and all others ("first"), the last two ("last"), two
            dimensions or groups of them, or none (False), which treats the tensor as a single row.
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.001, weight_decay: Rate = 0.0,
        *,
        over: Literal["columns", "rows"] = "columns", norm: Literal["rms", "l2"] = "rms", momentum: float = 0.0,
        scale: float = 1.0, eps: float = 1e-08, dims: Any = "first", max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None, max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class SGD(Optimizer):
    """SGD with momentum (Polyak 1964; Sutskever et al., ICML 2013), without a trust ratio.

    Args:
        lr: Learning rate.
        momentum: Decay rate of the momentum buffer; 0 means no buffer.
        dampening: From the second step on, multiply what enters the momentum buffer by 1 - dampening.
        weight_decay: Weight decay λ.
        nesterov: Use Nesterov's momentum; needs momentum > 0 and dampening = 0.
        decay: Apply weight_decay to the gradient ("l2"), or to the weights, times lr ("decoupled").
        momentum_dtype: The dtype that stores the momentum, or its name; None uses the dtype of the other state.
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.001, momentum: float = 0.0, dampening: float = 0.0, weight_decay: Rate = 0.0,
        *,
        nesterov: bool = False, decay: Literal["l2", "decoupled"] = "l2", momentum_dtype: Any = None,
        max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class SinkGD(Optimizer):
    """SinkGD (Scetbon et al., arXiv 2502.06742): SGD with the gradient's rows and columns scaled to one size.

    Args:
        lr: Learning rate.
        weight_decay: Weight decay λ.
        iterations: Number of times that rows, then columns, are divided by their own size.
        momentum: Decay rate of a running mean that replaces the gradient; 0 means none, and no state.
        scale: A factor on the step but not on the decay: the step is lr·scale times the direction.
        eps: Lower bound of the size that each row or column is divided by.
        dims: Which dimensions are rows and columns: the first and all others ("first"), the last two ("last"), two
            dimensions or groups of them, or none (False), which treats the tensor as a single row.
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.001, weight_decay: Rate = 0.0,
        *,
        iterations: int = 5, momentum: float = 0.0, scale: float = 1.0, eps: float = 1e-08, dims: Any = "first",
        max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...


class StableAdamW(Optimizer):
    """StableAdamW (Wortsman et al., arXiv 2304.13013): AdamW with shorter steps when v lags behind the gradient.

    Args:
        lr: Learning rate.
        betas: Decay rates of the first moment m and of the second moment v.
        eps: Added to the denominator of the direction; lower bound of the denominator in the root mean square.
        weight_decay: Weight decay λ.
        eps_root: Added inside the root of the denominator.
        clip_threshold: Scale an update down if its root mean square exceeds this; None turns this off.
        decay_scale: Multiply weight_decay by the learning rate ("lr"), the step size ("step"), or 1 ("none").
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
    """

    def __init__(
        self,
        params: Any, lr: Rate = 0.001, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-08,
        weight_decay: Rate = 0.0,
        *,
        eps_root: float = 0.0, clip_threshold: float | None = 1.0, decay_scale: Literal["step", "lr", "none"] = "step",
        max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | Mapping[str, StateDtype] | None = None, seed: int = 0, skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None, replica_group: ProcessGroup | None = None,
        differentiable: bool = False, capturable: bool = False, fused: bool | None = None, foreach: bool | None = None,
        offload: bool = False,
    ) -> None: ...
