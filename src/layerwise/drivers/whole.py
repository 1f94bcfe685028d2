"""The local driver: each tensor is whole, in one piece or in slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from layerwise.drivers.requests import Answer, PartialSum, Run, answer_of, beside, next_requests, partial_sums
from layerwise.rules.asks import Array, Asking, ModelSum


class Done(NamedTuple):
    """A rule's return value."""

    value: Any


def local(xp: Any, runs: Sequence[Run]) -> Iterator[tuple[Any, ...]]:
    """Drive the rules to their end, one tensor after the other, and yield each tensor's results as soon as it is done.

    Only a sum over the whole model makes tensors wait for one another, and while they wait they hold nothing but a
    prepared gradient. So the extra memory is that of one tensor's work.
    """
    parts = {id(run): [sums[0] for sums in _driven(xp, run, None)] for run in runs if run.together}
    model_sum = _model_sum(xp, [part for each in parts.values() for part in each])
    for run in runs:
        own = (beside(xp, model_sum, parts[id(run)][0].sum),) if run.together else None
        yield tuple(done.value for done in _driven(xp, run, own))


def _model_sum(xp: Any, parts: Sequence[PartialSum]) -> Array | None:
    """Return the sum over the model, given the partial sums of all slices of all tensors."""
    if not parts:
        return None
    first, *others = (part.sum for part in parts)
    return sum((beside(xp, other, first) for other in others), first)


def _driven(xp: Any, run: Run, answer: Answer | None) -> list[Any]:
    """Take the slices of a tensor to their end, or to their request for the model's sum, and return each one's
    result.
    """
    answers: Sequence[Answer | None] = [answer] * len(run.rules)
    while True:
        slices: list[Any] = [_advance(xp, run, *one) for one in zip(run.rules, answers, strict=True)]
        first = slices[0]
        if isinstance(first, Done) or (first and first[0].request is ModelSum):
            return slices
        answers = _answers(run, slices)


def _advance(xp: Any, run: Run, rule: Asking[Any], answer: Answer | None) -> tuple[PartialSum, ...] | Done:
    """Take one slice to its next requests, or to its end."""
    try:
        requests = next_requests(rule, answer)
    except StopIteration as end:
        return Done(end.value)
    return partial_sums(xp, run, requests)


def _answers(run: Run, slices: Sequence[tuple[PartialSum, ...]]) -> list[Answer]:
    """Return each slice's answers, one for each of its requests."""
    requests = [_answers_to_one(run, partials) for partials in zip(*slices, strict=True)]
    return list(zip(*requests, strict=True)) if requests else [()] * len(slices)


def _answers_to_one(run: Run, partials: Sequence[PartialSum]) -> list[Array]:
    """Return the answers to one request: from the total of all slices, if it runs along the cut dimension."""
    totals = [partial.sum for partial in partials]
    if run.cut in partials[0].dims:
        totals = [sum(totals[1:], totals[0])] * len(totals)
    return [answer_of(run, partials[0], total) for total in totals]
