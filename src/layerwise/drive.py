"""Who answers the rules' questions. Here: whoever holds the whole tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from layerwise.rules.asks import Array, Asking, Mean, ModelSum, Stepped, Sum

Dims = tuple[int, ...]
Asked = tuple[Sum | Mean | ModelSum, ...]


class Run(NamedTuple):
    """A rule on its way through one tensor."""

    rule: Asking[Stepped]
    shape: Dims
    block_dims: Dims = ()  # dimensions that count blocks, each of which is a tensor of its own to the rule
    together: bool = False  # whether the rule will ask for a sum over the whole model

    def dims(self, ask: Sum | Mean) -> Dims:
        return tuple(d for d in range(len(self.shape)) if d not in self.block_dims) if ask.dims is None else ask.dims


def local(xp: Any, runs: Sequence[Run]) -> Iterator[Stepped]:
    """Drive the rules to their end, one tensor after the other, and yield each result as soon as it is there.

    Only a sum over the whole model makes the rules wait for one another, and they wait holding a prepared gradient
    and nothing more; so what is in memory besides is the work on one tensor.
    """
    waiting = [_to_model_sum(xp, run) if run.together else None for run in runs]
    terms = [xp.sum(ask.terms) for ask in waiting if ask is not None]
    model_sum = sum(terms[1:], terms[0]) if terms else None
    for run in runs:
        yield _to_the_end(xp, run, (model_sum,) if run.together else None)


def _answer(xp: Any, run: Run, ask: Any) -> Array:
    dims = run.dims(ask)
    # An empty tuple of dimensions means "all" to some namespaces and "none" to others.
    total = xp.sum(ask.terms, axis=dims, keepdims=True) if dims else ask.terms
    return total / max(1, prod(run.shape[d] for d in dims)) if isinstance(ask, Mean) else total


def _to_model_sum(xp: Any, run: Run) -> ModelSum:
    asked: Asked = next(run.rule)
    while not isinstance(asked[0], ModelSum):
        asked = run.rule.send(tuple(_answer(xp, run, ask) for ask in asked))
    return asked[0]


def _to_the_end(xp: Any, run: Run, answers: tuple[Array, ...] | None) -> Stepped:
    try:
        while True:
            asked: Asked = run.rule.send(answers)
            answers = tuple(_answer(xp, run, ask) for ask in asked)
    except StopIteration as end:
        stepped: Stepped = end.value
        return stepped
