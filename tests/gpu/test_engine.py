"""The GPU engine by itself: what it launches, what it is told, what it counts, what it leaves to others."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import KERNELED, case_of
from engines.worlds import bits, make_job, mapped, new_gradient, now_of, numbers, stored
from gpu.world import DEVICE, GPU, RULE, SMALL, had

from layerwise import engines
from layerwise.engines import Counter, places
from layerwise.engines.distributor import prepare
from layerwise.engines.gpu import OnDemand, candidate, engine, step_params, why_not
from layerwise.engines.gpu.engine import GpuEngine
from layerwise.engines.gpu.kernels import parts
from layerwise.errors import EngineError
from layerwise.rules.asks import Now

cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
ENGINE = GpuEngine(None, SMALL)
SHAPES = [(20, 13), (5,), (), (4, 3, 2), (0, 4), (200,)]


def jobs_of(case, shapes=SHAPES, dtypes=("float32",) * 3, **options):
    made = [make_job(case, case.hyper(**had(case, **options)), shape, (), i, dtypes) for i, shape in enumerate(shapes)]
    return [mapped(job, GPU.array) for job in made]


def prepared(jobs, *own):
    return prepare(own or (ENGINE,), [engines.Job(j.rule, j.h, j.p, j.state, j.block_dims) for j in jobs])


def step(ready, jobs, nows=None, skip=None, grads=None):
    ready.step(grads or [job.g for job in jobs], nows or [job.now for job in jobs], skip)


def copies(jobs):
    return [mapped(job, GPU.copy) for job in jobs]


@pytest.fixture
def launches(monkeypatch):
    """The kernels launched, by name."""
    found = []
    kind = type(parts.add_up)
    run = kind.run

    def noted(self, *args, **kwargs):
        found.append(self.__name__)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(kind, "run", noted)
    return found


@cases
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0}], ids=["plain", "clipped"])
def test_launches_are_as_many_for_many_tensors(case, options, launches):
    counted = []
    for n in (2, 6):
        jobs = jobs_of(case, [(6, 5), (7,)] * n, **options)
        ready = prepared(jobs)
        step(ready, jobs)
        launches.clear()
        step(ready, jobs)
        counted.append(list(launches))
    assert counted[0] == counted[1]


@cases
def test_twice_the_same_bits(case):
    jobs = jobs_of(case)
    others = copies(jobs)
    step(prepared(jobs), jobs)
    step(prepared(others), others)
    assert bits(jobs) == bits(others)


@cases
def test_what_is_known_on_the_device_alone(case):
    """t, lr, weight decay and scale as tensors give what they give as numbers."""
    jobs = jobs_of(case, lr=0.1, weight_decay=0.1)
    others = copies(jobs)
    step(prepared(jobs), jobs, [Now(3, 0.1, 0.25, 8.0)] * len(jobs))
    told = [torch.tensor(x, dtype=torch.float64, device=DEVICE) for x in (0.1, 0.25)]
    double, half = (torch.tensor(8.0, dtype=dtype, device=DEVICE) for dtype in (torch.float64, torch.float16))
    nows = [Now(torch.tensor(3, device=DEVICE), *told, scale) for scale in (double, half) * 3]
    step(prepared(others), others, nows)
    assert bits(jobs) == bits(others)


@cases
def test_counters_are_counted(case):
    jobs = jobs_of(case)
    others = copies(jobs)
    ready, theirs = prepared(jobs), prepared(others)
    assert ready.counts
    counts = [torch.tensor(0, device=DEVICE) for _ in jobs]
    for t in (1, 2, 3):
        now = now_of(jobs[0].h, t)
        step(ready, jobs, [now._replace(t=Counter(count)) for count in counts])
        step(theirs, others, [now] * len(jobs))
        assert [int(count) for count in counts] == [t] * len(jobs)
        assert bits(jobs) == bits(others)


@cases
def test_a_default_device_is_none_of_its_business(case):
    """As where a model is made without memory."""
    jobs = jobs_of(case, max_grad_norm=1.0)
    others = copies(jobs)
    with torch.device("meta"):
        ready = prepared(jobs)
        for t in (1, 2):
            step(ready, jobs, [now_of(jobs[0].h, t)] * len(jobs))
    theirs = prepared(others)
    for t in (1, 2):
        step(theirs, others, [now_of(jobs[0].h, t)] * len(jobs))
    assert bits(jobs) == bits(others)


@cases
def test_a_skipped_step_changes_nothing(case):
    jobs = jobs_of(case, max_grad_norm=1.0)
    ready = prepared(jobs)
    step(ready, jobs)
    before, counts = bits(jobs), [torch.tensor(1, device=DEVICE) for _ in jobs]
    nows = [job.now._replace(t=Counter(count)) for job, count in zip(jobs, counts, strict=True)]
    bad = [torch.full_like(job.g, np.nan) for job in jobs]
    step(ready, jobs, nows, torch.tensor(True, device=DEVICE), bad)
    assert bits(jobs) == before
    assert [int(count) for count in counts] == [1] * len(jobs)
    step(ready, jobs, nows, torch.tensor(False, device=DEVICE))
    assert bits(jobs) != before
    assert [int(count) for count in counts] == [2] * len(jobs)


@cases
def test_what_was_measured_stands_when_a_step_is_skipped(case):
    jobs = jobs_of(case, [(12, 10), (5,)])
    ready = prepared(jobs)
    step(ready, jobs)
    before = [dict(stats) for stats in ready.stats()]
    bad = [torch.full_like(job.g, np.nan) for job in jobs]
    step(ready, jobs, skip=torch.tensor(True, device=DEVICE), grads=bad)
    assert [dict(stats) for stats in ready.stats()] == before


@cases
def test_tensors_of_no_blocks_count_their_steps(case):
    h = case.hyper().fit((0, 4), (0,), 2.0**-23)
    p = torch.zeros(0, 4, device=DEVICE)
    state = type(case.rule.shapes(h, (0, 4)))(
        *(None if s is None else torch.zeros(s, device=DEVICE) for s in case.rule.shapes(h, (0, 4)))
    )
    ready, count = ENGINE.prepare([engines.Job(case.rule, h, p, state, (0,))]), torch.tensor(0, device=DEVICE)
    now = now_of(case.hyper(), 1)._replace(t=Counter(count))
    ready.step([p.clone()], [now])
    ready.step([p.clone()], [now], torch.tensor(True, device=DEVICE))
    assert int(count) == 1


@cases
def test_a_bound_of_one_tensor_is_none_of_anothers(case):
    """Whose squares are beyond float32, and who is not bounded."""
    bounded, free = jobs_of(case, [(4,)], max_grad_norm_per_tensor=1.0), jobs_of(case, [(4,)])
    big = torch.tensor([3e19, 1.0, 1.0, 1.0], device=DEVICE)
    alone, together = copies(free), copies(free)
    ready = prepared([*bounded, *together])
    step(ready, [*bounded, *together], grads=[bounded[0].g, big])
    step(prepared(alone), alone, grads=[big])
    np.testing.assert_array_equal(numbers(together[0].p), numbers(alone[0].p))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, of the interpreter
@cases
def test_an_infinite_norm_of_all_leaves_alone_who_only_counts(case):
    """Whose bound is infinite too, and inf/inf is nan."""
    bounded, free = jobs_of(case, [(4,)], max_grad_norm=1.0), jobs_of(case, [(4,)])
    counting = [replace(job, h=job.h.counting()) for job in copies(free)]
    infinite = torch.tensor([torch.inf, 1.0, 1.0, 1.0], device=DEVICE)
    step(prepared([*bounded, *counting]), [*bounded, *counting], grads=[infinite, free[0].g])
    step(prepared(free), free)
    assert not torch.isfinite(bounded[0].p).all()
    np.testing.assert_array_equal(numbers(counting[0].p), numbers(free[0].p))


@cases
def test_step_parameters_are_sent_when_they_change(case, monkeypatch):
    jobs = jobs_of(case)
    ready, sent = prepared(jobs), []
    send = step_params.StepParams._send
    monkeypatch.setattr(step_params.StepParams, "_send", lambda self, *args: (sent.append(1), send(self, *args)))
    counts = [torch.tensor(0, device=DEVICE) for _ in jobs]
    nows = [job.now._replace(t=Counter(count)) for job, count in zip(jobs, counts, strict=True)]
    for _ in range(3):
        step(ready, jobs, nows)
    assert len(sent) == 1
    step(ready, jobs, nows, grads=[job.g.clone() for job in jobs])
    assert len(sent) == 2


def test_settings_that_tensors_share_are_computed_once(monkeypatch):
    """As often for a hundred tensors in two groups as for two, and each tensor has its own group's."""
    computed, numbers_of = [], step_params.numbers
    monkeypatch.setattr(step_params, "numbers", lambda *given: (computed.append(1), numbers_of(*given))[1])
    made, tables = [], []
    own = jobs_of(case_of("Lamb"), [(5,)])[0]
    job = engines.Job(own.rule, own.h, own.p, own.state)
    for n in (2, 100):
        params = step_params.StepParams([job] * n, torch.device(DEVICE))
        groups = Now(3, 0.1, 0.0), Now(3, 0.2, 0.5)
        computed.clear()
        params.write([groups[i % 2] for i in range(n)])
        made.append(len(computed))
        tables.append(params._written)
    assert made == [2, 2]
    np.testing.assert_array_equal(tables[1], np.tile(tables[0], (50, 1)))
    assert (tables[0][0] != tables[0][1]).sum() == 2


