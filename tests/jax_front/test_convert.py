"""Train in one, continue in another: optax, the PyTorch front, and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_front.front import FRONTS, NAMES, close, goes_on, gradients, made, run, tree

from layerwise import convert
from layerwise.errors import StateError

pytestmark = pytest.mark.thinned(1, 2)

each = pytest.mark.parametrize("name", NAMES)
SHAPES = {"tall": (9, 4), "wide": (4, 9), "square": (5, 5), "b": (4,), "deep": {"cube": (3, 5, 4)}}
OF_OPTAX = {
    "Lamb": (optax.lamb, {"weight_decay": 0.1}),
    "Lars": (optax.lars, {"weight_decay": 0.1, "trust_coefficient": 0.5}),
    "Adafactor": (optax.adafactor, {"momentum": 0.9, "min_dim_size_to_factor": 0}),
    "NovoGrad": (optax.novograd, {"weight_decay": 0.1}),
    "AdamW": (optax.adamw, {"weight_decay": 0.1}),
    "SGD": (optax.sgd, {"momentum": 0.9}),
}


def after(opt, params, state, grads):
    return goes_on(opt, params, state, grads)[0]


@pytest.mark.parametrize("name", OF_OPTAX)
@pytest.mark.parametrize("scheduled", [False, True])
def test_optax_and_back(name, scheduled):
    make, options = OF_OPTAX[name]
    rate = (lambda count: 0.1 / (1 + count)) if scheduled else 0.1
    ours, theirs = FRONTS[name](rate, **options), make(rate, **options)
    params, grads = tree(0, SHAPES), gradients(6, SHAPES)
    expected, _ = run(theirs, params, grads)
    half, state = run(theirs, params, grads[:3])
    close(after(ours, half, convert.from_optax(state, ours, half), grads[3:]), expected, 3e-5)
    half, state = run(ours, params, grads[:3])
    close(after(theirs, half, convert.to_optax(state, theirs, half), grads[3:]), expected, 3e-5)
    # The tolerance tells it from a run that forgot.
    forgot = after(theirs, half, theirs.init(half), grads[3:])
    assert (
        max(
            float(jnp.abs(a - b).max()) for a, b in zip(jax.tree.leaves(forgot), jax.tree.leaves(expected), strict=True)
        )
        > 1e-3
    )
    again = convert.from_optax(convert.to_optax(state, theirs, half), ours, half)
    if scheduled or name not in ("Lars", "SGD"):  # which count only for a schedule in optax
        close(again, state, 1e-7)


LINES = {"dims": False, "momentum": 0.9, "weight_decay": 0.1}  # rows here are columns there
TORCH = {
    **{name: {"lr": 0.1, **LINES} for name in ("ScaleSGD", "SinkGD")},
    "Lars": {"lr": 0.1, "weight_decay": 0.1, "trust_coefficient": 0.5},
    "Adafactor": {"lr": 0.1, "beta1": 0.9, "weight_decay": 0.01},
}
JAX = {
    **{name: {"learning_rate": 0.1, **LINES} for name in ("ScaleSGD", "SinkGD")},
    "Lars": {"learning_rate": 0.1, "weight_decay": 0.1, "trust_coefficient": 0.5, "norm": "split"},
    "Adafactor": {
        "learning_rate": 0.1, "momentum": 0.9, "weight_decay_rate": 0.01, "decay_scale": "lr", "factored": "last",
        "multiply_by_parameter_scale": None, "min_dim_size_to_factor": 0,
    },
    "NovoGrad": {"learning_rate": 0.1, "b1": 0.95, "b2": 0.98, "eps": 1e-8, "weight_decay": 0.1},
}  # fmt: skip
# The same weights lie transposed in a flax layer and in a PyTorch one.
OTHERS = {"weight_decay": 0.1}
AXES = {"tall": (1, 0), "deep/cube": (0, 2, 1)}


def flat(params):
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in paths}


def there(leaf, array):
    return np.array(np.transpose(array, AXES[leaf]) if leaf in AXES else array)


class InTorch:
    def __init__(self, name, params):
        torch = pytest.importorskip("torch")
        front = pytest.importorskip("layerwise.torch")
        self.torch = torch
        self.params = {
            leaf.replace("/", "."): torch.nn.Parameter(torch.tensor(there(leaf, array)))
            for leaf, array in flat(params).items()
        }
        self.opt = getattr(front, name)(self.params.items(), **TORCH.get(name, {"lr": 0.1, **OTHERS}))

    def train(self, grads):
        for g in grads:
            for leaf, array in flat(g).items():
                self.params[leaf.replace("/", ".")].grad = self.torch.tensor(there(leaf, array))
            self.opt.step()
        return self

    def here(self, params):
        """The parameters as a tree."""
        leaves = []
        for leaf in flat(params):
            array = self.params[leaf.replace("/", ".")].detach().numpy()
            leaves.append(jnp.asarray(np.transpose(array, np.argsort(AXES[leaf])) if leaf in AXES else array))
        return jax.tree.unflatten(jax.tree.structure(params), leaves)


@each
def test_pytorch_and_back(name):
    params, grads, opt = (
        tree(0, SHAPES),
        gradients(6, SHAPES),
        FRONTS[name](**JAX.get(name, {"learning_rate": 0.1, **OTHERS})),
    )
    expected, _ = run(opt, params, grads)
    close(InTorch(name, params).train(grads).here(params), expected, 3e-6)

    first = InTorch(name, params).train(grads[:3])
    half = first.here(params)
    state = convert.from_torch(first.opt.state_dict(), opt, half, axes=AXES)
    assert int(state.count) == 3
    close(after(opt, half, state, grads[3:]), expected, 3e-6)

    half, state = run(opt, params, grads[:3])
    second = InTorch(name, half)
    second.opt.load_state_dict(convert.to_torch(state, half, second.opt, axes=AXES.get))
    close(second.train(grads[3:]).here(params), expected, 3e-6)


def test_names_of_another_model():
    params, opt = {"kernel": jnp.ones((2, 3))}, made("Lamb")
    _, state = run(opt, params, [params])
    theirs = InTorch("Lamb", {"weight": params["kernel"]})
    with pytest.raises(StateError, match="names"):
        convert.to_torch(state, params, theirs.opt)
    for names in ({"kernel": "weight"}, lambda leaf: leaf.replace("kernel", "weight")):
        theirs.opt.load_state_dict(convert.to_torch(state, params, theirs.opt, names=names))
        close(convert.from_torch(theirs.opt.state_dict(), opt, params, names=names), state, 1e-7)
    with pytest.raises(StateError, match="names"):
        convert.from_torch(theirs.opt.state_dict(), opt, params)


@each
def test_what_does_not_fit_is_refused(name):
    params = tree(0, SHAPES)
    with pytest.raises(StateError, match="must have one" if name in OF_OPTAX else "optax has no optimizer"):
        convert.from_optax(optax.sgd(0.1).init(params), made(name), params)
    with pytest.raises(StateError, match=r"layerwise\.jax"):
        convert.from_optax(optax.adam(0.1).init(params), optax.adam(0.1), params)
    wrong = {"tall": (9, 5), "wide": (4, 9), "square": (5, 5), "b": (4,), "deep": {"cube": (3, 5, 4)}}
    if name in OF_OPTAX:
        make, options = OF_OPTAX[name]
        with pytest.raises(StateError, match="of tall must have"):
            convert.from_optax(make(0.1, **options).init(tree(0, wrong)), FRONTS[name](0.1, **options), params)


def test_steps_that_differ_are_refused():
    params = {"a": jnp.ones((2, 3)), "b": jnp.ones(3)}
    theirs = InTorch("Lamb", params)
    theirs.train([params])
    theirs.params["b"].grad = None
    theirs.opt.step()
    with pytest.raises(StateError, match=r"\[1, 2\]"):
        convert.from_torch(theirs.opt.state_dict(), made("Lamb"), params)


def test_what_pytorch_stores_in_8_bits():
    torch = pytest.importorskip("torch")
    from layerwise.torch import Lamb

    found = []
    for form in ("float32", "int8"):
        p, v = (torch.nn.Parameter(torch.ones(shape, dtype=torch.bfloat16)) for shape in ((70, 65), (4100,)))
        opt = Lamb([("p", p), ("v", v)], state_dtype=form, master_weights="split")
        for seed in range(2):
            for one in (p, v):
                one.grad = torch.randn(one.shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
            opt.step()
        params = {"p": jnp.ones((70, 65)), "v": jnp.ones(4100)}
        found.append(convert.from_torch(opt.state_dict(), made("Lamb"), params))
    for wide, low in zip(*map(jax.tree.leaves, found), strict=True):
        assert np.abs(np.asarray(wide) - np.asarray(low)).max() <= 0.02 * np.abs(np.asarray(wide)).max()
