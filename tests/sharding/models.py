"""Models whose parameters no layout divides well, and what is compared of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cases
import numpy as np
import torch
from cases import CASES
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

import layerwise.torch

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "first": {"embed": (11, 6), "qkv": (12, 6), "qkv_bias": (12,)},
    "second": {"experts": (3, 8, 4), "conv": (5, 4, 3, 2), "narrow": (2, 7)},
    "third": {"even": (8, 12), "thin": (7, 1), "vector": (9,), "one": (1,)},
    "bare": {"scalar": ()},
}
BLOCKS = {"second.experts": "each", "first.qkv*": 3}
# By how much numbers may differ that were rounded in another order, as a part of the largest of a tensor.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 2**-7}
FRONT_OF = {case.name: getattr(layerwise.torch, case.name) for case in CASES}
FRONTS = list(FRONT_OF.values())
KERNELED = [FRONT_OF[case.name] for case in cases.KERNELED]


class Blend(layerwise.torch.Mixed):
    """The optimizers that have kernels in one, to which parameters are dealt out in turn."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(self.groups(params), **options)

    @staticmethod
    def groups(params: Any) -> list[dict[str, Any]]:
        """Return a group for each optimizer that has a parameter; groups are left as they are."""
        params = list(params)
        if isinstance(params[0], dict):
            return params
        found: dict[str, list[Any]] = {}
        for i, one in enumerate(params):
            found.setdefault(cases.KERNELED[i % len(cases.KERNELED)].name, []).append(one)
        return [
            {"params": found[case.name], "rule": case.name, **case.busy}
            for case in cases.KERNELED
            if case.name in found
        ]


# Every part of the state matters, and the first moment is not what a single step makes of it.
BUSY: dict[Any, dict[str, Any]] = {
    **{FRONT_OF[case.name]: case.busy for case in CASES},
    torch.optim.AdamW: {"lr": 0.1, "foreach": False},
    Blend: {},
}


class Irregular(nn.Module):
    """Parameters of many shapes in submodules, filled with normal numbers."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        draw = np.random.default_rng(seed)
        for part, shapes in SHAPES.items():
            self.add_module(part, holder := nn.Module())
            for name, shape in shapes.items():
                numbers = torch.tensor(np.asarray(draw.normal(size=shape)))
                holder.register_parameter(name, nn.Parameter(numbers.to(dtype)))


class Small(nn.Module):
    """A residual network over characters, the same weights at its entrance and its exit."""

    def __init__(self, dtype: torch.dtype, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(13, width)
        self.blocks = nn.ModuleList(Layer(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 13, bias=False)
        self.head.weight = self.embed.weight
        self.to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.down(torch.tanh(self.up(x)))
        return x + moved


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by the names they have in a model that nothing wraps."""
    wrappers = ("module.", "_fsdp_wrapped_module.")
    found = {}
    for name, p in model.named_parameters():
        for wrapper in wrappers:
            name = name.replace(wrapper, "")
        found[name] = p
    return found


def whole(x: Any) -> Any:
    """A tensor, however it lies, as an array; other things as they are."""
    if not isinstance(x, Tensor):
        return x
    x = x.detach()
    return (x.full_tensor() if isinstance(x, DTensor) else x).to("cpu", torch.float64, copy=True).numpy()


def weights(params: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: whole(p) for name, p in params.items()}


def states(opt: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, Any]:
    """Every part of the state by the parameter's name and its own."""
    return {f"{name} {key}": whole(x) for name, p in params.items() for key, x in opt.state.get(p, {}).items()}


def stats(opt: Any) -> dict[str, Any]:
    found = opt.stats() if hasattr(opt, "stats") else {}
    return {f"{name} {key}": np.asarray(x) for name, one in found.items() for key, x in one.items()}


def everything(opt: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """All that must not depend on how the parameters lie."""
    return {"weights": weights(params), "state": states(opt, params), "stats": stats(opt)}


def close(ours: Mapping[str, Any], theirs: Mapping[str, Any], tolerance: float, hint: object = "") -> None:
    """Equal to `tolerance` of the largest number in each array, part by part; measurements as far as both know them."""
    assert ours.keys() == theirs.keys()
    for part, wanted in theirs.items():
        assert ours[part].keys() == wanted.keys(), part
        for name, one in wanted.items():
            found = ours[part][name]
            if part == "stats":  # of blocks that are elsewhere a rank knows nothing
                unknown = np.isnan(found) | np.isnan(one)
                found, one = np.where(unknown, 0, found), np.where(unknown, 0, one)
            size = np.max(np.abs(one), initial=0)
            np.testing.assert_allclose(found, one, 0, tolerance * size, err_msg=f"{part} {name} {hint}")


def same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Equal bit for bit."""
    close(ours, theirs, 0.0)
