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
from layerwise.torch.step import _state, _watch

SHAPES = {"matrix": (6, 6), "vector": (6,), "scalar": ()}
engines = pytest.mark.parametrize("fused", [None, False], ids=["fused", "rule"])
blocks = pytest.mark.parametrize("blocks", [None, {"matrix": 2}], ids=["whole", "blocks"])


class Sub(Parameter):
    """A parameter that may be anything."""


def state_of(opt, params):
    """The matrix's first array of state, by its dict and its key."""
    state = opt.state[params["matrix"]]
    return state, next(key for key, x in state.items() if key != "step" and x.dim() == 2)


def replace_state(opt, params):
    state, key = state_of(opt, params)
    state[key] = state[key] * 2


def move_state(opt, params):
    state, key = state_of(opt, params)
    state[key].data = state[key].data * 2


def write_state(opt, params):
    state, key = state_of(opt, params)
    state[key].mul_(2)


def widen_state(opt, params):
    state, key = state_of(opt, params)
    state[key] = state[key].double()


def replace_dict(opt, params):
    p = params["matrix"]
    opt.state[p] = {key: x * 2 for key, x in opt.state[p].items()}


def forget_one(opt, params):
    del opt.state[params["matrix"]]


def forget_all(opt, params):
    opt.state.clear()


def replace_step(opt, params):
    opt.state[params["matrix"]]["step"] = torch.tensor(9)


def write_step(opt, params):
    opt.state[params["vector"]]["step"].fill_(9)


def float_step(opt, params):
    opt.state[params["scalar"]]["step"] = torch.tensor(9.0)


def move(opt, params):
    params["matrix"].data = params["matrix"].data * 2


def transpose(opt, params):
    params["matrix"].data = params["matrix"].data.t()


def widen(opt, params):
    params["vector"].data = params["vector"].data.double()


def subclass(opt, params):
    params["matrix"].__class__ = Sub


def another_gradient(opt, params):
    params["vector"].grad = torch.linspace(-1, 1, 6)


def transposed_gradient(opt, params):
    params["matrix"].grad = params["matrix"].grad.t()


def wide_gradient(opt, params):
    p = params["matrix"]
    p.grad = None
    p.grad_dtype = None
    p.grad = torch.linspace(-1, 1, 36, dtype=torch.float64).reshape(6, 6)


def no_gradient(opt, params):
    params["vector"].grad = None


def group(key, value):
    def change(opt, params):
        opt.param_groups[0][key] = value

    change.__name__ = key
    return change


CHANGES = [
    *(replace_state, move_state, write_state, widen_state, replace_dict, forget_one, forget_all),
    *(replace_step, write_step, float_step, move, transpose, widen, subclass),
    *(another_gradient, transposed_gradient, wide_gradient, no_gradient),
    *(group("lr", 0.02), group("weight_decay", 0.5), group("maximize", True), group("max_grad_norm", 0.1)),
]


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


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@engines
@blocks
@fronts
@pytest.mark.thinned(1)
def test_a_change_is_seen(front, blocks, fused, change):
    pairs = [after_two_steps(front, fused, blocks)]
    pairs.append(never_stepped(front, *pairs[0], fused, blocks))
    before = bits(pairs[0][1])
    for opt, params in pairs:
        set_grads(params, 7)
        change(opt, params)
        opt.step()
    (opt, params), (other, others) = pairs
    assert bits(params) == bits(others) != before
    walk(opt, params, [8])
    walk(other, others, [8])
    assert bits(params) == bits(others)
    assert bits(list(opt.state.values())) == bits(list(other.state.values()))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@fronts
def test_the_change_makes_a_difference(front, change):
    """Else the test before could not fail."""
    if change is subclass and printed_for(front._hyper) is None:
        pytest.skip("it is the rule that steps in both")
    changed, plain = after_two_steps(front, None, None), after_two_steps(front, None, None)
    set_grads(changed[1], 7)
    set_grads(plain[1], 7)
    change(*changed)
    for opt, _ in (changed, plain):
        opt.step()
    assert bits(everything(*changed)) != bits(everything(*plain))


def sparse(opt, params):
    params["matrix"].grad = params["matrix"].grad.to_sparse()


def cut_state(opt, params):
    state, key = state_of(opt, params)
    state[key] = state[key][:1, :1].clone()


def cut_state_in_place(opt, params):
    state, key = state_of(opt, params)
    state[key].data = state[key].data[:1, :1].clone()


@pytest.mark.parametrize(
    ("change", "error"),
    [(sparse, GradientError), (cut_state, StateError), (cut_state_in_place, StateError)],
    ids=lambda x: x.__name__,
)
@engines
@blocks
@fronts
def test_a_change_that_is_an_error_changes_nothing(front, blocks, fused, change, error):
    opt, params = after_two_steps(front, fused, blocks)
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


def the_data(params, grads, states):
    params[0].data = params[0].data.clone()


def the_strides(params, grads, states):
    params[0].data = params[0].data.t()


def the_type(params, grads, states):
    params[1].__class__ = Sub


def the_dtype(params, grads, states):
    params[2].data = params[2].data.double()


def the_gradients_dtype(params, grads, states):
    grads[1] = grads[1].double()


def the_gradients_shape(params, grads, states):
    grads[1] = grads[1][:3]


def the_gradients_rank(params, grads, states):
    grads[1] = grads[1].reshape(2, 3)


def the_gradients_layout(params, grads, states):
    grads[0] = grads[0].to_sparse()


def the_gradients_device(params, grads, states):
    grads[0] = grads[0].to("meta")


def the_dict(params, grads, states):
    states[params[0]] = dict(states[params[0]])


def an_entry(params, grads, states):
    states[params[1]]["m"] = states[params[1]]["m"].view(6)


def an_entrys_data(params, grads, states):
    states[params[1]]["m"].data = states[params[1]]["m"].data.clone()


def the_step(params, grads, states):
    states[params[2]]["step"] = states[params[2]]["step"].view(())


def one_entry_more(params, grads, states):
    states[params[2]]["more"] = torch.zeros(())


def one_entry_less(params, grads, states):
    del states[params[2]]["m"]


def a_state_less(params, grads, states):
    del states[params[2]]


DIFFERENCES = [
    *(the_data, the_strides, the_type, the_dtype, the_dict, an_entry, an_entrys_data, the_step),
    *(the_gradients_dtype, the_gradients_shape, the_gradients_rank, the_gradients_layout, the_gradients_device),
    *(one_entry_more, one_entry_less, a_state_less),
]


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


OF_OBJECTS = (the_dict, an_entry, the_step, one_entry_more, one_entry_less, a_state_less)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.__name__)
def test_watches_see(watch, difference):
    given = watched()
    kept = copy.copy(given[1]), {p: dict(state) for p, state in given[2].items()}  # so that no id is used again
    watching = watch(*given)
    assert watching.same(*given)
    difference(*given)
    assert not watching.same(*given)
    assert watching.same(*given, only_objects=True) is (difference not in OF_OBJECTS)
    assert kept


def test_watches_let_be(watch):
    """New numbers, and gradients elsewhere or in another order in memory, are what every step has."""
    params, grads, states = watched()
    watching = watch(params, grads, states)
    params[0].data.mul_(2)
    states[params[0]]["step"] += 1
    assert watching.same(params, [g.clone() for g in grads], states)
    assert watching.same(params, [g.t() if g.dim() == 2 else g for g in grads], states)


def test_counts(watch):
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
