"""What is done to parameters, gradients, state and groups between two steps is seen by the second."""

from __future__ import annotations

import copy
from operator import delitem

import pytest
import torch
from torch.nn import Parameter
from torch_front.front import bits, busy, everything, fronts, parameters, set_grads, twins, walk

from layerwise.engines import addresses, compiled
from layerwise.engines.programs import printed_for
from layerwise.errors import GradientError, StateError
from layerwise.torch.step import _prepared

SHAPES = {"matrix": (6, 6), "vector": (6,), "scalar": ()}
# Kernels look at their own tensors; all others are watched in one of three ways.
WATCHES = ("table", None), ("table", False), ("methods", False), ("marks", False)
each_watch = pytest.mark.parametrize("watch", ["table", "methods", "marks"], indirect=True)
watches = pytest.mark.parametrize(("watch", "fused"), WATCHES, indirect=["watch"], ids=str)
blocks = pytest.mark.parametrize("blocks", [None, {"matrix": 2}], ids=["whole", "blocks"])


class Sub(Parameter):
    """A parameter that may be anything."""


def sub(p):
    p.__class__ = Sub


def state_of(opt, params):
    """The matrix's first array of state, by its dict and its key."""
    state = opt.state[params["matrix"]]
    return state, next(key for key, x in state.items() if key != "step" and x.dim() == 2)


def of_state(change):
    """A change of the matrix's first array of state, which is put back."""

    def changed(opt, params):
        state, key = state_of(opt, params)
        state[key] = change(state[key])

    return changed


def of_data(name, change):
    """Other data of a parameter."""
    return lambda opt, params: setattr(params[name], "data", change(params[name].data))


def of_grad(name, change):
    return lambda opt, params: setattr(params[name], "grad", change(params[name].grad))


def of_step(name, number):
    return lambda opt, params: opt.state[params[name]].update(step=torch.tensor(number))


def of_group(key, value):
    return lambda opt, params: opt.param_groups[0].update({key: value})


def with_data(x, data):
    """The same tensor with other data."""
    x.data = data
    return x


def another_dict(opt, params):
    p = params["matrix"]
    opt.state[p] = {key: x * 2 for key, x in opt.state[p].items()}


def wide_gradient(opt, params):
    p = params["matrix"]
    p.grad = None
    p.grad_dtype = None
    p.grad = torch.linspace(-1, 1, 36, dtype=torch.float64).reshape(6, 6)


CHANGES = {
    "another array of state": of_state(lambda x: x * 2),
    "other data of state": of_state(lambda x: with_data(x, x.data * 2)),
    "numbers written into state": of_state(lambda x: x.mul_(2)),
    "wider state": of_state(lambda x: x.double()),
    "another dict of state": another_dict,
    "one array of state deleted": lambda opt, params: delitem(*state_of(opt, params)),
    "one state deleted": lambda opt, params: opt.state.pop(params["matrix"]),
    "all states deleted": lambda opt, params: opt.state.clear(),
    "another count": of_step("matrix", 9),
    "a number written into a count": lambda opt, params: opt.state[params["vector"]]["step"].fill_(9),
    "a floating count": of_step("scalar", 9.0),
    "other data": of_data("matrix", lambda x: x * 2),
    "transposed data": of_data("matrix", lambda x: x.t()),
    "data of 16 bits": of_data("vector", lambda x: x.bfloat16()),
    "wider data": of_data("vector", lambda x: x.double()),
    "another class": lambda opt, params: sub(params["matrix"]),
    "another gradient": of_grad("vector", lambda g: torch.linspace(-1, 1, 6)),
    "a transposed gradient": of_grad("matrix", lambda g: g.t()),
    "a wide gradient": wide_gradient,
    "no gradient": of_grad("vector", lambda g: None),
    "lr": of_group("lr", 0.02),
    "weight_decay": of_group("weight_decay", 0.5),
    "maximize": of_group("maximize", True),
    "max_grad_norm": of_group("max_grad_norm", 0.1),
    "max_grad_value": of_group("max_grad_value", 0.4),
}
changes = pytest.mark.parametrize("change", CHANGES)


def made(front, params, fused, blocks):
    """Two groups, of which changes are to reach the first alone."""
    *most, last = params.items()
    factored = {"min_dim_size_to_factor": 2} if front.__name__ == "Adafactor" else {}
    groups = [{"params": most, "max_grad_value": 0.9}, {"params": [last], "max_grad_value": 0.2}]
    return busy(front, groups, fused=fused, blocks=blocks, **factored)


def after_two_steps(front, fused, blocks):
    params = parameters(1, SHAPES, torch.float32)
    opt = made(front, params, fused, blocks)
    walk(opt, params, range(2))
    return opt, params


def never_stepped(front, opt, params, fused, blocks):
    """An optimizer in the same state that has prepared nothing."""
    others = twins(params)
    other = made(front, others, fused, blocks)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    return other, others


