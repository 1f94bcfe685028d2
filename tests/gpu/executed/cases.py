"""What is executed: every program that was printed, and every storage format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from cases import KERNELED, Case
from engines.jobs import Limits
from engines.worlds import make_job

from layerwise.engines.printed_programs import RULES
from layerwise.engines.programs import program_for, why_not_printed
from layerwise.errors import ContradictionError, HyperparameterError

# Several chunks of which the last has a block that is not full, one chunk, and one number; and blocks.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((20, 37), ()), ((300,), ()), ((), ())]
BLOCKS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((3, 10, 9), (0,))]
# Matrices that are small, of one number, several, high, and in blocks of such.
PLANES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((20, 3, 3), ()),
    ((7, 20, 1, 1), ()),
    ((2, 9, 17), ()),
    ((70, 3), ()),
    ((3, 7, 20, 1, 1), (0,)),
]
STORED = [(320,), (5, 128), (5, 70), (300,)]
WAYS = {
    "counted": "counts, rates and the scale of gradients are on the device, and a step before each is skipped there",
    "replayed": "a step is recorded as for a CUDA graph, and replayed with other gradients and another rate",
    "odd": "gradients begin at addresses at which no vector may",
    "clipped": "gradients' norms are bounded, that of each and that of all",
    "in_two_parts": "two ranks have a part of the tensor each, and add up their sums between launches",
}
LIMITS = Limits(most=700, layouts=("plain", "transposed"), leading=True)
DTYPES = ("float32", "bfloat16", "float16", "float64")
MOMENTUM = ("beta1", "momentum")  # options of which the kept state depends


class Program(NamedTuple):
    """One that was printed, and options under which it is stepped; a factored second moment has kernels of its own."""

    rule: str
    name: str
    options: dict[str, Any]
    planes: bool

    def __str__(self) -> str:
        return self.name + " by planes" * self.planes


def programs() -> list[Program]:
    """Return every printed program."""
    found: dict[tuple[str, bool], Program] = {}
    for case in KERNELED:
        for options in _settings(case):
            try:
                h = case.hyper(**options)
                job = make_job(case, h, SHAPES[0][0], (), 0)
            except (ContradictionError, HyperparameterError):
                continue
            if not why_not_printed(job):
                one = Program(case.name, program_for(job).name, options, bool(getattr(job.h, "factored", False)))
                found.setdefault((one.name, one.planes), one)
    printed = {program.name for rule in RULES.values() for program in rule.programs.values()}
    assert {one.name for one in found.values()} == printed, "some programs need other options"
    return list(found.values())


def _settings(case: Case) -> Iterator[dict[str, Any]]:
    own = [*RULES[case.rule.__name__].options, *(name for name in MOMENTUM if name in case.options)]
    for values in product(*(case.options[name] for name in own)):
        yield case.consistent({**case.usual(), **case.busy, **dict(zip(own, values, strict=True))})


PROGRAMS = {str(one): one for one in programs()}


class Error(NamedTuple):
    """An error in the text of a kernel's function, the steps that it shows in, and what is said of it."""

    function: str
    old: str
    new: str
    steps: tuple[Any, ...]
    said: str


ERRORS = {
    "a mask that is off by one": Error(
        "formats.block_of", "mask = e < n", "mask = e <= n", ("program", "Lamb", "float32"), "outside of all tensors"
    ),
    "a wrong program": Error(
        "passes.measure",
        "tl.program_id(0), C)",
        "tl.program_id(0) // 2, C)",
        ("program", "Lamb", "float32"),
        "race",
    ),
    "a promise to the compiler": Error(
        "common.element",
        "tl.multiple_of(at, 16) if ALIGNED else at",
        "tl.multiple_of(at, 16)",
        ("odd", "Lamb"),
        "multiple",
    ),
    "another state's scales": Error(
        "formats.formatted_at",
        "BESIDE + WHICH",
        "BESIDE + (3 - WHICH if WHICH else 0)",
        ("form", "Lamb", 7),
        "^(p|exp_avg)",
    ),
}
