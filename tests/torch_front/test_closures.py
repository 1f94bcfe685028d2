"""Closures, hooks, and what torch.optim does around a step."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from cases import case_of
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch_front.front import bits, busy, close, everything, fronts, numbers, parameters, set_grads, twins, walk


@fronts
def test_a_closure_runs_under_grad_and_returns_its_loss(front):
    params, calm = parameters(1), parameters(1)
    opt, other = busy(front, params.items()), busy(front, calm.items())
    seen = []

    def closure():
        seen.append(torch.is_grad_enabled())
        opt.zero_grad()
        loss = sum((p * p * 1.5).sum() for p in params.values())
        loss.backward()
        return loss

    with torch.no_grad():
        loss = opt.step(closure)
        assert not torch.is_grad_enabled()
    assert seen == [True]
    assert float(loss.detach()) == float(sum((p * p * 1.5).sum() for p in calm.values()).detach())
    for p in calm.values():
        p.grad = 3 * p.detach()
    assert other.step() is None
    assert bits(params) == bits(calm)
    assert opt.step(closure=closure) is not None


@fronts
def test_a_failing_closure_changes_nothing(front):
    params = parameters(1)
    opt = busy(front, params.items())
    walk(opt, params, range(2))
    before = everything(opt, params)

    def closure():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        opt.step(closure)
    assert torch.is_grad_enabled()
    assert everything(opt, params) == before


@fronts
def test_step_leaves_the_grad_mode_alone(front):
    params = parameters(1)
    opt = busy(front, params.items())
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            walk(opt, params, [1])
            assert torch.is_grad_enabled() == enabled
    assert all(p.requires_grad and p.is_leaf for p in params.values())
    assert not any(x.requires_grad for one in opt.state.values() for x in one.values())


@fronts
def test_step_hooks(front):
    params, other = parameters(1), parameters(2)
    opt, apart = busy(front, params.items()), busy(front, other.items())
    calls = []
    handles = [
        opt.register_step_pre_hook(lambda o, args, kwargs: calls.append(("pre", o is opt, len(o.state)))),
        opt.register_step_post_hook(lambda o, args, kwargs: calls.append(("post", o is opt, len(o.state)))),
        register_optimizer_step_pre_hook(lambda o, *_: calls.append(("every", o is opt, 0))),
    ]
    try:
        walk(opt, params, [1])
        walk(apart, other, [1])
    finally:
        for handle in handles:
            handle.remove()
    walk(opt, params, [2])
    assert calls == [("every", True, 0), ("pre", True, 0), ("post", True, 4), ("every", False, 0)]


@fronts
def test_state_dict_hooks(front):
    params = parameters(1)
    opt = busy(front, params.items())
    walk(opt, params, [1])
    opt.register_state_dict_pre_hook(lambda o: calls.append("pre"))
    opt.register_state_dict_post_hook(lambda o, state_dict: {**state_dict, "note": "mine"})
    calls = []
    assert opt.state_dict()["note"] == "mine"
    assert calls == ["pre"]


@fronts
def test_a_pre_hook_may_put_a_checkpoint_right(front):
    """What register_load_state_dict_pre_hook is for: the hook gives the state_dict that is loaded."""
    params = parameters(1)
    opt, fresh = busy(front, params.items()), busy(front, twins(params).items())
    walk(opt, params, [1])
    old = copy.deepcopy(opt.state_dict())
    expected = bits(old)
    for one in old["state"].values():
        one["count"] = one.pop("step")

    def rename(_, state_dict):
        state = {key: {("step" if k == "count" else k): x for k, x in one.items()} for key, one in old["state"].items()}
        return {**state_dict, "state": state}

    fresh.register_load_state_dict_pre_hook(rename)
    fresh.load_state_dict(old)
    assert bits(fresh.state_dict()) == expected


@fronts
def test_a_post_hook_sees_what_was_loaded(front):
    params = parameters(1, dtype=torch.bfloat16)
    opt, fresh = busy(front, params.items()), busy(front, twins(params).items(), maximize=True)
    walk(opt, params, [1])
    seen = []
    fresh.register_load_state_dict_post_hook(lambda o: seen.append(bits(o.state_dict())))
    with pytest.warns(UserWarning, match="maximize"):
        fresh.load_state_dict(opt.state_dict())
    assert seen == [bits(fresh.state_dict())]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
@fronts
@pytest.mark.needs("max_grad_norm")
def test_copies_go_on_alike(front, how):
    params = parameters(1)
    opt = busy(front, params.items(), blocks={"matrix": 2, "st*": "each"}, skip_nonfinite=True, max_grad_norm=0.5)
    walk(opt, params, range(2))
    again = how(opt)
    copied = dict(zip(params, (p for group in again.param_groups for p in group["params"]), strict=True))
    assert bits(again.state_dict()) == bits(opt.state_dict())
    walk(opt, params, range(2, 4))
    walk(again, copied, range(2, 4))
    assert bits(copied) == bits(params)
    assert bits(again.stats()) == bits(opt.stats())
    set_grads(copied, 1)
    copied["vector"].grad.fill_(float("nan"))
    again.step()
    assert (again.skipped, opt.skipped) == (1, 0)


@fronts
def test_an_optimizer_copied_with_its_model(front):
    model = torch.nn.Linear(3, 2)
    opt = busy(front, model.named_parameters())
    model(torch.ones(1, 3)).sum().backward()
    opt.step()
    other, again = copy.deepcopy((model, opt))  # which leaves the gradients out
    opt.zero_grad()
    for m, o in ((model, opt), (other, again)):
        m(torch.ones(1, 3)).sum().backward()
        o.step()
    assert bits(dict(model.named_parameters())) == bits(dict(other.named_parameters()))


@fronts
def test_zero_grad_and_frozen_parameters(front):
    params = parameters(1)
    params["vector"].requires_grad_(False)
    opt = busy(front, params.items())
    sum(p.sum() for p in params.values()).backward()
    opt.step()
    opt.zero_grad()
    assert all(p.grad is None for p in params.values())
    before = bits(params)
    opt.step()
    assert bits(params) == before
    assert params["vector"] not in opt.state


@fronts
def test_loss_goes_down(front):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    x = torch.randn(32, 4)
    y = x.prod(1, keepdim=True)
    opt = busy(front, model.parameters(), lr=case_of(front.__name__).learns_at)

    def closure():
        opt.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    losses = [float(opt.step(closure).detach()) for _ in range(40)]
    assert losses[-1] < 0.8 * losses[0]


@fronts
def test_grads_of_a_graph_are_not_followed(front):
    params, calm = parameters(1), parameters(1)
    opt, other = busy(front, params.items()), busy(front, calm.items())
    loss = sum((p**3).sum() for p in params.values())
    for p, g in zip(params.values(), torch.autograd.grad(loss, list(params.values()), create_graph=True), strict=True):
        p.grad = g
    for p in calm.values():
        p.grad = 3 * p.detach() ** 2
    opt.step()
    other.step()
    close(numbers(params), numbers(calm), 1e-15)
    assert not any(x.requires_grad for one in opt.state.values() for x in one.values())
