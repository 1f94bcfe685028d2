"""Random jobs, stepped by every engine beside the rule: all that changes how a step is computed, together."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from cases import KERNELED
from draws import seeds
from engines.jobs import Limits, drawn, held
from engines.parts import stepping_in_parts
from engines.worlds import WORLDS, needed, surroundings

from layerwise.engines import compiled

pytestmark = [needed, pytest.mark.every]
SETS = compiled._native.instruction_sets() if compiled._native is not None else []
EACH = 24


@pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
@pytest.mark.parametrize("first", seeds(1, 20))
def test_any_jobs_are_stepped_as_by_the_rule(case, first):
    """With each instruction set, of arrays and of tensors, whole and in parts. What lies beside them is not touched."""
    taken = 0
    for seed in range(EACH * first, EACH * (first + 1)):
        world = WORLDS[seed % 2]
        one = drawn(case, seed, Limits(layouts=world.layouts))
        around = [surroundings(job.p) for job in one.jobs]
        step = world.engine().step
        if one.parts:
            engine = world.engine_of_rule if seed % 3 else compiled.CompiledEngine()
            step = stepping_in_parts(engine, one.parts, one.cuts, world.array)
        with instructions(SETS[seed % len(SETS)]):
            taken += held(one, world, step)
        assert [surroundings(job.p) for job in one.jobs] == around
    assert taken > EACH * 0.8


@contextmanager
def instructions(name):
    before = compiled._native.instruction_set()
    assert compiled._native.use_instruction_set(name)
    try:
        yield
    finally:
        compiled._native.use_instruction_set(before)
