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

import layerwise.torch
from layerwise import engines
from layerwise.checks import number
from layerwise.engines import compiled, programs
from layerwise.engines.printed import RULES
from layerwise.errors import EngineError
from layerwise.hyper import in_words, option
from layerwise.rules import lamb
from layerwise.rules.asks import Now

pytestmark = [needed, pytest.mark.every]
NUMPY = WORLDS[0]
UNKNOWN = r"compiled engine does not take .* do not know the option `warmth` of Warm, which is 2\.0"
SHAPE = (5, 4, 3)  # of which different dimensions are the last and the largest
STORED = {"momentum_dtype": ("bfloat16", {"beta1": 0.9})}  # options that are of storage, and beside what they show
of_each = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)


@dataclass(frozen=True)
class Warm(lamb.Lamb):
    """LAMB's options, and one that the kernels do not know."""

    warmth: float = option(0.0, number(0), "Nothing.", "Pass a number.")


def job_with(h, rule=lamb):
    case = case_of("Lamb")
    return replace(make_job(case, case.hyper(lr=0.1), (6, 4), (), 0), h=h, rule=rule)


# ---- what is declined


def test_an_option_that_is_not_known_is_the_rules():
    off, on = job_with(Warm(lr=0.1)), job_with(Warm(lr=0.1, warmth=2.0))
    NUMPY.engine().step([copied(off)])
    with pytest.raises(EngineError, match=UNKNOWN):
        NUMPY.engine().step([on])
    ours, theirs = copied(on), copied(on)
    measured = NUMPY.engine(insisting=False).step([ours, off])
    NUMPY.rule.step([theirs])
    assert bits([ours]) == bits([theirs])
    assert [isinstance(one, compiled.Measured) for one in measured] == [False, True]


def test_an_optimizer_with_such_an_option(monkeypatch):
    """As with an optimizer that a user derives."""
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    for fused in (None, True):
        opt = layerwise.torch.Lamb([p], lr=0.1, fused=fused)
        monkeypatch.setattr(opt, "_settings_of", lambda group: Warm(lr=0.1, warmth=2.0))
        if fused:
            with pytest.raises(EngineError, match=UNKNOWN):
                opt.step()
        else:
            opt.step()
            assert not isinstance(next(iter(opt._turns.values()))._prepared.stats()[0], compiled.Measured)


def other_formula():
    rule = ModuleType("layerwise.rules.other")
    rule.step, rule.State = lamb.step, lamb.State
    return rule


def without_momentum(job):
    return replace(job, state=job.state._replace(exp_avg=None))


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (job_with(lamb.Lamb(), other_formula()), "there are no kernels for layerwise.rules.other"),
        (job_with(SimpleNamespace()), "there are no kernels for SimpleNamespace"),
        (
            job_with(lamb.Lamb().settled(adapt="elsewhere")),
            r"there are no kernels for Lamb with .*adapt='elsewhere' and such a state",
        ),
        (
            without_momentum(job_with(lamb.Lamb())),
            r"there are no kernels for Lamb with .*adapt=True and such a state",
        ),
        (job_with(lamb.Lamb()), ""),
        (job_with(Warm()), ""),
    ],
)
def test_what_has_no_kernels(job, why):
    assert re.fullmatch(why, programs.missing(job))
    declined = compiled.CompiledEngine().declines(engines.Job(job.rule, job.h, job.p, job.state))
    assert declined == programs.missing(job)


def test_another_formula_with_the_same_options_is_the_rules():
    job = job_with(lamb.Lamb(lr=0.1), other_formula())
    with pytest.raises(EngineError, match=r"there are no kernels for layerwise\.rules\.other"):
        NUMPY.engine().step([job])
    ours, theirs = copied(job), copied(job)
    NUMPY.engine(insisting=False).step([ours])
    NUMPY.rule.step([theirs])
    assert bits([ours]) == bits([theirs])


def test_a_program_is_not_made_up():
    with pytest.raises(LookupError, match="there are no kernels for SimpleNamespace"):
        programs.program_for(job_with(SimpleNamespace()))


def test_the_gpu_engine_says_the_same():
    gpu = pytest.importorskip("layerwise.engines.gpu.engine", reason="it needs Triton")
    on = mapped(job_with(Warm(lr=0.1, warmth=2.0)), WORLDS[1].array)
    made = engines.Job(on.rule, on.h, on.p, on.state)
    assert "do not know the option `warmth` of Warm, which is 2.0" in gpu.declined(made)


# ---- what is printed


def test_every_option_of_today_is_known():
    for case in KERNELED:
        assert RULES[case.rule.__name__].known == {spec.name for spec in fields(case.hyper)}


def test_programs_are_those_of_the_extension():
    """In its order, by which alone they are called."""
    printed = {p.place: p.name for rule in RULES.values() for p in rule.programs.values()}
    assert [printed[i] for i in range(len(printed))] == compiled._native.programs()


def is_for_the_rule(job):
    """Caution is a round more than the kernels by rows and columns have."""
    return not job.h.has_kernels or (bool(getattr(job.h, "factored", False)) and job.h.caution)


@of_each
def test_every_setting_has_kernels(case):
    """All that are drawn, and each value of each option."""
    settings = [case.drawn(seed) for seed in range(40)]
    settings += [case.alone(*one)[1] for one in case.unusual()]
    for options in settings:
        for shape in (SHAPE, (7,), ()):
            job = make_job(case, case.hyper(**options), shape, (), 0)
            if is_for_the_rule(job):
                assert "there are no kernels for" in programs.missing(job)
                continue
            assert programs.missing(job) == "", options
            assert programs.program_for(job).name.startswith(case.name)


