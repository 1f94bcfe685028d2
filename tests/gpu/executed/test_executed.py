"""The launches of steps, executed as Triton compiles them for GPUs, against the rule.

A launch that reads or writes outside of all tensors fails, and so does one whose programs race.
"""

from __future__ import annotations

import pytest
from cases import KERNELED
from gpu.executed.cases import DTYPES, ERRORS, PROGRAMS
from gpu.storing import FORMS

pytest.importorskip("ttsem", reason="ttsem executes what Triton compiles; `make test` installs it")

FIRST = {"float32": ("Lamb", "AdafactorWithExpAvg by planes", "NovoGrad"), "bfloat16": ("AdamW",)}
WAYS = ("counted", "replayed", "odd", "clipped", "in_two_parts")
WAYS_OF = ("Lamb", "AdafactorWithExpAvg by planes", "LarsWithNormKeepNormFirst", "LansAdaptFalse")
slow, repeats = pytest.mark.slow, (pytest.mark.slow, pytest.mark.repeats)


def test_an_optimizer_steps_as_by_the_rule(executed):
    found = executed("by_front", "Lamb", {"max_grad_norm": 1.0})
    assert found.launches.keys() >= {"passes.square", "parts.add_up", "passes.measure", "passes.answer", "passes.apply"}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_in_a_kernel_is_found(name, executed):
    with pytest.raises(Exception, match=ERRORS[name].said):
        executed("with_error", name)


def _programs():
    for name, one in PROGRAMS.items():
        for dtype in DTYPES:
            first = name in FIRST.get(dtype, ())
            of_each = dtype == "float32" or name == one.rule
            yield pytest.param(name, dtype, marks=() if first else slow if of_each else repeats)


@pytest.mark.every
@pytest.mark.parametrize(("name", "dtype"), [*_programs()])
def test_steps_of_every_program_are_the_rules(name, dtype, executed):
    assert executed("program", name, dtype).launches


def _ways():
    for way in WAYS:
        for name in PROGRAMS:
            first = (way, name) == ("in_two_parts", "Lamb")
            yield pytest.param(way, name, marks=() if first else slow if name in WAYS_OF else repeats)


@pytest.mark.every
@pytest.mark.parametrize(("way", "name"), [*_ways()])
def test_steps_are_the_rules_wherever_their_numbers_are(way, name, executed):
    assert executed(way, name).launches


def _forms():
    for case in KERNELED:
        for number, form in enumerate(FORMS):
            first = (case.name, number) == ("Lamb", 7)
            marks = () if first else slow if case.name in ("Lamb", "Adafactor") else repeats
            yield pytest.param(case.name, number, marks=marks, id=f"{case.name}-{form}")


@pytest.mark.every
@pytest.mark.parametrize(("rule", "number"), [*_forms()])
def test_steps_in_every_format_are_the_rules(rule, number, executed):
    assert executed("form", rule, number).launches


@pytest.mark.slow
@pytest.mark.repeats
@pytest.mark.every
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
def test_any_jobs_are_stepped_as_by_the_rule(case, seed, executed):
    executed("any_jobs", case.name, seed)
