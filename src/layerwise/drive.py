"""Who answers the rules' questions. Here: whoever holds the whole tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from layerwise.rules.asks import Array, Asking, Mean, ModelSum, Stepped, Sum

Dims = tuple[int, ...]
Asked = tuple[Any, ...]  # Sum, Mean or ModelSum


class Run(NamedTuple):
    """Rules on their way through one tensor: one for the whole of it, or one for each slice along a dimension."""

    rules: tuple[Asking[Stepped], ...]
    shape: Dims  # of the whole tensor
    block_dims: Dims = ()  # dimensions that count blocks, each of which is a tensor of its own to the rule
    together: bool = False  # whether the rules will ask for a sum over the whole model: h.asks_of_model
    cut: int | None = None  # the dimension along which the tensor is sliced

    def dims(self, ask: Sum | Mean) -> Dims:
        return tuple(d for d in range(len(self.shape)) if d not in self.block_dims) if ask.dims is None else ask.dims


def local(xp: Any, runs: Sequence[Run]) -> Iterator[tuple[Stepped, ...]]:
    """Drive the rules to their end, one tensor after the other, and yield its slices' results as soon as it is done.

    Only a sum over the whole model makes tensors wait for one another, and they wait holding a prepared gradient
    and nothing more; so what is in memory besides is the work on one tensor.
    """
    waiting = [_to_model_sum(xp, run) for run in runs if run.together]
    terms = [xp.sum(ask.terms) for asks in waiting for ask in asks]
    model_sum = _added(terms) if terms else None
    for run in runs:
        yield _to_the_end(xp, run, [(model_sum,) if run.together else None] * len(run.rules))


def _added(terms: Sequence[Array]) -> Array:
    return sum(terms[1:], terms[0])


def _to_model_sum(xp: Any, run: Run) -> list[ModelSum]:
    asked: list[Asked] = [next(rule) for rule in run.rules]
    while not isinstance(asked[0][0], ModelSum):
        answers = _answers(xp, run, asked)
        asked = [rule.send(answer) for rule, answer in zip(run.rules, answers, strict=True)]
    return [asks[0] for asks in asked]


def _to_the_end(xp: Any, run: Run, answers: Sequence[Asked | None]) -> tuple[Stepped, ...]:
    done: list[Stepped] = []
    while not done:
        asked: list[Asked] = []
        for rule, answer in zip(run.rules, answers, strict=True):
            try:
                asked.append(rule.send(answer))
            except StopIteration as end:
                done.append(end.value)
        answers = _answers(xp, run, asked)
    return tuple(done)


def _answers(xp: Any, run: Run, asked: Sequence[Asked]) -> list[Asked]:
    """What each slice is told: the sum over all of them, where the sum runs along the dimension that is cut."""
    rounds = [_answer(xp, run, asks) for asks in zip(*asked, strict=True)]
    return list(zip(*rounds, strict=True)) if rounds else [()] * len(asked)


def _answer(xp: Any, run: Run, asks: Sequence[Sum | Mean]) -> list[Array]:
    dims = run.dims(asks[0])
    # An empty tuple of dimensions means "all" to some namespaces and "none" to others.
    sums = [xp.sum(ask.terms, axis=dims, keepdims=True) if dims else ask.terms for ask in asks]
    if run.cut in dims:
        sums = [_added(sums)] * len(sums)
    return [s / max(1, prod(run.shape[d] for d in dims)) for s in sums] if isinstance(asks[0], Mean) else sums
