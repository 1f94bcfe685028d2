"""What the tests of the Paddle API share."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what a package warns of while it is imported is not ours
    paddle = pytest.importorskip("paddle")

from cases import CASES
from contract.apis import arrays
from contract.apis import bits as bits

import layerwise.paddle
from layerwise.options.names import PADDLE

SHAPES = {"matrix": (5, 4), "vector": (7,), "scalar": (), "stack": (2, 3, 4)}
FRONT_OF = {case.name: getattr(layerwise.paddle, case.name) for case in CASES}


def parameter(name, numbers, dtype="float64", **given):
    """A parameter of this name, whatever else Paddle has named."""
    with paddle.utils.unique_name.guard():
        p = paddle.create_parameter(list(np.shape(numbers)), "float32", attr=paddle.ParamAttr(name=name, **given))
    p = p if dtype == "float32" else paddle.base.framework.EagerParamBase.from_tensor(paddle.cast(p, dtype))
    p.name = name
    p.set_value(paddle.cast(paddle.to_tensor(np.asarray(numbers, np.float64)), dtype))
    p.stop_gradient = False
    return p


def parameters(seed, shapes=SHAPES, dtype="float64", **given):
    """Parameters of normal numbers, which have the names of the table."""
    return {name: parameter(name, a, dtype, **given) for name, a in arrays(seed, shapes).items()}


def set_grads(params, seed, but=()):
    """New gradients for all but some, which have none."""
    for name, a in arrays(seed, {name: tuple(p.shape) for name, p in params.items()}).items():
        params[name].grad = None if name in but else paddle.cast(paddle.to_tensor(a), params[name].dtype)


def walk(opt, params, seeds, scheduler=None):
    """Take a step on the gradients of each seed."""
    for seed in seeds:
        set_grads(params, seed)
        opt.step()
        if scheduler is not None:
            scheduler.step()


def numbers(params):
    return {name: paddle.cast(p, "float64").numpy() for name, p in params.items()}


def make(which, params, options=None, /, **arguments):
    """One of the optimizers, of these parameters, with options under the names that rules give them."""
    front = FRONT_OF[which]
    return front(parameters=list(params.values()), **{**PADDLE.as_arguments(front._hyper, options or {}), **arguments})


def close(ours, theirs, tolerance=1e-12):
    assert ours.keys() == theirs.keys()
    for name, a in ours.items():
        b = np.asarray(theirs[name])
        scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=name)
