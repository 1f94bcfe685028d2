"""Random jobs, stepped by every engine beside the rule: all that changes how a step is computed, together."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from cases import KERNELED, case_of
from draws import seeds
from engines.jobs import Limits, drawn, held
from engines.parts import stepping_in_parts
from engines.worlds import WORLDS, copied, make_job, needed, numbers, stored, surroundings

import layerwise.numpy
from layerwise.engines import compiled

pytestmark = needed
SETS = compiled._native.instruction_sets() if compiled._native is not None else []
EACH = 36


@pytest.mark.every
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


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", [(40, 3, 5), (5, 40, 3), (3, 5, 40)], ids=str)
def test_factors_go_by_their_dimensions_whichever_lies_in_a_row(shape, name):
    """Matrices, columns or rows: the first dimension is the one in which memory goes on."""
    case = case_of("Adafactor")
    ours = make_job(case, case.hyper(lr=0.1, clip_threshold=None), shape, (), 0, layout="transposed")
    theirs = copied(ours)
    with instructions(name):
        WORLDS[0].engine().step([ours])
    WORLDS[0].rule.step([theirs])
    np.testing.assert_allclose(ours.p, theirs.p, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
def test_every_length_at_every_address_is_stepped_and_nothing_beside_it(case, name):
    """Of lengths around that of a register, and around the most that is kept between two passes."""
    h = case.hyper(**{**case.busy, "lr": 0.1})
    for lengths in (range(71), (2**14, 2**14 + 3)):
        rooms, jobs = [], [make_job(case, h, (n,), (), n) for n in lengths for _ in range(5)]
        for i, job in enumerate(jobs):
            n, at = job.p.nbytes, (0, 4, 8, 2, 1)[i % 5]
            rooms.append(np.full(n + 16, 0xA5, np.uint8))
            p = rooms[-1][at : at + n].view(np.float32)
            p[...] = job.p
            jobs[i] = replace(job, p=p)
        theirs, places = [copied(job) for job in jobs], [(0, 4, 8, 2, 1)[i % 5] for i in range(len(jobs))]
        with instructions(name), np.errstate(all="ignore"):
            WORLDS[0].engine().step(jobs)
        WORLDS[0].rule.step(theirs)
        for one, other, room, at in zip(jobs, theirs, rooms, places, strict=True):
            for a, b in zip(stored(one), stored(other), strict=True):
                np.testing.assert_allclose(numbers(a), numbers(b), rtol=1e-5, atol=1e-6)
            assert np.all(np.delete(room, np.s_[at : at + one.p.nbytes]) == 0xA5)


def test_an_infinite_gradient_spoils_its_own_entry_alone():
    """Where updates are not clipped, no sum takes it to the others."""
    for engine in ("compiled", "rule"):
        w = np.ones(3, np.float32)
        opt = layerwise.numpy.Adafactor(lr=0.1, clip_threshold=None, scale_parameter=False, engine=engine)
        opt.step("w", w, np.array([1, np.inf, 1], np.float32))
        assert np.isnan(w).tolist() == [False, True, False]


def test_a_mean_of_rows_is_no_less_than_eps_where_eps_clamps():
    found = []
    for engine in ("compiled", "rule"):
        w = np.ones((3, 4), np.float32)
        opt = layerwise.numpy.Adafactor(eps=(1e-3, 1e-3), eps_mode="clamp", clip_threshold=None, engine=engine)
        opt.step("w", w, np.full((3, 4), 0.01, np.float32))
        found.append(w)
    np.testing.assert_allclose(*found, rtol=1e-6)


@contextmanager
def instructions(name):
    before = compiled._native.instruction_set()
    assert compiled._native.use_instruction_set(name)
    try:
        yield
    finally:
        compiled._native.use_instruction_set(before)
