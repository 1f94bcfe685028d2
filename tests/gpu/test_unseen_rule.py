"""Functions printed for the GPU engine: of a rule that nobody has seen, and the coefficients that they are given."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from engines.parts import Cut, check, in_parts, step_parts
from engines.worlds import EPS, Job, mapped
from gpu.world import ENGINE, GPU, near, prepared, step
from test_printing import UNSEEN, load

from layerwise.catalog.registry import Entry
from layerwise.engines import printed_programs, program_types, programs
from layerwise.rules.requests import Now

ROOT = Path(__file__).parents[2]


@pytest.fixture
def unseen(tmp_path, monkeypatch):
    """The rule of another file, taken by the engine as soon as its functions are printed."""
    if not (ROOT / "tools").exists():
        pytest.skip("the tools are in the source alone")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from kernels import kernels_of, row_of

    module = load(tmp_path / "unseen.py", UNSEEN)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = kernels_of(Entry("Unseen", module, module.Unseen))
    (tmp_path / "printed.py").write_text(found.functions)
    spec = spec_from_file_location("layerwise.engines.gpu.printed.unseen", tmp_path / "printed.py")
    functions = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, functions)
    spec.loader.exec_module(functions)
    table = {key: row_of(one, found.names[one]) for key, one in found.structures.programs.items()}
    row = program_types.PrintedRule(found.structures.options, tuple(found.numbers), table)
    monkeypatch.setitem(printed_programs.RULES, module.__name__, row)
    monkeypatch.setattr(programs, "_found", {})
    return module


def job_of(rule, h, shape, dtype="float32", seed=0):
    draw = np.random.default_rng(seed)
    p, g = (draw.normal(size=shape).astype(dtype) for _ in "pg")
    state = rule.State(*(np.zeros(shape, dtype) for _ in rule.shapes(h, shape)))
    return Job(rule=rule, h=h.fit(shape, (), EPS[dtype]), p=p, g=g, state=state, now=Now(1, h.lr, h.weight_decay))


@pytest.mark.parametrize(("signed", "dtype"), [(False, "float32"), (True, "float64")])
def test_steps_of_a_rule_that_nobody_has_seen_are_the_rules(unseen, signed, dtype):
    h = unseen.Unseen(lr=0.1, weight_decay=0.1, signed=signed, max_grad_value=2.0)
    theirs = [mapped(job_of(unseen, h, shape, dtype, i), GPU.array) for i, shape in enumerate([(20, 33), (5,), ()])]
    ours = [mapped(job, GPU.copy) for job in theirs]
    ready = prepared(ours)
    for t in (1, 2, 3):
        now = Now(t, h.lr, h.weight_decay)
        step(ready, ours, [now] * len(ours))
        GPU.rule.step([replace(job, now=now) for job in theirs])
        near(ours, theirs, 64 * EPS[dtype], 64 * EPS[dtype])


def test_its_parts_make_the_whole(unseen):
    job, cut = job_of(unseen, unseen.Unseen(lr=0.1, weight_decay=0.1), (20, 33)), Cut(0, (7,))
    parts = in_parts(job, cut, 2)
    GPU.engine().step([alone := mapped(job, GPU.array)])
    step_parts(ENGINE, [[part] for part in parts], [job.p.shape], [cut], GPU.array)
    check(alone, parts, 8 * EPS["float32"])
