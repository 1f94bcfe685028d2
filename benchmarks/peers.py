"""What else people would use for the same step, each as a function that takes one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import layerwise.numpy
from layerwise.cli.bench.shapes import Shapes

Arrays = dict[str, np.ndarray[Any, Any]]
Step = Callable[[], None]

LR = 1e-3


def ours(name: str, weights: Arrays, grads: Arrays) -> Step:
    opt = getattr(layerwise.numpy, name)(LR)
    weights = {key: a.copy() for key, a in weights.items()}
    return lambda: opt.step_all(weights, grads)


def optax_jitted(name: str, weights: Arrays, grads: Arrays) -> Step:
    """With donated buffers, so that parameters and state are updated in place as ours are."""
    import jax
    import optax

    transform = getattr(optax, name)(LR)
    # Copies, because jax may share memory with an array, and donating would then not be possible.
    params = jax.tree.map(lambda a: jax.numpy.array(a, copy=True), weights)
    given = jax.tree.map(jax.numpy.asarray, grads)

    def update(params: Any, state: Any, given: Any) -> Any:
        updates, state = transform.update(given, state, params)
        return optax.apply_updates(params, updates), state

    jitted = jax.jit(update, donate_argnums=(0, 1))
    held = [params, transform.init(params)]

    def step() -> None:
        held[:] = jax.block_until_ready(jitted(*held, given))

    return step


def _torch_step(make: Callable[[list[Any]], Any], weights: Arrays, grads: Arrays) -> Step:
    """On the very arrays: all can share them, because the time of a step does not depend on their numbers."""
    import torch

    params = [torch.nn.Parameter(torch.from_numpy(a)) for a in weights.values()]
    for p, g in zip(params, grads.values(), strict=True):
        p.grad = torch.from_numpy(g)
    return make(params).step


def torch_adamw(weights: Arrays, grads: Arrays) -> Step:
    import torch

    return _torch_step(lambda params: torch.optim.AdamW(params, LR, fused=True), weights, grads)


def torch_adafactor(weights: Arrays, grads: Arrays) -> Step:
    import torch

    return _torch_step(lambda params: torch.optim.Adafactor(params, LR, foreach=True), weights, grads)


def transformers_adafactor(weights: Arrays, grads: Arrays) -> Step:
    from transformers import Adafactor

    def make(params: list[Any]) -> Any:
        return Adafactor(params, LR, scale_parameter=False, relative_step=False)

    return _torch_step(make, weights, grads)


def peers(name: str, weights: Arrays, grads: Arrays) -> Iterator[tuple[str, Step]]:
    """Ours first, then the others, AdamW last: what a step costs that moves 28 bytes a parameter once."""
    yield f"layerwise.numpy.{name}", ours(name, weights, grads)
    yield f"optax.{name.lower()}, jitted", optax_jitted(name.lower(), weights, grads)
    if name == "Adafactor":
        yield "torch.optim.Adafactor, foreach", torch_adafactor(weights, grads)
        yield "transformers.Adafactor", transformers_adafactor(weights, grads)
    yield "torch.optim.AdamW, fused", torch_adamw(weights, grads)


def _timm(name: str) -> Any:
    """The optimizer of timm, or None; imported without the rest of the package, which needs torchvision."""
    if "timm" not in sys.modules:
        found = importlib.util.find_spec("timm")
        if found is None or not found.submodule_search_locations:
            return None
        [home] = found.submodule_search_locations
        for package, folder in {"timm": home, "timm.optim": f"{home}/optim"}.items():
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [folder]
    return getattr(importlib.import_module(f"timm.optim.{name.lower()}"), name)


def torch_peers(name: str, weights: Arrays, grads: Arrays) -> Iterator[tuple[str, Step]]:
    """Ours first; the yardstick, which does less, last. With decay, because some leave out the ratio without it."""
    import pytorch_optimizer
    import torch
    import transformers.optimization

    import layerwise.torch

    def row(label: str, cls: Any, **options: Any) -> tuple[str, Step]:
        return label, _torch_step(lambda params: cls(params, lr=LR, weight_decay=0.01, **options), weights, grads)

    yield row(f"layerwise.torch.{name}", getattr(layerwise.torch, name))
    yield row(f"layerwise.torch.{name}, by the rule", getattr(layerwise.torch, name), fused=False)
    both = {"foreach": True}, {"foreach": False}
    labels = ", foreach", ", one by one"
    if name == "Adafactor":
        for label, options in zip(labels, both, strict=True):
            yield row(f"torch.optim.Adafactor{label}", torch.optim.Adafactor, **options)
        absolute = {"scale_parameter": False, "relative_step": False}
        yield row("transformers.Adafactor", transformers.optimization.Adafactor, **absolute)
    else:
        kozistr = {"Lamb": pytorch_optimizer.Lamb, "Lars": pytorch_optimizer.LARS}[name]
        for label, options in zip(labels, both, strict=True):
            yield row(f"pytorch_optimizer.{name}{label}", kozistr, **options)
        timm = _timm(name)
        if timm is not None:
            rest = {"max_grad_norm": None} if name == "Lamb" else {"momentum": 0.9}
            for label, options in zip(labels, both, strict=True):
                yield row(f"timm.{name}{label}", timm, **options, **rest)
    if name == "Lars":
        yield row("torch.optim.SGD, fused", torch.optim.SGD, momentum=0.9, fused=True)
    else:
        yield row("torch.optim.AdamW, fused", torch.optim.AdamW, fused=True)


def random_arrays(shapes: Shapes, scale: float, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) * np.float32(scale) for name, shape in shapes.items()}
