"""Options and formulas that kernels do not know are the rule's, and errors name them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from cases import case_of
from engines.worlds import WORLDS, bits, copied, make_job, mapped, needed

import layerwise.torch
from layerwise import engines
from layerwise.checks import number
from layerwise.engines import compiled, options
from layerwise.errors import EngineError
from layerwise.hyper import option
from layerwise.rules import adafactor, lamb, lars

pytestmark = needed
NUMPY = WORLDS[0]
UNKNOWN = r"compiled engine does not take .* do not know the option `warmth` of Warm, which is 2\.0"


@dataclass(frozen=True)
class Warm(lamb.Lamb):
    """LAMB's options, and one that the kernels do not know."""

    warmth: float = option(0.0, number(0), "Nothing.", "Pass a number.")


def job_with(h, rule=lamb):
    case = case_of("Lamb")
    return replace(make_job(case, case.hyper(lr=0.1), (6, 4), (), 0), h=h, rule=rule)


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


def test_another_formula_with_the_same_options_is_the_rules():
    rule = ModuleType("layerwise.rules.other")
    rule.step, rule.State = lamb.step, lamb.State
    job = job_with(lamb.Lamb(lr=0.1), rule)
    with pytest.raises(EngineError, match=r"there are no kernels for layerwise\.rules\.other"):
        NUMPY.engine().step([job])
    NUMPY.engine(insisting=False).step([job])


@pytest.mark.parametrize("cls", [lamb.Lamb, lars.Lars, adafactor.Adafactor])
def test_every_option_of_today_is_known(cls):
    assert options.OPTIONS[cls] == {spec.name for spec in fields(cls)}


def test_every_option_of_today_is_known_on_the_gpu():
    prepared = pytest.importorskip("layerwise.engines.gpu.prepared", reason="it needs Triton")
    for cls, known in options.OPTIONS.items():
        assert {*prepared.OPTIONS[cls]} == known


def test_the_gpu_engine_says_the_same():
    gpu = pytest.importorskip("layerwise.engines.gpu.engine", reason="it needs Triton")
    on = mapped(job_with(Warm(lr=0.1, warmth=2.0)), WORLDS[1].array)
    made = engines.Job(on.rule, on.h, on.p, on.state)
    assert "do not know the option `warmth` of Warm, which is 2.0" in gpu.declined(made)


def test_a_rule_need_not_have_the_options_that_others_share():
    h = case_of("Lamb").hyper(lr=0.1)
    bare = SimpleNamespace(**{spec.name: getattr(h, spec.name) for spec in fields(h) if "grad" not in spec.name})
    assert options._gradient(bare) == options._gradient(h)
