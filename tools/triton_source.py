"""Programs as Triton: for each program device functions, and a row of the table by which the GPU engine finds them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import isinf
from typing import Any, ClassVar

from expressions import Language, Printer, free
from programs import Program
from symbols import Symbol, leaf

from layerwise.registry import Entry

MEANS = ("Mean", "MeanSquare")
SHARED = ("at_least", "at_most", "expm1", "power", "root", "unless_off")  # functions of kernels/parts.py
HEAD = '''"""The programs of {name}, as device functions.

Printed from {path} by `make generate`: change that, not this file.
"""

from __future__ import annotations

import triton
import triton.language as tl

{imports}
{columns}
'''
TABLE = """
PROGRAMS = {{
{rows}
}}
"""


class Triton(Language):
    """Triton, in which constants take the dtype of what they meet."""

    choice_binds = 9  # it is a call
    calls: ClassVar = {
        "sqrt": "root",
        "pow": "power",
        "**": "power",
        "expm1": "expm1",
        "abs": "tl.abs",
    }

    def number(self, x: Any) -> str:
        return f'float("{x}")' if isinf(x) else repr(float(x))

    def choice(self, condition: str, yes: str, no: str) -> str:
        return f"tl.where({condition}, {yes}, {no})"

    def line(self, name: str, x: Symbol, text: str) -> str:
        return f"{name} = {text}"


def module(entry: Entry, named: Mapping[Program, str], numbers: Sequence[str]) -> str:
    """Return the module of a rule, with its programs by their names."""
    distinct = {name: program for program, name in reversed(named.items())}
    found = {name: Functions(distinct[name], name, numbers) for name in dict.fromkeys(named.values())}
    body = "\n\n".join(function for one in found.values() for function in one.sources())
    rows = "\n".join(f"    {name!r}: {one.row()}," for name, one in found.items())
    text = body + TABLE.format(rows=rows)
    path = f"rules/{entry.rule.__name__.rpartition('.')[2]}.py"
    return HEAD.format(name=entry.name, path=path, imports=_imports(text, numbers), columns=_columns(numbers)) + text


def _imports(text: str, numbers: Sequence[str]) -> str:
    shared = ", ".join(name for name in SHARED if re.search(rf"\b{name}\(", text))
    lines = [f"from layerwise.engines.gpu.kernels.parts import {shared}"] if shared else []
    if numbers:
        lines.append("from layerwise.engines.gpu.kernels.tables import columns")
    return "\n".join([*lines, "from layerwise.engines.gpu.program import Program\n"])


def _columns(numbers: Sequence[str]) -> str:
    if not numbers:
        return ""
    names = _together([column(one) for one in numbers])
    return f"# The numbers that are known before a tensor is read.\n{names} = columns({len(numbers)})\n\n"


def column(number: str) -> str:
    """Return the name of a number's column."""
    return re.sub(r"\W", "_", number).upper()


def member(number: str) -> str:
    """Return the name of a number in functions of arrays."""
    return re.sub(r"\W", "_", number)