@cases
@pytest.mark.parametrize("extension", [True, False])
def test_gradients_that_lie_otherwise(case, extension, monkeypatch):
    """Another dtype, other strides, another alignment, from one step to the next."""
    if not extension:
        monkeypatch.setattr(places, "_native", None)
    jobs = jobs_of(case, [(12, 10), (4, 3, 2, 5)])
    others = copies(jobs)
    ready = prepared(jobs)

    def turned(g):
        return g.mT.contiguous().mT if g.ndim == 2 else g.contiguous(memory_format=torch.channels_last)

    def odd(g):
        return torch.empty(g.numel() + 1, dtype=g.dtype, device=DEVICE)[1:].view(g.shape).copy_(g)

    for t, change in enumerate((lambda g: g, turned, odd, torch.Tensor.bfloat16, lambda g: g[..., :1].expand_as(g)), 1):
        fresh = [GPU.array(new_gradient(job.p.cpu().numpy(), t, "float32")) for job in jobs]
        grads = [change(g) for g in fresh]
        step(ready, jobs, [now_of(jobs[0].h, t)] * 2, grads=grads)
        same = [
            replace(job, g=g.clone(memory_format=torch.contiguous_format)) for job, g in zip(others, grads, strict=True)
        ]
        step(prepared(same), same, [now_of(jobs[0].h, t)] * 2)
        for one, other in zip(jobs, same, strict=True):
            for x, y in zip(stored(one), stored(other), strict=True):
                np.testing.assert_allclose(numbers(x), numbers(y), rtol=1e-5, atol=1e-7)


