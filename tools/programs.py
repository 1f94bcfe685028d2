"""Programs: what an engine does for a rule, found by running the rule once with symbols for each of its structures.

Every yield ends a pass over the tensor; what is made of its totals are scalars, the answers. An option that is a number
is a symbol. The other options that a rule reads (`adapt`, `nesterov`), and which parts of the state there are, are its
structure. Each structure gives a program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, NamedTuple

from expressions import bound_of
from runs import Request, Run, choices
from symbols import COLUMN, MATRIX, ROW, SUMS_ALONG, Namespace, NotPrinted, Symbol, leaf, operation, substituted

from layerwise.catalog.registry import Entry
from layerwise.engines.program_types import ALONG, option_forms, present_state
from layerwise.errors import ContradictionError
from layerwise.rules.requests import ModelSquares

MOST_CACHED = 2  # terms for which a small layer has room
SHAPES = (1,), (2, 3)  # of tensors whose rules are run: a matrix may have state by rows and columns


class Answer(NamedTuple):
    """A scalar that passes over the tensor use, made of totals."""

    leaf: Symbol
    value: Symbol
    round: int  # with whose totals it is known; −1 where it needs none


@dataclass(frozen=True, eq=False)
class Program:
    """What an engine does for one structure of a rule.

    `keep` is the state that is final before the sums of round `keeps`. From there on, expressions see the kept state.
    """

    entry: Entry
    h: Any
    suffix: str  # of its name
    shapes: Any  # of its state
    states: tuple[str, ...]
    lines: dict[str, Any]  # state with one number for each row, or each column, and what it becomes
    made: dict[str, Any]  # what elements are computed with, one for each row, or each column
    rounds: tuple[tuple[Request, ...], ...]
    keeps: int | None
    keep: dict[str, Any]
    weights: Any
    state: dict[str, Any]  # what is stored beside the new weights
    remember: dict[str, Any]  # state that is one number of the layer, and what it becomes
    cached: tuple[int, ...]  # terms of the last round that cost more than to load them
    answers: tuple[Answer, ...]
    stats: dict[str, Any]

    @property
    def totals(self) -> tuple[str, ...]:
        """Return the kinds of the sums of all rounds, one after the other."""
        return tuple(request.kind for each in self.rounds for request in each)

    def terms(self, number: int) -> list[Any]:
        """Return what elements add to the sums of a round."""
        return [one.terms for one in self.rounds[number] if one.axis != MATRIX]

    def sums(self, number: int) -> list[str]:
        """Return the kinds of a round's sums over all of a layer."""
        return [one.kind for one in self.rounds[number] if not one.axis]

    @property
    def names(self) -> dict[Symbol, str]:
        """Return what is stored or reported, by its name."""
        made = {**self.keep, **self.state, **self.remember, **self.lines, **self.stats}
        return {x: name for name, x in reversed(made.items()) if isinstance(x, Symbol)}

    @property
    def rereads(self) -> bool:
        """Return whether `apply` needs the gradient, or the terms that it is made of."""
        last = self.terms(-1) if self.rounds else []
        xs = [self.weights, *self.state.values(), *last]
        return any(leaf("input", "g", is_array=True) in {*x.walk()} for x in xs if isinstance(x, Symbol))

    def places(self, names: Iterable[str]) -> list[int]:
        """Return the places of these among the parts of the state that there are."""
        parts = [name for name, shape in self.shapes._asdict().items() if shape is not None]
        return [parts.index(name) for name in names]

    def bits(self, written: Iterable[str]) -> int:
        """Return the bits of these states."""
        return sum(1 << self.states.index(name) for name in written)

    def is_early(self, answer: Answer) -> bool:
        """Return whether elements are computed with an answer before the first totals are known."""
        first = [*self.keep.values(), *self.terms(0)] if self.rounds else []
        return answer.round < 0 and any(answer.leaf in {*x.walk()} for x in first if isinstance(x, Symbol))

    def stats_of(self, number: int) -> dict[int, Any]:
        """Return what is reported with the totals of a round, by its place."""
        kinds = enumerate(self.stats.values())
        return {i: x for i, x in kinds if max(round_of(x, self.rounds), 0) == number}

    def in_arrays(self) -> set[Symbol]:
        """Return all parts of the expressions that are computed of each element."""
        terms = (x for j in range(len(self.rounds)) for x in self.terms(j))
        whole = [*self.keep.values(), *terms, self.weights, *self.state.values()]
        return {x for one in whole if isinstance(one, Symbol) for x in one.walk()}


