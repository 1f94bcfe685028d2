"""What is done to parameters, gradients, state and groups between two steps is seen by the second."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import Parameter
from torch_front.front import bits, busy, everything, fronts, parameters, set_grads, twins, walk

from layerwise.engines import compiled
from layerwise.engines.programs import printed_for
from layerwise.errors import GradientError, StateError
from layerwise.torch import Adafactor
from layerwise.torch.step import _state, _watch

SHAPES = {"matrix": (6, 6), "vector": (6,), "scalar": ()}
engines = pytest.mark.parametrize("fused", [None, False], ids=["fused", "rule"])
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
    "one state deleted": lambda opt, params: opt.state.pop(params["matrix"]),
    "all states deleted": lambda opt, params: opt.state.clear(),
    "another count": of_step("matrix", 9),
    "a number written into a count": lambda opt, params: opt.state[params["vector"]]["step"].fill_(9),
    "a floating count": of_step("scalar", 9.0),
    "other data": of_data("matrix", lambda x: x * 2),
    "transposed data": of_data("matrix", lambda x: x.t()),
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
}
changes = pytest.mark.parametrize("change", CHANGES)


def after_two_steps(front, fused, blocks):
    params = parameters(1, SHAPES, torch.float32)
    opt = busy(front, params.items(), fused=fused, blocks=blocks, **factored(front))
    walk(opt, params, range(2))
    return opt, params


def factored(front):
    return {"min_dim_size_to_factor": 2} if front.__name__ == "Adafactor" else {}


def never_stepped(front, opt, params, fused, blocks):
    """An optimizer in the same state that has prepared nothing."""
    others = twins(params)
    other = busy(front, others.items(), fused=fused, blocks=blocks, **factored(front))
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    return other, others


@changes
@engines
@blocks
@fronts
@pytest.mark.thinned(1)
def test_a_change_between_two_steps_is_seen_by_the_second(front, blocks, fused, change):
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
def test_each_of_these_changes_makes_a_difference(front, change):
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


def test_what_follows_from_the_dtype_follows_from_that_of_the_step():
    """Adafactor's eps, which decides where gradients are as small as these."""
    params = {"vector": Parameter(torch.ones(6))}
    opt = Adafactor(params.items(), eps=(None, 1e-3))
    small_step(opt, params)
    others = twins(params)
    other = Adafactor(others.items(), eps=(None, 1e-3))
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    for one, its in ((opt, params), (other, others)):
        its["vector"].data = its["vector"].data.double()
        small_step(one, its)
    assert bits(params) == bits(others)


def small_step(opt, params):
    params["vector"].grad = torch.full_like(params["vector"], 1e-9)
    opt.step()


ERRORS = {
    "a sparse gradient": (of_grad("matrix", lambda g: g.to_sparse()), GradientError),
    "state of another shape": (of_state(lambda x: x[:1, :1].clone()), StateError),
    "data of state of another shape": (of_state(lambda x: with_data(x, x.data[:1, :1].clone())), StateError),
}


@pytest.mark.parametrize("what", ERRORS)
@engines
@blocks
@fronts
def test_a_change_that_is_an_error_changes_nothing(front, blocks, fused, what):
    (change, error), (opt, params) = ERRORS[what], after_two_steps(front, fused, blocks)
    set_grads(params, 7)
    change(opt, params)
    before = everything(opt, params)
    with pytest.raises(error):
        opt.step()
    assert everything(opt, params) == before


# ---- the two watches see alike


def watched():
    params = list(parameters(1, SHAPES, torch.float32).values())
    states = {p: {"step": torch.tensor(0), "m": torch.ones_like(p)} for p in params}
    return params, [torch.ones_like(p) for p in params], states


def data_of(i, change):
    return lambda params, grads, states: setattr(params[i], "data", change(params[i].data))


def grad_of(i, change):
    return lambda params, grads, states: grads.__setitem__(i, change(grads[i]))


def entry_of(i, key, change):
    return lambda params, grads, states: states[params[i]].update({key: change(states[params[i]][key])})


