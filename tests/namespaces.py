"""The array namespaces that the rules must run on, and how a test gets numbers into and out of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from layerwise import drivers
from layerwise.rules.arrays import apply_moves
from layerwise.rules.requests import Now

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Namespace:
    """A namespace by name; `scalars` are plain numbers, or arrays as where lr lives on a device or is traced."""

    name: str
    module: str
    scalars: str = "numbers"
    jit: bool = False

    @cached_property
    def xp(self) -> Any:
        return pytest.importorskip(self.module)

    def array(self, x: Any, dtype: str) -> Any:
        x = np.array(x, dtype=dtype)
        x.flags.writeable = False  # a rule that writes to what it is given is not pure
        if self.module == "torch":
            return self.xp.tensor(x.tolist(), dtype=getattr(self.xp, dtype)).reshape(x.shape)
        return x if self.module == "numpy" else self.xp.asarray(x)

    def scalar(self, x: float, dtype: str) -> Any:
        return self.array(x, dtype) if self.scalars == "arrays" else x

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return import_module("jax").jit(function) if self.jit else function


NAMESPACES = [
    Namespace("numpy", "numpy"),
    Namespace("numpy-arrays", "numpy", "arrays"),
    Namespace("strict", "array_api_strict"),
    Namespace("strict-arrays", "array_api_strict", "arrays"),
    Namespace("torch", "torch"),
    Namespace("torch-arrays", "torch", "arrays"),
    Namespace("jax", "jax.numpy"),
    Namespace("jax-jit", "jax.numpy", "arrays", jit=True),
]


def trajectory(
    space: Namespace,
    rule: Any,
    settings: Any,
    params: Sequence[Any],
    grads: Sequence[Sequence[Any]],
    *,
    lrs: Sequence[float] | None = None,
    dtype: str = "float64",
    local: Any = drivers.drive_whole,
    run: Any = drivers.TensorRun,
) -> list[Arrays]:
    """Step `params` together with each of `grads` in turn; the parameters after every step."""
    fitted = [settings.fit(np.shape(p), (), float(np.finfo(dtype).eps)) for p in params]

    def step(ps: Any, gs: Any, states: Any, b2: Any, t: Any, lr: Any, lam: Any) -> Any:
        now = Now(t, lr, lam, beta2=b2)
        runs = [
            run((rule.step(space.xp, p, g, state, h, now),), np.shape(p), (), h.needs_model_sum)
            for p, g, state, h in zip(ps, gs, states, fitted, strict=True)
        ]
        done = [stepped for [stepped] in local(space.xp, runs)]
        return [apply_moves(space.xp, p, d.moves) for p, d in zip(ps, done, strict=True)], [d.state for d in done]

    step = space.wrap(step)
    ps = [space.array(p, dtype) for p in params]
    states = [_zeros(space, rule, h, np.shape(p), dtype) for h, p in zip(fitted, params, strict=True)]
    path = []
    for t, gs in enumerate(grads, start=1):
        lr = settings.lr if lrs is None else lrs[t - 1]
        scalars = (space.scalar(x, dtype) for x in (t, lr, settings.weight_decay))
        with np.errstate(all="ignore"):
            b2 = settings.beta2_of(t)
            b2 = None if b2 is None else space.scalar(b2, dtype)
            ps, states = step(ps, [space.array(g, dtype) for g in gs], states, b2, *scalars)
        path.append([np.asarray(p, dtype=np.float64) for p in ps])
    return path


def _zeros(space: Namespace, rule: Any, h: Any, shape: tuple[int, ...], dtype: str) -> Any:
    shapes = rule.shapes(h, shape)
    return type(shapes)(*(None if s is None else space.array(np.zeros(s), dtype) for s in shapes))
