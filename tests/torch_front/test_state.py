"""State and checkpoints: names, dtypes, resuming bit for bit, and what does not fit."""

from __future__ import annotations

import copy
import io
import warnings

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from torch_front.front import (
    FRONTS,
    bits,
    busy,
    everything,
    fronts,
    in_slices,
    kept_of,
    lows,
    parameters,
    set_grads,
    twins,
    walk,
)

from layerwise.errors import StateError
from layerwise.torch import Adafactor, Lamb, Lars


def saved(x):
    """By way of a file, as people do."""
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.every
@fronts
def test_names_and_kinds(front):
    params = parameters(1)
    opt = busy(front, params.items())
    assert opt.state_dict()["state"] == {}
    walk(opt, params, range(3), but=["vector"])
    assert opt.state[params["matrix"]].keys() == {"step", *kept_of(front, (4, 3))}
    assert opt.state_dict()["state"].keys() == {0, 2, 3}
    walk(opt, params, [3])
    assert [int(opt.state[p]["step"]) for p in params.values()] == [4, 1, 4, 4]
    if front is Adafactor:
        assert opt.state[params["vector"]].keys() == {"step", "exp_avg_sq", "exp_avg"}
        assert Adafactor(params.items(), beta1=0.9).state_dict()["param_groups"][0]["lr"] == 1.0


@pytest.mark.parametrize("front", [Lars, Adafactor])
def test_no_momentum_no_buffer(front):
    params = parameters(1)
    opt = busy(front, params.items(), **{Lars: {"momentum": 0.0}, Adafactor: {"beta1": None}}[front])
    walk(opt, params, [1])
    assert not {"momentum_buffer", "exp_avg"} & opt.state[params["matrix"]].keys()


WAYS = {
    "plain": ({}, torch.float64),
    "clipped": ({"max_grad_norm": 0.5, "max_grad_norm_per_tensor": 0.4}, torch.float32),
    "bfloat16": ({}, torch.bfloat16),
    "float16": ({"skip_nonfinite": True}, torch.float16),
    "master": ({"master_weights": True}, torch.bfloat16),
    "capturable": ({"capturable": True}, torch.float32),
    "blocks": ({"blocks": {"matrix": 2, "stack": "each"}}, torch.float32),
    "tensor lr": ({"lr": torch.tensor(0.1)}, torch.float32),
}


@pytest.mark.parametrize("scheduler", [None, CosineAnnealingLR, OneCycleLR])
@pytest.mark.parametrize("what", WAYS)
@fronts
@pytest.mark.thinned(1)
def test_resumes_bit_for_bit(front, what, scheduler):
    options, dtype = WAYS[what]
    options = {
        name: value for name, value in options.items() if name in front.__init__.__wrapped__.__code__.co_varnames
    }
    a = parameters(1, dtype=dtype)

    def made(params):
        own = {k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in options.items()}
        opt = busy(front, [{"params": [(n, p)]} for n, p in params.items()], **own)
        still = {"cycle_momentum": False} if front is Adafactor and scheduler is OneCycleLR else {}
        schedule = {OneCycleLR: [0.2, 12], CosineAnnealingLR: [12]}.get(scheduler)
        return opt, [] if scheduler is None else [scheduler(opt, *schedule, **still)]

    straight, schedules = made(a)
    walk(straight, a, range(3), schedules, but=["vector"])
    state = saved({"opt": straight.state_dict(), "schedules": [s.state_dict() for s in schedules]})
    b = {name: torch.nn.Parameter(p.detach().clone()) for name, p in a.items()}
    fresh, others = made(b)
    fresh.load_state_dict(state["opt"])
    for other, old in zip(others, state["schedules"], strict=True):
        other.load_state_dict(old)
    assert bits(fresh.state_dict()) == bits(straight.state_dict())
    walk(straight, a, range(3, 6), schedules)
    walk(fresh, b, range(3, 6), others)
    assert bits(a) == bits(b)
    assert bits(fresh.state_dict()) == bits(straight.state_dict())


