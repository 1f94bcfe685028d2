"""What kernels do not walk through, or do not know, is stepped by the rule, bit for bit, beside what they take.
Where kernels are insisted on, the error says the reason.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cases import case_of
from engines.worlds import Stepping, bits, make_job, mapped
from gpu.world import DEVICE, ENGINE, GPU, RULE, SMALL, cases, copies, given, had, jobs_of, near, prepared, step

from layerwise import engines
from layerwise.engines.gpu import GpuEngine, candidate, installed, specialization
from layerwise.engines.gpu.installed import reason_missing
from layerwise.engines.gpu.specialization import why_declined
from layerwise.errors import EngineError

LAMB, ADAFACTOR = case_of("Lamb"), case_of("Adafactor")
UNFACTORED = {"Adafactor": {"factored": False}, "SGD": {"momentum": 0.9}}
PLANES = "is not stored as matrices, rows .* and columns .*, in this order"


def turned(a):
    return a.mT.contiguous().mT


def spread(a):
    return torch.zeros(6, 8, device=DEVICE)[:, ::2].copy_(a)


def rows_apart(a):
    return torch.zeros(6, 10, 1, device=DEVICE)[:, ::2].copy_(a) if a.shape == (6, 5, 1) else a.clone()


def check(make, reason):
    """Jobs that `make` returns are declined with this reason, and the rule's bits come of them."""
    ours, theirs = make(), make()
    with pytest.raises(EngineError, match=reason):
        Stepping(GpuEngine(sizes=SMALL)).step([ours])
    GPU.engine(required=False).step([ours])
    GPU.rule.step([theirs])
    assert bits([ours]) == bits([theirs])


@pytest.mark.thinned(2)
@cases
@pytest.mark.parametrize(
    ("shape", "blocks", "of_p", "of_state", "reason"),
    [
        ((6, 4), (), spread, None, "leave gaps in memory"),
        ((6, 4), (), None, turned, r"a state has strides \(1, 6\), but the parameter has \(4, 1\)"),
        ((3, 2, 4), (1,), None, None, r"blocks along dimensions \(1,\) of \(3, 2, 4\) are not contiguous in memory"),
        ((3, 4, 2), (0,), turned, turned, r"blocks along dimensions \(0,\) of \(3, 4, 2\) are not contiguous"),
    ],
    ids=["spread", "a state transposed", "blocks in between", "blocks transposed"],
)
def test_what_is_no_stretch_of_memory(case, shape, blocks, of_p, of_state, reason):
    def make():
        job = mapped(make_job(case, case.hyper(**UNFACTORED.get(case.name, {})), shape, blocks, 0), GPU.array)
        state = type(job.state)(*(None if s is None else (of_state or GPU.copy)(s) for s in job.state))
        return replace(job, p=(of_p or GPU.copy)(job.p), state=state)

    check(make, reason)


@pytest.mark.parametrize(
    ("shape", "factored", "change", "reason"),
    [
        ((6, 5, 3, 3), (0, 1), GPU.copy, PLANES),  # matrices that lie inside one another
        ((6, 5), (1, 0), GPU.copy, PLANES),
        ((6, 5, 7), ((0, 2), (1,)), GPU.copy, PLANES),
        ((6, 5, 7), ((2, 1), (0,)), GPU.copy, PLANES),
        ((3, 4, 5, 2), ((3, 0), (1, 2)), GPU.copy, PLANES),
        ((6, 5), "last", turned, PLANES),
        ((6, 5, 4), "last", rows_apart,
         "the state exp_avg_sq_row is not contiguous"),
    ],
)  # fmt: skip
def test_matrices_that_lie_otherwise_than_adafactor_sums_them(shape, factored, change, reason):
    def make():
        job = make_job(ADAFACTOR, ADAFACTOR.hyper(lr=0.1, beta1=0.9, factored=factored), shape, (), 0)
        return mapped(mapped(job, GPU.array), change)

    check(make, reason)


def test_the_shape_of_the_whole_decides_not_of_the_shard():
    """All ranks have to choose the same engine, also one whose part is a single row."""
    [job] = jobs_of(ADAFACTOR, [(1, 5)], factored=(1, 0))
    alone = given(replace(job, h=ADAFACTOR.hyper(factored=(1, 0)).fit((1, 5), (), 1e-7)))
    assert why_declined(alone) == ""
    assert "is not stored as matrices" in why_declined(alone._replace(shape=(6, 5)))


@pytest.mark.thinned(2)
@cases
@pytest.mark.parametrize("bound", [None, 0.5])
def test_it_is_stepped_beside_what_kernels_take_and_under_the_same_bound(case, bound):
    jobs = jobs_of(case, [(6, 5), (7,)], max_grad_norm=bound)
    options = had(case, max_grad_norm=bound, **UNFACTORED.get(case.name, {}))
    far = mapped(make_job(case, case.hyper(**options), (2,) * 5, (), 9), GPU.array)
    jobs.append(replace(far, p=torch.zeros((4,) * 5, device=DEVICE)[::2, ::2, ::2, ::2, ::2].copy_(far.p)))
    others = [*copies(jobs[:2]), mapped(jobs[2], GPU.copy)]
    ready, theirs = prepared(jobs, ENGINE, RULE), prepared(others, RULE)
    assert not ready.counts
    step(ready, jobs)
    step(theirs, others)
    near(jobs, others)
    assert [set(stats) for stats in ready.stats()] == [set(stats) for stats in theirs.stats()]


@pytest.mark.parametrize(
    ("absent", "version", "reason"),
    [
        (None, "3.10.0", ""),
        (None, "2.9.1", "Triton 2.9.1 is too old"),
        ("triton", "3.10.0", "triton cannot be imported"),
        ("torch", "3.10.0", "torch cannot be imported"),
    ],
)
def test_a_machine_without_its_packages_has_no_engine_and_knows_why(absent, version, reason, monkeypatch):
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == absent else 1)
    monkeypatch.setattr(installed, "version", lambda name: version)
    row = candidate(RULE)
    assert (row.declined or "").startswith(reason)
    assert reason_missing().startswith(reason)
    assert isinstance(row.engine, GpuEngine) is not bool(reason)


def test_tensors_in_the_machines_memory_are_left_to_others_unless_who_asks_insists(monkeypatch):
    monkeypatch.setattr(specialization, "DEVICES", ("cpu",))
    row, [job] = candidate(RULE), make_jobs_on_cpu()
    assert row.engine.reasons_to_decline([job]) == ["the parameter is not on a GPU"]
    assert row.required.reasons_to_decline([job]) == [""]


def make_jobs_on_cpu():
    h = LAMB.hyper().fit((3,), (), 1e-7)
    shapes = LAMB.rule.shapes(h, (3,))
    return [engines.Job(LAMB.rule, h, torch.ones(3), type(shapes)(*(s and torch.zeros(s) for s in shapes)))]


def test_a_tensor_of_no_blocks():
    """No kernel would count its step."""
    check(lambda: mapped(make_job(LAMB, LAMB.hyper(), (0, 4), (0,), 0), GPU.array), "there are no blocks")


class Apart(torch.Tensor):
    """A tensor of somebody's own, which may not lie where it says."""


def test_tensors_of_other_classes():
    [job] = jobs_of(LAMB, [(3,)])
    assert why_declined(given(job)) == ""
    assert "Apart" in why_declined(given(replace(job, p=job.p.as_subclass(Apart))))
