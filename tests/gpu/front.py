"""What the tests of the PyTorch optimizers on the GPU engine share."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import pytest
import torch
from cases import KERNELED
from contract.apis import close
from gpu.world import DEVICE
from torch.nn import Parameter
from torch_front.front import BUSY, FRONT_OF

fronts = pytest.mark.parametrize("front", [FRONT_OF[case.name] for case in KERNELED])
SHAPES = [(12, 7), (5,), (), (2, 3, 4)]


def had_by(front, options):
    """Those of the options that an optimizer has: not all clip by norms."""
    return {name: x for name, x in options.items() if "norm" not in name or hasattr(front._hyper, name)}


def parameters(dtype=torch.float32, shapes=SHAPES):
    torch.manual_seed(0)
    return [Parameter(torch.randn(shape).to(DEVICE, dtype)) for shape in shapes]


def give(params, seed, but=()):
    torch.manual_seed(seed)
    for i, p in enumerate(params):
        p.grad = None if i in but else torch.randn(p.shape).to(p)


def both(front, dtype=torch.float32, **options):
    """The optimizer on the engine, and the same on the rule."""
    ours, theirs = parameters(dtype), parameters(dtype)
    options = had_by(front, {**BUSY[front], **options})
    copied = {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    return (ours, front(ours, fused=True, **options)), (theirs, front(theirs, fused=False, **copied))


def alike(ours, theirs, tolerance=4e-6):
    named = [{str(i): p.detach().double().cpu().numpy() for i, p in enumerate(params)} for params in (ours, theirs)]
    close(*named, tolerance)


def walk(pairs, seeds, but=()):
    for params, opt in pairs:
        for seed in seeds:
            give(params, seed, but)
            opt.step()


@contextmanager
def waiting_refused():
    """Let PyTorch raise where the host waits for the device."""
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says of itself that it is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
