"""Programs as C++: the numbers that a rule hands to kernels, and for each program a struct with what it computes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import isinf, isnan
from typing import Any, ClassVar

from expressions import Language, Printer, free
from programs import Program, Structures
from runs import coefficients
from symbols import COMPARISON, NotPrinted, Symbol, leaf

from layerwise.engines.programs import names_of
from layerwise.registry import Entry

WIDTH = 120
MOST = {
    "states": 4,
    "layer states": 2,
    "sums": 4,
    "rounds": 3,
    "totals": 8,
    "answers": 8,
    "stats": 8,
}  # of csrc/layer.hpp
# Names of parameters and functions in printed code, and words of the language that may be names in a rule.
TAKEN = {
    *"pgsxkaSTR",
    *(
        "to",
        "round",
        "root",
        "at_least",
        "at_most",
        "absolute",
        "keep",
        "terms",
        "apply",
        "answer",
        "report",
        "remember",
        "old",
        "unless_off",
    ),
    "std",
    *(
        "new",
        "default",
        "double",
        "float",
        "int",
        "long",
        "short",
        "signed",
        "unsigned",
        "char",
        "bool",
        "void",
        "const",
    ),
    *("auto", "this", "delete", "union", "register", "static", "switch", "case", "do", "operator", "private", "public"),
}
CONDITIONS = {*COMPARISON.values(), "~"}
KINDS = {"Sum": "SUM", "Squares": "SQUARES", "MeanSquare": "MEAN_SQUARE", "Mean": "MEAN"}


class Cpp(Language):
    """C++ in which numbers have type T, or double."""

    calls: ClassVar = {
        "sqrt": "root",
        "pow": "std::pow",
        "**": "std::pow",
        "expm1": "std::expm1",
        "abs": "absolute",
        "~": "!",
    }

    def __init__(self, type_: str) -> None:
        self.type = type_

    def number(self, x: Any) -> str:
        if isnan(x):
            raise NotPrinted("it computes with nan")
        if isinf(x):
            return "NO_BOUND" if x > 0 else "-NO_BOUND"
        if float(x).is_integer() and abs(x) < 1 << 31:
            return str(int(x))
        return f"T({x!r})" if self.type == "T" else repr(float(x))

    def choice(self, condition: str, yes: str, no: str) -> str:
        if all(re.fullmatch(r"-?\d+", one) for one in (yes, no)):
            yes = f"{self.type}({yes})"
        if re.search(r" [&|] ", condition):
            condition = f"({condition})"  # as compilers ask for
        return f"{condition} ? {yes} : {no}"

    def line(self, name: str, x: Symbol, text: str) -> str:
        return f"const {'bool' if x.op in CONDITIONS else self.type} {name} = {text};"


def header(entry: Entry, found: Structures, numbers: Sequence[str]) -> tuple[str, dict[Program, str]]:
    """Return the header of a rule, and the name of each program's struct; equal programs share one."""
    bodies: dict[str, str] = {}
    named: dict[Program, str] = {}
    for program in found.programs.values():
        body = Struct(program, numbers).text()
        bodies.setdefault(body, entry.name + program.suffix)
        named[program] = bodies[body]
    path = f"rules/{entry.rule.__name__.rpartition('.')[2]}.py"
    parts = [
        f"// Printed from {path} by `make generate`: change that, not this file.\n",
        _numbers(entry, numbers),
        *(body.replace("@NAME@", name) for body, name in bodies.items()),
    ]
    return "\n".join(parts), named


def _numbers(entry: Entry, numbers: Sequence[str]) -> str:
    fields = textwrap.fill("double " + ", ".join(map(member, numbers)) + ";", WIDTH - 2)
    return (
        f"// What {entry.name} computes before it reads a tensor, in this order.\n"
        f"struct {entry.name}Numbers {{\n{textwrap.indent(fields, '  ')}\n}};\n"
    )


def member(number: str) -> str:
    """Return the name of a number in C++."""
    name = re.sub(r"\W", "_", number)
    return f"{name}_" if name in TAKEN else name