@fronts
def test_resumes_with_groups_added_later(front):
    a = parameters(1)
    opt = busy(front, [("matrix", a["matrix"])])
    walk(opt, a, [0])
    late = {"params": [(name, a[name]) for name in ("vector", "stack")], "maximize": True, "lr": 0.3}
    opt.add_param_group(dict(late))
    schedule = CosineAnnealingLR(opt, 9)
    walk(opt, a, [1, 2], [schedule])
    state = saved(opt.state_dict())
    b = twins(a)
    fresh = busy(front, [("matrix", b["matrix"])])
    with pytest.raises(StateError, match="besides 'stack', 'vector'"):
        fresh.load_state_dict(state)
    fresh.add_param_group({**late, "params": [(name, b[name]) for name in ("vector", "stack")]})
    again = CosineAnnealingLR(fresh, 9)
    fresh.load_state_dict(state)
    again.load_state_dict(schedule.state_dict())
    walk(opt, a, [3, 4], [schedule])
    walk(fresh, b, [3, 4], [again])
    assert bits(a) == bits(b)


@lows
@fronts
def test_state_keeps_its_dtype(front, low):
    params = parameters(1, dtype=low)
    opt, fresh = (busy(front, ps.items(), master_weights=True) for ps in (params, twins(params)))
    walk(opt, params, range(2))
    for dtype in (torch.float32, torch.float64):
        state = saved(opt.state_dict())
        for one in state["state"].values():
            one.update({key: x.to(dtype) for key, x in one.items() if key != "step"})
        fresh.load_state_dict(state)
        kept = {key: x.dtype for one in fresh.state.values() for key, x in one.items()}
        assert set(kept.values()) == {dtype, torch.int64}


def test_momentum_dtype_is_kept():
    params = parameters(1, dtype=torch.float32)
    again = twins(params)
    opt, fresh = (busy(Adafactor, ps.items(), momentum_dtype="bfloat16") for ps in (params, again))
    walk(opt, params, range(2))
    for name, p in params.items():
        again[name].data.copy_(p)
    fresh.load_state_dict(saved(opt.state_dict()))
    walk(opt, params, [2])
    walk(fresh, again, [2])
    assert bits(params) == bits(again)
    assert {one["exp_avg"].dtype for one in fresh.state.values()} == {torch.bfloat16}
    assert {one["exp_avg_sq"].dtype for one in fresh.state.values() if "exp_avg_sq" in one} == {torch.float32}


@lows
@fronts
def test_a_master_copy_is_not_taken_over_unasked(front, low):
    """master_weights stays as it was given here, and so must what it does."""
    params = parameters(1, dtype=low)
    opt = busy(front, params.items(), master_weights=True)
    walk(opt, params, range(2))
    again, calm = twins(params), twins(params)
    fresh, plain = busy(front, again.items()), busy(front, calm.items())
    with pytest.warns(UserWarning, match="master_weights"):
        fresh.load_state_dict(saved(opt.state_dict()))
    bare = saved(opt.state_dict())
    bare["param_groups"][0]["master_weights"] = False
    for one in bare["state"].values():
        del one["master"]
    plain.load_state_dict(bare)
    walk(fresh, again, [2, 3])
    walk(plain, calm, [2, 3])
    assert not any("master" in one for one in fresh.state.values())
    assert bits(again) == bits(calm)


@fronts
def test_master_weights_begin_where_a_checkpoint_without_them_ends(front):
    params = parameters(1, dtype=torch.bfloat16)
    opt = busy(front, params.items())
    walk(opt, params, range(2))
    again = twins(params)
    fresh = busy(front, again.items(), master_weights=True)
    with pytest.warns(UserWarning, match="master_weights"):
        fresh.load_state_dict(saved(opt.state_dict()))
    walk(fresh, again, [2])
    assert all(one["master"].dtype == torch.float32 for one in fresh.state.values())


@fronts
def test_a_checkpoint_does_not_switch_options(front):
    params = parameters(1)
    opt = busy(front, params.items(), maximize=True, max_grad_value=0.5)
    walk(opt, params, [1])
    fresh = busy(front, twins(params).items(), max_grad_value=0.25)
    with pytest.warns(UserWarning, match="maximize.*True"):
        fresh.load_state_dict(opt.state_dict())
    group = fresh.param_groups[0]
    assert (group["maximize"], group["max_grad_value"]) == (False, 0.25)


