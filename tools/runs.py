"""One run of a rule with symbols: what it requests, keeps and returns."""

from __future__ import annotations

from dataclasses import fields
from types import MethodType
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

from symbols import COLUMN, MATRIX, ROW, SUMS_ALONG, Namespace, NotPrinted, Symbol, leaf

from layerwise.catalog.registry import Entry
from layerwise.engines.program_types import option_forms
from layerwise.errors import LayerwiseError
from layerwise.options.settings import ClippedByNorm, Hyper
from layerwise.rules.requests import Keep, Mean, Now, Stepped

OF_GRADIENT = {spec.name for cls in (Hyper, ClippedByNorm) for spec in fields(cls)}  # engines prepare gradients alone
SIZES = (5, 6)  # of a matrix, whose state has other sizes than 1, unless it is one number of a layer
NUMBERS = (0.5, 1.0, 0.1)  # one of which every option takes that is a number


class Request(NamedTuple):
    """A sum over a layer, of the terms or of their squares, or along some of its dimensions."""

    kind: str
    terms: Any
    axis: str = ""


class Run:
    """One run of a rule with symbols."""

    def __init__(self, entry: Entry, h: Any, shape: tuple[int, ...] = (1,)) -> None:
        self.entry, self.h = entry, h
        self.shapes = entry.rule.shapes(h, shape)
        self.read: set[str] = set()
        self.factored = getattr(h, "factored", None) or None
        self.of_layer: list[str] = []
        self.lines: dict[str, str] = {}  # state with one number for each row, or column
        self._find_kinds_of_state()
        self.requests: list[tuple[Request, ...]] = []
        self.kept: tuple[int, Any] | None = None  # before which round, and the state
        self._xp = Namespace()
        self.done = self._driven()
        if not self._xp.has_readied:
            raise NotPrinted("it does not make the gradient `ready`")

    def _driven(self) -> Stepped:
        rule, answer, number = self.entry.rule, None, 0
        asking = self._start()
        known = coefficients(self.entry, self.h)
        while True:
            try:
                with patch.object(rule, "coefficients", lambda *_: known, create=True):
                    asked = asking.send(answer)
            except StopIteration as end:
                done: Stepped = end.value
                return done
            if isinstance(asked, Keep):
                if self.kept is not None:
                    raise NotPrinted("it keeps state twice")
                self.kept = len(self.requests), asked.state
                each = zip(asked.state._fields, asked.state, strict=True)
                answer = type(asked.state)(*(self._kept(n, x) for n, x in each))
                continue
            requests = tuple(map(self._request, asked))
            self.requests.append(requests)
            answer = tuple(_total(i, one) for i, one in enumerate(requests, number))
            number += len(requests)

    def _start(self) -> Any:
        rule = self.entry.rule
        p, g = leaf("input", "p", is_array=True), leaf("raw", "the gradient as it comes", is_array=True)
        each = zip(self.shapes._fields, self.shapes, strict=True)
        state = rule.State(*(None if s is None else self._stored(name) for name, s in each))
        rates = (leaf("coefficient", f"now.{name}", is_array=False) for name in ("t", "lr", "weight_decay"))
        return rule.step(self._xp, p, g, state, Options(self), Known(*rates))

    def _stored(self, name: str) -> Symbol:
        """Return the symbol of a part of the state: an array, or one number of the layer, or of each of its lines."""
        if name in self.lines:
            return leaf("line", name, self.lines[name], is_array=False)
        return leaf("layer", name, is_array=False) if name in self.of_layer else leaf("state", name, is_array=True)

    def _kept(self, name: str, x: Any) -> Any:
        """Return what a rule receives for state that it keeps. The number of a layer is stored with the weights."""
        return x if x is None or name in self.of_layer else leaf("kept", name, is_array=True)

    def _find_kinds_of_state(self) -> None:
        """Note state that is one number of the layer, or of each line; all other state has the tensor's shape."""
        along = {(SIZES[0], 1): ROW, (1, SIZES[1]): COLUMN} if self.factored else {}
        for name, shape in self.entry.rule.shapes(self.h, SIZES)._asdict().items():
            if shape == (1, 1):
                self.of_layer.append(name)
            elif shape in along:
                self.lines[name] = along[shape]
            elif shape not in (None, SIZES):
                raise NotPrinted(f"its state `{name}` has another shape than the tensor")

    def _request(self, asked: Any) -> Request:
        """Return a request as engines take it."""
        dims, terms = getattr(asked, "dims", None), asked.terms
        if dims is None:
            return Request(type(asked).__name__, terms)
        rows, cols = self.factored or ((), ())
        kinds = {
            (cols, ()): Request("RowMean", _summed(terms, cols), ROW),
            (rows, ()): Request("ColumnMean", _summed(terms, rows), COLUMN),
            (rows + cols, ()): Request("MatrixMean", _summed(terms, cols), MATRIX),
            (rows, cols): Request("MeanOfRows", terms, MATRIX),
        }
        if not self.factored or type(asked) is not Mean or (dims, asked.once) not in kinds:
            raise NotPrinted(SUMS_ALONG)
        return kinds[dims, asked.once]