# ---- structures


class Structures(NamedTuple):
    """The programs of a rule."""

    options: tuple[str, ...]  # by whose values they differ, besides the state that there is
    programs: dict[tuple[Any, ...], Program]


def structures(entry: Entry) -> Structures:
    """Return the program for each structure of a rule."""
    relevant = [spec.name for spec in fields(entry.hyper) if _decides_on_state(entry, spec)]
    while True:
        runs = [Run(entry, h, shape) for shape in SHAPES for h in _settings(entry, relevant, shape)]
        read = set[str]().union(*(run.read for run in runs))
        new = [spec.name for spec in fields(entry.hyper) if spec.name in read and spec.name not in relevant]
        if not new:
            options = tuple(name for name in relevant if name in read)
            first = {bool(run.lines): run for run in reversed(runs)}
            suffixes = [_suffix(run, first[bool(run.lines)], options) for run in runs]
            found = {_key(run, options): (run, suffix) for run, suffix in zip(runs, suffixes, strict=True)}
            return Structures(options, {key: program_of(*one) for key, one in found.items()})
        relevant += new


def _key(run: Run, options: Sequence[str]) -> tuple[Any, ...]:
    return present_state(run.shapes), *option_forms(getattr(run.h, name) for name in options)


def _suffix(run: Run, first: Run, read: Sequence[str]) -> str:
    """Return what a structure has that the first one has not, in words."""
    mine, usual = (one.shapes._asdict() for one in (run, first))
    words = ["by_lines"] if run.lines else []
    words += [f"{'with' if mine[name] else 'without'}_{name}" for name in mine if bool(mine[name]) != bool(usual[name])]
    forms = ((name, getattr(run.h, name)) for name in read if getattr(run.h, name) != getattr(first.h, name))
    words += [
        f"{name}_{'given' if value is not None and not isinstance(value, (bool, str)) else value}"
        for name, value in forms
    ]
    return "".join(part.capitalize() for word in words for part in word.split("_"))


def _decides_on_state(entry: Entry, spec: Any) -> bool:
    shape = SHAPES[0]
    found = {present_state(entry.rule.shapes(h, shape)) for h in _settings(entry, [spec.name], shape)}
    return len(found) > 1


def _settings(entry: Entry, names: Sequence[str], shape: tuple[int, ...]) -> Iterator[Any]:
    """Yield settings with all values of these options that are of other kinds; those that contradict are left out."""
    specs = {spec.name: spec for spec in fields(entry.hyper)}
    for values in itertools.product(*(choices(specs[name]) for name in names)):
        try:
            h = entry.hyper(**dict(zip(names, values, strict=True))).fit(shape, (), 1e-7)
        except ContradictionError:
            continue
        if h.has_kernels:
            yield h


# ---- from a run to a program


def program_of(run: Run, suffix: str) -> Program:
    """Return the program that a run shows."""
    rounds = list(run.requests)
    _refuse_other_lines(run)
    if any(request.kind == ModelSquares.__name__ for one in rounds for request in one):
        raise NotPrinted("a rule asks for the sum over the model by `prepare_gradient` alone")
    weights: Any = leaf("input", "p", is_array=True)
    for a, x in run.done.moves:
        weights = weights + a * x
    state = _arrays(run, run.done.state)
    keeps, keep = (None, {}) if run.kept is None else (run.kept[0], _arrays(run, run.kept[1]))
    keeps, keep, rounds, weights, state = _kept(keeps, keep, rounds, weights, state)
    state = {name: x for name, x in state.items() if not _stays(name, x)}
    found = _answered(run, suffix, keeps, keep, rounds, weights, state)
    _refuse_too_early(found)
    return found


