"""Who answers the rules' questions. Here: whoever holds the whole tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from layerwise.rules.asks import Array, Asking, Keep, Mean, ModelSum, Scalar, Squares
from layerwise.rules.parts import square

Dims = tuple[int, ...]
Ask = Mean | Squares | ModelSum
Asks = tuple[Ask, ...]
Answer = tuple[Array, ...]


class Run(NamedTuple):
    """Rules on their way through one tensor: one for the whole of it, or one for each slice along a dimension."""

    rules: tuple[Asking[Any], ...]
    shape: Dims  # of the whole tensor
    block_dims: Dims = ()  # dimensions that count blocks, each of which is a tensor of its own to the rule
    together: bool = False  # whether the rules will ask for a sum over the whole model: h.asks_of_model
    cut: int | None = None  # the dimension along which the tensor is sliced


class Asked(NamedTuple):
    """A request and what this slice adds to its answer, summed at once so that the terms are not held any longer."""

    ask: type[Ask]
    dims: Dims
    part: Array


class Done(NamedTuple):
    """What a rule returned."""

    value: Any


def local(xp: Any, runs: Sequence[Run]) -> Iterator[tuple[Any, ...]]:
    """Drive the rules to their end, one tensor after the other, and yield its slices' results as soon as it is done.

    Only a sum over the whole model makes tensors wait for one another, and they wait holding a prepared gradient
    and nothing more; so what is in memory besides is the work on one tensor.
    """
    terms = [part for run in runs if run.together for part in _to_model_sum(xp, run)]
    model_sum = _added(terms) if terms else None
    for run in runs:
        yield _to_the_end(xp, run, [(model_sum,) if run.together else None] * len(run.rules))


def _added(terms: Sequence[Array]) -> Array:
    return sum(terms[1:], terms[0])


def _to_model_sum(xp: Any, run: Run) -> list[Array]:
    answers: Sequence[Answer | None] = [None] * len(run.rules)
    while True:
        asked: list[Any] = [_advance(xp, run, *one) for one in zip(run.rules, answers, strict=True)]
        if asked[0][0].ask is ModelSum:
            return [each[0].part for each in asked]
        answers = _answers(run, asked)


def _to_the_end(xp: Any, run: Run, answers: Sequence[Answer | None]) -> tuple[Any, ...]:
    while True:
        asked: list[Any] = [_advance(xp, run, *one) for one in zip(run.rules, answers, strict=True)]
        if isinstance(asked[0], Done):
            return tuple(done.value for done in asked)
        answers = _answers(run, asked)


def _advance(xp: Any, run: Run, rule: Asking[Any], answer: Answer | None) -> tuple[Asked, ...] | Done:
    """One slice taken to its next request, or to its end."""
    try:
        asks = asks_of(rule, answer)
    except StopIteration as end:
        return Done(end.value)
    return tuple(_asked(xp, run, ask) for ask in asks)


def asks_of(rule: Asking[Any], answer: Answer | None) -> Asks:
    """What a rule asks next. State it wants kept is left with it."""
    asked = rule.send(answer)
    while isinstance(asked, Keep):
        asked = rule.send(asked.state)
    return asked


def dims_of(ask: Ask, ndim: int, block_dims: Dims) -> Dims:
    """The dimensions of the tensor that a request runs over."""
    if isinstance(ask, ModelSum):
        return tuple(range(ndim))
    named: Dims | None = getattr(ask, "dims", None)
    return tuple(d for d in range(ndim) if d not in block_dims) if named is None else named


def summed(xp: Any, ask: Ask, dims: Dims) -> Array:
    """What is here of the answer to a request that runs over these dimensions."""
    if isinstance(ask, ModelSum):
        return xp.sum(ask.terms)
    if isinstance(ask, Squares) and hasattr(xp, "squares"):
        return xp.squares(ask.terms, dims)
    terms = square(ask.terms) if isinstance(ask, Squares) else ask.terms
    # An empty tuple of dimensions means "all" to some namespaces and "none" to others.
    return xp.sum(terms, axis=dims, keepdims=True) if dims else terms


def _asked(xp: Any, run: Run, ask: Ask) -> Asked:
    dims = dims_of(ask, len(run.shape), run.block_dims)
    part = summed(xp, ask, dims)
    return Asked(type(ask), dims, _number(xp, part) if len(dims) == len(run.shape) else part)


def _number(xp: Any, x: Array) -> Scalar:
    """One number as a plain one, where the library has it at hand: what is made of it then costs next to nothing."""
    return xp.as_number(x) if hasattr(xp, "as_number") else x


def _answers(run: Run, asked: Sequence[tuple[Asked, ...]]) -> list[Answer]:
    """What each slice is told: the sum over all of them, where the sum runs along the dimension that is cut."""
    rounds = [_answer(run, each) for each in zip(*asked, strict=True)]
    return list(zip(*rounds, strict=True)) if rounds else [()] * len(asked)


def _answer(run: Run, slices: Sequence[Asked]) -> list[Array]:
    ask, dims, _ = slices[0]
    parts = [one.part for one in slices]
    if run.cut in dims:
        parts = [_added(parts)] * len(parts)
    return [part / max(1, prod(run.shape[d] for d in dims)) for part in parts] if ask is Mean else parts