@fronts
def test_an_older_checkpoint_lacks_newer_options(front):
    params = parameters(1)
    opt = busy(front, params.items())
    walk(opt, params, [1])
    old = saved(opt.state_dict())
    for name in ("max_grad_value", "capturable", "maximize"):
        del old["param_groups"][0][name]
    fresh = busy(front, (again := twins(params)).items(), max_grad_value=0.25)
    fresh.load_state_dict(old)
    assert (fresh.param_groups[0]["max_grad_value"], fresh.param_groups[0]["maximize"]) == (0.25, False)
    walk(fresh, again, [2])


@fronts
def test_what_schedulers_move_comes_from_the_checkpoint(front):
    params = parameters(1)
    moved = {"lr": 0.3, "weight_decay": 0.2, **{Lamb: {"betas": (0.5, 0.9)}, Lars: {"momentum": 0.4}}.get(front, {})}
    opt, fresh = busy(front, params.items(), **moved), busy(front, twins(params).items())
    walk(opt, params, [1])
    fresh.load_state_dict(saved(opt.state_dict()))
    assert {key: fresh.param_groups[0][key] for key in moved} == moved


def _with(state, where, value):
    *path, last = where
    for key in path:
        state = state[key]
    if value is KeyError:
        del state[last]
    else:
        state[last] = value


with warnings.catch_warnings():  # they say that they are prototypes, and deprecated
    warnings.simplefilter("ignore")
    NESTED = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])
    CSR = torch.eye(4, 3, dtype=torch.float64).to_sparse_csr()
    QUANTIZED = torch.quantize_per_tensor(torch.ones(4, 3), 0.1, 0, torch.quint8)

SPOILT = {
    "no state": (["state"], KeyError),
    "no groups": (["param_groups"], KeyError),
    "state of nobody": (["state", 9], {"step": torch.tensor(1)}),
    "state that is no dict": (["state", 0], 3),
    "groups that are no list": (["param_groups"], 3),
    "a group without parameters": (["param_groups", 0, "params"], KeyError),
    "too few parameters": (["param_groups", 0, "params"], [0, 1]),
    "too many groups": (["param_groups"], [{"params": [0, 1, 2, 3]}, {"params": [4]}]),
    "no step": (["state", 0, "step"], KeyError),
    "steps by element": (["state", 0, "step"], torch.ones(3)),
    "a negative step": (["state", 0, "step"], torch.tensor(-1)),
    "half a step": (["state", 0, "step"], 2.5),
    "nan steps": (["state", 0, "step"], float("nan")),
    "a step in words": (["state", 0, "step"], "one"),
    "an unknown name": (["state", 0, "max_exp_avg_sq"], torch.zeros(4, 3)),
    "a wrong shape": (["state", 1, None], torch.zeros(7)),
    "a missing name": (["state", 1, None], KeyError),
    "no tensor": (["state", 1, None], 3.0),
    "whole numbers": (["state", 1, None], torch.zeros(5, dtype=torch.long)),
    "two to the 62": (["state", 0, "step"], 2**62),
    "the last int64": (["state", 0, "step"], 2**63 - 1),
    "the last int64, as a tensor": (["state", 0, "step"], torch.tensor(2**63 - 1)),
    "more than an int64": (["state", 0, "step"], 2**63),
    "far more than an int64": (["state", 0, "step"], 10**30),
    "many steps as a float": (["state", 0, "step"], torch.tensor(1e30)),
    "a flag for a step": (["state", 0, "step"], True),
    "a flag for a step, as a tensor": (["state", 0, "step"], torch.tensor(True)),
    "a complex step": (["state", 0, "step"], 1 + 2j),
    "a complex step, as a tensor": (["state", 0, "step"], torch.tensor(1 + 2j)),
    "a step on the meta device": (["state", 0, "step"], torch.tensor(2, device="meta")),
    "a nested step": (["state", 0, "step"], NESTED),
    "a sparse step": (["state", 0, "step"], torch.ones(1).to_sparse()),
    "none for a step": (["state", 0, "step"], None),
    "sparse": (["state", 0, None], torch.eye(4, 3, dtype=torch.float64).to_sparse()),
    "sparse by rows": (["state", 0, None], CSR),
    "complex": (["state", 0, None], torch.ones(4, 3, dtype=torch.complex64)),
    "on the meta device": (["state", 0, None], torch.ones(4, 3, device="meta")),
    "nested": (["state", 0, None], NESTED),
    "quantized": (["state", 0, None], QUANTIZED),
    "eight bits": (["state", 0, None], torch.ones(4, 3).to(torch.float8_e4m3fn)),
    "a tensor for a state": (["state", 0], torch.ones(4, 3)),
    "none for a state": (["state", 0], None),
    "a list for a state": (["state", 0], [1, 2]),
    "the same parameter twice": (["param_groups", 0, "params"], [0, 0, 1, 2]),
    "parameters that are lists": (["param_groups", 0, "params"], [[0], [1], [2], [3]]),
    "an lr without a value": (["param_groups", 0, "lr"], torch.tensor(0.1, device="meta")),
    "a complex lr": (["param_groups", 0, "lr"], torch.tensor(1j)),
    "a nested lr": (["param_groups", 0, "lr"], NESTED),
    "a nested tensor beside options": (["param_groups", 0, "note"], NESTED),
    "a sparse lr": (["param_groups", 0, "lr"], torch.ones(1).to_sparse()),
    "a negative lr": (["param_groups", 0, "lr"], -1.0),
    "an lr in words": (["param_groups", 0, "lr"], "0.1"),
    "a decay that is nan": (["param_groups", 0, "weight_decay"], float("nan")),
}
MAIN = {
    front: "exp_avg_sq" if "exp_avg_sq" in front._rule.State._fields else front._rule.State._fields[0]
    for front in FRONTS
}


