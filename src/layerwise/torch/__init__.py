"""LAMB, LARS and Adafactor as `torch.optim.Optimizer`s.

>>> import torch
>>> from layerwise.torch import Lamb
>>> model = torch.nn.Linear(3, 1)
>>> opt = Lamb(model.named_parameters(), lr=0.01, weight_decay=0.01)
>>> model(torch.ones(2, 3)).sum().backward()
>>> opt.step()
>>> sorted(opt.stats())
['bias', 'weight']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from layerwise import hyper, rules
from layerwise.blocks import Blocks
from layerwise.hyper import Adapt, Bounds
from layerwise.keywords import explained
from layerwise.torch._backward import step_in_backward
from layerwise.torch._convert import convert
from layerwise.torch._engines import set_bucket_size
from layerwise.torch._groups import ParamGroups, param_groups
from layerwise.torch._heatmap import heatmap
from layerwise.torch._monitor import monitor
from layerwise.torch._noise import NoiseScale
from layerwise.torch._optimizer import Optimizer
from layerwise.torch._schedule import scheduler

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Rate = float | Tensor
Split = Blocks | int | Literal["each"]
BlocksByName = Mapping[str, Split] | Callable[[str], Split | None]

__all__ = [
    "Adafactor",
    "Lamb",
    "Lars",
    "NoiseScale",
    "ParamGroups",
    "convert",
    "heatmap",
    "monitor",
    "param_groups",
    "scheduler",
    "set_bucket_size",
    "step_in_backward",
]


class Lamb(Optimizer):
    """LAMB; see docs/optimizers/lamb.md for the formula and docs/pytorch.md for the rest.

    Every option of the formula can be set for a parameter group. For all groups alike: `blocks` says by name or
    pattern what counts as a layer (pass named_parameters); `master_weights` keeps float32 copies of bfloat16 and
    float16 parameters; `skip_nonfinite` leaves out a step whose gradients hold nan or inf; `model_group` are processes
    that have whole tensors of the model of their own, as in a pipeline, which clip and skip together; `differentiable`,
    `capturable` and `fused` mean what they mean in torch.optim.
    """

    _rule, _hyper = rules.lamb, hyper.Lamb

    @explained
    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: Rate = 0.0,
        *,
        eps_root: float = 0.0,
        bias_correction: bool | Literal["lr"] = True,
        decay: Literal["ratio", "decoupled", "l2"] = "ratio",
        adapt: Adapt = True,
        trust_clip: Bounds | None = None,
        max_weight_norm: float | None = None,
        grad_averaging: bool = True,
        zero_norm_ratio: float = 1.0,
        max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | None = None,
        maximize: bool = False,
        blocks: BlocksByName | None = None,
        master_weights: bool = False,
        skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None,
        differentiable: bool = False,
        capturable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, locals())  # every argument by name, so that none is listed twice and none forgotten


class Lars(Optimizer):
    """LARS; see docs/optimizers/lars.md, and `Lamb` for what all three share."""

    _rule, _hyper = rules.lars, hyper.Lars

    @explained
    def __init__(
        self,
        params: Any,
        lr: Rate = 1.0,
        momentum: float = 0.9,
        weight_decay: Rate = 0.0,
        trust_coefficient: float = 1e-3,
        *,
        eps: float = 0.0,
        nesterov: bool = False,
        dampening: float = 0.0,
        norm: Literal["split", "decayed"] = "split",
        lr_in_momentum: bool = True,
        adapt: Adapt = True,
        trust_clip: Bounds | None = None,
        zero_norm_ratio: float = 1.0,
        max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | None = None,
        maximize: bool = False,
        blocks: BlocksByName | None = None,
        master_weights: bool = False,
        skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None,
        differentiable: bool = False,
        capturable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, locals())


class Adafactor(Optimizer):
    """Adafactor; see docs/optimizers/adafactor.md, and `Lamb` for what all three share."""

    _rule, _hyper = rules.adafactor, hyper.Adafactor

    @explained
    def __init__(
        self,
        params: Any,
        lr: Rate | None = None,
        *,
        eps: tuple[float | None, float] = (1e-30, 1e-3),
        eps_mode: Literal["add", "clamp"] = "add",
        clip_threshold: float | None = 1.0,
        beta2_decay: float = -0.8,
        beta2_cap: float | None = None,
        decay_offset: int = 0,
        beta1: float | None = None,
        momentum_dtype: Any = None,
        lr_in_momentum: bool = True,
        weight_decay: Rate = 0.0,
        decay_scale: Literal["lr", "step", "none"] = "lr",
        scale_parameter: bool | None = None,
        relative_step: bool | Literal["factor", "cap"] | None = None,
        lr_cap: float = 1e-2,
        warmup_init: bool = False,
        factored: Any = "last",
        min_dim_size_to_factor: int = 0,
        max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | None = None,
        maximize: bool = False,
        blocks: BlocksByName | None = None,
        master_weights: bool = False,
        skip_nonfinite: bool = False,
        model_group: ProcessGroup | None = None,
        differentiable: bool = False,
        capturable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, locals())