class Struct:
    """The struct of one program."""

    def __init__(self, program: Program, numbers: Sequence[str]) -> None:
        self.program, self.numbers = program, numbers
        shown = {x: name for x, name in program.names.items() if x.op == "state"}
        used = program.in_arrays()
        self.coefficients = [name for name in numbers if leaf("coefficient", name, is_array=False) in used]
        taken = {*TAKEN, *map(member, self.coefficients)}
        self.answers = {one.leaf: free(str(one.leaf.args[0]), taken) for one in program.answers}
        self.states = {n: free(shown.get(leaf("state", n, is_array=True), n), taken) for n in program.states}
        self.refuse_too_many()

    def refuse_too_many(self) -> None:
        program = self.program
        sizes = {
            "states": len(program.states),
            "layer states": len(program.remember),
            "sums": max(map(len, program.rounds), default=0),
            "rounds": len(program.rounds),
            "totals": sum(map(len, program.rounds)),
            "answers": sum(one.round >= 0 for one in program.answers),
            "stats": len(program.stats),
        }
        for what, size in sizes.items():
            if size > MOST[what]:
                raise NotPrinted(f"kernels take at most {MOST[what]} {what}, but {program.entry.name} has {size}")

    def text(self) -> str:
        used = self._members()
        name = self.program.entry.name
        inner = [
            self._constants(),
            f"T {', '.join(used)};" if used else "",
            _function("@NAME@", f"const {name}Numbers& k, const double* a", self._constructor(used), ""),
            *self._functions(),
        ]
        body = "\n\n".join(textwrap.indent(one, "  ") for one in inner if one)
        return f"template <class T>\nstruct @NAME@ {{\n  using Numbers = {name}Numbers;\n{body}\n}};\n"

    # ---- what it is

    def _constants(self) -> str:
        program = self.program
        sums = [len(one) for one in program.rounds] or [0]
        kinds = [", ".join(KINDS[one.kind] for one in each) for each in program.rounds] or ["NONE"]
        cached = [str(one) for one in program.cached or (0,)]
        caches = f"CACHED[{len(cached)}] = {{{', '.join(cached)}}}"
        states, kept, stored = program.states, program.keep, [program.weights, *program.state.values()]
        reads = [_bits([x for _, x in each], states) for each in program.rounds] or ["0"]
        keeps = -1 if program.keeps is None else program.keeps
        sizes = f"STATES = {len(program.states)}, ROUNDS = {len(program.rounds)}, CACHES = {len(program.cached)}"
        of_layer = " | ".join(f"1 << {i}" for i in program.places_of_numbers()) or "0"
        # Arrays say how long they are: some compilers do not know it of a template's before they need it.
        return "\n".join(
            f"static constexpr {line};"
            for line in (
                f"int {sizes}, KEEPS = {keeps}",
                f"int LAYER_STATES = {len(program.remember)}, OF_LAYER = {of_layer}",
                f"int SUMS[{len(sums)}] = {{{', '.join(map(str, sums))}}}, {caches}",
                f"Total TOTALS[{len(kinds)}][4] = {{{', '.join(f'{{{one}}}' for one in kinds)}}}",
                f"int KEEP_READS = {_bits(kept.values(), states)}, KEEP_WRITES = {_places(kept, states)}",
                f"int TERMS_READ[{len(reads)}] = {{{', '.join(reads)}}}",
                f"int APPLY_READS = {_bits(stored, states)}, APPLY_WRITES = {_places(program.state, states)}",
            )
        )

    # ---- the numbers that arrays are computed with

    def _members(self) -> list[str]:
        used = self.program.in_arrays()
        return [*map(member, self.coefficients), *(name for one, name in self.answers.items() if one in used)]

    def _constructor(self, used: Sequence[str]) -> str:
        known = {member(name) for name in self.numbers}
        values, at = {}, 0
        printer = Printer(Cpp("double"), self._leaves("k."), {}, {*TAKEN, *used})
        early = [one for one in self.program.answers if one.round < 0]
        values |= zip(
            (self.answers[one.leaf] for one in early), printer.outputs(*(o.value for o in early)), strict=True
        )
        lines = printer.lines
        for one in self.program.answers:
            if one.round >= 0:
                values[self.answers[one.leaf]] = f"a[{at}]"
                at += 1
        lines += [f"{name} = T({values.get(name, f'k.{name}')});" for name in used if name in known or name in values]
        short = all(len(line) < 60 for line in lines)
        return (
            textwrap.fill(" ".join(one.replace(" ", "~") for one in lines), WIDTH - 4).replace("~", " ")
            if short
            else "\n".join(lines)
        )

    def _leaves(self, prefix: str) -> dict[Symbol, str]:
        return {leaf("coefficient", name, is_array=False): prefix + member(name) for name in self.numbers}

    # ---- functions

    def _functions(self) -> list[str]:
        program, found = self.program, []
        if program.keep:
            found.append(_function("void keep", "T p, T g, T* s", self._stored(program.keep)))
        if program.rounds:
            rounds = [self._body({f"x[{i}]": x for i, (_, x) in enumerate(each)}, {}) for each in program.rounds]
            found.append(
                "template <int ROUND>\n" + _function("void terms", "T p, T g, const T* s, T* x", _branches(rounds))
            )
        found.append(_function("T apply", "T p, T g, T* s, const T* x", self._stored(program.state, program.weights)))
        return found + self._answers()

    def _stored(self, states: Mapping[str, Any], returned: Any = None) -> str:
        last = self.program.rounds[-1] if self.program.rounds else ()
        given = {leaf("term", i, is_array=True): f"x[{i}]" for i in range(len(last))}
        return self._body({f"s[{self.program.states.index(name)}]": x for name, x in states.items()}, given, returned)

    def _body(self, written: Mapping[str, Any], given: Mapping[Symbol, str], returned: Any = None) -> str:
        """Return lines that compute what is written, and then write it."""
        everything = [*written.values(), *([] if returned is None else [returned])]
        read = {x for one in everything if isinstance(one, Symbol) for x in one.walk()}
        leaves = self._leaves("") | self.answers
        leaves |= {leaf("input", name, is_array=True): name for name in "pg"}
        first = []
        for name in self.program.states:
            for op in ("state", "kept"):
                x = leaf(op, name, is_array=True)
                leaves[x] = self.states[name]
                if x in read:
                    first.append(f"{self.states[name]} = s[{self.program.states.index(name)}]")
        for x, place in given.items():
            if x in read:
                whole = self.program.rounds[-1][x.args[0]].terms
                leaves[x] = free(self.program.names.get(whole, f"x{x.args[0]}"), {*TAKEN, *leaves.values()})
                first.append(f"{leaves[x]} = {place}")
        names = {x: name for x, name in self.program.names.items() if x.op not in ("state", "kept", "total")}
        printer = Printer(Cpp("T"), leaves, names, [*self._members(), *TAKEN])
        texts = printer.outputs(*everything)
        lines = [f"const T {', '.join(first)};"] if first else []
        lines += printer.lines
        lines += [f"{place} = {text};" for place, text in zip(written, texts, strict=False)]
        if returned is not None:
            lines.append(f"return {texts[-1]};")
        return "\n".join(lines)

    # ---- answers, in float64

    def _answers(self) -> list[str]:
        program = self.program
        given = f"const {program.entry.name}Numbers& k, const double* S, const double* old"
        known = [one for one in program.answers if one.round >= 0]
        parts = []
        for j in range(len(program.rounds)):
            wanted = {f"a[{i}]": one.value for i, one in enumerate(known) if one.round == j}
            if wanted:
                parts.append(f"if (round == {j}) {{\n{textwrap.indent(self._scalars(wanted), '  ')}\n}}")
        stats = {f"to[{i}]": x for i, x in enumerate(program.stats.values())}
        new = {f"to[{i}]": x for i, x in enumerate(program.remember.values())}
        return [
            _function("static void answer", f"int round, {given}, double* a", "\n".join(parts), ""),
            _function("static void report", f"{given}, double* to", self._scalars(stats), ""),
            _function("static void remember", f"{given}, double* to", self._scalars(new), ""),
        ]

    def _scalars(self, written: Mapping[str, Any]) -> str:
        program = self.program
        leaves = self._leaves("k.")
        totals = sum(map(len, program.rounds))
        leaves |= {leaf("total", i, is_array=False): f"S[{i}]" for i in range(totals)}
        leaves |= {leaf("layer", name, is_array=False): f"old[{i}]" for i, name in enumerate(program.remember)}
        names = {x: name for x, name in program.names.items() if not x.is_array and x.op not in ("total", "layer")}
        printer = Printer(Cpp("double"), leaves, names, TAKEN - {"x", "s", "p", "g"})
        texts = printer.outputs(*written.values())
        lines = printer.lines + [f"{place} = {text};" for place, text in zip(written, texts, strict=True)]
        return "\n".join(lines)


