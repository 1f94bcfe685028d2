"""Tensors whose memory is not their value, is gone, or is another's as well: used with their value, or refused."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch_front.front import BUSY, bits, busy, everything, fronts, kept_of

import layerwise
from layerwise.errors import GradientError, LayerwiseError, ParameterError, StateError
from layerwise.torch import Lamb, Lars

SHAPE = (6, 4)
engines = pytest.mark.parametrize("fused", [None, False], ids=["compiled", "rule"])


def numbers(seed=0, shape=SHAPE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stepped(front, fused=None, steps=1, **options):
    """Return an optimizer after some steps, and its parameters."""
    params = {"other": nn.Parameter(numbers(1)), "odd": nn.Parameter(numbers(1))}
    opt = busy(front, params.items(), fused=fused, **options)
    for seed in range(max(1, steps)):
        for p in params.values():
            p.grad = numbers(2 + seed)
        if steps:
            opt.step()
    return opt, params


def state_of(front):
    """Return a part of the state that a busy optimizer has, of the parameter's shape if there is one."""
    h = front._hyper(**BUSY[front]).fit(SHAPE, (), 1e-7)
    shapes = front._rule.shapes(h, SHAPE)._asdict()
    return next((key for key in reversed(kept_of(front, SHAPE)) if shapes[key] == SHAPE), kept_of(front, SHAPE)[-1])


# ---- gradients whose memory is not their value


