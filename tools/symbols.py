"""Symbols that stand for the numbers and arrays of a rule, so that it can be run once and printed as a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn


class NotPrinted(Exception):
    """Raised where a rule does what kernels are not printed for; it says what."""


SUMS_ALONG = "it sums along some dimensions only"
AXES = ROW, COLUMN, MATRIX = "row", "column", "matrix"
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}
BITWISE = {"xor": "^", "lshift": "<<", "rshift": ">>"}
COMPARISON = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|"}


class Symbol:
    """An expression: a leaf with a name, or an operation on others. Equal expressions are one object."""

    dtype: ClassVar[Any] = SimpleNamespace(kind="f")
    _known: ClassVar[dict[Any, Symbol]] = {}

    op: str
    args: tuple[Any, ...]  # symbols and numbers; of a leaf, what it is
    is_array: bool  # else a scalar,
    axis: str  # of which there is one for each row, column or matrix

    def __new__(cls, op: str, *args: Any, is_array: bool | None = None) -> Symbol:
        key = (op, *(id(x) if isinstance(x, Symbol) else (type(x), x) for x in args), is_array)
        if key not in cls._known:
            made = super().__new__(cls)
            made.op, made.args = op, args
            axes = {x.axis for x in made.parts} | ({args[-1]} if op in ALONG else set())
            of_elements = {ROW, COLUMN} <= axes or any(x.is_array for x in made.parts)
            made.is_array = of_elements if is_array is None else is_array
            made.axis = "" if made.is_array else next((one for one in AXES if one in axes), "")
            cls._known[key] = made
        return cls._known[key]

    @property
    def is_leaf(self) -> bool:
        return self.op in LEAVES

    @property
    def parts(self) -> tuple[Symbol, ...]:
        return tuple(x for x in self.args if isinstance(x, Symbol))

    def walk(self) -> Iterator[Symbol]:
        """Yield this expression and all that it is made of, each once, the innermost first."""
        yield from _walk(self, set())

    def __hash__(self) -> int:
        return id(self)

    def __neg__(self) -> Symbol:
        return self.args[0] if self.op == "neg" else Symbol("neg", self)

    def __abs__(self) -> Symbol:
        return Symbol("abs", self)

    def __invert__(self) -> Symbol:
        return Symbol("~", self)

    def __bool__(self) -> bool:
        raise TypeError(
            f"a rule branched on {self}, which is known only in a step. Branch on options, and choose between values "
            "with `choose` or `xp.where`."
        )

    def __repr__(self) -> str:
        return str(self.args[-1]) if self.is_leaf else f"{self.op}({', '.join(map(str, self.args))})"


ALONG = ("line", "mean", "made")  # state, means and what elements are computed with: one for each row, or column
LEAVES = (*ALONG, "raw", "input", "state", "kept", "layer", "coefficient", "total", "answer", "term", "parameter")


def leaf(kind: str, *what: Any, is_array: bool) -> Symbol:
    return Symbol(kind, *what, is_array=is_array)


READY = leaf("input", "g", is_array=True)  # the gradient as engines prepare it


def _walk(x: Symbol, seen: set[Symbol]) -> Iterator[Symbol]:
    if x in seen:
        return
    seen.add(x)
    for part in x.parts:
        yield from _walk(part, seen)
    yield x


def substituted(x: Any, by: Mapping[Symbol, Symbol]) -> Any:
    """Return an expression with some of its parts replaced."""
    done: dict[Symbol, Any] = dict(by)

    def of(one: Any) -> Any:
        if not isinstance(one, Symbol):
            return one
        if one not in done:
            done[one] = one if one.is_leaf else operation(one.op, *map(of, one.args))
        return done[one]

    return of(x)


def operation(op: str, *args: Any) -> Any:
    """Return an expression without what changes no number: factors of 1, and signs that a difference takes up."""
    if op in ("*", "/"):
        return _product(op, *args)
    if op == "+":
        return _sum(*args)
    if op == "-" and isinstance(args[1], Symbol) and args[1].op == "neg":
        return operation("+", args[0], args[1].args[0])
    if op == "neg":
        return -args[0]
    if op == "**" and isinstance(args[0], Symbol) and not isinstance(args[1], Symbol) and args[1] in (2, 0.5):
        return _product("*", args[0], args[0]) if args[1] == 2 else Symbol("sqrt", args[0])
    if op == "**" and any(isinstance(x, Symbol) and x.is_array for x in args):
        raise NotPrinted("it raises an array to another power than 2 or 0.5")
    return Symbol(op, *args)


def _product(op: str, x: Any, y: Any) -> Any:
    if not isinstance(y, Symbol) and y == 1:
        return x
    if op == "*" and not isinstance(x, Symbol) and x == 1:
        return y
    for i, one in enumerate((x, y)):
        if isinstance(one, Symbol) and one.op == "neg":
            return -operation(op, *((one.args[0], y) if i == 0 else (x, one.args[0])))
    return Symbol(op, x, y)


def _sum(x: Any, y: Any) -> Any:
    if isinstance(y, Symbol) and y.op == "neg":
        return operation("-", x, y.args[0])
    if isinstance(x, Symbol) and x.op == "neg":
        return operation("-", y, x.args[0])
    return Symbol("+", x, y)


def _operator(op: str, turned: bool) -> Callable[[Any, Any], Any]:
    return (lambda x, y: operation(op, y, x)) if turned else (lambda x, y: operation(op, x, y))


for _name, _op in (ARITHMETIC | BITWISE | COMPARISON).items():
    setattr(Symbol, f"__{_name}__", _operator(_op, turned=False))
    if _name not in COMPARISON:
        setattr(Symbol, f"__r{_name}__", _operator(_op, turned=True))


# What a namespace may have and this one has not; rules ask for it.
OFFERED = (
    "coefficients", "final", "mix", "add_overwriting", "add_scaled", "signs", "squares", "as_number", "beside", "still",
    "vanishes", "exists",
)  # fmt: skip


class Namespace:
    """What a rule may use of an array library, for symbols."""

    def __init__(self) -> None:
        self.has_readied = False

    def ready(self, g: Any) -> Symbol:
        if not (isinstance(g, Symbol) and g.op == "raw"):
            raise NotPrinted("it makes something else `ready` than the gradient as it comes")
        self.has_readied = True
        return READY

    def __getattr__(self, name: str) -> NoReturn:
        if name in OFFERED:
            raise AttributeError(name)
        raise NotPrinted(f"it uses `{name}` of the array library")

    @staticmethod
    def sqrt(x: Any) -> Symbol:
        return Symbol("sqrt", x)

    length = sqrt

    @staticmethod
    def unless_off(a: Any, y: Any) -> Symbol:
        return Symbol("unless_off", a, y)

    @staticmethod
    def expm1(x: Any) -> Symbol:
        return Symbol("expm1", x)

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Symbol:
        return Symbol("where", condition, yes, no)

    @staticmethod
    def clip(x: Any, low: Any, high: Any) -> Any:
        x = x if low is None else Symbol("where", x < low, low, x)
        return x if high is None else Symbol("where", x > high, high, x)

    @staticmethod
    def ones_like(x: Any) -> float:
        return 1.0

    @staticmethod
    def asarray(x: Any, dtype: Any = None) -> Any:
        return x

    @staticmethod
    def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Symbol:
        """Return what only a request may have, since engines sum by themselves."""
        return Symbol("summed", x, axis)