@pytest.fixture
def watch(request, monkeypatch):
    """The extension reads tensors by PyTorch's table of C functions; older versions have none, and it asks them.

    What it does not read is compared in Python.
    """
    if request.param == "marks":
        monkeypatch.setattr(addresses, "_native", None)
    elif compiled._native is None:
        pytest.skip("the extension is not built")
    if request.param == "methods":
        with_table = torch.Tensor.__dlpack_c_exchange_api__
        monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        compiled.register_torch(torch)
        monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", with_table)
    yield request.param
    compiled.register_torch(torch)


@changes
@watches
@blocks
@fronts
@pytest.mark.thinned(1)
def test_a_change_between_two_steps_is_seen_by_the_second(front, watch, blocks, fused, change):
    pairs = [after_two_steps(front, fused, blocks)]
    pairs.append(never_stepped(front, *pairs[0], fused, blocks))
    before = bits(pairs[0][1])
    for opt, params in pairs:
        set_grads(params, 7)
        CHANGES[change](opt, params)
        opt.step()
    (opt, params), (other, others) = pairs
    assert bits(params) == bits(others) != before
    walk(opt, params, [8])
    walk(other, others, [8])
    assert bits(params) == bits(others)
    assert bits(list(opt.state.values())) == bits(list(other.state.values()))


@changes
@fronts
@pytest.mark.thinned(1)
def test_each_of_these_changes_changes_the_step(front, change):
    """Else the test before could not fail."""
    if change == "another class" and printed_for(front._hyper) is None:
        pytest.skip("it is the rule that steps in both")
    changed, plain = after_two_steps(front, None, None), after_two_steps(front, None, None)
    set_grads(changed[1], 7)
    set_grads(plain[1], 7)
    CHANGES[change](*changed)
    for opt, _ in (changed, plain):
        opt.step()
    assert bits(everything(*changed)) != bits(everything(*plain))


def of_another(opt):
    fields = {"momentum_buffer", "exp_avg", "exp_avg_sq_row"} - {*opt._rule.State._fields}
    return {min(fields): torch.ones(())}


ERRORS = {
    "a sparse gradient": (of_grad("matrix", lambda g: g.to_sparse()), GradientError),
    "state of another shape": (of_state(lambda x: x[:1, :1].clone()), StateError),
    "data of state of another shape": (of_state(lambda x: with_data(x, x.data[:1, :1].clone())), StateError),
    "another rule's state": (lambda opt, params: opt.state[params["scalar"]].update(of_another(opt)), StateError),
}


@pytest.mark.parametrize("what", ERRORS)
@watches
@blocks
@fronts
@pytest.mark.thinned(1)
def test_a_change_that_is_an_error_changes_nothing(front, watch, blocks, fused, what):
    (change, error), (opt, params) = ERRORS[what], after_two_steps(front, fused, blocks)
    set_grads(params, 7)
    change(opt, params)
    before = everything(opt, params)
    with pytest.raises(error):
        opt.step()
    assert everything(opt, params) == before


@each_watch
def test_counts_are_read_and_written_whatever_tensors_hold_them(watch):
    """`watch` is asked for so that tensors are read in every way."""
    steps = [torch.tensor(0), torch.tensor(2**40)]
    assert _prepared.step_counts(steps) == [0, 2**40]
    _prepared.count_steps(steps, None)
    assert steps == [torch.tensor(1), torch.tensor(2**40 + 1)]
    for other in (torch.tensor(3.0), torch.tensor(3, dtype=torch.int32), torch.tensor([3]).as_subclass(torch.Tensor)):
        mixed = [steps[0], other]
        before = int(steps[0])
        assert _prepared.step_counts(mixed) == [before, 3]
        _prepared.count_steps(mixed, None)
        assert [int(step) for step in mixed] == [before + 1, 4]


@fronts
def test_a_step_of_two_engines_is_taken_once(front):
    """The compiled engine finds a gradient that lies otherwise when the rule's parameters must not have moved yet."""
    moved = []
    for fused in (None, False):
        params = {"plain": Parameter(torch.full((4, 6), 0.5)), "sub": Sub(torch.full((4, 6), 0.5))}
        opt = busy(front, list(params.items()), fused=fused)
        for t in range(4):
            for i, p in enumerate(params.values()):
                p.grad = torch.sin(torch.arange(24.0) + t + i).reshape(4, 6)
            if t == 2:
                params["plain"].grad = params["plain"].grad.t().contiguous().t()
            opt.step()
        moved.append([p.detach().clone() for p in params.values()])
    for ours, theirs in zip(*moved, strict=True):
        torch.testing.assert_close(torch.Tensor(ours), torch.Tensor(theirs), rtol=1e-5, atol=1e-6)
