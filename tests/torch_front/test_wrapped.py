"""What people and PyTorch put around an optimizer: closures, hooks, copies, compilers, averages, wrappers."""

from __future__ import annotations

import contextlib
import copy
import pickle

import pytest
import torch
from cases import case_of
from contract.apis import close
from torch import nn
from torch.optim import swa_utils
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch_front.front import bits, busy, everything, fronts, numbers, parameters, twins, walk

from layerwise.torch import Adafactor, Lamb, Lars, param_groups

OPTIONS = {
    Lamb: {"lr": 0.05, "weight_decay": 0.01},
    Lars: {"lr": 20.0, "weight_decay": 1e-3},
    Adafactor: {"lr": 0.02, "beta1": 0.9, "weight_decay": 0.01},
}
STEPS = 6


def made(cls=Lamb):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))
    # A rate of LARS is far too large for what has no ratio.
    return model, cls(param_groups(model, **({"no_adapt": []} if cls is Lars else {})), **OPTIONS[cls])


def data():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(32, 6, generator=draw)
    return x, (x @ torch.randn(6, 3, generator=draw)).argmax(1)


def train(model, optimizer, steps=STEPS, run=None, context=contextlib.nullcontext, step=None, after=lambda: None):
    x, y = data()
    losses = []
    for _ in range(steps):
        with context():
            loss = nn.functional.cross_entropy((run or model)(x), y)
        optimizer.zero_grad()
        loss.backward()
        (step or optimizer.step)()
        after()
        losses.append(float(loss.detach()))
    return losses


@fronts
def test_a_plain_loop_learns(front):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(32, 4)
    opt = busy(front, model.parameters(), lr=case_of(front.__name__).learns_at)

    def closure():
        opt.zero_grad()
        loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    losses = [float(opt.step(closure).detach()) for _ in range(40)]
    assert losses[-1] < 0.8 * losses[0]


# ---- closures and gradients


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
def test_a_closure_that_fails_changes_nothing(front):
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
@pytest.mark.parametrize("enabled", [True, False])
def test_a_step_is_no_part_of_a_graph_and_leaves_the_grad_mode_alone(front, enabled):
    params, calm = parameters(1), parameters(1)
    opt, other = busy(front, params.items()), busy(front, calm.items())
    loss = sum((p**3).sum() for p in params.values())
    for p, g in zip(params.values(), torch.autograd.grad(loss, list(params.values()), create_graph=True), strict=True):
        p.grad = g
    for p in calm.values():
        p.grad = 3 * p.detach() ** 2
    with torch.set_grad_enabled(enabled):
        opt.step()
        assert torch.is_grad_enabled() == enabled
    other.step()
    close(numbers(params), numbers(calm), 1e-15)
    assert all(p.requires_grad and p.is_leaf for p in params.values())
    assert not any(x.requires_grad for one in opt.state.values() for x in one.values())


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
    params["matrix"].grad = torch.ones_like(params["matrix"])
    opt.zero_grad(set_to_none=False)
    assert not params["matrix"].grad.any()


# ---- hooks


def test_hooks_of_steps_see_their_own_optimizer():
    params, other = parameters(1), parameters(2)
    opt, apart = Lamb(params.items()), Lamb(other.items())
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


def test_hooks_of_checkpoints_put_them_right_and_see_what_was_loaded():
    params, seen = parameters(1, dtype=torch.bfloat16), []
    opt, fresh = Lamb(params.items()), Lamb(twins(params).items(), maximize=True)
    walk(opt, params, [1])
    wanted = bits(opt.state_dict()["state"])
    opt.register_state_dict_pre_hook(lambda o: seen.append("saved"))
    opt.register_state_dict_post_hook(lambda o, state_dict: {**state_dict, "note": "mine"})
    old = copy.deepcopy(opt.state_dict())
    assert (old.pop("note"), seen.pop()) == ("mine", "saved")
    for one in old["state"].values():
        one["count"] = one.pop("step")

    def rename(_, state_dict):
        renamed = {key: {"step": x["count"], **x} for key, x in state_dict["state"].items()}
        return {**state_dict, "state": {key: {k: x[k] for k in x if k != "count"} for key, x in renamed.items()}}

    fresh.register_load_state_dict_pre_hook(rename)
    fresh.register_load_state_dict_post_hook(lambda o: seen.append(bits(o.state_dict())))
    with pytest.warns(UserWarning, match="maximize"):
        fresh.load_state_dict(old)
    assert seen == [bits(fresh.state_dict())]
    assert bits({key: dict(sorted(x.items())) for key, x in fresh.state_dict()["state"].items()}) == bits(
        {key: dict(sorted(x.items())) for key, x in opt.state_dict()["state"].items()}
    )
    assert wanted == bits(opt.state_dict()["state"])


# ---- copies


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}
copied = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


@copied
def test_an_optimizer_copied_with_its_model_steps_the_copy(copied):
    model, opt = made()
    train(model, opt, 2)
    other, again = copied((model, opt))
    wanted, found = train(model, opt, 3), train(other, again, 3)
    assert found == wanted
    assert bits(other.state_dict()) == bits(model.state_dict())


# ---- what wraps training


def with_compiled_model(model, opt):
    return {"run": torch.compile(model, backend="eager")}


def with_compiled_step(model, opt):
    """Not promised to be one graph, but to be right."""
    return {"step": torch.compile(opt.step, backend="eager")}


def with_averaged_weights(model, opt):
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5))
    return {"after": lambda: averaged.update_parameters(model)}


@pytest.mark.parametrize(
    ("cls", "way"),
    [
        (Lamb, with_compiled_model),
        (Lamb, with_compiled_step),
        (Lars, with_averaged_weights),
    ],
)
def test_training_is_the_same(cls, way):
    (model, opt), plain = made(cls), made(cls)
    found, wanted = train(model, opt, 3, **way(model, opt)), train(*plain, 3)
    assert found == pytest.approx(wanted)
    torch.testing.assert_close(model.state_dict(), plain[0].state_dict())
