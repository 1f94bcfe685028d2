"""What other programs keep in the state: of a parameter, and beside. PyTorch keeps all that it does not know."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from cases import case_of
from torch import nn
from torch_front.front import bits, busy, everything, fronts, parameters, twins, walk

from layerwise.errors import StateError
from layerwise.storage.coded import CODED
from layerwise.torch import Lamb, Mixed, convert_back, monitor

SHAPES = {"matrix": (4, 6), "vector": (6,)}


def entries(p):
    """One of each kind, among them what looks like codes in bytes."""
    return {
        "z": p.detach().clone(),
        "low": p.detach().to(torch.bfloat16, copy=True),
        "bytes": torch.ones((*p.shape, 1), dtype=torch.int8),
        "half": torch.ones((*p.shape, 2), dtype=torch.uint8),
        "k": 3,
        "nested": {"a": [torch.ones(2), "text"]},
    }


def kept(opt, p):
    own = opt.state[p]
    return {key: own[key] for key in entries(p)}


def put(opt, params):
    for p in params.values():
        opt.state[p].update(entries(p))
    opt.state["program"] = {"step": 3, "sum": torch.ones(2), params["matrix"]: torch.zeros(3)}


def wanted(params):
    return bits({name: entries(p) for name, p in params.items()})


def found(opt, params):
    return bits({name: kept(opt, p) for name, p in params.items()})


WAYS = {
    "plain": {},
    "8 bits": {"state_dtype": "int8"},
    "16 bits": {"master_weights": "split"},
    "the reference": {"fused": False},
    "skipping": {"skip_nonfinite": True},
    "offloaded": {"offload": True},
}


@pytest.mark.parametrize("when", ["before the first step", "later"])
@pytest.mark.parametrize("way", WAYS)
@fronts
def test_others_entries_stay_as_they_are_and_change_no_step(front, way, when):
    dtype = torch.bfloat16 if way == "16 bits" else torch.float32
    params = parameters(0, SHAPES, dtype)
    plain = twins(params)
    opt, alone = (busy(front, one.items(), **WAYS[way]) for one in (params, plain))
    expected = wanted(params)
    for i in range(4):
        if i == (0 if when == "before the first step" else 2):
            for name, p in params.items():
                opt.state[p].update(entries(plain[name]))
            expected = wanted(plain)
        walk(opt, params, [i])
        walk(alone, plain, [i])
    assert bits(list(params.values())) == bits(list(plain.values()))
    assert found(opt, params) == expected
    own = [{key: x for key, x in opt.state[p].items() if key not in entries(p)} for p in params.values()]
    assert bits(own) == bits([alone.state[p] for p in plain.values()])
    assert opt.storage() == alone.storage()


def copied(opt, params):
    return copy.deepcopy((opt, params))


def pickled(opt, params):
    return pickle.loads(pickle.dumps((opt, params)))


def loaded(opt, params):
    again = twins(params)
    fresh = Lamb(again.items(), lr=0.1, state_dtype="int8")
    saved = opt.state_dict()
    fresh.load_state_dict(saved)
    for name, p in params.items():
        assert fresh.state[again[name]]["z"] is not opt.state[p]["z"]
    return fresh, again


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("way", [copied, pickled, loaded], ids=lambda way: way.__name__)
def test_others_entries_go_along(way, steps):
    params = parameters(0, SHAPES, torch.float32)
    opt = Lamb(params.items(), lr=0.1, state_dtype="int8")
    walk(opt, params, range(steps))
    put(opt, params)
    expected = found(opt, params)
    other, others = way(opt, params)
    assert found(other, others) == expected
    assert {key for key in other.state if isinstance(key, str)} == {"program"}
    program = other.state["program"]
    assert program["step"] == 3
    assert torch.equal(program["sum"], torch.ones(2))
    for one, own in ((opt, params), (other, others)):
        walk(one, own, [7, 8])
    assert bits(list(others.values())) == bits(list(params.values()))
    assert found(other, others) == expected


def test_a_tensor_keyed_entry_keeps_its_very_keys_when_loaded():
    params = parameters(0, SHAPES, torch.float32)
    opt = Lamb(params.items(), lr=0.1)
    put(opt, params)
    opt.load_state_dict(opt.state_dict())
    assert any(key is params["matrix"] for key in opt.state["program"])


@pytest.mark.parametrize("key", ["exp_avg_sq_row", "momentum_buffer"])
def test_an_entry_with_the_name_of_another_rules_state_is_refused(key):
    params = parameters(0, SHAPES, torch.float32)
    opt = Lamb(params.items(), lr=0.1)
    walk(opt, params, range(2))
    opt.state[params["matrix"]][key] = torch.ones(4, 6)
    saved = opt.state_dict()
    before = bits([list(params.values()), opt.state_dict()])
    with pytest.raises(StateError, match=rf"'{key}' of matrix is not part of the state of Lamb"):
        walk(opt, params, [2])
    with pytest.raises(StateError, match=rf"has exp_avg, exp_avg_sq, and {key}, but Lamb keeps .* Leave out {key}\."):
        opt.load_state_dict(saved)
    assert bits([list(params.values()), opt.state_dict()]) == before


def test_an_entry_with_a_name_of_our_formats_is_not_loaded():
    params = parameters(0, SHAPES, torch.float32)
    opt = Lamb(params.items(), lr=0.1)
    walk(opt, params, range(2))
    for coded in CODED.values():
        saved = copy.deepcopy(opt.state_dict())
        saved["state"][0][f"exp_avg{coded.suffix}"] = torch.ones(4, 1)
        with pytest.raises(StateError, match=f"has exp_avg, exp_avg_sq, and exp_avg{coded.suffix}, but Lamb keeps"):
            opt.load_state_dict(saved)


@pytest.mark.parametrize(("key", "named"), [(7, False), ("gone", True)])
def test_state_of_no_parameter_is_refused(key, named):
    params = parameters(0, SHAPES, torch.float32)
    opt = Lamb(params.items(), lr=0.1)
    walk(opt, params, range(2))
    saved = opt.state_dict()
    if named:  # as torch.distributed.checkpoint has it
        names = saved["param_groups"][0]["params"] = list(params)
        saved["state"] = {name: saved["state"][i] for i, name in enumerate(names)}
    saved["state"]["program"] = {"sum": torch.ones(2)}
    opt.load_state_dict(saved)
    assert torch.equal(opt.state["program"]["sum"], torch.ones(2))
    saved["state"][key] = {"step": torch.tensor(2)}
    with pytest.raises(StateError, match=f"'{key}'.*match no parameter"):
        opt.load_state_dict(saved)


def test_a_step_that_is_not_taken_leaves_only_others_entries():
    params = parameters(0, SHAPES, torch.float32)
    opt = Lamb(params.items(), lr=0.1, max_grad_norm=1.0)
    put(opt, params)
    before = everything(opt, params)
    params["vector"].data = params["vector"].data.to(torch.complex64)
    params["matrix"].grad = torch.ones_like(params["matrix"])
    params["vector"].grad = torch.ones_like(params["vector"])
    with pytest.raises(Exception, match="vector"):
        opt.step()
    params["vector"].data = params["vector"].data.real
    params["vector"].grad = params["matrix"].grad = None
    assert everything(opt, params) == before


def test_cleared_state_leaves_others_entries():
    params = parameters(0, SHAPES, torch.float32)
    opt = Lamb(params.items(), lr=0.1)
    walk(opt, params, range(2))
    put(opt, params)
    expected = found(opt, params)
    opt.clear_state()
    assert found(opt, params) == expected
    assert {key for p in params.values() for key in opt.state[p]} == {*entries(params["vector"])}
    opt.state.pop("program")
    with pytest.raises(ValueError, match="no state is kept for 'matrix'"):
        opt.clear_state("matrix")
    walk(opt, params, [2])
    assert int(opt.state[params["matrix"]]["step"]) == 1


def test_a_monitor_reads_steps_of_parameters_alone(tmp_path):
    params = parameters(0, SHAPES, torch.float32)
    opt = Lamb(params.items(), lr=0.1)
    put(opt, params)
    with monitor(opt, str(tmp_path / "run.csv")):
        walk(opt, params, range(2))
    assert found(opt, params)


def test_others_entries_are_not_converted():
    params = parameters(0, SHAPES, torch.float32)
    opt = Mixed([{"params": list(params.items()), "rule": "adamw"}], max_grad_norm=None)
    walk(opt, params, range(2))
    put(opt, params)
    saved = opt.state_dict()
    theirs = torch.optim.AdamW(list(twins(params).values()))
    made = convert_back(saved, theirs, "torch.AdamW")
    assert set(made["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}


class Averaged:
    """A wrapper that keeps the weights that it steps in the state, and gives the model averages, as schedule-free."""

    def __init__(self, base, momentum=0.9):
        self.base, self.momentum, self.count = base, momentum, 0

    @torch.no_grad()
    def step(self):
        owned = [p for group in self.base.param_groups for p in group["params"]]
        for p in owned:
            z = self.base.state[p].setdefault("z", p.clone())
            p.lerp_(z, 1 - 1 / self.momentum)
            x = p.clone()
            p.copy_(z)
            z.copy_(x)
        self.base.step()
        self.count += 1
        for p in owned:
            z = self.base.state[p]["z"]
            x = z.clone()
            z.copy_(p)
            p.copy_(x.lerp_(z, 1 / self.count).lerp_(z, 1 - self.momentum))


@fronts
def test_a_wrapper_that_keeps_weights_in_the_state_trains(front):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    x = torch.randn(16, 4)
    y = x.sum(1, keepdim=True)
    opt = Averaged(busy(front, model.parameters(), lr=case_of(front.__name__).learns_at))
    losses = []
    for _ in range(30):
        model.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    opt.base.load_state_dict(opt.base.state_dict())
    assert all("z" in opt.base.state[p] for p in model.parameters())
