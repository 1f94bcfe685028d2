"""Programs as C++: the numbers that a rule hands to kernels, and for each program a struct with what it computes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isinf, isnan
from typing import Any, ClassVar

from expressions import Language, Printer, free
from programs import Program, Structures
from runs import coefficients
from sharing import Functions, Members
from symbols import COLUMN, COMPARISON, ROW, NotPrinted, Symbol, leaf

from layerwise.catalog.registry import Entry
from layerwise.engines.programs import coefficient_names

WIDTH = 120
MOST = {
    "states": 4,
    "layer states": 2,
    "sums": 4,
    "sums beside those of rows and columns": 1,
    "rounds": 3,
    "totals": 8,
    "stats": 8,
}  # of csrc/layer.hpp, which has these too
USUAL = {
    **dict.fromkeys(("CACHES", "KEEP_READS", "KEEP_WRITES", "LAYER_STATES", "OF_LAYER", "LINES"), "0"),
    "CACHED[1]": "{0}",
    "KEEPS": "-1",
}
# Names of parameters and functions in printed code, and words of the language that may be names in a rule.
OF_CODE = "to round root at_least at_most absolute keep terms apply answer remember row column old mean M unless_off"
OF_LANGUAGE = (
    "new default double float int long short signed unsigned char bool void const auto this delete union register "
    "static switch case do operator private public"
)
TAKEN = {*"pgsxkaSTR", "std", *OF_CODE.split(), *OF_LANGUAGE.split()}
CONDITIONS = {*COMPARISON.values(), "~"}
KINDS = {"Sum": "SUM", "Squares": "SQUARES", "MeanSquare": "MEAN_SQUARE", "Mean": "MEAN"}
OPERANDS = {ROW: "ROW", COLUMN: "COL"}


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
    programs = [*dict.fromkeys(found.programs.values())]
    members, functions = Members(programs, numbers, {*TAKEN}, member), Functions()
    structs = [Struct(program, numbers, members, functions) for program in programs]
    first, texts, named = structs[0], dict[str, str](), dict[Program, str]()
    for struct in structs:
        text = struct.text(first)
        named[struct.program] = texts.setdefault(text, struct.name)
    path = f"rules/{entry.rule.__name__.rpartition('.')[2]}.py"
    rows = _rows([struct for struct in structs if struct.name in texts.values()])
    parts = [
        f"// Printed from {path} by `make generate`: change that, not this file.\n",
        _numbers(entry, numbers),
        first.whole(),
        *(text.replace("@NAME@", name) for text, name in texts.items() if name != first.name),
        list_of("PROGRAMS", rows),
    ]
    return "\n".join(parts), named


def list_of(what: str, names: Iterable[str]) -> str:
    """Return a macro that applies another to each of these names, or lists of them."""
    return " \\\n  ".join([f"#define LAYERWISE_{what}(X)", *(f"X({name})" for name in names)]) + "\n"


def _rows(structs: Sequence[Struct]) -> Iterator[str]:
    """Yield each program's name, and those of the programs whose kernels it has: equal ones are compiled once."""
    known = dict[str, str]()
    for struct in structs:
        yield ", ".join([struct.name, *(known.setdefault(repr(one), struct.name) for one in struct.kernels())])


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
    """The struct of one program. That of the rule's first one has all functions, and the others derive from it."""

    def __init__(self, program: Program, numbers: Sequence[str], members: Members, functions: Functions) -> None:
        self.program, self.numbers, self.members = program, numbers, members
        self.name = program.entry.name + program.suffix
        self._shared = functions
        taken = {*TAKEN, *members.names()}
        self.states = {name: free(name, taken) for name in program.states}
        self.refuse_too_many()
        self.constants, self.calls = self._constants(), self._calls()

    def refuse_too_many(self) -> None:
        program = self.program
        sizes = {
            "states": len(program.states),
            "layer states": len(program.remember),
            "sums": max((len(program.sums(j)) for j in range(len(program.rounds))), default=0),
            "sums beside those of rows and columns": len(program.sums(0)) if program.lines else 0,
            "rounds": len(program.rounds),
            "totals": sum(len(program.sums(j)) for j in range(len(program.rounds))),
            "stats": len(program.stats),
        }
        for what, size in sizes.items():
            if size > MOST[what]:
                raise NotPrinted(f"kernels take at most {MOST[what]} {what}, but {program.entry.name} has {size}")

    def text(self, first: Struct) -> str:
        """Return the struct as it derives from that of the first program."""
        of_first = first.constants
        constants = {name: value for name, value in self.constants.items() if of_first.get(name) != value}
        calls = [call for kind, call in self.calls.items() if first.calls.get(kind) != call]
        inner = [f"using {first.name}<T>::{first.name};", *_declared(constants), *calls]
        body = textwrap.indent("\n".join(inner), "  ")
        return f"template <class T> struct @NAME@ : {first.name}<T> {{\n{body}\n}};\n"

    def whole(self) -> str:
        """Return the struct of the first program, with the functions of all."""
        rule, names = self.program.entry.name, ", ".join(self.members.names())
        usual = {name: value for name, value in self.constants.items() if USUAL.get(name) != value}
        inner = [
            "\n".join([f"using Numbers = {rule}Numbers;", *_declared(usual)]),
            textwrap.fill(f"T {names};", WIDTH - 2, subsequent_indent="  "),
            _function(f"{self.name}(const Numbers& k, In a)", self._constructor()),
            "\n".join(filter(None, self.calls.values())),
            *self._shared.texts().values(),
        ]
        body = "\n\n".join(textwrap.indent(one, "  ") for one in inner if one)
        return f"template <class T> struct {self.name} : Usual {{\n{body}\n}};\n"

    # ---- what it is

    def kernels(self) -> list[tuple[Any, ...]]:
        """Return what makes kernels of this program equal to another's: of that which applies, then of each round's."""
        program, lines = self.program, bool(self.program.lines)
        kept = self._stored(program.keep) if program.keep else ""
        kept = program.keeps is not None and (kept, self.constants["KEEP_READS"], self.constants["KEEP_WRITES"])
        found = [("apply", lines, kept, *self._applied())]
        for j in range(len(program.rounds)):
            keeps = kept and j >= program.keeps and (*kept, j == program.keeps)
            cached = program.cached if j + 1 == len(program.rounds) else ()
            terms = program.terms(j)
            found.append((j, lines, keeps, cached, program.sums(j), self._terms(terms), _bits(terms, program.states)))
        return found

    def _applied(self) -> tuple[Any, ...]:
        """Return what is computed of an element, stored and read when a step is applied."""
        program, last = self.program, self.program.terms(-1) if self.program.rounds else []
        stored = [program.weights, *program.state.values()]
        used = {x for one in stored if isinstance(one, Symbol) for x in one.walk() if x.op == "term"}
        terms = [x if leaf("term", i, is_array=True) in used else None for i, x in enumerate(last)]
        reads = _bits([*stored, *terms], program.states)
        return (self._stored(program.state, program.weights), program.cached, self._terms(terms), reads, bool(last))

    def _constants(self) -> dict[str, str]:
        """Return the constants by their names, with the lengths of arrays, which some compilers do not find out."""
        program, rounds = self.program, range(len(self.program.rounds))
        sums = [len(program.sums(j)) for j in rounds] or [0]
        kinds = [", ".join(KINDS[kind] for kind in program.sums(j)) or "NONE" for j in rounds] or ["NONE"]
        cached = [str(one) for one in program.cached or (0,)]
        states, kept, stored = program.states, program.keep, [program.weights, *program.state.values()]
        reads = [_bits(program.terms(j), states) for j in rounds] or ["0"]
        return {
            "STATES": str(len(program.states)),
            "ROUNDS": str(len(program.rounds)),
            f"SUMS[{len(sums)}]": f"{{{', '.join(map(str, sums))}}}",
            "CACHES": str(len(program.cached)),
            f"CACHED[{len(cached)}]": f"{{{', '.join(cached)}}}",
            "KEEPS": str(-1 if program.keeps is None else program.keeps),
            "KEEP_READS": _bits(kept.values(), states),
            "KEEP_WRITES": _places(kept, states),
            f"TERMS_READ[{len(reads)}]": f"{{{', '.join(reads)}}}",
            "APPLY_READS": _bits(stored, states),
            "APPLY_WRITES": _places(program.state, states),
            "LAYER_STATES": str(len(program.remember)),
            "OF_LAYER": " | ".join(f"1 << {i}" for i in program.places(program.remember)) or "0",
            "LINES": str(len(program.lines)),
            f"TOTALS[{len(kinds)}][4]": f"{{{', '.join(f'{{{one}}}' for one in kinds)}}}",
        }

    # ---- the numbers that arrays are computed with

    def _constructor(self) -> str:
        """Return lines that set the numbers of all programs, of which compilers drop what one does not use."""
        members = self.members
        printer = Printer(Cpp("double"), self._leaves("k."), {}, {*TAKEN, *members.names()})
        values = {name: f"k.{member(one)}" for one, name in members.coefficients.items()}
        values |= zip(members.early.values(), printer.outputs(*members.early), strict=True)
        values |= {name: f"a[{i}]" for i, name in enumerate(members.slots)}
        lines = [*printer.lines, *(f"{name} = T({value});" for name, value in values.items())]
        return "\n".join(_filled(lines))

    def _leaves(self, prefix: str) -> dict[Symbol, str]:
        return {leaf("coefficient", name, is_array=False): prefix + member(name) for name in self.numbers}

    # ---- functions

    def _calls(self) -> dict[str, str]:
        """Return, for each kind of function, how this program calls the one that it has."""
        program, calls = self.program, {}
        if program.keep:
            calls["keep"] = self._made("keep", "void @(T p, T g, T* s) const", self._stored(program.keep))
        if program.rounds:
            each = map(program.terms, range(len(program.rounds)))
            bodies = [self._terms(terms) for terms in each]
            calls["terms"] = self._made("terms", "void @(T p, T g, const T* s, T* x) const", *bodies)
        stored = self._stored(program.state, program.weights)
        calls["apply"] = self._made("apply", "T @(T p, T g, T* s, const T* x) const", stored)
        given = "const Numbers& k, In S, In old"
        answers = [self._answers(j) for j in range(max(1, len(program.rounds)))]
        calls["answer"] = self._made("answer", f"static void @({given}, Out a, Out to)", *answers)
        for (name, new), axis in zip(program.lines.items(), (ROW, COLUMN), strict=False):
            head = "static void @(const Numbers& k, double old, double mean, In M, Out to)"
            calls[axis] = self._made(axis, head, self._line(name, new, program.made[axis]))
        if program.remember:
            totals = sum(map(len, program.rounds))
            new = self._scalars({f"to[{i}]": x for i, x in enumerate(program.remember.values())}, totals, {})
            calls["remember"] = self._made("remember", f"static void @({given}, Out to)", new)
        return calls

    def _made(self, kind: str, head: str, *bodies: str) -> str:
        """Make functions of these bodies, one for each round, and return the call by which they are found."""
        by_round = kind in ("terms", "answer")
        names = [
            self._shared.named(f"{kind}_{j}" if by_round else kind, self.program.suffix, _function(head, body))
            for j, body in enumerate(bodies)
        ]
        if names == [kind]:
            return ""
        first = self.program.entry.name
        of, after, given = (
            (f"{first}<T>::", "", "const A&... a") if "static" in head else ("this->", " const", "A... a")
        )
        calls = [f"{of}{name}(a...);" for name in names]
        chosen = [f"ROUND == {j} ? {call[:-1]} :" for j, call in enumerate(calls[:-1])]
        of_round, is_static = "int ROUND, " if by_round else "", "static " if "static" in head else ""
        result = "T" if kind == "apply" else "void"
        start = f"template <{of_round}class... A> {is_static}{result} {kind}({given}){after} {{"
        body = f"return {calls[-1]}" if kind == "apply" else " ".join([*chosen, calls[-1]])
        line = f"{start} {body} }}"
        if len(line) <= WIDTH - 2:
            return line
        return "\n".join([start, *(f"  {one}" for one in _filled([*chosen, calls[-1]])), "}"])

    def _terms(self, terms: Sequence[Any]) -> str:
        return self._body({f"x[{i}]": x for i, x in enumerate(terms) if x is not None}, {})

    def _stored(self, states: Mapping[str, Any], returned: Any = None) -> str:
        last = self.program.rounds[-1] if self.program.rounds else ()
        given = {leaf("term", i, is_array=True): f"x[{i}]" for i in range(len(last))}
        return self._body({f"s[{self.program.states.index(name)}]": x for name, x in states.items()}, given, returned)

    def _body(self, written: Mapping[str, Any], given: Mapping[Symbol, str], returned: Any = None) -> str:
        """Return lines that compute what is written, and then write it."""
        everything = [*written.values(), *([] if returned is None else [returned])]
        read = {x for one in everything if isinstance(one, Symbol) for x in one.walk()}
        leaves = dict[Symbol, str](self.members.of(self.program))
        leaves |= {leaf("input", name, is_array=True): name for name in "pg"}
        first = []
        for name in self.program.states:
            for op in ("state", "kept"):
                x = leaf(op, name, is_array=True)
                leaves[x] = self.states[name]
                if x in read:
                    first.append(f"{self.states[name]} = s[{self.program.states.index(name)}]")
        for axis, operand in OPERANDS.items():
            if (x := leaf("made", axis, is_array=False)) in read:
                leaves[x] = axis
                first.append(f"{axis} = s[{operand} - S0]")
        for x, place in given.items():
            if x in read:
                leaves[x] = free(f"x{x.args[0]}", {*TAKEN, *leaves.values()})
                first.append(f"{leaves[x]} = {place}")
        printer = Printer(Cpp("T"), leaves, self.program.names, [*self.members.names(), *TAKEN])
        texts = printer.outputs(*everything)
        lines = [f"const T {', '.join(first)};"] if first else []
        lines += printer.lines
        lines += [f"{place} = {text};" for place, text in zip(written, texts, strict=False)]
        if returned is not None:
            lines.append(f"return {texts[-1]};")
        return "\n".join(lines)

    # ---- answers, in float64

    def _answers(self, number: int) -> str:
        answers, stats = self.members.answers(self.program, number), self.program.stats_of(number)
        wanted = {f"a[{i}]": x for i, x in answers.items()} | {f"to[{i}]": x for i, x in stats.items()}
        before = {x: f"a[{i}]" for j in range(number) for i, x in self.members.answers(self.program, j).items()}
        return self._scalars(wanted, sum(map(len, self.program.rounds[: number + 1])), before)

    def _scalars(self, written: Mapping[str, Any], known: int, before: Mapping[Symbol, str]) -> str:
        """Return lines that write scalars made of so many totals, of which S[-1] is the last, and of answers before."""
        program = self.program
        leaves = self._leaves("k.") | dict(before)
        leaves |= {leaf("total", i, is_array=False): f"S[{i - known}]" for i in range(known)}
        leaves |= {leaf("layer", name, is_array=False): f"old[{i}]" for i, name in enumerate(program.remember)}
        printer = Printer(Cpp("double"), leaves, program.names, TAKEN - {"x", "s", "p", "g"})
        texts = printer.outputs(*written.values())
        stores = [f"{place} = {text};" for place, text in zip(written, texts, strict=True)]
        return "\n".join([*_joined(printer.lines), *_filled(stores)])

    def _line(self, name: str, new: Any, made: Any) -> str:
        """Return lines that write what one row or column becomes, and what is made of that, in the arithmetic's dtype.

        They know its mean and those of its matrix.
        """
        means = {"RowMean": "mean", "ColumnMean": "mean", "MatrixMean": "M[0]", "MeanOfRows": "M[1]"}
        leaves = self._leaves("k.") | {leaf("line", name, axis, is_array=False): "old" for axis in OPERANDS}
        for one in self.program.rounds[0]:
            leaves[leaf("mean", one.kind, one.axis, is_array=False)] = means.get(one.kind, "")
        printer = Printer(Cpp("T"), {x: f"T({text})" for x, text in leaves.items()}, self.program.names, TAKEN)
        texts = printer.outputs(new, made)
        return "\n".join([*_joined(printer.lines), f"to[0] = {texts[0]}; to[1] = {texts[1]};"])


