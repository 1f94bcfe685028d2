"""Models whose parameters no layout divides well, and what is compared of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cases
import numpy as np
import torch
from cases import CASES
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.functional import cross_entropy

import layerwise.torch

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "first": {"embed": (11, 6), "qkv": (12, 6), "qkv_bias": (12,)},
    "second": {"experts": (3, 8, 4), "conv": (5, 4, 3, 2), "narrow": (2, 7)},
    "third": {"even": (8, 12), "thin": (7, 1), "vector": (9,), "one": (1,)},
    "bare": {"scalar": ()},
}
BLOCKS = {"second.experts": "each", "first.qkv*": 3}
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


def local(x: Any) -> Any:
    """What this rank has of it."""
    x = x.detach() if isinstance(x, Tensor) else x
    return x.to_local() if isinstance(x, DTensor) else x


def numbers(x: Any) -> Any:
    """The same in float64."""
    return local(x).to(torch.float64).numpy() if isinstance(x, Tensor) else np.asarray(x, np.float64)


def off(x: Any, wanted: Any, tolerance: float) -> bool:
    """Whether a rank's part is not that of the whole array, to the tolerance of its largest number; 0: bit for bit."""
    size = np.max(np.abs(wanted), initial=0)
    if isinstance(x, DTensor):
        wanted = local(distribute_tensor(torch.tensor(wanted), x.device_mesh, x.placements, src_data_rank=None)).numpy()
    wanted, found = wanted.reshape(-1), numbers(x).reshape(-1)
    if not tolerance:
        return bool(wanted.tobytes() != found.tobytes())
    return len(wanted) != len(found) or not np.allclose(found, wanted, 0, tolerance * size)


def place_of(x: Any) -> str:
    """Which part of a tensor this rank has: replicas have the same."""
    if not isinstance(x, DTensor):
        return ""
    here = x.device_mesh.get_coordinate()
    return str(
        [(placement, at) for placement, at in zip(x.placements, here, strict=True) if not placement.is_replicate()]
    )


def measured(opt: Any) -> dict[str, Any]:
    return {f"{name} {key}": np.asarray(x) for name, one in opt.stats().items() for key, x in one.items()}


def state_of(opt: Any, params: Mapping[str, Tensor]) -> dict[str, Any]:
    """Every part of the state by the parameter's name and its own."""
    return {f"{name} {key}": x for name, p in params.items() for key, x in opt.state.get(p, {}).items()}


def copies(opt: Any, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What this rank has of weights and state now."""
    return {name: local(x).clone() for name, x in {**params, **state_of(opt, params)}.items() if isinstance(x, Tensor)}


def unchanged(opt: Any, params: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> bool:
    """Bit for bit: what lies between the stretches of a flat buffer is nan."""
    after = copies(opt, params)
    return before.keys() == after.keys() and all(
        torch.equal(x.flatten().view(torch.uint8), after[name].flatten().view(torch.uint8))
        for name, x in before.items()
    )


def close(ours: Mapping[str, Any], theirs: Mapping[str, Any], tolerance: float, hint: object = "") -> None:
    """Equal to `tolerance` of the largest number in each array; measurements of blocks elsewhere are nan."""
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        size = np.max(np.abs(wanted), initial=0)
        np.testing.assert_allclose(ours[name], wanted, 0, tolerance * size, err_msg=f"{name} {hint}")


def skipping(opt: Any, on: bool = True) -> None:
    """Let an optimizer skip steps with nan or inf from now on, or not."""
    opt._stepper.setup = opt._stepper.setup._replace(skip_nonfinite=on)
