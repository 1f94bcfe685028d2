"""What the tests of storage formats share: gradients, the weights as they are held, and which engine steps them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from layerwise.torch import full_precision_state_dict
from layerwise.torch.step import _engines

# No shape that 64 divides, one of more than a slice, one of stacked layers, and small ones that are stepped as a stack.
SHAPES = {"matrix": (70, 65), "like": (70, 65), "stack": (3, 40, 41), "vector": (4100,), "bias": (17,), "other": (17,)}
BLOCKS = {"stack": "each", "bias": [5, 12]}
engines = pytest.mark.parametrize("fused", [None, False], ids=["default", "rule"])


class Holder(torch.nn.Module):
    """A model that has nothing but these parameters."""

    def __init__(self, params: dict[str, Parameter]) -> None:
        super().__init__()
        for name, p in params.items():
            self.register_parameter(name, p)


def made(dtype: torch.dtype = torch.bfloat16, shapes: Any = None, seed: int = 0) -> dict[str, Parameter]:
    draw = torch.Generator().manual_seed(seed)
    each = (shapes or SHAPES).items()
    return {name: Parameter(torch.randn(shape, generator=draw).to(dtype)) for name, shape in each}


def give(params: dict[str, Parameter], t: int, scale: float = 1.0) -> None:
    """Give gradients of step t, which span some powers of ten."""
    draw = torch.Generator().manual_seed(1000 + t)
    for p in params.values():
        size = torch.exp(2 * torch.randn(p.shape, generator=draw))
        p.grad = (scale * size * torch.randn(p.shape, generator=draw)).to(p.dtype)


def walk(opt: Any, params: dict[str, Parameter], steps: Any) -> None:
    for t in steps:
        give(params, t)
        opt.step()


def held(opt: Any, params: dict[str, Parameter]) -> dict[str, Tensor]:
    """Return the weights as precisely as they are held."""
    return full_precision_state_dict(Holder(params), opt)


def snapshot(opt: Any, params: dict[str, Parameter]) -> dict[str, Tensor]:
    """Return copies of all weights and state."""
    state = {f"{name} {key}": x for name, p in params.items() for key, x in opt.state[p].items()}
    return {key: x.detach().clone() for key, x in {**params, **state}.items()}


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Equal bit for bit, in the same dtypes."""
    assert ours.keys() == theirs.keys()
    different = [key for key in ours if ours[key].dtype != theirs[key].dtype or not torch.equal(ours[key], theirs[key])]
    assert not different, different


def by_one_engine(*opts: Any) -> None:
    """Skip where an engine of kernels does not know a format yet: two engines differ in the last digit."""
    names = {name for opt in opts for step in opt._stepper.steps.values() for name in _names(opt, step)}
    if len(names) > 1:
        pytest.skip(f"stepped by {' and '.join(sorted(names))}")


def _names(opt: Any, step: Any) -> set[str]:
    engines = _engines.engines_of(opt._stepper.setup.engine, False)
    return {next(one.name for one in engines if one.reasons_to_decline([job]) == [""]) for job in step.jobs}
