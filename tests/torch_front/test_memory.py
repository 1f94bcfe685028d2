"""Tensors whose memory is not their value, is gone, or is another's as well."""

from __future__ import annotations

import warnings
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch_front.front import BUSY, bits, busy, everything, fronts, kept_of

import layerwise
from layerwise.errors import GradientError, LayerwiseError, ParameterError, StateError
from layerwise.torch import Lamb, Lars, step_in_backward

SHAPE = (6, 4)
engines = pytest.mark.parametrize("fused", [None, False], ids=["compiled", "rule"])


def numbers(seed=0, shape=SHAPE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parts(x):
    """As the imaginary part of a conjugate, which PyTorch negates when it is read."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


LAZY = {
    "the imaginary part of a conjugate": parts,
    "negated where it lies": lambda x: torch._neg_view(-x),
    "one negated column": lambda x: torch._neg_view(-x.t().contiguous()).t(),
    "functional": torch._to_functional_tensor,
}
lazies = pytest.mark.parametrize("lazy", LAZY)


@lazies
@fronts
@engines
def test_a_gradient_is_used_with_the_value_it_has(front, lazy, fused):
    params = [nn.Parameter(numbers(1)) for _ in range(2)]
    opts = [busy(front, [p], fused=fused) for p in params]
    for seed, make in enumerate([torch.clone, LAZY[lazy], LAZY[lazy], torch.clone, LAZY[lazy]]):
        for p, how, opt in zip(params, (torch.clone, make), opts, strict=True):
            p.grad = how(numbers(seed))
            opt.step()
    torch.testing.assert_close(params[0], params[1], rtol=1e-6, atol=1e-6)  # in another order where it is a column


@fronts
@engines
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0,)])
def test_however_few_numbers_it_has(front, fused, shape):
    params = [nn.Parameter(numbers(1, shape)) for _ in range(2)]
    for p, how in zip(params, (torch.clone, parts), strict=True):
        p.grad = how(numbers(2, shape))
        busy(front, [p], fused=fused).step()
    assert bits(params[0]) == bits(params[1])


@fronts
@engines
def test_zeros_without_memory_are_zeros(front, fused):
    params = [nn.Parameter(numbers(1)) for _ in range(2)]
    opts = [busy(front, [p], fused=fused) for p in params]
    for made in (numbers(2), None, numbers(3)):
        params[0].grad = torch.zeros(SHAPE) if made is None else made.clone()
        params[1].grad = torch._efficientzerotensor(SHAPE) if made is None else made.clone()
        for opt in opts:
            opt.step()
    assert bits(params[0]) == bits(params[1])


def test_in_the_backward_pass():
    params = [nn.Parameter(numbers(1)) for _ in range(2)]
    for p, how in zip(params, (torch.clone, LAZY["negated where it lies"]), strict=True):
        opt = Lars([p], lr=0.1)
        step_in_backward(opt)
        p.grad = how(numbers(2))
        (p * 0).sum().backward()
    assert bits(params[0]) == bits(params[1])


def test_where_infinities_are_looked_for():
    p = nn.Parameter(numbers(1))
    opt = Lamb([p], lr=0.1, skip_nonfinite=True)
    other = nn.Parameter(numbers(1))
    p.grad, other.grad = parts(numbers(2)), numbers(2)
    opt.step()
    Lamb([other], lr=0.1).step()
    assert bits(p) == bits(other)


UNREADABLE = {
    "negated": lambda x: torch._neg_view(-x),
    "without memory": lambda x: torch._efficientzerotensor(x.shape),
    "functional": torch._to_functional_tensor,
}
unreadables = pytest.mark.parametrize("what", UNREADABLE)


@unreadables
@fronts
@engines
def test_such_a_parameter_is_refused(front, fused, what):
    with pytest.raises(ParameterError, match="odd"):
        busy(
            front,
            [("good", nn.Parameter(numbers(1))), ("odd", nn.Parameter(UNREADABLE[what](numbers(1))))],
            fused=fused,
        )


@fronts
@engines
def test_a_parameter_that_becomes_one_is_refused(front, fused):
    p = nn.Parameter(numbers(1))
    opt = busy(front, [("odd", p)], fused=fused)
    p.grad = numbers(2)
    opt.step()
    p.data = parts(numbers(3))
    before = everything(opt, {"odd": p})
    with pytest.raises(ParameterError, match="odd"):
        opt.step()
    assert everything(opt, {"odd": p}) == before


def tensors_of(front, opt, p):
    return {
        "the parameter": p,
        "the gradient": p.grad,
        "state": opt.state[p][state_of(front)],
        "the count": count(opt, p),
    }


def count(opt, p):
    return opt.state[p]["step"]


ERRORS = {"the parameter": ParameterError, "state": StateError, "the count": StateError}


@fronts
@engines
@pytest.mark.parametrize("which", ERRORS)
@pytest.mark.parametrize("blocks", [None, {"odd": 2}], ids=["whole", "blocks"])
@pytest.mark.parametrize("skip_nonfinite", [False, True])
def test_a_sign_that_changes_where_numbers_lie_is_seen(front, fused, which, blocks, skip_nonfinite):
    p, other = nn.Parameter(numbers(1)), nn.Parameter(numbers(1))
    opt = busy(front, [("other", other), ("odd", p)], fused=fused, blocks=blocks, skip_nonfinite=skip_nonfinite)
    for seed in (2, 3):
        p.grad, other.grad = numbers(seed), numbers(seed)
        opt.step()
    before = bits(other)
    changed = tensors_of(front, opt, p)[which]
    address = changed.data_ptr()
    changed.data = torch._neg_view(changed.data)
    assert changed.data_ptr() == address
    with pytest.raises(ERRORS[which], match=r"negated|integer from 0"):
        opt.step()
    assert bits(other) == before


@fronts
@engines
@pytest.mark.parametrize("blocks", [None, {"odd": 2}], ids=["whole", "blocks"])
def test_a_gradient_whose_sign_changes_where_it_lies_is_used_as_it_is(front, fused, blocks):
    params = [nn.Parameter(numbers(1)) for _ in range(2)]
    opts = [busy(front, [("odd", p)], fused=fused, blocks=blocks) for p in params]
    for p, opt in zip(params, opts, strict=True):
        p.grad = numbers(2)
        opt.step()
    params[0].grad = -params[0].grad
    params[1].grad.data = torch._neg_view(params[1].grad.data)
    for opt in opts:
        opt.step()
    assert bits(params[0]) == bits(params[1])


@fronts
@engines
@pytest.mark.parametrize("which", ["the parameter", "the gradient", "state", "the count"])
@pytest.mark.parametrize("blocks", [None, {"short": 2}], ids=["whole", "blocks"])
def test_storage_that_is_shortened_is_an_error(front, fused, which, blocks):
    """PyTorch leaves what is left of it where it was."""
    p, other = nn.Parameter(numbers(1)), nn.Parameter(numbers(1))
    opt = busy(front, [("other", other), ("short", p)], fused=fused, blocks=blocks)
    for seed in (2, 3):
        p.grad, other.grad = numbers(seed), numbers(seed)
        opt.step()
    before = bits(other)
    storage = tensors_of(front, opt, p)[which].untyped_storage()
    storage.resize_(storage.nbytes() - 4)
    with pytest.raises({**ERRORS, "the gradient": GradientError}[which], match="freed"):
        opt.step()
    assert bits(other) == before


def state_of(front):
    """Return a part of the state that a busy optimizer has."""
    h = front._hyper(**BUSY[front]).fit(SHAPE, (), 1e-7)
    shapes = front._rule.shapes(h, SHAPE)._asdict()
    return next((key for key in reversed(kept_of(front, SHAPE)) if shapes[key] == SHAPE), kept_of(front, SHAPE)[-1])


@unreadables
@fronts
@engines
def test_such_a_state_is_refused(front, fused, what):
    p = nn.Parameter(numbers(1))
    opt = busy(front, [("odd", p)], fused=fused)
    p.grad = numbers(2)
    opt.step()
    key = state_of(front)
    opt.state[p][key] = UNREADABLE[what](opt.state[p][key])
    before = p.detach().clone()
    with pytest.raises(StateError, match=f"{key}.*odd"):
        opt.step()
    assert torch.equal(p, before)


def test_a_count_that_is_negated_is_refused():
    p = nn.Parameter(numbers(1))
    opt = Lamb([p])
    p.grad = numbers(2)
    opt.step()
    opt.state[p]["step"] = torch._neg_view(torch.tensor(-1))
    with pytest.raises(StateError, match="step"):
        opt.step()


@fronts
def test_a_checkpoint_with_negated_state_is_loaded_with_its_value(front):
    params = [nn.Parameter(numbers(1)) for _ in range(2)]
    opts = [busy(front, [p]) for p in params]
    for p, opt in zip(params, opts, strict=True):
        p.grad = numbers(2)
        opt.step()
    saved, key = deepcopy(opts[0].state_dict()), state_of(front)
    saved["state"][0][key] = torch._neg_view(-saved["state"][0][key])
    opts[1].load_state_dict(saved)
    for opt in opts[::-1]:
        opt.step()
    assert bits(params[0]) == bits(params[1])


# ---- memory that is gone


def freed(x):
    x.untyped_storage().resize_(0)


@fronts
@engines
@pytest.mark.parametrize("which", ["the parameter", "the gradient", "state", "the count"])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_freed_memory_is_an_error(front, fused, which, steps):
    p, other = nn.Parameter(numbers(1)), nn.Parameter(numbers(1))
    opt = busy(front, [("other", other), ("freed", p)], fused=fused)
    p.grad, other.grad = numbers(2), numbers(2)
    for _ in range(steps):
        opt.step()
    if not steps and which in ("state", "the count"):
        return
    before = other.detach().clone()
    tensors = {"the parameter": p, "the gradient": p.grad}
    freed(tensors.get(which) if which in tensors else opt.state[p]["step" if which == "the count" else state_of(front)])
    wanted = {"the parameter": ParameterError, "the gradient": GradientError}.get(which, StateError)
    with pytest.raises(wanted, match="freed"):
        opt.step()
    assert torch.equal(other, before)


@engines
def test_freed_memory_of_views_is_an_error(fused):
    flat, grads = torch.ones(30_000), torch.ones(30_000)
    params = [nn.Parameter(flat[:10_000]), nn.Parameter(flat[10_000:])]
    opt = Lamb(params, fused=fused)
    for p, g in zip(params, (grads[:10_000], grads[10_000:]), strict=True):
        p.grad = g
    opt.step()
    freed(grads)
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
def test_parameters_that_share_memory_are_refused(front, fused, make):
    a, b = make()
    opt = busy(front, [("one", a), ("another", b)], fused=fused)
    a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
    params = {"one": a, "another": b}
    before = everything(opt, params)
    with pytest.raises(ParameterError, match=r"one.*another|another.*one"):
        opt.step()
    assert everything(opt, params) == before


@fronts
@engines
def test_parameters_beside_one_another_in_one_storage_are_stepped(front, fused):
    memory = numbers(1, (6, 8))
    params = [nn.Parameter(memory[:, ::2]), nn.Parameter(memory[:, 1::2])]
    apart = [nn.Parameter(p.detach().clone()) for p in params]
    for some in (params, apart):
        for p in some:
            p.grad = numbers(2, (6, 4))
        busy(front, some, fused=fused).step()
    assert [torch.equal(p, q) for p, q in zip(params, apart, strict=True)] == [True, True]


@fronts
@engines
def test_parameters_that_come_to_share_memory_are_refused(front, fused):
    a, b = nn.Parameter(numbers(1)), nn.Parameter(numbers(1))
    opt = busy(front, [("one", a), ("another", b)], fused=fused)
    a.grad, b.grad = numbers(2), numbers(3)
    for _ in range(2):
        opt.step()
    b.data = a.data
    with pytest.raises(ParameterError, match="share memory"):
        opt.step()


@fronts
@engines
@pytest.mark.parametrize("with_whom", ["its parameter", "another's state"])
def test_state_that_shares_memory_is_refused(front, fused, with_whom):
    a, b = nn.Parameter(numbers(1)), nn.Parameter(numbers(1))
    opt = busy(front, [("one", a), ("another", b)], fused=fused)
    a.grad, b.grad = numbers(2), numbers(3)
    opt.step()
    key = state_of(front)
    opt.state[b][key] = b.detach() if with_whom == "its parameter" else opt.state[a][key]
    with pytest.raises(ParameterError, match=f"{key}.*share memory"):
        opt.step()


def test_a_parameter_that_shares_memory_within_itself_is_refused():
    p = nn.Parameter(torch.ones(20).as_strided((3, 3), (4, 2)))
    with pytest.raises(ParameterError, match="share memory"):
        Lamb([p])


# ---- tensors that the kernels do not read


class Wrapped(torch.Tensor):
    """A subclass, which might keep its numbers anywhere."""


def test_kernels_that_are_insisted_on_say_that_a_subclass_is_in_the_way():
    p = nn.Parameter(numbers(1).as_subclass(Wrapped))
    opt = Lamb([("odd", p)], fused=True)
    p.grad = numbers(2)
    with pytest.raises(LayerwiseError, match="Wrapped"):
        opt.step()


def test_nested_and_fake_tensors_are_named():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's first nested tensor of a process is announced
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(ParameterError, match=r"odd.*nested"):
        Lamb([("odd", nn.Parameter(nested))])
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), pytest.raises(ParameterError, match=r"odd.*FakeTensorMode"):
        Lamb([("odd", nn.Parameter(torch.ones(3)))])
    p = nn.Parameter(numbers(1))
    opt = Lamb([("odd", p)])
    p.grad = numbers(2)
    with FakeTensorMode(), pytest.raises(ParameterError, match=r"odd.*FakeTensorMode"):
        opt.step()
    assert not opt.state


@pytest.mark.parametrize("step", [-7, 2.5, None, torch.ones(2), torch.tensor(1j)], ids=repr)
def test_a_count_that_is_no_count_is_refused(step):
    p = nn.Parameter(numbers(1))
    opt = Lamb([("w", p)])
    p.grad = numbers(2)
    opt.step()
    opt.state[p]["step"] = step
    with pytest.raises(StateError, match=r"'step' of w must be (a tensor of one|an integer from 0)"):
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


def stepped(p, g, threads=1):
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
    assert torch.equal(stepped(torch.zeros_like(finite), -finite), finite)


def test_all_threads_have_the_callers(flushed):
    torch.set_flush_denormal(False)
    kept = stepped(*SMALL, threads=4)  # its threads are there before the mode changes
    torch.set_flush_denormal(True)
    found = [stepped(*SMALL, threads).view(torch.int32).unique().tolist() for threads in (1, 4, 4)]
    assert found == [[0]] * 3
    assert kept.view(torch.int32).unique().tolist() != [0]
