"""A step whose intermediate results are computed again instead of being kept.

Between the sums and the step XLA for CPUs would write down, whole and for all parameters at once, what both are made
of, and new memory costs it more than the arithmetic. Where a sum is the only one to use what it is made of, XLA
computes that as it adds. So each sum gets a run of the rule to itself, and the step another, with the sums told.

XLA would notice that these are the same and make them one again. Numbers that came through a barrier keep it from
that: to XLA each run has another t, another eps, another decay, and a gradient scaled by another 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from layerwise.drive import asks_of
from layerwise.rules.asks import Asking, Stepped
from layerwise.rules.parts import is_zero


class Namespace:
    """jax.numpy, but for sums of sums: XLA would make them sums of the first terms, and go through these again."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return jax.lax.optimization_barrier(jnp.sum(x, axis=axis, keepdims=keepdims))


def recomputed(task: Any) -> Asking[Stepped]:
    """The rule of this task, asking what it would ask."""
    told: list[Sequence[Any]] = []
    while True:
        asks, done = _run(task, told)
        if done is not None:
            break
        large = [i for i, ask in enumerate(asks) if prod(ask.terms.shape) * 2 > prod(task.shape)]
        for i in large[:-1]:
            asks = (*asks[:i], _run(task, told, scaled=True)[0][i], *asks[i + 1 :])
        told.append((yield asks))
    stepped: Stepped = _run(task, told, step=True)[1] if told else done
    return stepped


def _run(task: Any, told: Sequence[Sequence[Any]], scaled: bool = False, step: bool = False) -> tuple[Any, Any]:
    """What the rule asks after it was told this much, or its end."""
    now, h = task.now, task.h
    numbers = (1.0, h.eps if isinstance(h.eps, float) else 0.0, now.weight_decay)
    ones, eps, lam = (jnp.asarray(x, now.t.dtype) for x in numbers)
    # The number tells the barriers of one tensor from another's, which XLA would otherwise take for one.
    b2 = None if now.beta2 is None else jnp.asarray(now.beta2, now.t.dtype)
    scale, eps, lam, t, b2, told, _ = jax.lax.optimization_barrier(
        (ones, eps, lam, now.t, b2, told, float(task.number))
    )
    if not is_zero(now.weight_decay):
        now = now._replace(weight_decay=lam)
    if scaled:
        now = now._replace(g_scale=scale)
    if isinstance(h.eps, float) and not step:
        h = h.settled(eps=eps)
    rule = replace(task, now=now._replace(t=t, beta2=b2), h=h).start()
    try:
        asks = asks_of(rule, None)
        for answer in told:
            asks = asks_of(rule, tuple(answer))
    except StopIteration as end:
        return None, end.value
    return asks, None