def test_a_number_in_a_dtype_that_is_converted_may_change():
    case = case_of("Lamb")
    jobs, others = jobs_of(case, [(5,)]), jobs_of(case, [(5,)])
    ready, rate = prepared(jobs), torch.tensor(0.5, dtype=torch.float16, device=DEVICE)
    nows = [Now(1, rate, 0.0)]
    step(ready, jobs, nows)
    rate.fill_(0.25)
    step(ready, jobs, nows)
    theirs = prepared(others)
    for lr in (0.5, 0.25):
        step(theirs, others, [Now(1, lr, 0.0)])
    assert bits(jobs) == bits(others)


def test_kinds_are_grouped():
    jobs = jobs_of(case_of("Lamb"), [(8,), (9,)]) + jobs_of(
        case_of("Lamb"), [(8,), (9,)], ("bfloat16", "bfloat16", "float32")
    )
    ready = prepared(jobs)
    step(ready, jobs)
    assert [len(group.jobs) for group in ready._last[0].prepared._laid.tables.layers.groups] == [2, 2]


def test_what_is_measured_can_be_kept():
    jobs = jobs_of(case_of("Lamb"))
    ready = prepared(jobs)
    assert ready.stats() == []
    step(ready, jobs)
    stats = ready.stats()
    first = pickle.loads(pickle.dumps(dict(stats[0])))
    assert set(first) == {"weight_norm", "update_norm", "trust_ratio"}
    step(ready, jobs)
    assert dict(ready.stats()[0]) != first


def turned(a):
    return a.mT.contiguous().mT


def spread(a):
    return torch.zeros(*a.shape, 2, device=DEVICE)[..., 0].copy_(a)


ELSEWHERE = [
    (
        (6, 4),
        (),
        lambda a: torch.zeros(6, 8, device=DEVICE)[:, ::2].copy_(a),
        None,
        "do not fill one stretch of memory",
    ),
    ((6, 4), (), None, turned, r"a state has strides \(1, 6\), and the parameter \(4, 1\)"),
    ((3, 2, 4), (1,), None, None, r"blocks along dimensions \(1,\) of \(3, 2, 4\) are not stretches of memory"),
    ((3, 4, 2), (0,), turned, turned, r"blocks along dimensions \(0,\) of \(3, 4, 2\) are not stretches of memory"),
]


