"""One run of a rule with symbols: what it requests, keeps and returns."""

from __future__ import annotations

from dataclasses import fields
from types import MethodType
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

from symbols import SUMS_ALONG, Namespace, NotPrinted, Symbol, leaf

from layerwise.engines.structures import form_of
from layerwise.errors import LayerwiseError
from layerwise.hyper import ClippedByNorm, Hyper
from layerwise.registry import Entry
from layerwise.rules.asks import Keep, Now, Stepped

OF_GRADIENT = {spec.name for cls in (Hyper, ClippedByNorm) for spec in fields(cls)}  # engines prepare gradients alone
MATRIX = (5, 6)  # whose state has other sizes than 1, unless it is one number of a layer
NUMBERS = (0.5, 1.0, 0.1)  # one of which every option takes that is a number


class Run:
    """One run of a rule with symbols."""

    def __init__(self, entry: Entry, h: Any) -> None:
        self.entry, self.h = entry, h
        self.read: set[str] = set()
        self.of_layer = self._of_layer()
        self.requests: list[tuple[Any, ...]] = []
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
            if any(getattr(one, "dims", None) is not None for one in asked):
                raise NotPrinted(SUMS_ALONG)
            self.requests.append(asked)
            answer = tuple(leaf("total", number + i, is_array=False) for i in range(len(asked)))
            number += len(asked)

    def _start(self) -> Any:
        rule = self.entry.rule
        p, g = leaf("input", "p", is_array=True), leaf("raw", "the gradient as it comes", is_array=True)
        shapes = rule.shapes(self.h, (1,))
        each = zip(shapes._fields, shapes, strict=True)
        state = rule.State(*(None if s is None else self._stored(name) for name, s in each))
        rates = (leaf("coefficient", f"now.{name}", is_array=False) for name in ("t", "lr", "weight_decay"))
        return rule.step(self._xp, p, g, state, Options(self), Known(*rates))

    def _stored(self, name: str) -> Symbol:
        """Return the symbol of a part of the state: an array, or one number of the layer."""
        return leaf("layer", name, is_array=False) if name in self.of_layer else leaf("state", name, is_array=True)

    def _kept(self, name: str, x: Any) -> Any:
        """Return what a rule receives for state that it keeps. The number of a layer is stored with the weights."""
        return x if x is None or name in self.of_layer else leaf("kept", name, is_array=True)

    def _of_layer(self) -> tuple[str, ...]:
        """Return the names of state that is one number of the layer; all other state has the tensor's shape."""
        found = []
        for name, shape in self.entry.rule.shapes(self.h, MATRIX)._asdict().items():
            if shape == (1, 1):
                found.append(name)
            elif shape not in (None, MATRIX):
                raise NotPrinted(f"its state `{name}` has another shape than the tensor")
        return tuple(found)


class Known(NamedTuple):
    """What `step` may read of `now`: the rest belongs to `ready`, and to `coefficients`."""

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
    return 0 if isinstance(value, float) and value == 0 else form_of(value)