def parts(x):
    """As the imaginary part of a conjugate, which PyTorch negates when it is read."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


ZEROS = torch._efficientzerotensor
NEGATED = torch._neg_view
LAZY = {  # shapes, and gradients that have a value by another one's
    "the imaginary part of a conjugate": (SHAPE, parts),
    "negated where it lies": (SHAPE, lambda x: NEGATED(-x)),
    "one negated column": (SHAPE, lambda x: NEGATED(-x.t().contiguous()).t()),
    "functional": (SHAPE, torch._to_functional_tensor),
    "a scalar": ((), parts),
    "one number": ((1,), parts),
    "a matrix of one number": ((1, 1), parts),
    "no numbers": ((0,), parts),
    "zeros without memory": (SHAPE, lambda x: ZEROS(SHAPE) if not x.any() else x),
}


@pytest.mark.parametrize("lazy", LAZY)
@fronts
@engines
@pytest.mark.thinned(2)
def test_a_gradient_is_used_with_the_value_it_has(front, lazy, fused):
    shape, make = LAZY[lazy]
    params = [nn.Parameter(numbers(1, shape)) for _ in range(2)]
    opts = [busy(front, [p], fused=fused) for p in params]
    for seed, odd in enumerate([torch.clone, make, make, torch.clone, make]):
        g = numbers(seed, shape) * (seed != 2)  # zeros, for those that have no memory
        for p, how, opt in zip(params, (torch.clone, odd), opts, strict=True):
            p.grad = how(g)
            opt.step()
    torch.testing.assert_close(params[0], params[1], rtol=1e-6, atol=1e-6)  # in another order where it is a column


# ---- parameters and state whose memory is not their value


UNREADABLE = {
    "negated": lambda x: NEGATED(-x),
    "without memory": lambda x: ZEROS(x.shape),
    "functional": torch._to_functional_tensor,
}
unreadables = pytest.mark.parametrize("what", UNREADABLE)


@unreadables
@fronts
@engines
@pytest.mark.thinned(1)
def test_such_parameters_are_refused_and_such_state_too(front, fused, what):
    params = [("good", nn.Parameter(numbers(1))), ("odd", nn.Parameter(UNREADABLE[what](numbers(1))))]
    with pytest.raises(ParameterError, match="odd"):
        busy(front, params, fused=fused)
    opt, params = stepped(front, fused)
    key, state = state_of(front), opt.state[params["odd"]]
    state[key] = UNREADABLE[what](state[key])
    before = bits(params)
    with pytest.raises(StateError, match=f"{key}.*odd"):
        opt.step()
    assert bits(params) == before


@fronts
def test_a_checkpoint_with_negated_state_is_loaded_with_its_value(front):
    (opt, params), (other, others) = stepped(front), stepped(front)
    saved, key = deepcopy(opt.state_dict()), state_of(front)
    saved["state"][0][key] = NEGATED(-saved["state"][0][key])
    other.load_state_dict(saved)
    other.step()
    opt.step()
    assert bits(params) == bits(others)


# ---- memory that changes between steps, where tensors stay the same objects


def negated(x):
    address = x.data_ptr()
    x.data = NEGATED(x.data)
    assert x.data_ptr() == address


def shortened(x):
    """PyTorch leaves what is left of it where it was."""
    x.untyped_storage().resize_(x.untyped_storage().nbytes() - 4)


def freed(x):
    x.untyped_storage().resize_(0)


TENSORS = {
    "the parameter": (ParameterError, lambda opt, p, key: p),
    "the gradient": (GradientError, lambda opt, p, key: p.grad),
    "state": (StateError, lambda opt, p, key: opt.state[p][key]),
    "the count": (StateError, lambda opt, p, key: opt.state[p]["step"]),
}


@pytest.mark.parametrize("options", [{}, {"blocks": {"odd": 2}}, {"skip_nonfinite": True}], ids=str)
@pytest.mark.parametrize(
    ("which", "damaged", "steps"),
    [
        (which, damaged, steps)
        for damaged in (negated, shortened, freed)
        for which in TENSORS
        for steps in ((0, 1, 2) if which in ("the parameter", "the gradient") else (1, 2))
        if damaged is not negated or which != "the gradient"  # which is used as it is
    ],
)
@engines
@fronts
@pytest.mark.thinned(1)
def test_memory_that_is_damaged_is_an_error_and_nothing_is_stepped(front, fused, which, damaged, steps, options):
    opt, params = stepped(front, fused, steps, **options)
    before = bits(params["other"])
    error, found = TENSORS[which]
    damaged(found(opt, params["odd"], state_of(front)))
    with pytest.raises(error, match=r"negated|integer from 0" if damaged is negated else "freed"):
        opt.step()
    assert bits(params["other"]) == before


@engines
@pytest.mark.parametrize("left", [0, 25_000])
def test_freed_memory_of_views_is_an_error(fused, left):
    flat, grads = torch.ones(30_000), torch.ones(30_000)
    params = [nn.Parameter(flat[:10_000]), nn.Parameter(flat[10_000:])]
    opt = Lamb(params, fused=fused)
    for p, g in zip(params, (grads[:10_000], grads[10_000:]), strict=True):
        p.grad = g
    opt.step()
    grads.untyped_storage().resize_(4 * left)
    with pytest.raises(GradientError, match="freed"):
        opt.step()


# ---- memory that is another's as well


def on_one_storage():
    a, b = nn.Parameter(numbers(1)), nn.Parameter(torch.empty(SHAPE))
    b.data = a.data
    return a, b


def partly():
    memory = torch.ones(40)
    return nn.Parameter(memory[:24].view(SHAPE)), nn.Parameter(memory[20:])


def in_columns():
    memory = torch.ones(6, 8)
    return nn.Parameter(memory[:, :5]), nn.Parameter(memory[:, 4:])


@fronts
@engines
@pytest.mark.parametrize("make", [on_one_storage, partly, in_columns])
@pytest.mark.thinned(2)
def test_parameters_that_share_memory_are_refused(front, fused, make):
    a, b = make()
    params = {"one": a, "another": b}
    opt = busy(front, params.items(), fused=fused)
    a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
    before = everything(opt, params)
    with pytest.raises(ParameterError, match=r"one.*another|another.*one"):
        opt.step()
    assert everything(opt, params) == before
    with pytest.raises(ParameterError, match="share memory"):
        Lamb([nn.Parameter(torch.ones(20).as_strided((3, 3), (4, 2)))])  # within itself


@pytest.mark.parametrize("what", ["the parameters", "state and its parameter", "state and another's"])
@fronts
@engines
@pytest.mark.thinned(2)
def test_parameters_that_begin_to_share_memory_are_refused(front, fused, what):
    opt, params = stepped(front, fused, steps=2)
    a, b = params.values()
    key = state_of(front)
    if what == "the parameters":
        b.data = a.data
    else:
        opt.state[b][key] = b.detach() if what == "state and its parameter" else opt.state[a][key]
    with pytest.raises(ParameterError, match="share memory" if what == "the parameters" else f"{key}.*share memory"):
        opt.step()


# ---- tensors that the kernels do not read


class Wrapped(torch.Tensor):
    """A subclass, which might keep its numbers anywhere."""


def test_kernels_that_are_insisted_on_say_that_a_subclass_is_in_the_way():
    p = nn.Parameter(numbers(1).as_subclass(Wrapped))
    opt = Lamb([("odd", p)], fused=True)
    p.grad = numbers(2)
    with pytest.raises(LayerwiseError, match="Wrapped"):
        opt.step()


# ---- the mode of the processor's arithmetic


@pytest.fixture
def flushed():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormal numbers")
    yield
    torch.set_flush_denormal(False)


SMALL = torch.full((1 << 21,), 3e-39), torch.full((1 << 21,), 1e-39)
HALVES = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)


def descended(p, g, threads=1):
    before = layerwise.get_num_threads()
    layerwise.set_num_threads(threads)
    try:
        p = nn.Parameter(p.clone())
        p.grad = g.clone()
        Lars([p], lr=1.0, momentum=0.0, adapt=False).step()
        return p.detach()
    finally:
        layerwise.set_num_threads(before)


def test_float16_does_not_depend_on_it(flushed):
    finite = HALVES[HALVES.isfinite() & (HALVES != 0)]
    assert torch.equal(descended(torch.zeros_like(finite), -finite), finite)


def test_all_threads_have_the_callers(flushed):
    torch.set_flush_denormal(False)
    kept = descended(*SMALL, threads=4)  # its threads are there before the mode changes
    torch.set_flush_denormal(True)
    found = [descended(*SMALL, threads).view(torch.int32).unique().tolist() for threads in (1, 4, 4)]
    assert found == [[0]] * 3
    assert kept.view(torch.int32).unique().tolist() != [0]