def elsewhere(case, shape, blocks, of_p, of_state):
    """A job that lies in memory as kernels do not walk through it."""
    job = mapped(make_job(case, case.hyper(**UNFACTORED.get(case.name, {})), shape, blocks, 0), GPU.array)
    state = type(job.state)(*(None if s is None else (of_state or GPU.copy)(s) for s in job.state))
    return replace(job, p=(of_p or GPU.copy)(job.p), state=state)


UNFACTORED = {"Adafactor": {"factored": False}, "SGD": {"momentum": 0.9}}


@cases
@pytest.mark.parametrize(("shape", "blocks", "of_p", "of_state", "reason"), ELSEWHERE)
def test_what_is_no_stretch_of_memory_is_stepped_by_the_rule(case, shape, blocks, of_p, of_state, reason):
    ours, theirs = (elsewhere(case, shape, blocks, of_p, of_state) for _ in range(2))
    with pytest.raises(EngineError, match=reason):
        prepared([ours])
    step(prepared([ours], ENGINE, RULE), [ours])
    step(prepared([theirs], RULE), [theirs])
    assert bits([ours]) == bits([theirs])


@cases
@pytest.mark.parametrize(
    ("shape", "blocks", "laid"),
    [
        ((1, 2, 1, 2, 1, 2, 1, 2, 1, 2), (), torch.clone),
        ((4, 3, 2, 2), (), lambda a: a.contiguous(memory_format=torch.channels_last)),
        ((5, 1, 3), (0,), lambda a: a.as_strided((5, 1, 3), (3, 77, 1))),  # no stride of one entry matters
        ((1, 3, 4), (1,), torch.clone),
    ],
)
def test_what_fills_its_memory_is_taken_in_any_order(case, shape, blocks, laid):
    job = mapped(make_job(case, case.hyper(**UNFACTORED.get(case.name, {})), shape, blocks, 0), GPU.array)
    job = replace(mapped(job, lambda a: laid(a) if a.shape == job.p.shape else a), g=job.g.clone())
    theirs = mapped(job, GPU.copy)
    step(prepared([job]), [job])
    step(prepared([theirs], RULE), [theirs])
    for x, y in zip(stored(job), stored(theirs), strict=True):
        np.testing.assert_allclose(numbers(x), numbers(y), rtol=1e-5, atol=1e-7)


def test_other_rules_are_declined():
    job = jobs_of(case_of("Lamb"), [(3,)])[0]
    strange = engines.Job(job.rule, object(), job.p, job.state)
    assert "no kernels for object" in engine.declined(strange)


@cases
@pytest.mark.parametrize("model", [None, 0.5])
def test_some_are_left_to_the_rule(case, model):
    """A tensor that the kernels do not take is stepped beside those they take."""
    jobs = jobs_of(case, [(6, 5), (7,)], max_grad_norm=model)
    far = torch.zeros((4,) * 5, device=DEVICE)[::2, ::2, ::2, ::2, ::2]
    strange = make_job(
        case,
        case.hyper(**had(case, max_grad_norm=model), factored=False) if case.name == "Adafactor" else jobs[0].h,
        (2,) * 5,
        (),
        9,
    )
    strange = mapped(strange, GPU.array)
    spread = torch.empty_like(far.as_strided(far.shape, far.stride())).set_(far).copy_(strange.p)
    jobs = [*jobs, replace(strange, p=spread)]
    others = copies(jobs)
    ready = prepared(jobs, ENGINE, RULE)
    assert not ready.counts
    step(ready, jobs)
    prepared(others, RULE).step([job.g for job in others], [job.now for job in others])
    for one, other in zip(jobs, others, strict=True):
        for x, y in zip(stored(one), stored(other), strict=True):
            np.testing.assert_allclose(numbers(x), numbers(y), rtol=1e-5, atol=1e-7)
    assert [set(stats) for stats in ready.stats()] == [set(stats) for stats in prepared_stats(others)]


def prepared_stats(jobs):
    ready = prepared(jobs, RULE)
    ready.step([job.g for job in jobs], [job.now for job in jobs])
    return ready.stats()


def test_the_table_says_why_there_is_none(monkeypatch):
    assert why_not() == ""
    assert isinstance(candidate(RULE).engine, OnDemand)
    from layerwise.engines import gpu

    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name == "triton" else 1)
    row = candidate(RULE)
    assert row.engine is None
    assert "triton" in row.declined
