"""A step and a checkpoint in each framework, for any versions of these: `make test-oldest` runs it with the oldest.

It needs pytest and NumPy alone. Frameworks that are not installed are left out.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import layerwise
from layerwise.catalog.registry import ENTRIES

NAMES = [entry.name for entry in ENTRIES.values()]
SHAPES = {"w": (6, 4), "b": (4,)}
STEPS = 3


def arrays(seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("name", NAMES)
def test_numpy_goes_on_from_a_checkpoint(name):
    from layerwise import numpy as front

    weights, opt = arrays(0), getattr(front, name)(lr=0.01)
    for t in range(STEPS):
        opt.step_all(weights, arrays(t + 1))
    assert all(np.isfinite(w).all() and not np.array_equal(w, arrays(0)[key]) for key, w in weights.items())
    again, copy = {key: w.copy() for key, w in weights.items()}, getattr(front, name)(lr=0.01)
    copy.load_state_dict(pickle.loads(pickle.dumps(opt.state_dict())))
    opt.step_all(weights, arrays(9))
    copy.step_all(again, arrays(9))
    assert all(np.array_equal(w, again[key]) for key, w in weights.items())


@pytest.mark.parametrize("name", NAMES)
def test_torch_goes_on_from_a_checkpoint(name):
    torch = pytest.importorskip("torch")
    import layerwise.torch as front

    def step(params, opt, seed):
        for p, g in zip(params, arrays(seed).values(), strict=True):
            p.grad = torch.from_numpy(g)
        opt.step()

    params = [torch.nn.Parameter(torch.from_numpy(x)) for x in arrays(0).values()]
    opt = getattr(front, name)(params, lr=0.01)
    for t in range(STEPS):
        step(params, opt, t + 1)
    again = [torch.nn.Parameter(p.detach().clone()) for p in params]
    copy = getattr(front, name)(again, lr=0.01)
    copy.load_state_dict(pickle.loads(pickle.dumps(opt.state_dict())))
    step(params, opt, 9)
    step(again, copy, 9)
    assert all(torch.equal(p, q) for p, q in zip(params, again, strict=True))
    assert not any(torch.equal(p, torch.from_numpy(x)) for p, x in zip(params, arrays(0).values(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_jax_goes_on_from_a_checkpoint(name):
    jax = pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    import layerwise.jax as front

    tx = getattr(front, name.lower())(0.01)
    params = arrays(0)
    state = tx.init(params)
    update = jax.jit(tx.update)
    for t in range(STEPS):
        updates, state = update(arrays(t + 1), state, params)
        params = optax.apply_updates(params, updates)
    saved = pickle.loads(pickle.dumps(jax.tree.map(np.asarray, state)))
    one, _ = update(arrays(9), state, params)
    other, _ = update(arrays(9), saved, params)
    assert all(np.isfinite(x).all() for x in one.values())
    assert all(np.array_equal(one[key], other[key]) for key in one)


def test_it_says_what_it_runs_with(capsys):
    from layerwise.cli import info

    with capsys.disabled():
        print("", *(f"{name} {number}" for name, number in info.facts()["packages"].items() if number), sep="  ")
    assert layerwise.__version__
