"""Functions of numbers that engines share with the library, as C++ and Triton: storage formats.

Those of `layerwise/storage` are run once with symbols for one element. The functions below say of which types: `Word`
and `Whole` are integers of 32 bits without and with a sign, `Number` is a float32, `Bf16`, `F16` and `Rest` are stored.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

from cpp import Cpp
from expressions import Printer
from source import wrapped
from symbols import Namespace, Symbol, leaf
from triton_source import Triton

from layerwise.storage import bits, quantized_groups, sixteen_bits

WIDTH = 120
KEPT = leaf("parameter", "KEPT", is_array=True)  # how many bits a remainder keeps, which kernels are compiled for
Word = Whole = Number = Bf16 = F16 = Rest = Symbol
TYPES = {"Word": "uint32_t", "Number": "float", **dict.fromkeys(("Whole", "Rest"), "int32_t")}
TYPES |= dict.fromkeys(("Bf16", "F16"), "uint16_t")
PRINTED = "Printed from layerwise/storage by `make generate`: change that, not this file."
BY_HAND = {"random"}  # in csrc/kernels/formats.hpp
FOR_CPUS = {"hashed", "taken", "block", "folded", "odd"}  # whose loops share the hash of a block
CONSTANT = {"mix", "odd"}  # what tables are made of when kernels are compiled
TAKEN = {"KEPT", "tl", "triton"}
CALLED = ("as_float", "as_int", "at_least", "bits_of", "float_of")  # functions of kernels/common.py, and of csrc


def same(x: Any) -> Any:
    return x


BITS: Any = SimpleNamespace(
    word=same,
    bits=lambda x: Symbol("bits_of", x),
    floats=lambda u: Symbol("float_of", u),
    integers=lambda x: Symbol("as_int", x),
    as_floats=lambda x: Symbol("as_float", x),
    shifted=lambda x, by: x << by,
    where=Namespace.where,
)

# ---- what is printed


def mix(x: Word, between: Word) -> Word:
    return bits.hash_word(x, between, same)


def at_step(first: Word, second: Word, low: Word, high: Word) -> tuple[Word, Word]:
    return bits.keys_at_step(bits.Key(first, second), (low, high), same)


def random(k0: Word, k1: Word, low: Word, high: Word) -> Word:
    return bits.random((k0, k1), low, high, same)


def hashed(k0: Word, k1: Word, low: Word, high: Word) -> Word:
    return bits.shared_hash((k0, k1), low, high, same)


def block(k0: Word, k1: Word, low: Word, high: Word) -> Word:
    return bits.block((k0, k1), low, high, same)


def folded(x: Word) -> Word:
    return bits.folded(x)


def odd(place: Word) -> Word:
    return bits.odd(place, same)


def taken(shared: Word, second: Word) -> Word:
    return bits.bits_of_field(shared, second, same)


def turn(step: Word) -> Word:
    return bits.turn(step, same)


def scale_signed(most: Word) -> Word:
    return quantized_groups.scale_of(BITS, most, signed=True)


def scale_unsigned(most: Word) -> Word:
    return quantized_groups.scale_of(BITS, most, signed=False)


def code_signed(size: Number, scale: Number, added: Word) -> Word:
    return quantized_groups.code_of(BITS, size, scale, added, signed=True)


def code_unsigned(size: Number, scale: Number, added: Word) -> Word:
    return quantized_groups.code_of(BITS, size, scale, added, signed=False)


def size_signed(code: Word, scale: Number) -> Number:
    return quantized_groups.size_of(BITS, code, scale, signed=True)


def size_unsigned(code: Word, scale: Number) -> Number:
    return quantized_groups.size_of(BITS, code, scale, signed=False)


def round_bf16(x: Number, drawn: Word) -> Bf16:
    return sixteen_bits.round_bf16(BITS, x, drawn)


def round_f16(x: Number, drawn: Word) -> F16:
    return sixteen_bits.round_f16(BITS, x, drawn)


def join_bf16(p: Number, rest: Whole) -> Number:
    return sixteen_bits.join_bf16(BITS, p, rest, KEPT)


def join_f16(p: Number, rest: Whole) -> Number:
    return sixteen_bits.join_f16(BITS, p, rest, KEPT)


def split_bf16(x: Number) -> tuple[Bf16, Rest]:
    return sixteen_bits.split_bf16(BITS, x, KEPT)


def split_bf16_drawn(x: Number, drawn: Word) -> tuple[Bf16, Rest]:
    return sixteen_bits.split_bf16(BITS, x, KEPT, drawn)


def split_f16(x: Number) -> tuple[F16, Rest]:
    return sixteen_bits.split_f16(BITS, x, KEPT)


def split_f16_drawn(x: Number, drawn: Word) -> tuple[F16, Rest]:
    return sixteen_bits.split_f16(BITS, x, KEPT, drawn)


ALL: tuple[Callable[..., Any], ...] = (
    mix, at_step, random, hashed, block, folded, odd, taken, turn, scale_signed, scale_unsigned, code_signed,
    code_unsigned, size_signed, size_unsigned, round_bf16, round_f16, join_bf16, join_f16, split_bf16, split_bf16_drawn,
    split_f16, split_f16_drawn,
)  # fmt: skip


class Run(NamedTuple):
    """A function after it was run with symbols."""

    name: str
    given: dict[str, str]  # types of the parameters
    results: tuple[tuple[str, Any], ...]  # with their types

    @property
    def is_kept(self) -> bool:
        return any(KEPT in {*x.walk()} for _, x in self.results)

    def outputs(self, language: Any, results: list[Any]) -> tuple[list[str], list[str]]:
        """Return lines, and what stands for each result."""
        leaves = {leaf("parameter", name, is_array=True): name for name in (*self.given, "KEPT")}
        printer = Printer(language, leaves, {}, {*TAKEN, *self.given})
        found = printer.outputs(*results)
        return printer.lines, found


def runs() -> Iterator[Run]:
    """Run all functions."""
    for function in ALL:
        given = dict(function.__annotations__)
        types = re.findall(r"\b(?!tuple)\w+", given.pop("return"))
        shared = patch.object(bits, "hash_word", lambda x, y, _: Symbol("mix", x, y))
        with nullcontext() if function is mix else shared:
            found = function(*(leaf("parameter", name, is_array=True) for name in given))
        xs = found if isinstance(found, tuple) else (found,)
        yield Run(function.__name__, given, tuple(zip(types, xs, strict=True)))


def number(x: Any) -> str:
    return (hex(x) if x >= 1 << 12 else str(x)) if isinstance(x, int) else repr(x)


# ---- C++


class CppOfBits(Cpp):
    """C++ whose compiler finds the types."""

    calls: ClassVar = {}

    def __init__(self) -> None:
        super().__init__("float")

    def number(self, x: Any) -> str:
        return number(x) + "f" * isinstance(x, float)

    def choice(self, condition: str, yes: str, no: str) -> str:
        return f"{condition} ? {yes} : {no}"

    def line(self, name: str, x: Symbol, text: str) -> str:
        return f"const auto {name} = {text};"


def header() -> str:
    """Return the functions as a header."""
    return f"// {PRINTED}\n\n" + "\n".join(_in_cpp(run) for run in runs() if run.name not in BY_HAND)


def _in_cpp(run: Run) -> str:
    lines, found = run.outputs(CppOfBits(), [_stored(type_, x) for type_, x in run.results])
    types = [TYPES[type_] for type_, _ in run.results]
    cast = [f"{type_}({text})" for type_, text in zip(types, found, strict=True)]
    several = len(types) > 1
    kept = "template <int KEPT>\n" * run.is_kept
    given = ", ".join(f"{TYPES[type_]} {name}" for name, type_ in run.given.items())
    result, how = f"Two<{', '.join(types)}>" if several else types[0], "constexpr" if run.name in CONSTANT else "inline"
    lines = [*lines, f"return {{{', '.join(cast)}}};" if several else f"return {found[0]};"]
    return f"{kept}{how} {result} {run.name}({given}) {{\n{textwrap.indent(chr(10).join(lines), '  ')}\n}}\n"


def _stored(type_: str, x: Any) -> Any:
    """Return what kernels store of a result."""
    kept = LOWERED[type_](x) if type_ in LOWERED else x
    if kept is not None:
        return kept
    if x.op == "where" and any(LOWERED[type_](one) is not None for one in x.parts):
        condition, yes, no = x.args
        is_number = condition.op == "==" and condition.args == (no, no)
        return Symbol("where", condition, _stored(type_, yes), Symbol("upper", no) if is_number else _stored(type_, no))
    return Symbol(f"float_to_{type_.lower()}", x)


def _bf16(x: Any) -> Any:
    """Return the upper bits of a number whose others were cut."""
    if not isinstance(x, Symbol) or x.op != "float_of":
        return None
    [cut] = x.args  # u & 0xffff0000, or u >> 16 << 16
    return Symbol("uint16_t", cut.args[0] if cut.op == "<<" else Symbol(">>", cut.args[0], 16))


def _f16(x: Any) -> Any:
    """Return the bits of units of 2^-24, or of a number from 2^-14 on whose last 13 bits were cut."""
    match x:
        case Symbol(op="where", args=(condition, Symbol() as yes, Symbol() as no)):
            each = _f16(yes), _f16(no)
            return None if any(one is None for one in each) else Symbol("where", condition, *each)
        case Symbol(op="float_of", args=(Symbol(op="|", args=(Symbol(args=(Symbol(args=(units, float())),)), sign)),)):
            return Symbol("uint16_t", units.args[0] | (sign >> 16))
        case Symbol(op="float_of", args=(Symbol(op="&", args=(u, 0xFFFFE000)),)):
            return Symbol(
                "uint16_t", (((u & sixteen_bits.MAGNITUDE) - 0x38000000) >> 13) | ((u & sixteen_bits.SIGN) >> 16)
            )
    return None


def _rest(x: Any) -> Any:
    """Return a remainder but for what its KEPT bits do not hold."""
    match x:
        case Symbol(op="where", args=(condition, Symbol(op="-", args=(rest, _)), 0)):
            return Symbol("where", condition, rest, 0) if rest.op == ">>" else x
    return x


LOWERED = {"Bf16": _bf16, "F16": _f16, "Rest": _rest}


# ---- Triton


class TritonOfBits(Triton):
    def number(self, x: Any) -> str:
        return number(x)


def module() -> str:
    """Return the functions as a module."""
    texts = [_in_triton(run) for run in runs() if run.name not in FOR_CPUS]
    return (
        f'"""Storage formats, as device functions.\n\n{PRINTED}\n"""\n\n# fmt: off\n'
        "from __future__ import annotations\n\nimport triton\nimport triton.language as tl\n\n"
        f"from layerwise.engines.gpu.kernels.common import {', '.join(CALLED)}\n\n\n" + "\n".join(texts)
    )


def _in_triton(run: Run) -> str:
    lines, found = run.outputs(TritonOfBits(), [x for _, x in run.results])
    given = ", ".join([*run.given, *(["KEPT: tl.constexpr"] if run.is_kept else [])])
    body = "\n".join(wrapped(line, WIDTH - 4) for line in [*lines, f"return {', '.join(found)}"])
    return f"@triton.jit\ndef {run.name}({given}):\n{textwrap.indent(body, '    ')}\n"
