"""The launches of steps, executed as Triton compiles them for GPUs, against the rule.

A launch that reads or writes outside of all tensors fails, and so does one whose programs race.
"""

from __future__ import annotations

import pytest
from cases import KERNELED
from gpu.executed.cases import DTYPES, ERRORS, PROGRAMS, WAYS
from gpu.storing import FORMS
from scripts import HOME, load

pytest.importorskip("ttsem", reason="ttsem executes what Triton compiles; `make test` installs it")

load("rows")
load("on_gpu", "on_gpu/__init__.py", submodule_search_locations=[str(HOME / "on_gpu")])
script = load("gpu_bytes")
from on_gpu.traffic import PASSES  # noqa: E402

# Where steps move more than the least: state is kept before its sums, which costs less only with gradients in float32.
MORE = {("StableAdamW", "bfloat16"): 1.08, ("StableAdamW", "split"): 1.08}
FIRST = {"float32": ("Lamb", "AdafactorWithExpAvg by planes", "NovoGrad"), "bfloat16": ("AdamW",)}
WAYS_OF = ("Lamb", "AdafactorWithExpAvg by planes")
slow, repeats = pytest.mark.slow, (pytest.mark.slow, pytest.mark.repeats)


def test_an_optimizer_steps_as_by_the_rule(executed):
    found = executed("by_front", "Lamb", 1.0)
    assert found.launches.keys() >= {"passes.measure", "passes.answer", "passes.apply"}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_in_a_kernel_is_found(name, executed):
    with pytest.raises(Exception, match=ERRORS[name].said):
        executed("with_error", name)


def _programs():
    of_rules = {one.rule: name for name, one in reversed(PROGRAMS.items())}
    for name, one in PROGRAMS.items():
        for dtype in DTYPES:
            first = name in FIRST.get(dtype, ())
            alone = dtype == "float32" and name == of_rules[one.rule]
            yield pytest.param(name, dtype, marks=() if first else slow if alone else repeats)


@pytest.mark.every
@pytest.mark.parametrize(("name", "dtype"), [*_programs()])
def test_steps_of_every_program_are_the_rules(name, dtype, executed):
    assert executed("program", name, dtype).launches


def _planes():
    for name, one in PROGRAMS.items():
        for dtype in DTYPES if one.planes else ():
            first = (name, dtype) == ("AdafactorWithExpAvg by planes", "float32")
            yield pytest.param(name, dtype, marks=slow if first else repeats)


@pytest.mark.every
@pytest.mark.parametrize(("name", "dtype"), [*_planes()])
def test_steps_of_matrices_of_every_size_are_the_rules(name, dtype, executed):
    assert executed("planes", name, dtype).launches


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
            marks = () if first else slow if case.name == "Lamb" else repeats
            yield pytest.param(case.name, number, marks=marks, id=f"{case.name}-{form}")


@pytest.mark.every
@pytest.mark.parametrize(("rule", "number"), [*_forms()])
def test_steps_in_every_format_are_the_rules(rule, number, executed):
    assert executed("form", rule, number).launches


def _counts():
    for optimizer in PASSES:
        for label in script.STORED:
            first = (optimizer, label) == ("Lamb", "float32")
            marks = () if first else slow if label == "split24, 8-bit state" else repeats
            yield pytest.param(optimizer, label, marks=marks)


@pytest.mark.every
@pytest.mark.parametrize(("optimizer", "label"), [*_counts()])
def test_steps_move_the_least_bytes(optimizer, label, executed):
    """By programs of the usual size; caches keep nothing from one launch to the next."""
    most = MORE.get((optimizer, label), 1.03) * script.least_of(optimizer, label)
    assert most / 1.06 <= executed("moved", optimizer, label) <= most


@pytest.mark.slow
@pytest.mark.repeats
@pytest.mark.every
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
def test_any_jobs_are_stepped_as_by_the_rule(case, seed, executed):
    executed("any_jobs", case.name, seed)
