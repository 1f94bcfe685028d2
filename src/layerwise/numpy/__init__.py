"""LAMB, LARS and Adafactor for plain NumPy: named arrays, updated in place.

>>> import numpy as np
>>> from layerwise.numpy import Lamb
>>> w = np.array([3.0, 4.0])
>>> opt = Lamb(lr=0.1)
>>> opt.step("w", w, np.array([1.0, 1.0]))
>>> w.round(6)
array([2.646447, 3.646447])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from layerwise import hyper, rules
from layerwise.blocks import Blocks
from layerwise.hyper import Adapt, Bounds, Scheduled
from layerwise.keywords import explained
from layerwise.numpy._optimizer import Optimizer

V = TypeVar("V")
ByName = Mapping[str, V] | Callable[[str], V | None]
Split = Blocks | int | Literal["each"]

__all__ = ["Adafactor", "Lamb", "Lars"]


class Lamb(Optimizer):
    """LAMB; see docs/optimizers/lamb.md.

    By name, as a mapping (of names or patterns) or a callable of the name: `lr_scale` multiplies lr; `adapt` and
    `decay` take what the option takes, and `decay` also True, False or a factor on weight_decay; `blocks` says what
    counts as a layer. `skip_nonfinite` leaves everything as it is when a gradient holds nan or inf, and counts it in
    `skipped`. `shared_count=True` counts steps once for all names. `engine="rule"` declines faster engines.
    """

    _rule, _hyper = rules.lamb, hyper.Lamb

    @explained
    def __init__(
        self,
        lr: Scheduled = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: Scheduled = 0.0,
        *,
        eps_root: float = 0.0,
        bias_correction: bool | Literal["lr"] = True,
        decay: Literal["ratio", "decoupled", "l2"] | ByName[bool | float | str] = "ratio",
        adapt: Adapt | ByName[Adapt] = True,
        trust_clip: Bounds | None = None,
        max_weight_norm: float | None = None,
        grad_averaging: bool = True,
        zero_norm_ratio: float = 1.0,
        min_norm: float = 0.0,
        trust_eps: float = 0.0,
        l2: float | ByName[float] = 0.0,
        max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None,
        blocks: Split | ByName[Split] | None = None,
        skip_nonfinite: bool = False,
        shared_count: bool = False,
        engine: str | None = None,
    ) -> None:
        super().__init__(locals())  # every argument by name, so that none is listed twice and none forgotten


class Lars(Optimizer):
    """LARS; see docs/optimizers/lars.md, and `Lamb` for what is said by name."""

    _rule, _hyper = rules.lars, hyper.Lars

    @explained
    def __init__(
        self,
        lr: Scheduled = 1.0,
        momentum: float = 0.9,
        weight_decay: Scheduled = 0.0,
        trust_coefficient: float = 1e-3,
        *,
        eps: float = 0.0,
        nesterov: bool = False,
        dampening: float = 0.0,
        norm: Literal["split", "decayed"] = "split",
        lr_in_momentum: bool = True,
        adapt: Adapt | ByName[Adapt] = True,
        trust_clip: Bounds | None = None,
        zero_norm_ratio: float = 1.0,
        min_norm: float = 0.0,
        l2: float | ByName[float] = 0.0,
        max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None,
        decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None,
        skip_nonfinite: bool = False,
        shared_count: bool = False,
        engine: str | None = None,
    ) -> None:
        super().__init__(locals())


class Adafactor(Optimizer):
    """Adafactor; see docs/optimizers/adafactor.md, and `Lamb` for what is said by name."""

    _rule, _hyper = rules.adafactor, hyper.Adafactor

    @explained
    def __init__(
        self,
        lr: Scheduled | None = None,
        *,
        eps: tuple[float | None, float] = (1e-30, 1e-3),
        eps_mode: Literal["add", "clamp"] = "add",
        clip_threshold: float | None = 1.0,
        beta2_decay: float = -0.8,
        beta2: Scheduled | None = None,
        beta2_cap: float | None = None,
        decay_offset: int = 0,
        beta1: float | None = None,
        momentum_dtype: Any = None,
        lr_in_momentum: bool = True,
        weight_decay: Scheduled = 0.0,
        decay_scale: Literal["lr", "step", "none"] = "lr",
        scale_parameter: bool | None = None,
        relative_step: bool | Literal["factor", "cap"] | None = None,
        lr_cap: float = 1e-2,
        warmup_init: bool = False,
        factored: Any = "last",
        min_dim_size_to_factor: int = 0,
        max_grad_norm: float | None = None,
        max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None,
        maximize: bool = False,
        lr_scale: float | ByName[float] | None = None,
        decay: ByName[bool | float] | None = None,
        blocks: Split | ByName[Split] | None = None,
        skip_nonfinite: bool = False,
        shared_count: bool = False,
        engine: str | None = None,
    ) -> None:
        super().__init__(locals())