def _function(head: str, parameters: str, body: str, after: str = " const") -> str:
    """Return a function; the names of parameters that it does not use are left out."""
    shown = ", ".join(
        one if re.search(rf"\b{one.split()[-1]}\b", body) else one.rpartition(" ")[0] for one in parameters.split(", ")
    )
    return f"{head}({shown}){after} {{\n{textwrap.indent(body, '  ')}\n}}" if body else f"{head}({shown}){after} {{}}"


def _branches(rounds: Sequence[str]) -> str:
    if len(rounds) == 1:
        return rounds[0]
    return "\n".join(
        f"if constexpr (ROUND == {j}) {{\n{textwrap.indent(one, '  ')}\n}}" for j, one in enumerate(rounds)
    )


def _bits(xs: Iterable[Any], states: Sequence[str]) -> str:
    """Return the bits of the operands that expressions read."""
    read = {x for one in xs if isinstance(one, Symbol) for x in one.walk()}
    found = [name.upper() for name in "pg" if leaf("input", name, is_array=True) in read]
    found += [
        f"S{i}" for i, name in enumerate(states) if any(x.op in ("state", "kept") and x.args[0] == name for x in read)
    ]
    return " | ".join(f"1 << {one}" for one in found) or "0"


def _places(written: Iterable[str], states: Sequence[str]) -> str:
    return " | ".join(f"1 << S{states.index(name)}" for name in written) or "0"


def numbers_in(entry: Entry, found: Structures) -> list[str]:
    """Return the names of the numbers that programs take: the rule's coefficients, then options and `now` as read."""
    h = entry.hyper().fit((1,), (), 1e-7)
    known = coefficients(entry, h)
    own = [] if known is None else names_of(known)
    read: dict[str, None] = {}
    for program in found.programs.values():
        xs = [*program.keep.values(), program.weights, *program.state.values(), *program.stats.values()]
        xs += program.remember.values()
        xs += [x for one in program.rounds for _, x in one] + [one.value for one in program.answers]
        for x in (x for one in xs if isinstance(one, Symbol) for x in one.walk()):
            if x.op == "coefficient" and x.args[0] not in own:
                read[x.args[0]] = None
    return own + sorted(read)
