"""Weights, state and gradients go when nobody has them any more, at once and without the garbage collector."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from layerwise import numpy as of_numpy

methods = pytest.mark.parametrize("method", ["Lamb", "Adafactor"])


@pytest.fixture(autouse=True)
def _no_collector():
    gc.disable()
    yield
    gc.enable()


def alive(refs):
    return [kind for kind, ref in refs if ref() is not None]


def watched(**kinds):
    return [(kind, weakref.ref(one)) for kind, objects in kinds.items() for one in objects]


# ---- NumPy


@methods
@pytest.mark.parametrize("engine", [None, "rule"])
@pytest.mark.parametrize("together", [True, False], ids=["step_all", "step"])
def test_numpy_keeps_no_arrays_but_its_state(method, engine, together):
    opt = getattr(of_numpy, method)(lr=0.01, engine=engine, blocks={"a": 2})
    weights = {name: np.ones((4, 4)) for name in "abc"}
    if engine is None and together:
        weights["b"] = weights["b"].astype(">f8")  # which the compiled engine leaves to the rule
    for _ in range(3):
        grads = {name: np.ones((4, 4)) for name in "abc"}
        if together:
            opt.step_all(weights, grads)
            opt.stats()
        else:
            for name in weights:
                opt.step(name, weights[name], grads[name])
    arrays = watched(weights=weights.values(), gradients=grads.values())
    state = [x for slot in opt._tensors.slots.values() for x in slot.arrays.values()]
    kept = watched(state=state, optimizer=[opt])
    del weights, grads, state
    assert alive(arrays) == []  # though the optimizer goes on
    del opt
    assert alive(kept) == []


@pytest.mark.parametrize("how", ["cleared", "loaded", "one by one"])
def test_numpy_keeps_no_state_that_was_forgotten(how):
    opt = of_numpy.Lamb(lr=0.01)
    weights = {name: np.ones((4, 4)) for name in "ab"}
    saved = opt.state_dict()
    opt.step_all(weights, weights)
    state = watched(state=[x for slot in opt._tensors.slots.values() for x in slot.arrays.values()])
    if how == "loaded":
        opt.load_state_dict(saved)
    for name in {"cleared": [None], "one by one": weights}.get(how, ()):
        opt.clear_state(name)
    assert alive(state) == []


# ---- PyTorch


class Nowhere:
    def add_scalar(self, *_):
        pass


def by_itself(torch, front, model, opt):
    return None


def in_backward(torch, front, model, opt):
    return front.step_in_backward(opt)


def in_every_second_backward(torch, front, model, opt):
    return front.step_in_backward(opt, every=2)


def with_monitor(torch, front, model, opt):
    return front.monitor(opt, Nowhere())


def with_noise_scale(torch, front, model, opt):
    return front.NoiseScale(model)


def with_scheduler(torch, front, model, opt):
    return torch.optim.lr_scheduler.StepLR(opt, 2)


def with_our_scheduler(torch, front, model, opt):
    from layerwise.schedules import Cosine

    return front.scheduler(opt, Cosine(0.01, 10))


def with_stats(torch, front, model, opt):
    opt.register_step_post_hook(lambda opt, *_: opt.stats())


def after_loading(torch, front, model, opt):
    model(torch.ones(2, 4)).sum().backward()
    opt.step()
    opt.load_state_dict(opt.state_dict())


WAYS = [by_itself, in_backward, in_every_second_backward, with_monitor, with_noise_scale, with_scheduler]
WAYS += [with_our_scheduler, with_stats, after_loading]


@pytest.mark.parametrize("fused", [None, False], ids=["fused", "rule"])
@pytest.mark.parametrize("way", WAYS)
def test_torch_closes_no_circle_around_parameters(fused, way):
    torch = pytest.importorskip("torch")
    from layerwise import torch as front

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    opt = front.Lamb(model.named_parameters(), lr=0.01, fused=fused)
    beside = way(torch, front, model, opt)
    for _ in range(3):
        opt.zero_grad()
        for _ in range(2):
            model(torch.ones(2, 4)).square().sum().backward()
        opt.step()
        if hasattr(beside, "step"):
            beside.step()
    model(torch.ones(2, 4)).sum().backward()  # and a pass that nothing follows
    assert opt.state
    refs = watched(
        weights=model.parameters(),
        optimizer=[opt],
        gradients=[p.grad for p in model.parameters() if p.grad is not None],
        state=[x for state in opt.state.values() for x in state.values()],
    )
    del model, opt, beside
    assert alive(refs) == []


@methods
@pytest.mark.parametrize("fused", [None, False], ids=["fused", "rule"])
def test_torch_closes_none_with_other_processes(method, fused):
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    from layerwise import torch as front

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        p = torch.nn.Parameter(torch.ones(4, 4))
        opt = getattr(front, method)([p], lr=0.01, fused=fused, model_group=dist.group.WORLD)
        for _ in range(3):
            p.grad = torch.ones(4, 4)
            opt.step()
        opt.stats()
        refs = watched(weights=[p], optimizer=[opt], gradients=[p.grad], state=opt.state[p].values())
        del p, opt
        assert alive(refs) == []
    finally:
        dist.destroy_process_group()


# ---- JAX


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_jax_keeps_no_arrays(compiled):
    jax = pytest.importorskip("jax")
    import optax

    import layerwise.jax as front

    transform = front.lamb(0.01)
    params = {"a": jax.numpy.ones((4, 4)), "b": jax.numpy.ones(4)}
    state = transform.init(params)
    update = jax.jit(transform.update) if compiled else transform.update
    for _ in range(2):
        grads = jax.tree.map(jax.numpy.ones_like, params)
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    refs = [each for tree in (params, state, grads, updates) for each in watched(array=jax.tree.leaves(tree))]
    del params, state, grads, updates
    assert alive(refs) == []