DIFFERENCES = {
    "data": data_of(0, lambda x: x.clone()),
    "strides": data_of(0, lambda x: x.t()),
    "dtype": data_of(2, lambda x: x.double()),
    "class": lambda params, grads, states: sub(params[1]),
    "the gradient's dtype": grad_of(1, lambda g: g.double()),
    "the gradient's shape": grad_of(1, lambda g: g[:3]),
    "the gradient's rank": grad_of(1, lambda g: g.reshape(2, 3)),
    "the gradient's layout": grad_of(0, lambda g: g.to_sparse()),
    "the gradient's device": grad_of(0, lambda g: g.to("meta")),
    "an entry's data": entry_of(0, "m", lambda x: with_data(x, x.data.clone())),
}
OF_OBJECTS = {
    "the dict": lambda params, grads, states: states.update({params[0]: dict(states[params[0]])}),
    "an entry": entry_of(1, "m", lambda x: x.view(6)),
    "the step": entry_of(2, "step", lambda x: x.view(())),
    "one entry more": lambda params, grads, states: states[params[2]].update(more=torch.zeros(())),
    "one entry less": lambda params, grads, states: states[params[2]].pop("m"),
    "a state less": lambda params, grads, states: states.pop(params[2]),
}


@pytest.fixture(params=["marks", "table", "methods"])
def watch(request, monkeypatch):
    """The extension reads tensors by PyTorch's table of C functions; older versions have none, and it asks them."""
    if request.param != "marks" and compiled._native is None:
        pytest.skip("the extension is not built")
    if request.param == "methods":
        with_table = torch.Tensor.__dlpack_c_exchange_api__
        monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        compiled.know_torch(torch)
        monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", with_table)
    yield _watch.Marks if request.param == "marks" else compiled.watch
    compiled.know_torch(torch)


@pytest.mark.parametrize("difference", [*DIFFERENCES, *OF_OBJECTS])
def test_a_watch_sees_whatever_a_prepared_step_relies_on(watch, difference):
    given = watched()
    kept = copy.copy(given[1]), {p: dict(state) for p, state in given[2].items()}  # so that no id is used again
    watching = watch(*given)
    assert watching.same(*given)
    {**DIFFERENCES, **OF_OBJECTS}[difference](*given)
    assert not watching.same(*given)
    assert watching.same(*given, only_objects=True) is (difference not in OF_OBJECTS)
    assert kept


def test_a_watch_lets_new_numbers_and_gradients_be(watch):
    """Also gradients elsewhere or in another order in memory: they are what every step has."""
    params, grads, states = watched()
    watching = watch(params, grads, states)
    params[0].data.mul_(2)
    states[params[0]]["step"] += 1
    assert watching.same(params, [g.clone() for g in grads], states)
    assert watching.same(params, [g.t() if g.dim() == 2 else g for g in grads], states)


def test_counts_are_read_and_written_whatever_tensors_hold_them(watch):
    """`watch` is asked for so that tensors are read in every way."""
    steps = [torch.tensor(0), torch.tensor(2**40)]
    assert _state.counts(steps) == [0, 2**40]
    _state.count(steps, None)
    assert steps == [torch.tensor(1), torch.tensor(2**40 + 1)]
    for other in (torch.tensor(3.0), torch.tensor(3, dtype=torch.int32), torch.tensor([3]).as_subclass(torch.Tensor)):
        mixed = [steps[0], other]
        before = int(steps[0])
        assert _state.counts(mixed) == [before, 3]
        _state.count(mixed, None)
        assert [int(step) for step in mixed] == [before + 1, 4]


def test_what_the_extension_cannot_look_at_is_watched_all_the_same():
    params, grads, states = watched()
    params[0].__class__ = Sub
    assert compiled.watch(params, grads, states) is None
    watching = _watch.watch(params, grads, states)
    assert watching.same(params, grads, states)
    params[0].data = params[0].data.clone()
    assert not watching.same(params, grads, states)


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
