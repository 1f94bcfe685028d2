"""A step that recomputes intermediate results instead of keeping them.

Between the sums and the step, XLA for CPUs would store everything that both use, whole and for all parameters at once,
and new memory costs more than the arithmetic. XLA computes inside a sum only what that sum alone uses. So each large
sum gets a run of the rule of its own, and the step gets another, which receives the sums.

XLA would notice that the runs compute the same, and merge them. So in the run for a sum, every array and every number
passes through an `optimization_barrier` of its own. Numbers need one too: a constant that is broadcast over a tensor,
and used by two runs, would be stored as a tensor. State that the rule hands over (`Keep`) is the exception. It is
computed once, because it is a result of the step anyway, and all runs continue from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import count
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from layerwise.drivers.partial_sums import Requests, next_requests
from layerwise.jax._norms import length
from layerwise.jax._products import multiplies, product
from layerwise.jax._types import Array, Tree
from layerwise.options.settings import H
from layerwise.rules.requests import Request, Shape

RUNS = 64  # above the number of one tensor's runs


class UnmergedSums:
    """jax.numpy, except for sums of sums: XLA would merge them into sums of the first terms, and compute these
    again.
    """

    length = staticmethod(length)
    multiplies = staticmethod(multiplies)
    product = staticmethod(product)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def sum(x: Array, axis: int | Shape | None = None, keepdims: bool = False) -> Array:
        return jax.lax.optimization_barrier(jnp.sum(x, axis=axis, keepdims=keepdims))

    @staticmethod
    def where(condition: Array, x: Array, y: Array) -> Array:
        """Choose without jax.numpy's inner call, which would be inlined for each tensor."""
        dtype = jnp.result_type(x, y)
        x, y = (jnp.asarray(one, dtype) for one in (x, y))
        return jax.lax.select(*jnp.broadcast_arrays(condition, x, y))


class StepRun(UnmergedSums):
    """The namespace of the run that makes the step. It remembers the new state."""

    def __init__(self) -> None:
        self.made: list[Array] = []
        self._clips = count(-1, -1)

    def clip(self, x: Array, low: Array, high: Array) -> Array:
        """Clip between bounds that no other call shares: XLA would store the common part of two uses of an array."""
        own = [None if one is None else _apart(jnp.asarray(one, x.dtype), next(self._clips)) for one in (low, high)]
        return jnp.clip(x, *own)

    def final(self, *state: Array) -> tuple[Array, ...]:
        self.made.append(state)
        return state


class SumRun(UnmergedSums):
    """The namespace of a run for a sum, which already has the new state."""

    def __init__(self, first: StepRun, hide: _Hide) -> None:
        self._made, self._hide = iter(first.made), hide

    def final(self, *state: Array) -> tuple[Array, ...]:
        hidden: tuple[Array, ...] = self._hide(next(self._made))
        return hidden

    def clip(self, x: Array, low: Array, high: Array) -> Array:
        x = x if low is None else jnp.maximum(x, self._hide.array(low))
        return x if high is None else jnp.minimum(x, self._hide.array(high))


class RunConstant(float):
    """A number of one run: exact among numbers, and a constant that no other run shares as soon as it meets an
    array.
    """

    hidden: Callable[[Array], Array]

    def __new__(cls, x: float, hidden: Callable[[Array], Array]) -> RunConstant:
        own = super().__new__(cls, x)
        own.hidden = hidden
        return own

    def __jax_array__(self) -> Array:
        return self.hidden(float(self))

    def __neg__(self) -> RunConstant:
        return RunConstant(-float(self), self.hidden)


def _operator(name: str) -> Callable[[RunConstant, Array], Array]:
    plain: Any = getattr(float, name)

    def operator(self: RunConstant, other: Array) -> Array:
        if isinstance(other, jax.Array):
            return getattr(self.__jax_array__(), name)(other)
        found = plain(self, other)
        return RunConstant(found, self.hidden) if isinstance(found, float) else found

    return operator


for _sign in ("add", "sub", "mul", "truediv", "pow"):
    for _side in ("", "r"):
        setattr(RunConstant, f"__{_side}{_sign}__", _operator(f"__{_side}{_sign}__"))


class _Hide:
    """Barriers around the values of one run, not shared with other runs."""

    def __init__(self, task: Any, key: int) -> None:
        self._key, self._dtype = jnp.int32(key), jnp.finfo(task.dtype).dtype

    def __call__(self, tree: Tree) -> Tree:
        return jax.tree.map(self._leaf, tree)

    def options(self, h: H) -> H:
        return h.settled(**{spec.name: self(getattr(h, spec.name)) for spec in fields(h)})

    def _leaf(self, x: Array) -> Array:
        if isinstance(x, float):
            return RunConstant(x, self.array)
        return self.array(x) if hasattr(x, "dtype") else x

    def array(self, x: Array) -> Array:
        x = jnp.asarray(x, self._dtype) if isinstance(x, float) else x
        return _apart(x, self._key)


def _apart(x: Array, key: object) -> Array:
    """Return an array that XLA does not identify with the same array under another key."""
    return jax.lax.optimization_barrier((x, jnp.int32(key)))[0]


class RunningRule:
    """The running rule of a task. If it recomputes, each large array that is summed comes from a run of its own."""

    def __init__(self, task: Any, number: int) -> None:
        self._task, self._first = task, StepRun()
        self._rule = task.start(self._first)
        self._answers: list[tuple[Array, ...]] = []
        self._keys = count(RUNS * number)

    def advance(self, answer: tuple[Array, ...] | None) -> Requests:
        """Return the next requests. Raise StopIteration with the rule's result at its end."""
        if answer is not None:
            self._answers.append(answer)
        return next_requests(self._rule, answer)

    def to_be_summed(self, requests: Requests) -> Iterator[tuple[int, Request]]:
        """Return these requests by number; if recomputed, use one run for each large array, and one for all small
        ones.
        """
        if not self._task.recomputes():
            return iter(enumerate(requests))
        large = {i: prod(one.terms.shape) * 2 > prod(self._task.shape) for i, one in enumerate(requests)}
        # A small array may be a sum already, and then needs a run as well.
        small = () if all(large.values()) else self._run()
        return ((i, self._run()[i] if own else small[i]) for i, own in large.items())

    def _run(self) -> Requests:
        """Return the requests that follow the answers so far, from a run that shares nothing with others."""
        hide = _Hide(self._task, next(self._keys))
        hidden = replace(
            self._task, arrays=hide(self._task.arrays), now=hide(self._task.now), h=hide.options(self._task.h)
        )
        rule = hidden.start(SumRun(self._first, hide))
        requests = next_requests(rule, None)
        for answer in self._answers:
            requests = next_requests(rule, hide(tuple(answer)))
        return requests
