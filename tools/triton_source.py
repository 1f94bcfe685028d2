"""Programs as Triton: for each program device functions, and a row of the table by which the GPU engine finds them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any, ClassVar

from expressions import Language, Printer, free
from programs import Program
from sharing import Functions, Members
from source import wrapped
from symbols import COLUMN, ROW, Symbol, leaf

from layerwise.catalog.registry import Entry

MEANS = ("Mean", "MeanSquare")
SHARED = ("at_least", "at_most", "expm1", "power", "root", "unless_off")  # functions of kernels/parts.py
OF_LINES = ("old", "mean", "matrix_mean", "mean_of_rows")
TAKEN = {*"kpgsxSna", "to", "tl", "triton", "values", ROW, COLUMN, *OF_LINES, *SHARED}
HEAD = '''"""The programs of {name}, as device functions.

Printed from {path} by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

{imports}
{columns}
'''
WIDTH = 120


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
    programs = {name: program for program, name in reversed(named.items())}
    members, functions = Members([*programs.values()][::-1], numbers, {*TAKEN}, member), Functions()
    found = {name: Printed(programs[name], numbers, members, functions) for name in dict.fromkeys(named.values())}
    rows = "\n".join(wrapped(f'"{name}": {one.row()},', WIDTH - 4) for name, one in found.items())
    sources = [_load_values(members, numbers), *functions.texts().values()]
    text = "".join(f"@triton.jit\n{one}\n\n" for one in sources)
    text += f"PROGRAMS = {{\n{textwrap.indent(rows, '    ')}\n}}\n"
    path = f"rules/{entry.rule.__name__.rpartition('.')[2]}.py"
    return HEAD.format(name=entry.name, path=path, imports=_imports(text, numbers), columns=_columns(numbers)) + text


def _imports(text: str, numbers: Sequence[str]) -> str:
    shared = ", ".join(name for name in SHARED if re.search(rf"\b{name}\(", text))
    lines = ["from layerwise.engines.gpu.kernels import PrintedFunctions"]
    if shared:
        lines.append(f"from layerwise.engines.gpu.kernels.common import {shared}")
    if numbers:
        lines.append("from layerwise.engines.gpu.kernels.tables import columns")
    return "\n".join([*lines, ""])


def _columns(numbers: Sequence[str]) -> str:
    if not numbers:
        return ""
    names = textwrap.fill(", ".join(map(column, numbers)), WIDTH - 8, subsequent_indent="    ")
    target = f"({names}{'' if len(numbers) > 1 else ','}\n)" if "\n" in names or len(numbers) == 1 else names
    return f"# The numbers that are known before a tensor is read.\n{target} = columns({len(numbers)})\n"


def column(number: str) -> str:
    """Return the name of a number's column."""
    return re.sub(r"\W", "_", number).upper()


def member(number: str) -> str:
    """Return the name of a number in functions of arrays."""
    return re.sub(r"\W", "_", number)


def _load_values(members: Members, numbers: Sequence[str]) -> str:
    """Return the function that loads the scalars that arrays of all programs are computed with."""
    printer = Printer(Triton(), _loaded(numbers), {}, {*TAKEN, *members.names()})
    known = {name: f"tl.load(k + {column(one)})" for one, name in members.coefficients.items()}
    for name, text in zip(members.early.values(), printer.outputs(*members.early), strict=True):
        known[name] = text if text.startswith("tl.where") else f"({text})"
    known |= {name: f"tl.load(a + {i})" for i, name in enumerate(members.slots)}
    found = _tuple([f"{text}.to(COMPUTE)" for text in known.values()])
    return _function("k, a, COMPUTE: tl.constexpr", [*printer.lines, f"return {found}"]).replace("@", "values")


def _loaded(numbers: Sequence[str]) -> dict[Symbol, str]:
    return {leaf("coefficient", name, is_array=False): f"tl.load(k + {column(name)})" for name in numbers}


class Printed:
    """The device functions of one program."""

    def __init__(self, program: Program, numbers: Sequence[str], members: Members, functions: Functions) -> None:
        self.program, self.numbers, self.members, self._shared = program, numbers, members, functions
        taken = {*TAKEN, *members.names()}
        self.states = [free(name, taken) for name in program.states]

    def row(self) -> str:
        """Return the program's functions as source, which makes them."""
        program, last = self.program, {name: leaf("state", name, is_array=True) for name in self.program.states}
        made: dict[str, str | None] = {}
        if program.keep:
            made["keep"] = self._of_arrays("keep", "k, p, g, s", [*{**last, **program.keep}.values()])
        terms = [self._of_arrays(f"terms_{j}", "k, p, g, s", program.terms(j)) for j in range(len(program.rounds))]
        made["terms"] = _tuple(terms) if terms else None
        stored = [program.weights, *{**last, **program.state}.values()]
        made["apply"] = self._of_arrays("apply", "k, p, g, s, x", stored)
        made["answers"] = _tuple([self._answers(j) for j in range(max(1, len(program.rounds)))])
        for (state, new), axis in zip(program.lines.items(), (ROW, COLUMN), strict=False):
            made[axis] = self._of_line(axis, state, [new, program.made[axis]])
        if program.remember:
            made["remember"] = self._of_scalars("remember", "k, S, n, old", program.remember, len(program.totals), {})
        given = ", ".join(f"{name}={text}" for name, text in made.items() if text)
        return f"PrintedFunctions(values, {given})"

    # ---- functions

    def _of_arrays(self, name: str, parameters: str, results: Sequence[Any]) -> str:
        """Make a function of blocks of elements."""
        program, names = self.program, self.members.names()
        read = {x for one in results if isinstance(one, Symbol) for x in one.walk()}
        leaves = self.members.of(program) | {leaf("input", one, is_array=True): one for one in "pg"}
        taken = {*TAKEN, *names, *self.states}
        leaves |= {leaf("made", axis, is_array=False): axis for axis in program.made}
        used = any(x in read and leaves[x] in names for x in leaves)
        lines = [f"{_together(names)} = k"] if used else []
        for own, one in zip(self.states, program.states, strict=True):
            leaves |= {leaf(op, one, is_array=True): own for op in ("state", "kept")}
        if any(x.op in ("state", "kept", "made") for x in read):
            lines.append(f"{_together([*self.states, *program.made])} = s")
        for x in sorted((x for x in read if x.op == "term"), key=lambda x: x.args[0]):
            leaves[x] = free(f"x{x.args[0]}", taken)
            lines.append(f"{leaves[x]} = x[{x.args[0]}]")
        printer = Printer(Triton(), leaves, program.names, taken)
        texts = printer.outputs(*results)
        return self._named(name, parameters, [*lines, *printer.lines, f"return {_tuple(texts)}"])

    def _answers(self, number: int) -> str:
        answers, stats = self.members.answers(self.program, number), self.program.stats_of(number)
        stored = {f"a + {i}": x for i, x in answers.items()} | {f"to + {i}": x for i, x in stats.items()}
        known = sum(map(len, self.program.rounds[: number + 1]))
        before = {
            x: f"tl.load(a + {i})" for j in range(number) for i, x in self.members.answers(self.program, j).items()
        }
        return self._of_scalars(f"answer_{number}", "k, S, n, old, a, to", stored, known, before)

    def _of_scalars(
        self, name: str, parameters: str, made: Mapping[str, Any], known: int, before: Mapping[Symbol, str]
    ) -> str:
        """Make a function of scalars in float64 that stores its results, or else returns them.

        It knows so many totals of a layer, of which S[-1] is the last, and answers before.
        """
        program, taken = self.program, {*TAKEN} - {*"pgsx"}
        leaves = _loaded(self.numbers) | dict(before)
        read = {x for one in made.values() if isinstance(one, Symbol) for x in one.walk()}
        lines = []
        leaves |= {leaf("layer", own, is_array=False): f"old[{i}]" for i, own in enumerate(program.remember)}
        for i, kind in enumerate(program.totals):
            x = leaf("total", i, is_array=False)
            leaves[x] = f"S[{i - known}]"
            if x in read and kind in MEANS:
                mean = free(f"mean{i}", taken)
                lines.append(f"{mean} = {leaves[x]} / n")
                leaves[x] = mean
        printer = Printer(Triton(), leaves, program.names, taken)
        texts = printer.outputs(*made.values())
        stores = [f"tl.store({at}, {text})" for at, text in zip(made, texts, strict=True)]
        lines += printer.lines + ([f"return {_tuple(texts)}"] if name == "remember" else stores)
        return self._named(name, parameters, lines)

    def _of_line(self, axis: str, state: str, made: Sequence[Any]) -> str:
        """Make a function of what one row or column becomes, and elements are computed with, in float64."""
        leaves = _loaded(self.numbers) | {leaf("line", state, axis, is_array=False): "old"}
        names = {"MatrixMean": "matrix_mean", "MeanOfRows": "mean_of_rows"}
        for one in self.program.rounds[0]:
            leaves[leaf("mean", one.kind, one.axis, is_array=False)] = names.get(one.kind, "mean")
        printer = Printer(Triton(), leaves, self.program.names, {*TAKEN})
        texts = printer.outputs(*made)
        return self._named(axis, ", ".join(("k", *OF_LINES)), [*printer.lines, f"return {_tuple(texts)}"])

    def _named(self, kind: str, parameters: str, lines: Sequence[str]) -> str:
        return self._shared.named(kind, self.program.suffix, _function(parameters, lines))


def _function(parameters: str, lines: Sequence[str]) -> str:
    body = "\n".join(wrapped(line, WIDTH - 4) for line in lines)
    return f"def @({parameters}):\n{textwrap.indent(body, '    ')}"


def _tuple(xs: Sequence[str]) -> str:
    return f"({xs[0]},)" if len(xs) == 1 else f"({', '.join(xs)})"


def _together(names: Sequence[str]) -> str:
    """Return names as the target of an assignment."""
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)
