"""Expressions as source of a language: long ones in several lines, operators by precedence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from symbols import Symbol

PRECEDENCE = {
    "|": 2,
    **dict.fromkeys(("^", "&"), 3),
    **dict.fromkeys(("<<", ">>", "<", ">", "<=", ">=", "==", "!="), 4),
    **dict.fromkeys("+-", 5),
    **dict.fromkeys("*/", 6),
    "neg": 7,
}
BITWISE = {"|", "^", "&", "<<", ">>"}
CALLS = {"sqrt": "root"}
LONGEST, LONGEST_RESULT = 48, 80  # characters of what has no line of its own: a part, and a result


class Language:
    """How a language writes numbers, choices and lines."""

    calls: Mapping[str, str] = CALLS
    choice_binds = 1  # the precedence of a choice

    def number(self, x: Any) -> str:
        raise NotImplementedError

    def choice(self, condition: str, yes: str, no: str) -> str:
        raise NotImplementedError

    def line(self, name: str, x: Symbol, text: str) -> str:
        raise NotImplementedError


class Printer:
    """Prints expressions of one function: what has a name, is long, or is used twice and not short, is its own line."""

    def __init__(
        self, language: Language, leaves: Mapping[Symbol, str], names: Mapping[Symbol, str], taken: Iterable[str]
    ):
        self._language, self._names = language, names
        self._known, self._taken = dict(leaves), {*leaves.values(), *taken}
        self._uses: dict[Symbol, int] = {}
        self.lines: list[str] = []

    def outputs(self, *xs: Any) -> list[str]:
        """Print lines for these expressions, and return what stands for each."""
        for x in xs:
            self._count(x)
        return [self._of(x, 0, LONGEST_RESULT) for x in xs]

    def _count(self, x: Any) -> None:
        if not isinstance(x, Symbol):
            return
        self._uses[x] = self._uses.get(x, 0) + 1
        if self._uses[x] == 1 and x not in self._known:
            for part in _parts(x):
                self._count(part)

    def _of(self, x: Any, above: int, longest: int = LONGEST) -> str:
        """Return the text of an expression where operators of precedence `above` surround it."""
        if not isinstance(x, Symbol):
            return self._language.number(x)
        if x in self._known:
            return self._known[x]
        text, precedence = self._text(x)
        if len(text) > longest or self._deserves_a_line(x):
            return self._line(x, text)
        return f"({text})" if precedence < above else text

    def _deserves_a_line(self, x: Symbol) -> bool:
        return x in self._names or (self._uses.get(x, 0) > 1 and self._is_long(x))

    def _is_long(self, x: Symbol) -> bool:
        """Return whether an expression is too long, or takes too long, to stand in several places."""
        parts = [x]
        for one in parts:  # which grows
            parts += [part for part in one.parts if not part.is_leaf and part not in {**self._known, **self._names}]
        return len(parts) > 1 or any(one.op in ("sqrt", "/", "**") for one in parts)

    def _line(self, x: Symbol, text: str) -> str:
        name = free(self._names.get(x, f"y{len(self.lines)}"), self._taken)
        self.lines.append(self._language.line(name, x, text))
        self._known[x] = name
        return name

    def _text(self, x: Symbol) -> tuple[str, int]:
        if bound := bound_of(x):
            call, one, other = bound
            return f"{call}({self._of(one, 0)}, {self._of(other, 0)})", 9
        if x.op == "where":
            return self._language.choice(*(self._of(part, 2) for part in x.args)), self._language.choice_binds
        if x.op == "neg":
            return f"-{self._of(x.args[0], 7)}", 7
        if x.op not in PRECEDENCE:
            call = self._language.calls.get(x.op, x.op)
            return f"{call}({', '.join(self._of(part, 0) for part in x.args)})", 9
        precedence = PRECEDENCE[x.op]
        left, right = x.args
        # Sums and products in the rule's own order, and conditions always in parentheses.
        inner = 7 if x.op in BITWISE else 5 if precedence < 5 else precedence
        return f"{self._of(left, inner)} {x.op} {self._of(right, inner + (precedence >= 5))}", precedence


def free(name: str, taken: set[str]) -> str:
    """Return a name like this one that is not taken, and take it."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def bound_of(x: Symbol) -> tuple[str, Any, Any] | None:
    """Return which bound an expression is, of what, and by what: `at_least` and `at_most` of rules/scalars.py."""
    if x.op != "where" or not isinstance(x.args[0], Symbol):
        return None
    condition, yes, no = x.args
    if condition.op not in ("<", ">") or not all(map(_same, condition.args, (no, yes))):
        return None
    return ("at_least" if condition.op == "<" else "at_most"), no, yes


def _parts(x: Symbol) -> tuple[Any, ...]:
    bound = bound_of(x)
    return bound[1:] if bound else x.args


def _same(x: Any, y: Any) -> bool:
    return x is y or (not isinstance(x, Symbol) and not isinstance(y, Symbol) and x == y)
