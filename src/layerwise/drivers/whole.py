"""The local driver: each tensor is whole, in one piece or in slices."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from layerwise.drivers.partial_sums import (
    AT_ONCE,
    Answer,
    PartialSum,
    TensorRun,
    answer_of,
    apply_works,
    next_requests,
    on_device_of,
    partial_sums,
)
from layerwise.rules.requests import Array, Asking, Functions, ModelSquares, T, WholeMatrices


class RuleReturn(NamedTuple):
    """A rule's return value."""

    value: Any


def drive_whole(xp: Functions, runs: Sequence[TensorRun]) -> Iterator[tuple[Any, ...]]:
    """Drive the rules to their end, one tensor after the other, and yield each tensor's results as soon as it is done.

    Only a sum over the whole model makes tensors wait for one another, and while they wait they hold only a prepared
    gradient. So the extra memory is the work on one tensor; or on those that step side by side, up to a size.
    """
    parts = {id(run): [sums[0] for sums in _driven(xp, run, None)] for run in runs if run.together}
    model_sum = _model_sum(xp, [part for each in parts.values() for part in each])
    beside_one, done = {i: some for some in _side_by_side(runs) for i in some}, dict[int, tuple[Any, ...]]()
    for i in range(len(runs)):
        if i not in done:
            some = [runs[k] for k in beside_one[i]]
            sums = [(on_device_of(xp, model_sum, parts[id(run)][0].sum),) if run.together else None for run in some]
            done |= zip(beside_one[i], _to_the_end(xp, some, sums), strict=True)
        yield done.pop(i)


def _model_sum(xp: Functions, parts: Sequence[PartialSum]) -> Array | None:
    """Return the sum over the model, given the partial sums of all slices of all tensors."""
    if not parts:
        return None
    first, *others = (part.sum for part in parts)
    return sum((on_device_of(xp, other, first) for other in others), first)


def _side_by_side(runs: Sequence[TensorRun]) -> list[list[int]]:
    """Return the places of those that step side by side."""
    found: list[list[int]] = []
    latest: dict[Hashable, tuple[list[int], int]] = {}
    for i, run in enumerate(runs):
        size = prod(run.shape)
        some, sizes = latest.get(run.alike, ([], 0))
        if run.alike is None or not some or sizes + size > AT_ONCE:
            found.append(some := [])
            sizes = 0
        some.append(i)
        latest[run.alike] = some, sizes + size
    return found


def _to_the_end(xp: Functions, runs: Sequence[TensorRun], answers: Sequence[Answer | None]) -> list[tuple[Any, ...]]:
    """Take tensors to their end side by side, and return the results of each."""
    while True:
        slices = [_driven(xp, *one) for one in zip(runs, answers, strict=True)]
        if isinstance(slices[0][0], RuleReturn):
            return [tuple(done.value for done in each) for each in slices]
        made = apply_works(xp, [each[0][0].whole for each in slices], lambda x: (tuple(x.shape), x.dtype))
        answers = [(x,) for x in made]


def _driven(xp: Functions, run: TensorRun, answer: Answer | None) -> list[Any]:
    """Take the slices of a tensor to their end, or to where others are asked as well, and return what each has."""
    answers: Sequence[Answer | None] = [answer] * len(run.rules)
    while True:
        slices: list[Any] = [_advance(xp, run, *one) for one in zip(run.rules, answers, strict=True)]
        first = slices[0]
        if isinstance(first, RuleReturn) or (first and first[0].request in (ModelSquares, WholeMatrices)):
            return slices
        answers = _answers(run, slices)


def _advance(
    xp: Functions, run: TensorRun, rule: Asking[T], answer: Answer | None
) -> tuple[PartialSum, ...] | RuleReturn:
    """Take one slice to its next requests, or to its end."""
    try:
        requests = next_requests(rule, answer)
    except StopIteration as end:
        return RuleReturn(end.value)
    return partial_sums(xp, run, requests)


def _answers(run: TensorRun, slices: Sequence[tuple[PartialSum, ...]]) -> list[Answer]:
    """Return each slice's answers, one for each of its requests."""
    requests = [_answers_to_one(run, partials) for partials in zip(*slices, strict=True)]
    return list(zip(*requests, strict=True)) if requests else [()] * len(slices)


def _answers_to_one(run: TensorRun, partials: Sequence[PartialSum]) -> list[Array]:
    """Return the answers to one request: from the total of all slices, if it runs along the cut dimension."""
    totals = [partial.sum for partial in partials]
    if run.cut in partials[0].dims:
        totals = [sum(totals[1:], totals[0])] * len(totals)
    return [answer_of(run, partials[0], total) for total in totals]
