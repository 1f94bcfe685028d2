"""The driver in rounds: other ranks hold parts of the tensors, and each round completes all partial sums at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from layerwise.drivers.partial_sums import (
    Answer,
    Dims,
    PartialSum,
    TensorRun,
    answer_of,
    next_requests,
    partial_sums,
    sum_of_squares,
)
from layerwise.rules.requests import Array, Functions, ModelSquares, Request, WholeMatrices

Runs = Mapping[Dims, TensorRun]  # by their jobs
PartialSums = tuple[PartialSum, ...]  # of requests of one rule


class SharedRequest(NamedTuple):
    """A request of one job, which all ranks with parts of its tensor complete."""

    job: int
    request: type[Request]
    dims: Dims
    length: int  # the size of its total
    once: Dims = ()  # parts have equal numbers along these dimensions, which count once


class GatherRequest(NamedTuple):
    """A request for a whole tensor, made by a job with a part of it."""

    job: int
    whole: WholeMatrices


class OtherRanks(Protocol):
    """The processes that step the same model and hold other parts of it."""

    def announce(self, stepper: str, buckets: Sequence[Sequence[int]] = ()) -> None:
        """Record the engine and the order of its rounds before the first sums of a step.

        Both must be the same on all ranks, and so must the tensors of the jobs in each bucket, if there are buckets.
        """

    def add_up(self, requests: Sequence[SharedRequest], sums: Array) -> Array:
        """Return totals over all of the model, given the local partial sums, one after the other in float64.

        The given array may be overwritten. Raise if the step must not be taken. All ranks call this at least once
        before they write anything, even without requests.
        """

    def work_on_wholes(self, wholes: Sequence[GatherRequest]) -> Sequence[Array]:
        """Apply the works to whole tensors, and return of each the part that was passed. Here the part is the whole
        tensor.

        All ranks with parts of a tensor call this after the same message, each with all of its jobs of the tensor.
        """
        return [one.whole.work(one.whole.terms) for one in wholes]


def drive_in_rounds(xp: Functions, buckets: Sequence[Sequence[TensorRun]], others: OtherRanks) -> list[Any]:
    """Drive rules side by side, bucket after bucket, and return their results, one for each whole slice.

    A round answers all requests of a bucket at once. Every rule requests nothing, `()`, before it writes anything, and
    gets its answer when no rule of its bucket has a request left.
    """
    others.announce("the rule", [[job for run in bucket for job in run.jobs] for bucket in buckets])
    together = {run.jobs: run for bucket in buckets for run in bucket if run.together}
    model_sums, results = _model_sums(xp, together, others), list[Any]()
    for i, bucket in enumerate(buckets):
        runs = {run.jobs: run for run in bucket}
        waiting = {jobs: _advance(xp, run, model_sums.get(jobs)) for jobs, run in runs.items()}
        if i == 0 and not model_sums and not any(waiting.values()):
            others.add_up([], _joined(xp, []))
        while any(waiting.values()):
            answers = _answers(xp, runs, waiting, others)
            waiting |= {jobs: _advance(xp, runs[jobs], answer) for jobs, answer in answers.items()}
        results += map(_result, bucket)
    return results


def _model_sums(xp: Functions, runs: Runs, others: OtherRanks) -> dict[Dims, Answer]:
    """Return the model's sum for each of these rules, which all wait for it."""
    waiting = {jobs: _advance(xp, run, None) for jobs, run in runs.items()}
    while partials := {jobs: sums for jobs, sums in waiting.items() if sums[0].request is not ModelSquares}:
        answers = _answers(xp, runs, partials, others)
        waiting |= {jobs: _advance(xp, runs[jobs], answer) for jobs, answer in answers.items()}
    return _answers(xp, runs, waiting, others)


def _advance(xp: Functions, run: TensorRun, answer: Answer | None) -> PartialSums:
    """Take a rule to its next requests, and sum their local terms."""
    requests = next_requests(run.rules[0], answer)
    if len(run.jobs) > 1 and requests and isinstance(requests[0], ModelSquares):  # for each job, not for the stack
        dims = tuple(range(len(run.shape) - 1))
        return (PartialSum(ModelSquares, dims, xp.reshape(sum_of_squares(xp, requests[0].terms, dims), (-1,))),)
    return partial_sums(xp, run, requests)