class Functions:
    """The device functions of one program."""

    def __init__(self, program: Program, name: str, numbers: Sequence[str]) -> None:
        self.program, self.numbers = program, numbers
        self.prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        shown = {x: own for x, own in program.names.items() if x.op == "state" and own != "_"}
        self.known = [one for one in program.answers if one.round >= 0]
        self.taken = {*"kpgsxSna", "old", "to", "tl", "triton", *SHARED}
        self.members = {leaf("coefficient", one, is_array=False): free(member(one), self.taken) for one in numbers}
        self.members |= {one.leaf: free(str(one.leaf.args[0]), self.taken) for one in program.answers}
        self.values = self._values()
        self.states = [free(shown.get(leaf("state", x, is_array=True), x), self.taken) for x in program.states]

    def _values(self) -> list[str]:
        """Return the names of the scalars that arrays are computed with."""
        used = self.program.in_arrays()
        return [name for x, name in self.members.items() if x in used]

    # ---- the table

    def row(self) -> str:
        program = self.program
        kinds = tuple(tuple(request.kind for request in one) for one in program.rounds)
        terms = [self._name("terms", j) for j in range(len(program.rounds))]
        answers = [self._name("answer", j) if self._answered(j) else "None" for j in range(len(program.rounds))]
        return (
            f"Program(states={program.states!r}, layer_states={(*program.remember,)!r}, "
            f"rounds={kinds!r}, keeps={program.keeps}, "
            f"keep_writes={self._bits(program.keep)}, apply_writes={self._bits(program.state)}, "
            f"cached={program.cached!r}, rereads={self._rereads()}, values={self.prefix}_values, "
            f"keep={f'{self.prefix}_keep' if program.keep else None}, terms={_tuple(terms)}, "
            f"apply={self.prefix}_apply, answers={_tuple(answers)}, report={self.prefix}_report, "
            f"remember={f'{self.prefix}_remember' if program.remember else None})"
        )

    def _bits(self, written: Iterable[str]) -> int:
        return sum(1 << self.program.states.index(name) for name in written)

    def _rereads(self) -> bool:
        """Return whether `apply` needs the gradient, or the terms that it is made of."""
        program = self.program
        last = [x for _, x in program.rounds[-1]] if program.rounds else []
        xs = [program.weights, *program.state.values(), *last]
        return any(leaf("input", "g", is_array=True) in {*x.walk()} for x in xs if isinstance(x, Symbol))

    def _name(self, what: str, number: int) -> str:
        return f"{self.prefix}_{what}" + (f"_{number}" if len(self.program.rounds) > 1 else "")

    def _answered(self, number: int) -> dict[str, Any]:
        return {f"a + {i}": one.value for i, one in enumerate(self.known) if one.round == number}

    # ---- functions

    def sources(self) -> list[str]:
        program, found = self.program, [self._load_values()]
        if program.keep:
            kept = [program.keep.get(name, leaf("state", name, is_array=True)) for name in program.states]
            found.append(self._of_arrays("keep", "k, p, g, s", kept))
        for j, one in enumerate(program.rounds):
            name = self._name("terms", j).removeprefix(f"{self.prefix}_")
            found.append(self._of_arrays(name, "k, p, g, s", [x for _, x in one]))
        stored = [program.state.get(name, leaf("state", name, is_array=True)) for name in program.states]
        found.append(self._of_arrays("apply", "k, p, g, s, x", [program.weights, *stored]))
        for j in range(len(program.rounds)):
            if wanted := self._answered(j):
                name = self._name("answer", j).removeprefix(f"{self.prefix}_")
                found.append(self._of_scalars(name, "k, S, n, old, a", wanted))
        stats = {f"to + {i}": x for i, x in enumerate(program.stats.values())}
        found.append(self._of_scalars("report", "k, S, n, old, to", stats))
        return [*found, self._of_scalars("remember", "k, S, n, old", program.remember)] if program.remember else found

    def _load_values(self) -> str:
        leaves = {leaf("coefficient", name, is_array=False): f"tl.load(k + {column(name)})" for name in self.numbers}
        known = {self.members[x]: text for x, text in leaves.items()}
        known |= {self.members[one.leaf]: f"tl.load(a + {i})" for i, one in enumerate(self.known)}
        early = [one for one in self.program.answers if one.round < 0]
        printer = Printer(Triton(), leaves, {}, {*self.taken, *self.values})
        for one, text in zip(early, printer.outputs(*(one.value for one in early)), strict=True):
            known[self.members[one.leaf]] = text if text.startswith("tl.where") else f"({text})"
        lines = printer.lines
        lines += [f"{name} = {known[name]}.to(COMPUTE)" for name in self.values]
        return self._function("values", "k, a, COMPUTE: tl.constexpr", [*lines, f"return {_tuple(self.values)}"])

    def _of_arrays(self, name: str, parameters: str, results: Sequence[Any]) -> str:
        """Return a function of blocks of elements."""
        program = self.program
        read = {x for one in results if isinstance(one, Symbol) for x in one.walk()}
        leaves = self.members | {leaf("input", one, is_array=True): one for one in "pg"}
        taken = {*self.taken, *self.values, *self.states}
        lines = [f"{_together(self.values)} = k"] if any(x in read and leaves[x] in self.values for x in leaves) else []
        for own, one in zip(self.states, program.states, strict=True):
            leaves |= {leaf(op, one, is_array=True): own for op in ("state", "kept")}
        if any(x.op in ("state", "kept") for x in read):
            lines.append(f"{_together(self.states)} = s")
        for x in sorted((x for x in read if x.op == "term"), key=lambda x: x.args[0]):
            leaves[x] = free(program.names.get(program.rounds[-1][x.args[0]].terms, f"x{x.args[0]}"), taken)
            lines.append(f"{leaves[x]} = x[{x.args[0]}]")
        names = {x: own for x, own in program.names.items() if x.op not in ("state", "kept", "total")}
        printer = Printer(Triton(), leaves, names, taken)
        texts = printer.outputs(*results)
        return self._function(name, parameters, [*lines, *printer.lines, f"return {_tuple(texts)}"])

    def _of_scalars(self, name: str, parameters: str, made: Mapping[str, Any]) -> str:
        """Return a function of a layer's totals, in float64, that stores its results, or else returns them."""
        program = self.program
        leaves = {leaf("coefficient", one, is_array=False): f"tl.load(k + {column(one)})" for one in self.numbers}
        read = {x for one in made.values() if isinstance(one, Symbol) for x in one.walk()}
        kinds = [request.kind for one in program.rounds for request in one]
        lines, taken = [], {"k", "S", "n", "a", "old", "to", "tl", "triton", *SHARED}
        leaves |= {leaf("layer", own, is_array=False): f"old[{i}]" for i, own in enumerate(program.remember)}
        for i, kind in enumerate(kinds):
            x = leaf("total", i, is_array=False)
            leaves[x] = free(program.names.get(x, f"total_{i}"), taken)
            if x in read:
                lines.append(f"{leaves[x]} = S[{i}]" + (" / n" if kind in MEANS else ""))
        names = {x: own for x, own in program.names.items() if not x.is_array and x.op not in ("total", "layer")}
        printer = Printer(Triton(), leaves, names, taken)
        texts = printer.outputs(*made.values())
        stores = [f"tl.store({at}, {text})" for at, text in zip(made, texts, strict=True)]
        lines += printer.lines + ([f"return {_tuple(texts)}"] if name == "remember" else stores)
        return self._function(name, parameters, lines or ["pass"])

    def _function(self, name: str, parameters: str, lines: Sequence[str]) -> str:
        body = textwrap.indent("\n".join(lines), "    ")
        return f"\n@triton.jit\ndef {self.prefix}_{name}({parameters}):\n{body}\n"


def _tuple(xs: Sequence[str]) -> str:
    return f"({xs[0]},)" if len(xs) == 1 else f"({', '.join(xs)})"


def _together(names: Sequence[str]) -> str:
    """Return names as the target of an assignment."""
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)
