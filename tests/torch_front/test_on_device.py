"""What the front does on the device: one call for all tensors, and nobody waits for an answer."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch.nn import Parameter
from torch_front.front import bits, fronts, parameters, set_grads, told_on_device, twins, walk

from layerwise.engines import DeviceStepCount
from layerwise.errors import ContradictionError
from layerwise.torch import Lamb
from layerwise.torch.groups import _rules
from layerwise.torch.step import _checks, _planner, _stepper

NAN, INF = float("nan"), float("inf")


class Standing:
    """An engine that does nothing but note what it is told, and count, if it `counts`."""

    name, layouts = "the standing engine", None

    def __init__(self, counts=False):
        self.counts, self.told = counts, []

    def reasons_to_decline(self, jobs, given=None):
        return [""] * len(jobs)

    def groups(self, jobs):
        return [None] * len(jobs)

    def prepare(self, jobs, layouts=None):
        self.jobs = jobs
        return self

    def step(self, grads, nows, skip=None, others=None):
        self.told.append((list(nows), skip))
        if self.counts:
            on_device = [now.t.step for now in nows if isinstance(now.t, DeviceStepCount)]
            if on_device:
                torch._foreach_add_(on_device, 1 if skip is None else [(~skip).long()] * len(on_device))

    def stats(self):
        return [{} for _ in self.jobs]


@pytest.fixture
def standing(monkeypatch):
    def stand(counts=False):
        engine = Standing(counts)
        monkeypatch.setattr(_planner, "engines_of", lambda *_: (engine,))
        return engine

    return stand


def test_each_group_gets_its_current_count_and_rate(standing):
    """Of a group that may be captured, a counter on the device; of another one, a number."""
    engine = standing(counts=True)
    a, b = parameters(1), {f"{name} of b": p for name, p in parameters(2).items()}
    opt = Lamb([{"params": list(a.items()), "capturable": True, "lr": 0.5}, {"params": list(b.items())}], lr=0.25)
    for t, lr in enumerate((0.5, 0.125, 0.125), 1):
        opt.param_groups[0]["lr"] = lr
        walk(opt, {**a, **b}, [1])
        nows, _ = engine.told[-1]
        assert [now.lr for now in nows] == [lr] * len(a) + [0.25] * len(b)
        assert all(isinstance(now.t, DeviceStepCount) for now in nows[: len(a)])
        assert {now.t for now in nows[len(a) :]} == {t}
    opt.param_groups[1]["capturable"] = True
    walk(opt, {**a, **b}, [1])
    assert all(isinstance(now.t, DeviceStepCount) for now in engine.told[-1][0])
    assert {int(state["step"]) for state in opt.state.values()} == {4}


def test_a_tensor_in_pieces_is_counted_once(standing):
    engine = standing(counts=True)
    params = {"w": Parameter(torch.ones(5, 4))}
    opt = Lamb(params.items(), blocks={"w": [2, 3]}, capturable=True)
    walk(opt, params, range(2))
    [*_, (nows, _)] = engine.told
    assert [int(now.t) for now in nows] == [2, 2]
    assert int(opt.state[params["w"]]["step"]) == 2


# ---- nobody waits: on the meta device there is nothing that could be waited for


@pytest.fixture
def meta(monkeypatch):
    """Let parameters be on the meta device."""
    check = _checks.check_parameter
    monkeypatch.setattr(_checks, "check_parameter", lambda name, p: None if p.is_meta else check(name, p))

    def on_meta(**options):
        dtypes = torch.float32, torch.bfloat16, torch.float16
        params = {str(i): Parameter(torch.ones(3, 2, dtype=dtype, device="meta")) for i, dtype in enumerate(dtypes)}
        for p in params.values():
            p.grad = torch.ones_like(p)
        return params, options

    return on_meta


def scalar(number):
    return torch.tensor(number).to("meta")


@pytest.mark.parametrize("engine", ["counts", "does not count", "rule"])
@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("skip_nonfinite", [False, True])
@pytest.mark.parametrize("capturable", [False, True])
@fronts
@pytest.mark.thinned(1)
def test_a_step_does_not_synchronize(front, capturable, skip_nonfinite, amp, engine, meta, standing):
    params, options = meta(lr=scalar(0.1), weight_decay=scalar(0.01), master_weights=True)
    if engine != "rule":
        standing(engine == "counts")
    opt = front(params.items(), **options, capturable=capturable, skip_nonfinite=skip_nonfinite)
    for _ in range(3):
        if amp:
            opt.grad_scale, opt.found_inf = scalar(8.0), scalar(0.0)
        opt.step()
    assert all(state["step"].is_meta for state in opt.state.values()) is (capturable or skip_nonfinite or amp)
    assert all(state["master"].is_meta for state in opt.state.values() if "master" in state)
    assert isinstance(opt.skipped, torch.Tensor) is (skip_nonfinite or amp)


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("event", ["a scaler is dropped", "a gradient comes late", "a checkpoint is loaded"])
def test_counts_that_were_on_the_device_once_stay_there_and_others_join_them(event, counts, meta, standing):
    params, _ = meta()
    engine, [late, *_] = standing(counts), params.values()
    if event == "a gradient comes late":
        late.grad = None
    opt = Lamb(params.items())
    if event != "a checkpoint is loaded":
        opt.found_inf = scalar(0.0)
    opt.step()
    if event == "a checkpoint is loaded":  # that has some counts there and others not
        for state, where in zip(opt.state.values(), ("meta", "cpu", "meta"), strict=True):
            state["step"] = torch.tensor(5).to(where)
    else:
        del opt.found_inf
        late.grad = torch.ones_like(late)
    opt.step()
    assert all(state["step"].is_meta for state in opt.state.values())
    nows, _ = engine.told[-1]
    assert all((now.t.step if counts else now.t).is_meta for now in nows)


def test_known_values_are_not_read_from_the_device():
    gone = torch.ones(2, device="meta")
    assert _checks.to_skip([gone], torch.tensor(1.0), False) is True
    assert _checks.to_skip([gone], torch.tensor(0.0), False) is None
    assert _checks.to_skip([gone, torch.tensor([NAN])], None, True) is True
    assert _checks.to_skip([gone, torch.tensor([1.0])], None, True).is_meta
    assert _checks.to_skip([torch.zeros(0), torch.zeros(2, 0)], None, True) is None
    assert _checks.to_skip([], torch.tensor([2.0]), True) is True


# ---- what is skipped


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 40, 99])
@pytest.mark.parametrize("dtype", _checks.FLOATING, ids=str)
def test_one_number_that_is_not_finite_is_seen_among_gradients_of_all_kinds(dtype, place, bad):
    grads = [torch.full((100,), torch.finfo(one).max, dtype=one) for one in _checks.FLOATING]
    grads += [torch.zeros(0, 3), torch.tensor(-1.0), torch.ones(3, 4).t()]
    assert _checks.to_skip(grads, None, True) is None
    grads[_checks.FLOATING.index(dtype)][place] = bad
    assert _checks.to_skip(grads, None, True) is True


def test_skipped_steps_are_counted_where_a_captured_step_counts_them(monkeypatch):
    params = parameters(1)
    opt = Lamb(params.items())
    told_on_device(monkeypatch, True)
    walk(opt, params, [1])
    before, kept = opt.skipped, opt._stepper.skipped
    walk(opt, params, [1])
    assert (before, opt.skipped) == (1, 2)
    assert opt._stepper.skipped is kept, "the tensor that a graph has the address of"
    assert copy.deepcopy(opt).skipped == 2


# ---- rates


def test_alike_keeps_rows_together():
    first = [torch.ones(1), torch.ones(2, dtype=torch.float64), torch.ones(3), torch.ones(4)]
    second = [torch.ones(1), torch.ones(2), torch.ones(3, dtype=torch.float16), torch.ones(4)]
    found = [[[len(x) for x in column] for column in some] for some in _checks.by_device_and_dtype(first, second)]
    assert found == [[[1, 4], [1, 4]], [[2], [2]], [[3], [3]]]
    assert list(_checks.by_device_and_dtype()) == []


@pytest.mark.parametrize("name", ["lr", "weight_decay"])
@fronts
def test_a_rate_in_memory_is_refused_where_the_step_may_be_captured(front, name, meta):
    params, _ = meta()
    with pytest.raises(ContradictionError, match=rf"`{name}` must be on meta .*is 'cpu'.*torch.tensor\(0.25"):
        front(params.items(), capturable=True, **{name: torch.tensor(0.25)})
    opt = front(params.items(), capturable=True, **{name: scalar(0.25)})
    opt.param_groups[0][name] = torch.tensor(0.25)
    with pytest.raises(ContradictionError, match=f"`{name}`"):
        opt.step()
    assert not opt.state
    front(params.items(), **{name: torch.tensor(0.25)})
    opt = front([Parameter(torch.ones(2))], capturable=True, **{name: torch.tensor(0.25)})
    with pytest.raises(ContradictionError, match=f"`{name}`"):
        opt.add_param_group({"params": list(params.values())})
    assert len(opt.param_groups) == 1


@pytest.fixture
def capturing(monkeypatch):
    fake = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: True)
    monkeypatch.setattr(_rules.torch, "cuda", fake)
    for module in (_rules, _stepper):
        monkeypatch.setattr(module, "on_gpu", fake.is_initialized)


@pytest.mark.parametrize(
    ("options", "scheduled", "refused"),
    [
        ({"lr": 0.5}, False, "`capturable` must be True when a CUDA graph is captured"),
        ({"lr": 0.5, "capturable": True}, False, None),
        ({"lr": 0.5, "capturable": True}, True, "`lr` must be a tensor"),
        ({"lr": torch.tensor(0.5), "capturable": True}, True, None),
    ],
)
def test_a_capture_that_would_not_follow_counts_or_schedulers_is_refused(options, scheduled, refused, capturing):
    params = parameters(1)
    opt = Lamb(params.items(), **options)
    if scheduled:
        torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
    set_grads(params, 1)
    before = bits(params)
    if refused is None:
        opt.step()
    else:
        with pytest.raises(ContradictionError, match=refused):
            opt.step()
        assert not opt.state
    assert (bits(params) == before) is (refused is not None)


def test_set_lr_writes_where_a_captured_step_looks():
    params, lr = parameters(1), torch.tensor(0.5)
    opt = Lamb(params.items(), lr=lr, capturable=True)
    for new in (0.25, torch.tensor([0.125])):
        opt.set_lr(new)
        assert opt.param_groups[0]["lr"] is lr
        assert lr == float(new)
    calm = Lamb(params.items(), lr=torch.tensor(0.5))
    calm.set_lr(0.25)
    assert calm.param_groups[0]["lr"] == 0.25


def test_a_loaded_rate_is_a_tensor_of_its_own():
    params = parameters(1)
    first, second = Lamb(params.items(), lr=torch.tensor(0.5)), Lamb(twins(params).items(), lr=torch.tensor(0.25))
    saved = first.state_dict()
    second.load_state_dict(saved)
    second.param_groups[0]["lr"].fill_(0.125)
    assert first.param_groups[0]["lr"] == 0.5
    assert saved["param_groups"][0]["lr"] == 0.5


def test_a_rate_loaded_into_memory_goes_back_to_the_device(meta):
    params, _ = meta()
    opt = Lamb(params.items(), lr=scalar(0.5), capturable=True)
    saved = opt.state_dict()
    saved["param_groups"][0]["lr"] = torch.tensor(0.25)  # as torch.load(..., map_location="cpu") has it
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["lr"].is_meta