@pytest.mark.parametrize("what", SPOILT)
@fronts
def test_what_does_not_fit_changes_nothing(front, what):
    where, value = SPOILT[what]
    params = parameters(1)
    opt, fresh = busy(front, params.items()), busy(front, (again := twins(params)).items(), lr=0.7)
    walk(opt, params, range(2))
    walk(fresh, again, range(3))
    state = saved(opt.state_dict())
    _with(state, [MAIN[front] if key is None else key for key in where], value)
    before = everything(fresh, again)
    with pytest.raises(StateError) as found:
        fresh.load_state_dict(state)
    assert everything(fresh, again) == before
    if where[0] == "state" and len(where) == 3:
        name, field = list(params)[where[1]], MAIN[front] if where[2] is None else where[2]
        assert name in str(found.value)
        assert field in str(found.value)
    walk(fresh, again, [5])


@fronts
def test_a_warning_that_is_an_error_changes_nothing(front):
    params = parameters(1)
    opt, fresh = busy(front, params.items(), maximize=True), busy(front, params.items(), lr=0.7)
    walk(opt, params, [1])
    before = everything(fresh, params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="maximize"):
            fresh.load_state_dict(opt.state_dict())
    assert everything(fresh, params) == before


@fronts
def test_a_loaded_state_is_the_optimizers_own(front):
    """The checkpoint is not stepped along with it, and two tensors that were saved as one are two."""
    params = parameters(1)
    opt, fresh = busy(front, params.items()), busy(front, (again := twins(params)).items())
    walk(opt, params, range(2))
    state = opt.state_dict()
    before = bits(state)
    fresh.load_state_dict(state)
    walk(fresh, again, [2])
    assert bits(state) == before
    if front is Lamb:
        state["state"][0]["exp_avg"] = state["state"][0]["exp_avg_sq"]
        fresh.load_state_dict(state)
        one = fresh.state[again["matrix"]]
        assert one["exp_avg"].data_ptr() != one["exp_avg_sq"].data_ptr()


@pytest.mark.parametrize("step", [3, 3.0, np.int64(3), torch.tensor(3.0), torch.tensor([3])], ids=repr)
@fronts
def test_a_step_set_by_hand(front, step):
    params = parameters(1)
    opt = busy(front, params.items())
    walk(opt, params, [0])
    opt.state[params["matrix"]]["step"] = copy.deepcopy(step)
    walk(opt, params, [1])
    assert int(opt.state[params["matrix"]]["step"]) == 4