def _result(run: TensorRun) -> Any:
    """Let a rule write, now that it has all its answers, and return what it returns."""
    try:
        next_requests(run.rules[0], ())
    except StopIteration as end:
        return end.value
    raise RuntimeError("the rule made a request after its last answer")


def _answers(xp: Functions, runs: Runs, waiting: Mapping[Dims, PartialSums], others: OtherRanks) -> dict[Dims, Answer]:
    """Return the answers, after other ranks have completed the partial sums. A rule without requests gets none."""
    partials = {jobs: sums for jobs, sums in waiting.items() if sums}
    if not partials:
        return {}
    places, rows, wholes = [], [], dict[tuple[int, int], GatherRequest]()
    for jobs, sums in partials.items():
        for k, one in enumerate(sums):
            if one.whole is not None:
                wholes |= {(job, k): GatherRequest(job, x) for job, x in zip(jobs, _each(one.whole), strict=True)}
                continue
            for i, row in enumerate(_rows(xp, one.sum, len(jobs))):
                places.append((jobs[i], k))
                rows.append((SharedRequest(jobs[i], one.request, one.dims, len(row), one.once), row))
    # The order must be the same on all ranks, however each of them has stacked its jobs.
    order = sorted(range(len(places)), key=places.__getitem__)
    totals = others.add_up([rows[i][0] for i in order], _joined(xp, [rows[i][1] for i in order]))
    starts = accumulate((rows[i][0].length for i in order), initial=0)
    found = {places[i]: totals[at : at + rows[i][0].length] for i, at in zip(order, starts, strict=False)}
    made = dict(
        zip(sorted(wholes), others.work_on_wholes([wholes[at] for at in sorted(wholes)]) if wholes else (), strict=True)
    )
    return {
        jobs: tuple(
            _brought(one.whole, [made[job, k] for job in jobs])
            if one.whole
            else _answer(xp, runs[jobs], one, [found[job, k] for job in jobs])
            for k, one in enumerate(sums)
        )
        for jobs, sums in partials.items()
    }


def _each(whole: WholeMatrices) -> list[WholeMatrices]:
    """Return the request of each job, if tensors in a list make it as one."""
    return [whole._replace(terms=x) for x in whole.terms.each] if hasattr(whole.terms, "each") else [whole]


def _brought(whole: WholeMatrices, parts: Sequence[Array]) -> Array:
    """Return the answer to it, given each job's."""
    return whole.terms.like([*parts]) if hasattr(whole.terms, "each") else parts[0]


def _joined(xp: Functions, rows: Sequence[Array]) -> Array:
    return xp.concat(rows) if rows else xp.asarray([], dtype=xp.float64)


def _rows(xp: Functions, sums: Array, jobs: int) -> Sequence[Array]:
    """Return the numbers of each job, in the order of its dimensions."""
    if hasattr(sums, "rows"):  # of tensors of several shapes
        return sums.rows()  # type: ignore[no-any-return]
    numbers = xp.asarray(sums, dtype=xp.float64)
    if jobs == 1:
        return [xp.reshape(numbers, (-1,))]
    stacked = xp.reshape(numbers, (-1, jobs))
    return [stacked[:, i] for i in range(jobs)]


def _answer(xp: Functions, run: TensorRun, partial: PartialSum, totals: Sequence[Array]) -> Array:
    if partial.request is ModelSquares and len(totals) > 1:
        return xp.asarray(totals[0][0], dtype=partial.sum.dtype)
    if isinstance(partial.sum, (int, float)):
        return answer_of(run, partial, totals[0].item())
    if hasattr(partial.sum, "of_rows"):
        return answer_of(run, partial, partial.sum.of_rows(totals))
    total = xp.concat(totals) if len(totals) == 1 else xp.stack(totals, -1)
    return answer_of(run, partial, xp.reshape(xp.asarray(total, dtype=partial.sum.dtype), partial.sum.shape))