@pytest.mark.parametrize(
    ("value", "form"),
    [(None, None), (True, True), (False, False), ("l2", "l2")]
    + [(x, programs.ANY) for x in (0, 0.0, 1, 0.5, inf, (0.9, 0.999), ((0,), (1,)))],
)
def test_a_number_is_no_form(value, form):
    """0 and 1 are numbers like others, though False == 0 and True == 1."""
    assert programs.form_of(value) is form


def test_presence_of_a_state():
    assert programs.presence_of((np.zeros(2), None, 0)) == (True, False, True)


# ---- the numbers of a step


@of_each
def test_numbers_are_the_gradients_and_the_coefficients(case):
    for seed in range(20):
        h = case.hyper(**case.drawn(seed)).fit(SHAPE, (), 1e-7)
        for t in (1, 2, 5):
            now = now_of(h, t, 4.0)
            found = programs.numbers(h, now)
            k = case.rule.coefficients(np, h, now)
            assert len(found) == 6 + len(programs.names_of(k))
            assert all(isinstance(x, (int, float)) and x == x for x in found)
            assert found[:6] == programs.of_gradient(h, now)
            named = dict(zip(programs.names_of(k), found[6:], strict=True))
            for name, x in zip(k._fields, k, strict=True):
                expected = {f"{name}_{f}": y for f, y in x._asdict().items()} if isinstance(x, tuple) else {name: x}
                assert {key: named[key] for key in expected} == expected


def test_numbers_of_a_gradient():
    h = lamb.Lamb(max_grad_value=(-0.1, None), max_grad_norm=2.0, max_grad_norm_per_tensor=3.0, maximize=True)
    assert programs.of_gradient(h, Now(1, 0.1, 0.0, 8.0)) == (8.0, -1.0, -0.1, inf, 3.0, 2.0)
    assert programs.clips(h) == (True, True)
    for off in (lamb.Lamb(), lamb.Lamb(max_grad_norm=0, max_grad_norm_per_tensor=0, max_grad_value=0)):
        assert programs.of_gradient(off, Now(1, 0.1, 0.0)) == (1.0, 1.0, -inf, inf, inf, inf)
        assert programs.clips(off) == (False, False)


def test_a_gradient_without_a_bound_may_count_in_the_norm_of_all():
    h = lamb.Lamb().settled(max_grad_norm=inf)
    assert programs.clips(h) == (False, True)
    assert programs.of_gradient(h, Now(1, 0.1, 0.0))[4:] == (inf, inf)


def test_options_that_a_rule_lacks_do_nothing():
    h = lamb.Lamb(lr=0.1)
    lacking = {"max_grad_norm", "max_grad_norm_per_tensor"}
    bare = SimpleNamespace(
        value_bounds=None, model_bound=0.0, **{f.name: getattr(h, f.name) for f in fields(h) if f.name not in lacking}
    )
    now = now_of(h, 3)
    assert programs.of_gradient(bare, now) == programs.of_gradient(h, now)
    less = SimpleNamespace(
        **{f.name: getattr(h, f.name) for f in fields(h) if f.name not in ("max_weight_norm", "trust_eps")}
    )
    assert lamb.coefficients(np, less, now) == lamb.coefficients(np, h, now)


@pytest.mark.parametrize("field", ["t", "lr", "weight_decay", "g_scale", "beta2"])
@of_each
def test_a_number_that_is_not_known_here(case, field):
    """One that autograd follows, and one that is elsewhere; one in this machine's memory is known."""
    h = case.hyper(**case.busy).fit(SHAPE, (), 1e-7)
    now = Now(3.0, 0.5, 0.25, 2.0, 0.75)
    value = getattr(now, field)
    for x in (torch.tensor(value, requires_grad=True), torch.tensor(value, device="meta")):
        assert programs.numbers(h, now._replace(**{field: x})) is None
    for x in (torch.tensor(value), np.float64(value), np.array(value)):
        assert programs.numbers(h, now._replace(**{field: x})) == programs.numbers(h, now)


def test_numbers_of_settings_without_kernels():
    assert programs.numbers(SimpleNamespace(), Now(1, 0.1, 0.0)) is None


# ---- every option reaches something


def every_value():
    for case in KERNELED:
        for name, value in case.unusual():
            yield pytest.param(case, *case.alone(name, value), id=f"{case.name}-{name}-{in_words(value)}")
        for name, (value, beside) in STORED.items():
            if name in case.options:
                usual = {**case.usual(), **beside}
                yield pytest.param(case, usual, {**usual, name: value}, id=f"{case.name}-{name}-{in_words(value)}")


def reached(case, options):
    """All that engines learn of settings: the program, rows and columns, how state is kept, and numbers of steps."""
    job = make_job(case, case.hyper(**options), SHAPE, (), 0)
    steps = [programs.numbers(job.h, now_of(job.h, t)) for t in range(1, 5)]
    return compiled.form_of(job), programs.presence_of(job.state), job.h.state_dtypes(), steps


@pytest.mark.parametrize(("case", "without", "with_it"), [*every_value()])
def test_every_option_reaches_a_number_or_a_structure(case, without, with_it):
    assert reached(case, without) != reached(case, with_it)
    assert reached(case, with_it) == reached(case, with_it)


@of_each
def test_no_option_is_left_out_there(case):
    assert {name for name, _ in case.unusual()} | {*STORED} >= {spec.name for spec in fields(case.hyper)}