def _joined(lines: Sequence[str]) -> list[str]:
    """Return declarations with those of one type in one line as long as they fit."""
    found = list[str]()
    for line in lines:
        type_, name = re.fullmatch(r"(const \w+ )(.*)", line).groups()
        if found and found[-1].startswith(type_) and len(found[-1]) + len(name) < WIDTH - 4:
            found[-1] = f"{found[-1][:-1]}, {name}"
        else:
            found.append(line)
    return found


def _filled(texts: Iterable[str], width: int = WIDTH - 4, after: str = "") -> list[str]:
    """Return texts in lines, none of them broken."""
    one_line = " ".join(one.replace(" ", "~") for one in texts)
    lines = textwrap.wrap(one_line, width, subsequent_indent=after, break_on_hyphens=False, break_long_words=False)
    return [line.replace("~", " ") for line in lines]


def _function(head: str, body: str) -> str:
    """Return a function; the names of parameters that it does not use are left out."""
    start, parameters, after = re.fullmatch(r"(.*?)\((.*)\)(.*)", head).groups()
    shown = ", ".join(
        one if re.search(rf"\b{one.split()[-1]}\b", body) else one.rpartition(" ")[0] for one in parameters.split(", ")
    )
    inner = f"\n{textwrap.indent(body, '  ')}\n" if body else ""
    return f"{start}({shown}){after} {{{inner}}}"