def _arrays(run: Run, state: Any) -> dict[str, Any]:
    """Return the parts of a state that have the tensor's shape."""
    others = {*run.of_layer, *run.lines}
    return {name: x for name, x in state._asdict().items() if x is not None and name not in others}


def _refuse_other_lines(run: Run) -> None:
    """Raise where sums along lines are not those that engines have."""
    each = [one for asked in run.requests for one in asked if one.axis]
    if not (each or run.lines):
        return
    first = run.requests[0][: len(ALONG)] if run.requests else ()
    if tuple(one.kind for one in each) != ALONG or [*first] != each or first[0].terms is not first[2].terms:
        raise NotPrinted(SUMS_ALONG)
    rows, *_ = run.lines
    if [*run.lines.values()] != [ROW, COLUMN] or first[3].terms is not leaf("line", rows, ROW, is_array=False):
        raise NotPrinted(SUMS_ALONG)


def _of_layer(run: Run) -> dict[str, Any]:
    """Return what the parts of the state become that are one number of the layer."""
    found = {name: getattr(run.done.state, name) for name in run.of_layer}
    for name, x in found.items():
        if isinstance(x, Symbol) and x.is_array:
            raise NotPrinted(f"its state `{name}` is one number of a layer, and becomes one of each element")
    if found and not run.requests:
        raise NotPrinted("it keeps a number of each layer, and asks for no sums")
    return found


def _refuse_too_early(program: Program) -> None:
    """Raise where elements are computed with what is known of their layer only later."""
    rounds = [(j, program.terms(j)) for j in range(len(program.rounds))]
    for j, xs in [*rounds, (program.keeps or 0, [*program.keep.values()])]:
        late = {one.leaf for one in program.answers if one.round >= j}
        if any(late & set(x.walk()) for x in xs if isinstance(x, Symbol)):
            raise NotPrinted("it computes elements with the number of a layer before its first sum")


def _stays(name: str, x: Any) -> bool:
    """Return whether a part of the state is what is stored already."""
    if not isinstance(x, Symbol):
        raise NotPrinted(f"its state `{name}` becomes a number")
    return x.op in ("state", "kept") and x.args[0] == name


def _kept(keeps: int | None, keep: Any, rounds: list[Any], weights: Any, state: Any) -> Any:
    """Return expressions of the kept state, or of that before it where something after it still needs that."""
    if keeps is None:
        return None, {}, rounds, weights, state
    as_kept = {x: leaf("kept", name, is_array=True) for name, x in keep.items()}
    as_made = {kept: x for x, kept in as_kept.items()}

    def seen(by: Any, first: int) -> tuple[list[Any], Any, Any]:
        return (
            rounds[:first]
            + [tuple(one._replace(terms=substituted(one.terms, by)) for one in each) for each in rounds[first:]],
            substituted(weights, by),
            {name: substituted(x, by) for name, x in state.items()},
        )

    after, new, rest = seen(as_kept, keeps)
    old = {leaf("state", name, is_array=True) for name in keep}
    late = [one.terms for each in after[keeps:] for one in each] + [new, *rest.values()]
    if keeps < len(rounds) and not any(old & set(x.walk()) for x in late if isinstance(x, Symbol)):
        return keeps, keep, after, new, rest
    return None, {}, *seen(as_made, 0)


