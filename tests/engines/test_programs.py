"""Programs: what there are kernels for, the numbers that kernels take, and why a job is left to the rule."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from math import inf
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from cases import KERNELED, case_of
from engines.worlds import WORLDS, bits, copied, make_job, mapped, needed, now_of

from layerwise import engines
from layerwise.engines import compiled, program_types, programs
from layerwise.engines.printed_programs import RULES
from layerwise.errors import EngineError
from layerwise.options.checks import number
from layerwise.options.fields import option
from layerwise.options.settings import as_plain_value
from layerwise.rules import lamb
from layerwise.rules.requests import Now

pytestmark = [needed, pytest.mark.every]
NUMPY = WORLDS[0]
WARMTH = r"do not support the option `warmth` of Warm, which is 2\.0"
SHAPE = (5, 4, 3)  # of which different dimensions are the last and the largest
STORED = {"momentum_dtype": ("bfloat16", {"beta1": 0.9})}  # options that are of storage, and beside what they show
of_each = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)


@dataclass(frozen=True)
class Warm(lamb.Lamb):
    """LAMB's options, and one that the kernels do not know."""

    warmth: float = option(0.0, number(0), "Nothing.", "Pass a number.")


OTHER = ModuleType("layerwise.rules.other")  # another formula with the same options
OTHER.step, OTHER.State = lamb.step, lamb.State


def job_with(h, rule=lamb):
    case = case_of("Lamb")
    return replace(make_job(case, case.hyper(lr=0.1), (6, 4), (), 0), h=h, rule=rule)


def without_momentum(job):
    return replace(job, state=job.state._replace(exp_avg=None))


# ---- what is declined


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (job_with(Warm(lr=0.1, warmth=2.0)), f".*{WARMTH}.*"),
        (job_with(lamb.Lamb(lr=0.1), OTHER), r"there are no kernels for layerwise\.rules\.other"),
        (job_with(SimpleNamespace()), "there are no kernels for SimpleNamespace"),
        (
            job_with(lamb.Lamb().settled(adapt="elsewhere")),
            "there are no kernels for Lamb with .*adapt='elsewhere'.* and.*",
        ),
        (without_momentum(job_with(lamb.Lamb())), "there are no kernels for Lamb with .*adapt=True.* and such state"),
        (job_with(lamb.Lamb()), ""),
        (job_with(Warm()), ""),
    ],
    ids=["option", "formula", "options of nobody", "value", "state", "known", "unknown option that is off"],
)
def test_engines_decline_what_has_no_kernels(job, why):
    assert re.fullmatch(why, programs.why_not_printed(job))
    given = engines.Job(job.rule, job.h, job.p, job.state)
    assert compiled.CompiledEngine().reasons_to_decline([given]) == [programs.why_not_printed(job)]


@pytest.mark.parametrize("job", [job_with(Warm(lr=0.1, warmth=2.0)), job_with(lamb.Lamb(lr=0.1), OTHER)], ids=str)
def test_tensors_without_kernels_are_stepped_by_the_rule_and_others_are_not(job):
    with pytest.raises(EngineError, match="compiled engine cannot step .*" + re.escape(programs.why_not_printed(job))):
        NUMPY.engine().step([copied(job)])
    ours, theirs = copied(job), copied(job)
    measured = NUMPY.engine(required=False).step([ours, job_with(Warm(lr=0.1))])
    NUMPY.rule.step([theirs])
    assert bits([ours]) == bits([theirs])
    assert [isinstance(one, compiled.JobMeasurements) for one in measured] == [False, True]


def test_the_gpu_engine_says_the_same():
    gpu = pytest.importorskip("layerwise.engines.gpu.specialization", reason="it needs Triton")
    on = mapped(job_with(Warm(lr=0.1, warmth=2.0)), WORLDS[1].array)
    assert re.search(WARMTH, gpu.why_declined(engines.Job(on.rule, on.h, on.p, on.state)))


# ---- what is printed


def test_programs_are_those_of_the_extension():
    """By their names, by which alone they are called."""
    printed = {program.name for rule in RULES.values() for program in rule.programs.values()}
    found = compiled._native.programs()
    assert len(printed) == len(found)
    assert printed == {*found}


@of_each
def test_every_setting_has_kernels(case):
    for options in [*map(case.drawn, range(25)), *(case.alone(*one)[1] for one in case.unusual())]:
        for shape in (SHAPE, (7,), ()):
            job = make_job(case, case.hyper(**options), shape, (), 0)
            if not job.h.has_kernels:
                assert "there are no kernels for" in programs.why_not_printed(job)
            else:
                assert programs.why_not_printed(job) == "", options
                assert programs.program_for(job).name.startswith(case.name)


