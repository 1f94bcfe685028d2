"""What the oracles of all optimizers do: take steps, and compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from namespaces import NAMESPACES, trajectory

SHAPES = [(5, 4), (4,), (), (4, 2, 3), (3, 2)]
NUMPY = NAMESPACES[0]


def data(seed: int, steps: int = 4) -> tuple[list[Any], list[list[Any]]]:
    """Tensors, the last of them zero, and gradients of very different size, one of them zero once the state is not."""
    draw = np.random.default_rng(seed)
    params = [draw.normal(size=shape) for shape in SHAPES]
    params[-1] = np.zeros(SHAPES[-1])
    grads = [[draw.normal(size=shape) * 10.0 ** draw.uniform(-2, 1) for shape in SHAPES] for _ in range(steps)]
    grads[2][0] = np.zeros(SHAPES[0])
    return params, grads


def close(ours: Any, theirs: Any, tolerance: float, hint: object = "") -> None:
    """Equal to `tolerance` of the tensor's largest element (or of 1), element by element."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=f"tensor {i} {hint}")


def path(world: Any, settings: Any, params: Any, grads: Any, lrs: Any = None) -> Any:
    rule = world.rules[settings.optimizer]
    return trajectory(NUMPY, rule, settings, params, grads, lrs=lrs, local=world.local, run=world.Run)


def torch_steps(optimizer: Any, options: Any, params: Any, grads: Any) -> list[Any]:
    """Return the tensors after the steps of an optimizer of PyTorch."""
    tensors = [torch.nn.Parameter(torch.tensor(np.asarray(p))) for p in params]
    stepper = optimizer(tensors, lr=0.1, **options)
    for gs in grads:
        for tensor, g in zip(tensors, gs, strict=True):
            tensor.grad = torch.tensor(np.asarray(g))
        stepper.step()
    return [tensor.detach().numpy() for tensor in tensors]