def _answered(run: Run, suffix: str, keeps: Any, keep: Any, rounds: list[Any], weights: Any, state: Any) -> Program:
    answers = Answers(rounds)
    rounds = [
        tuple(one if one.axis == MATRIX else one._replace(terms=answers.in_array(one.terms)) for one in each)
        for each in rounds
    ]
    keep = {name: answers.in_array(x) for name, x in keep.items()}
    weights, state = answers.in_array(weights), {name: answers.in_array(x) for name, x in state.items()}
    cached: tuple[int, ...] = ()
    if rounds:
        costly = [(one.terms, leaf("term", i, is_array=True)) for i, one in enumerate(rounds[-1]) if _costs(one.terms)]
        last = dict(costly[:MOST_CACHED])
        weights = substituted(weights, last)
        state = {name: substituted(x, last) for name, x in state.items()}
        used = {x for one in (weights, *state.values()) for x in one.walk()}
        cached = tuple(x.args[0] for x in last.values() if x in used)
    program = Program(
        entry=run.entry,
        h=run.h,
        suffix=suffix,
        shapes=run.shapes,
        states=tuple(_arrays(run, run.shapes)),
        lines={name: getattr(run.done.state, name) for name in run.lines},
        made=answers.made,
        rounds=tuple(rounds),
        keeps=keeps,
        keep=keep,
        weights=weights,
        state=state,
        remember=_of_layer(run),
        cached=cached,
        answers=tuple(answers.found.values()),
        stats=_scalars(run.done.stats),
    )
    if any(x.op == "raw" for x in program.in_arrays()):
        raise NotPrinted("it computes with the gradient before that is `ready`")
    return program


def _scalars(stats: dict[str, Any]) -> dict[str, Any]:
    if arrays := [name for name, x in stats.items() if isinstance(x, Symbol) and x.is_array]:
        raise NotPrinted(f"it reports `{arrays[0]}` of each element")
    return stats


def _costs(x: Any) -> bool:
    """Return whether an expression has a root or a quotient of arrays."""
    return any(one.op in ("sqrt", "/") and one.is_array for one in x.walk())


class Answers:
    """The scalars that arrays are computed with."""

    def __init__(self, rounds: Sequence[Sequence[Request]]) -> None:
        self._rounds = rounds
        self.found: dict[Symbol, Answer] = {}
        self.made: dict[str, Symbol] = {}  # by the axis

    def in_array(self, x: Any) -> Any:
        """Return an expression of arrays with answers in the place of scalars that are not known before."""
        if not isinstance(x, Symbol) or (x.is_leaf and not x.axis and x.op not in ("total", "layer")):
            return x
        if x.op == "summed" or x.axis == MATRIX:
            raise NotPrinted(SUMS_ALONG)
        if x.op == "/" and (by := _inverted(x.args[1])) is not None:
            x = operation("*", x.args[0], by)
        if x.is_array:
            return operation(x.op, *map(self.in_array, x.args))
        if x.axis:
            if self.made.setdefault(x.axis, x) is not x:
                raise NotPrinted(f"it computes elements with several numbers of each {x.axis}")
            return leaf("made", x.axis, is_array=False)
        if x not in self.found:
            self.found[x] = Answer(leaf("answer", len(self.found), is_array=False), x, round_of(x, self._rounds))
        return self.found[x].leaf


def round_of(x: Any, rounds: Sequence[Sequence[Request]]) -> int:
    """Return the last round of whose totals a scalar is made, or −1. Numbers of a layer are read with the first."""
    places, parts = [j for j, one in enumerate(rounds) for _ in one], {*x.walk()} if isinstance(x, Symbol) else ()
    first = 0 if any(one.op == "layer" for one in parts) else -1
    return max([first, *(places[one.args[0]] for one in parts if one.op == "total")])


def _inverted(x: Any) -> Any:
    """Return 1/x of what is made of numbers of lines, so that elements are multiplied, and each line divided once."""
    if not isinstance(x, Symbol):
        return None
    if x.axis in (ROW, COLUMN):
        return operation("/", 1.0, x)
    if x.op == "*":
        each = list(map(_inverted, x.args))
        return None if any(one is None for one in each) else operation("*", *each)
    bound = bound_of(x)
    if bound is None or bound[0] != "at_least" or (one := _inverted(bound[1])) is None:
        return None
    low, where = bound[2], Namespace.where
    return Namespace.clip(one, None, where(low == 0.0, inf, 1.0 / where(low == 0.0, 1.0, low)))
