"""Who answers the rules' questions: whoever holds the whole tensors, or all who hold parts of them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

from layerwise.rules.asks import Array, Asking, Keep, Mean, MeanSquare, ModelSum, Scalar, Squares
from layerwise.rules.parts import square

Dims = tuple[int, ...]
Ask = Mean | Squares | MeanSquare | ModelSum
MEANS = (Mean, MeanSquare)
Asks = tuple[Ask, ...]
Answer = tuple[Array, ...]


class Run(NamedTuple):
    """Rules on their way through one tensor: one for the whole of it, or one for each slice along a dimension."""

    rules: tuple[Asking[Any], ...]
    shape: Dims  # of the whole tensor
    block_dims: Dims = ()  # dimensions that count blocks, each of which is a tensor of its own to the rule
    together: bool = False  # whether the rules will ask for a sum over the whole model: h.asks_of_model
    cut: int | None = None  # the dimension along which the tensor is sliced
    jobs: Dims = (0,)  # whose tensor it is: several are stacked along the last dimension


class Asked(NamedTuple):
    """A request and what this slice adds to its answer, summed at once so that the terms are not held any longer."""

    ask: type[Ask]
    dims: Dims
    part: Array


class Question(NamedTuple):
    """A request of one job, to be answered by all who hold parts of its tensor."""

    job: int
    ask: type[Ask]
    dims: Dims
    length: int  # how many numbers answer it


class Others(Protocol):
    """Everybody who steps the same model and holds other parts of it."""

    def told_how(self, how: str) -> None:
        """Hear before the first sums of a step how its rounds follow one another, which is the same for everybody."""

    def add_up(self, questions: Sequence[Question], sums: Array) -> Array:
        """The sums over all of the model, given those here, one after the other in float64, which may be used up.

        It raises where the step is not to be taken. Everybody comes here at least once before writing anything, if
        only with no questions.
        """


class Done(NamedTuple):
    """What a rule returned."""

    value: Any


def local(xp: Any, runs: Sequence[Run]) -> Iterator[tuple[Any, ...]]:
    """Drive the rules to their end, one tensor after the other, and yield its slices' results as soon as it is done.

    Only a sum over the whole model makes tensors wait for one another, and they wait holding a prepared gradient
    and nothing more; so what is in memory besides is the work on one tensor.
    """
    terms = {id(run): _to_model_sum(xp, run) for run in runs if run.together}
    parts = [part for each in terms.values() for part in each]
    model_sum = _added([beside(xp, part, parts[0]) for part in parts]) if parts else None
    for run in runs:
        own = (beside(xp, model_sum, terms[id(run)][0]),) if run.together else None
        yield _to_the_end(xp, run, [own] * len(run.rules))


def in_rounds(xp: Any, buckets: Sequence[Sequence[Run]], others: Others) -> Iterator[Any]:
    """Drive rules side by side, one bucket after the other, and yield what they return, each of one whole slice.

    All questions of a round are answered at once. Every rule asks for nothing, `()`, before it writes anything, and is
    answered when nobody of its bucket has anything more to ask.
    """
    others.told_how(f"the rule, {[sum(len(run.jobs) for run in bucket) for bucket in buckets]} at a time")
    runs = [run for bucket in buckets for run in bucket]
    told = _told_model_sum(xp, {run.jobs: run for run in runs if run.together}, others)
    for k, bucket in enumerate(buckets):
        named = {run.jobs: run for run in bucket}
        waiting = {jobs: _asking(xp, run, told.get(jobs)) for jobs, run in named.items()}
        if k == 0 and not told and not any(waiting.values()):
            others.add_up((), xp.asarray([], dtype=xp.float64))
        while any(waiting.values()):
            asking = {jobs: asked for jobs, asked in waiting.items() if asked}
            waiting |= {jobs: _asking(xp, named[jobs], x) for jobs, x in _completed(xp, named, asking, others).items()}
        for run in bucket:
            end: Any = _advance(xp, run, run.rules[0], ())
            yield end.value


Runs = Mapping[Dims, Run]  # by their jobs


def _told_model_sum(xp: Any, runs: Runs, others: Others) -> dict[Dims, Answer]:
    """What these rules are told of the whole model. They are left waiting for it."""
    waiting = {jobs: _asking(xp, run, None) for jobs, run in runs.items()}
    while asking := {jobs: asked for jobs, asked in waiting.items() if asked[0].ask is not ModelSum}:
        waiting |= {jobs: _asking(xp, runs[jobs], x) for jobs, x in _completed(xp, runs, asking, others).items()}
    return _completed(xp, runs, waiting, others) if waiting else {}


def beside(xp: Any, x: Array, like: Array) -> Array:
    """`x` on the device of `like`, where a library has several."""
    return xp.beside(x, like) if hasattr(xp, "beside") else x


def _asking(xp: Any, run: Run, answer: Answer | None) -> tuple[Asked, ...]:
    asks = asks_of(run.rules[0], answer)
    if len(run.jobs) > 1 and asks and isinstance(asks[0], ModelSum):  # of each job, and not of all that are stacked
        dims = tuple(range(len(run.shape) - 1))
        return (Asked(ModelSum, dims, xp.reshape(_squares(xp, asks[0].terms, dims), (-1,))),)
    return tuple(_asked(xp, run, ask) for ask in asks)


def _completed(xp: Any, runs: Runs, asking: Mapping[Dims, Sequence[Asked]], others: Others) -> dict[Dims, Answer]:
    """The answers to these requests, from all who hold parts."""
    places, rows = [], []
    for jobs, asked in asking.items():
        for k, one in enumerate(asked):
            for i, row in enumerate(_rows(xp, one.part, len(jobs))):
                places.append((jobs[i], k))
                rows.append((Question(jobs[i], one.ask, one.dims, len(row)), row))
    # In an order that is the same for all, however each of them has stacked what is here.
    order = sorted(range(len(places)), key=places.__getitem__)
    totals, at = others.add_up([rows[i][0] for i in order], xp.concat([rows[i][1] for i in order])), 0
    found = {}
    for i in order:
        found[places[i]] = totals[at : at + rows[i][0].length]
        at += rows[i][0].length
    return {
        jobs: tuple(_as_answer(xp, runs[jobs], one, [found[job, k] for job in jobs]) for k, one in enumerate(asked))
        for jobs, asked in asking.items()
    }


def _rows(xp: Any, part: Array, jobs: int) -> Sequence[Array]:
    """The numbers of each job, in the order of its dimensions."""
    numbers = xp.asarray(part, dtype=xp.float64)
    if jobs == 1:
        return [xp.reshape(numbers, (-1,))]
    stacked = xp.reshape(numbers, (-1, jobs))
    return [stacked[:, i] for i in range(jobs)]


def _as_answer(xp: Any, run: Run, asked: Asked, totals: Sequence[Array]) -> Array:
    if asked.ask is ModelSum and len(totals) > 1:
        return xp.asarray(totals[0][0], dtype=asked.part.dtype)
    if isinstance(asked.part, (int, float)):
        return _divided(run, asked, totals[0].item())
    total = xp.concat(totals) if len(totals) == 1 else xp.stack(totals, -1)
    return _divided(run, asked, xp.reshape(xp.asarray(total, dtype=asked.part.dtype), asked.part.shape))


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
    if isinstance(ask, Mean):
        return _summed(xp, ask.terms, dims)
    squares = _squares(xp, ask.terms, dims)
    # Tensors of any number of dimensions add to it.
    return xp.reshape(squares, ()) if isinstance(ask, ModelSum) else squares


def _squares(xp: Any, terms: Array, dims: Dims) -> Array:
    return xp.squares(terms, dims) if hasattr(xp, "squares") else _summed(xp, square(terms), dims)


def _summed(xp: Any, terms: Array, dims: Dims) -> Array:
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
    parts = [one.part for one in slices]
    if run.cut in slices[0].dims:
        parts = [_added(parts)] * len(parts)
    return [_divided(run, slices[0], part) for part in parts]


def _divided(run: Run, asked: Asked, total: Array) -> Array:
    return total / max(1, prod(run.shape[d] for d in asked.dims)) if asked.ask in MEANS else total