@pytest.mark.parametrize(
    ("value", "form"),
    [(None, None), (True, True), (False, False), ("l2", "l2")]
    + [(x, program_types.ANY) for x in (0, 0.0, 1, 0.5, inf, (0.9, 0.999), ((0,), (1,)))],
)
def test_flags_are_told_from_numbers(value, form):
    """0 and 1 are numbers like others, though False == 0 and True == 1."""
    assert program_types.option_forms([value]) == (form,)


# ---- the numbers of a step


@of_each
def test_numbers_are_the_gradients_and_the_coefficients_by_name(case):
    for seed in range(12):
        h = case.hyper(**case.drawn(seed)).fit(SHAPE, (), 1e-7)
        for t in (1, 2, 5):
            now = now_of(h, t, 4.0)
            found, k = programs.kernel_numbers(h, now), case.rule.coefficients(np, h, now)
            assert all(isinstance(x, (int, float)) and x == x for x in found)
            assert found[:6] == (now.g_scale, *programs.gradient_numbers(h))
            named = dict(zip(programs.coefficient_names(k), found[6:], strict=True))
            assert len(named) == len(found) - 6
            for name, x in zip(k._fields, k, strict=True):
                expected = {f"{name}_{f}": y for f, y in x._asdict().items()} if isinstance(x, tuple) else {name: x}
                assert {key: named[key] for key in expected} == expected


OFF = (1.0, 1.0, -inf, inf, inf, inf)


@pytest.mark.parametrize(
    ("h", "scale", "expected", "clips"),
    [
        (
            lamb.Lamb(max_grad_value=(-0.1, None), max_grad_norm=2.0, max_grad_norm_per_tensor=3.0, maximize=True),
            8.0,
            (8.0, -1.0, -0.1, inf, 3.0, 2.0),
            (True, True),
        ),
        (lamb.Lamb(), 1.0, OFF, (False, False)),
        (lamb.Lamb(max_grad_norm=0, max_grad_norm_per_tensor=0, max_grad_value=0), 1.0, OFF, (False, False)),
        # Without a bound it may count in the norm of all.
        (lamb.Lamb().settled(max_grad_norm=inf), 1.0, OFF, (False, True)),
        (SimpleNamespace(value_bounds=None, model_bound=0.0, maximize=False), 1.0, OFF, (False, False)),
    ],
    ids=["clipped", "off", "zero", "counted", "a rule without clips"],
)
def test_numbers_of_a_gradient(h, scale, expected, clips):
    assert (scale, *programs.gradient_numbers(h)) == expected
    assert programs.norms_needed(h) == clips


@pytest.mark.parametrize("field", ["t", "lr", "weight_decay", "g_scale", "beta2"])
@of_each
def test_a_number_that_autograd_follows_or_that_is_elsewhere_is_not_known(case, field):
    h = case.hyper(**case.busy).fit(SHAPE, (), 1e-7)
    now = Now(3.0, 0.5, 0.25, 2.0, 0.75)
    value = getattr(now, field)
    for x in (torch.tensor(value, requires_grad=True), torch.tensor(value, device="meta")):
        assert programs.kernel_numbers(h, now._replace(**{field: x})) is None
    for x in (torch.tensor(value), np.float64(value), np.array(value)):
        assert programs.kernel_numbers(h, now._replace(**{field: x})) == programs.kernel_numbers(h, now)


# ---- every option reaches something


def reached(case, options):
    """All that engines learn of settings: the program, rows and columns, how state is kept, and numbers of steps."""
    job = make_job(case, case.hyper(**options), SHAPE, (), 0)
    steps = [programs.kernel_numbers(job.h, now_of(job.h, t)) for t in range(1, 5)]
    program = compiled.layout_key(job) if job.h.has_kernels else None
    return program, program_types.present_state(job.state), job.h.state_dtypes(), steps


@of_each
def test_every_value_of_every_option_reaches_a_number_or_a_structure(case):
    values = [(name, value, *case.alone(name, value)) for name, value in case.unusual()]
    for name, (value, beside) in STORED.items():
        usual = {**case.usual(), **beside}
        values += [(name, value, usual, {**usual, name: value})] if {name, *beside} <= {*case.options} else []
    assert {name for name, *_ in values} | {*STORED} >= {spec.name for spec in fields(case.hyper)}
    silent = [f"{name}={as_plain_value(x)}" for name, x, off, on in values if reached(case, off) == reached(case, on)]
    assert not silent


@of_each
@pytest.mark.parametrize("seed", range(12))
def test_numbers_of_many_rates_are_those_of_each(case, seed):
    h = case.hyper(**case.drawn(seed)).fit((3, 4), (), 1e-7)
    for lam in (0.0, 0.3):
        nows = [Now(3, lr, lam * lr, 2.0, h.beta2_of(3)) for lr in (0.1, 0.03, 7e-4, 1.0, 0.3)]
        each = [programs.kernel_numbers(h, now) for now in nows]
        rates = [now.lr for now in nows], [now.weight_decay for now in nows]
        assert [*zip(*programs.settings_numbers(h).columns_by_rates(nows[0], *rates), strict=True)] == each