BY_HAND = {
    "half a step": ("step", 2.5),
    "a step in words": ("step", "one"),
    "no number": ("step", None),
    "a step below 0": ("step", -1),
    "a complex step": ("step", torch.tensor(1j)),
    "half a step in a tensor": ("step", torch.tensor(2.5)),
    "a tensor below 0": ("step", torch.tensor(-1)),
    "a tensor above all": ("step", torch.tensor(2**60)),
    "a list": (None, [1.0]),
    "sparse": (None, torch.eye(4, 3, dtype=torch.float64).to_sparse()),
    "nested": (None, NESTED),
}


def whole(front):
    """Options with which every part of the state is as large as its parameter."""
    return {"factored": False} if hasattr(front._hyper, "factored") else {}


@pytest.mark.parametrize("what", BY_HAND)
@fronts
def test_a_state_set_by_hand_that_does_not_fit(front, what):
    key, value = BY_HAND[what]
    params = parameters(1)
    opt = busy(front, params.items(), **whole(front))
    walk(opt, params, [0])
    opt.state[params["matrix"]][key or MAIN[front]] = value
    before = bits(params)
    with pytest.raises(StateError, match=f"'{key or MAIN[front]}' of matrix"):
        walk(opt, params, [1])
    assert bits(params) == before


@fronts
def test_another_optimizers_checkpoint(front):
    params = parameters(1)
    peer = torch.optim.Adam(params.values(), amsgrad=True)
    set_grads(params, 1)
    peer.step()
    with pytest.raises(StateError, match=r"'amsgrad', .*torch.Adam"):
        busy(front, params.values()).load_state_dict(peer.state_dict())


def test_a_relative_step_does_not_become_lr():
    params = parameters(1)
    for given, other in ((None, 0.1), (0.1, None)):
        with pytest.raises(StateError, match="lr means something else"):
            Adafactor(params.values(), lr=given).load_state_dict(Adafactor(params.values(), lr=other).state_dict())


@fronts
def test_a_state_dict_is_not_written_to(front):
    """Loading takes nothing out of the checkpoint, and turns nothing in it round."""
    params = parameters(1)
    opt, fresh = busy(front, params.items()), busy(front, twins(params).items())
    walk(opt, params, range(2))
    state = saved(opt.state_dict())
    for one in state["state"].values():
        one["step"] = float(one["step"])
    before = bits(state)
    fresh.load_state_dict(state)
    assert bits(state) == before
    assert {x["step"].dtype for x in fresh.state.values()} == {torch.int64}


@fronts
def test_a_step_count_is_exact_beyond_float32(front):
    params = parameters(1)
    opt = busy(front, params.items())
    walk(opt, params, [1])
    state = saved(opt.state_dict())
    for one in state["state"].values():
        one["step"] += 2**24
    opt.load_state_dict(state)
    walk(opt, params, [1])
    assert {int(one["step"]) for one in opt.state.values()} == {2**24 + 2}


@fronts
def test_memory_format_survives(front, monkeypatch):
    in_slices(monkeypatch, 16)
    p = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
    a = {"conv": torch.nn.Parameter(p)}
    opt = busy(front, a.items(), **whole(front))
    walk(opt, a, range(2))
    b = twins(a)
    fresh = busy(front, b.items(), **whole(front))
    fresh.load_state_dict(saved(opt.state_dict()))
    walk(opt, a, [2])
    walk(fresh, b, [2])
    assert bits(a) == bits(b)
    assert {x.stride() for x in fresh.state[b["conv"]].values() if x.shape == p.shape} == {p.stride()}


@fronts
def test_a_parameter_that_changed_its_dtype(front):
    """model.half() and model.float() after the optimizer was made: the state stays, and serves."""
    params = parameters(1, dtype=torch.float32)
    opt = busy(front, params.items())
    walk(opt, params, range(2))
    for p in params.values():
        p.grad, p.data = None, p.data.bfloat16()
    walk(opt, params, [2])
    assert {p.dtype for p in params.values()} == {torch.bfloat16}
    assert {one["step"].item() for one in opt.state.values()} == {3}