def _declared(constants: Mapping[str, str]) -> list[str]:
    """Return constants as lines."""
    lines = []
    for type_ in ("int", "Total"):
        own = [f"{name} = {x}," for name, x in constants.items() if name.startswith("TOTALS") == (type_ == "Total")]
        if own:
            lines += _filled([f"static constexpr {type_}", *own[:-1], f"{own[-1][:-1]};"], WIDTH - 2, "  ")
    return lines


def _bits(xs: Iterable[Any], states: Sequence[str]) -> str:
    """Return the bits of the operands that expressions read."""
    read = {x for one in xs if isinstance(one, Symbol) for x in one.walk()}
    found = [name.upper() for name in "pg" if leaf("input", name, is_array=True) in read]
    found += [
        f"S{i}" for i, name in enumerate(states) if any(x.op in ("state", "kept") and x.args[0] == name for x in read)
    ]
    found += [operand for axis, operand in OPERANDS.items() if leaf("made", axis, is_array=False) in read]
    return " | ".join(f"1 << {one}" for one in found) or "0"


def _places(written: Iterable[str], states: Sequence[str]) -> str:
    return " | ".join(f"1 << S{states.index(name)}" for name in written) or "0"


def numbers_in(entry: Entry, found: Structures) -> list[str]:
    """Return the names of the numbers that programs take: the rule's coefficients, then options and `now` as read."""
    h = entry.hyper().fit((1,), (), 1e-7)
    known = coefficients(entry, h)
    own = [] if known is None else coefficient_names(known)
    read: dict[str, None] = {}
    for program in found.programs.values():
        xs = [*program.keep.values(), program.weights, *program.state.values(), *program.stats.values()]
        xs += program.remember.values()
        xs += [one.terms for each in program.rounds for one in each] + [one.value for one in program.answers]
        xs += [*program.lines.values(), *program.made.values()]
        for x in (x for one in xs if isinstance(one, Symbol) for x in one.walk()):
            if x.op == "coefficient" and x.args[0] not in own:
                read[x.args[0]] = None
    return own + sorted(read)
