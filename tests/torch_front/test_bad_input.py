"""Parameters and gradients that cannot be stepped have their error, and leave everything as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_front.front import busy, everything, fronts, parameters, set_grads, walk

from layerwise.errors import GradientError, HyperparameterError, LayerwiseError, ParameterError
from layerwise.torch import Lamb

W = (2, 3)


def expanded():
    return nn.Parameter(torch.ones(3).expand(W))


PARAMETERS = {
    "complex": (lambda: nn.Parameter(torch.ones(W, dtype=torch.complex64)), ("complex", "view_as_real")),
    "sparse": (lambda: torch.ones(W).to_sparse(), ("dense", "to_dense")),
    "on meta": (lambda: nn.Parameter(torch.ones(W, device="meta")), ("meta",)),
    "expanded": (expanded, ("expanded", "contiguous")),
    "overlapping": (lambda: nn.Parameter(torch.ones(4).as_strided(W, (1, 1))), ("memory",)),
    "whole numbers": (lambda: torch.ones(W, dtype=torch.long), ("floating", "int64")),
    "booleans": (lambda: torch.ones(W, dtype=torch.bool), ("floating", "bool")),
    "float8": (lambda: torch.ones(W).to(torch.float8_e4m3fn), ("floating", "float8")),
    "not yet there": (lambda: nn.LazyLinear(2).weight, ("forward",)),
}


@pytest.mark.parametrize("what", PARAMETERS)
@fronts
def test_parameters_that_cannot_be_stepped(front, what):
    make, words = PARAMETERS[what]
    good = nn.Parameter(torch.ones(2))
    with pytest.raises(ParameterError, match="bad") as found:
        busy(front, [("good", good), ("bad", make())])
    assert all(word in str(found.value) for word in words)
    opt = busy(front, [("good", good)])
    with pytest.raises(ParameterError, match="bad"):
        opt.add_param_group({"params": [("late", nn.Parameter(torch.ones(3))), ("bad", make())]})
    assert opt.num_parameters == len(opt.param_groups) == len(opt.state_dict()["param_groups"]) == 1
    good.grad = torch.ones(2)
    opt.step()


def becomes(data):
    """The parameter is given other data after it was stepped, its gradient being there already."""

    def spoil(p):
        p.data = data(p.detach())

    return spoil


def regraded(make):
    def spoil(p):
        p.grad_dtype = None  # lets a gradient of any dtype in
        p.grad = make(p)

    return spoil


def fake(shape):
    with FakeTensorMode():
        return torch.ones(shape)


def reshaped(p):
    p.grad, p.data = None, torch.ones(3, 2)
    p.grad = torch.ones(3, 2)


def grown(p):
    p.grad, p.data = None, torch.ones(4, 2, 3)
    p.grad = torch.ones(4, 2, 3)


SPOILT = {
    "a sparse gradient": (lambda p: setattr(p, "grad", torch.ones(W).to_sparse()), GradientError, "sparse"),
    "a complex gradient": (regraded(lambda p: torch.ones(W, dtype=torch.complex64)), GradientError, "complex"),
    "a gradient of whole numbers": (regraded(lambda p: torch.ones(W, dtype=torch.long)), GradientError, "int64"),
    "a gradient of booleans": (regraded(lambda p: torch.ones(W, dtype=torch.bool)), GradientError, "bool"),
    "a gradient without numbers": (lambda p: setattr(p, "grad", fake(W)), GradientError, "FakeTensorMode"),
    "complex data": (becomes(lambda p: p.to(torch.complex64)), LayerwiseError, "complex"),
    "expanded data": (becomes(lambda p: torch.ones(3).expand(W)), LayerwiseError, "expanded"),
    "data of another shape": (reshaped, LayerwiseError, r"\(3, 2\)"),
    "data to which the state broadcasts": (grown, LayerwiseError, r"\(4, 2, 3\)"),
    "only data of another shape": (becomes(lambda p: torch.ones(3, 2)), GradientError, r"\(3, 2\)"),
}
spoilt = pytest.mark.parametrize("what", SPOILT)


@spoilt
@pytest.mark.parametrize("first_step", [True, False])
@fronts
@pytest.mark.needs("max_grad_norm")
def test_one_bad_entry_changes_nothing(front, what, first_step):
    spoil, error, words = SPOILT[what]
    if first_step and spoil in (reshaped, grown):
        pytest.skip("without state any shape is a first one")
    params = parameters(1, dtype=torch.float32)
    params["bad"] = nn.Parameter(torch.ones(W))
    last = {"params": [("bad", params["bad"])], "lr": 0.3}
    opt = busy(front, [{"params": [(n, p) for n, p in params.items() if n != "bad"]}, last], max_grad_norm=0.5)
    if not first_step:
        walk(opt, params, range(2))
    set_grads(params, 5)
    spoil(params["bad"])
    before = everything(opt, params)
    with pytest.raises(error, match=words) as found:
        opt.step()
    assert "bad" in str(found.value)
    assert everything(opt, params) == before
    params["bad"].grad = None
    opt.step()


BAD_NOW = {
    "lr": ("lr", -1.0),
    "lr nan": ("lr", float("nan")),
    "lr text": ("lr", "0.1"),
    "lr of two": ("lr", torch.ones(2)),
    "weight_decay": ("weight_decay", -0.1),
    "max_grad_norm": ("max_grad_norm", -1.0),
    "maximize": ("maximize", "yes"),
    "capturable": ("capturable", "yes"),
    "unhashable": ("max_grad_value", {}),
    "an array": ("max_grad_value", torch.ones(3)),
}


@pytest.mark.parametrize("what", BAD_NOW)
@fronts
def test_a_bad_option_at_a_step_changes_nothing(front, what):
    name, value = BAD_NOW[what]
    params = parameters(1)
    opt = busy(front, [{"params": [(n, p)]} for n, p in params.items()])
    walk(opt, params, range(2))
    good = opt.param_groups[-1].pop(name)
    opt.param_groups[-1][name] = value
    set_grads(params, 2)
    before = everything(opt, params)
    with pytest.raises(HyperparameterError, match=f"`{name}`"):
        opt.step()
    opt.param_groups[-1][name] = good
    after = everything(opt, params)
    assert after[0] == before[0]
    assert after[2]["state"] == before[2]["state"]
    opt.step()


@fronts
def test_tied_parameters_are_stepped_once(front):
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4, bias=False))
    model[1].weight = model[0].weight
    opt = busy(front, model.named_parameters())
    assert opt.num_parameters == 1
    model(torch.tensor([1, 2])).sum().backward()
    opt.step()
    assert int(opt.state[model[0].weight]["step"]) == 1


def test_complex_by_its_real_parts():
    """What the message says to do."""
    z = torch.ones(3, dtype=torch.complex64)
    p = torch.view_as_real(z).requires_grad_()
    opt = Lamb([p], lr=0.1)
    torch.view_as_complex(p).abs().sum().backward()
    opt.step()
    assert (z.real != 1).all()