def _summed(terms: Any, dims: tuple[int, ...]) -> Any:
    """Return what is summed, by the request or by the rule before it."""
    return terms.args[0] if terms.op == "summed" and terms.args[1] == dims else terms


def _total(i: int, request: Request) -> Symbol:
    """Return the symbol of an answer."""
    if request.axis:
        return leaf("mean", request.kind, request.axis, is_array=False)
    return leaf("total", i, is_array=False)


class Known(NamedTuple):
    """What `step` may read of `now`: the rest belongs to `prepare_gradient`, and to `coefficients`."""

    t: Symbol
    lr: Symbol
    weight_decay: Symbol

    def __getattr__(self, name: str) -> NoReturn:
        raise NotPrinted(f"its `step` reads `now.{name}`, which only `coefficients` may")


def coefficients(entry: Entry, h: Any) -> Any:
    """Return the rule's coefficients as symbols; None where it has none."""
    if not hasattr(entry.rule, "coefficients"):
        return None
    return _symbols(entry.rule.coefficients(Namespace(), h, Now(1.0, 0.1, 0.1)), "")


def _symbols(k: Any, prefix: str) -> Any:
    if any(isinstance(x, tuple) for x in k[:-1]):
        raise NotPrinted("a group of coefficients has to come last, and be the only one")
    each = zip(k._fields, k, strict=True)
    return type(k)(
        *(
            _symbols(x, f"{prefix}{name}_")
            if isinstance(x, tuple)
            else leaf("coefficient", prefix + name, is_array=False)
            for name, x in each
        )
    )


class Options:
    """The options of a rule, with symbols for numbers. It notes which of the others are read."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Any:
        kind = type(self._run.h)
        if name not in kind.__dataclass_fields__:  # computed of options, and so of symbols
            found = getattr(kind, name)
            return found.fget(self) if isinstance(found, property) else MethodType(found, self)
        value = getattr(self._run.h, name)
        if name in OF_GRADIENT:
            return value
        if not all(map(_is_number, choices(kind.__dataclass_fields__[name]))):
            self._run.read.add(name)
        if _is_number(value):
            return leaf("coefficient", f"h.{name}", is_array=False)
        if isinstance(value, tuple) and any(map(_is_number, value)) and not all(map(_is_number, value)):
            raise NotPrinted(f"its option `{name}` is of numbers and others")
        if isinstance(value, tuple) and value and all(map(_is_number, value)):
            return tuple(leaf("coefficient", f"h.{name}.{i}", is_array=False) for i in range(len(value)))
        return value


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def choices(spec: Any) -> list[Any]:
    """Return one value of each kind that an option takes, its default first."""
    check, found = spec.metadata["check"], [spec.default]
    for value in (*check.choices, 0.0, *NUMBERS):
        try:
            value = check(spec.name, value, "")
        except LayerwiseError:
            continue
        kinds = [_kind(one) for one in found]
        if _kind(value) not in kinds and spec.name not in OF_GRADIENT:
            found.append(value)
    return found


def _kind(value: Any) -> Any:
    return 0 if isinstance(value, float) and value == 0 else option_forms([value])[0]
