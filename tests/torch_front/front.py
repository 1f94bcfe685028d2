"""What the tests of the PyTorch front share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES
from contract.apis import SHAPES, arrays
from reference.gradient import prepare
from torch import Tensor
from torch.nn import Parameter

import layerwise.torch
from layerwise.engines import Candidate
from layerwise.engines.rule import RuleEngine
from layerwise.torch.arrays._library import Tensors
from layerwise.torch.step import _checks, _engines
from layerwise.torch.step._stepper import Stepper

FRONT_OF = {case.name: getattr(layerwise.torch, case.name) for case in CASES}
FRONTS = list(FRONT_OF.values())
fronts = pytest.mark.parametrize("front", FRONTS)
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
lows = pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)

# Settings under which every part of the state matters.
BUSY: dict[Any, dict[str, Any]] = {FRONT_OF[case.name]: case.busy for case in CASES}
UNSAFE = ("max_grad_norm", "max_grad_norm_per_tensor", "max_grad_value", "maximize")


def busy(front: Any, params: Any, **options: Any) -> Any:
    return front(params, **{**BUSY[front], **options})


def kept_of(front: Any, shape: tuple[int, ...]) -> list[str]:
    """Return the parts of the state that a busy optimizer keeps of a parameter."""
    h = front._hyper(**BUSY[front]).fit(shape, (), 1e-7)
    return [part for part, one in front._rule.shapes(h, shape)._asdict().items() if one is not None]


def parameters(seed: int, shapes: Any = None, dtype: Any = torch.float64) -> dict[str, Parameter]:
    """Named parameters of normal numbers."""
    return {name: Parameter(torch.tensor(a).to(dtype)) for name, a in arrays(seed, shapes or SHAPES).items()}


def twins(params: dict[str, Any]) -> dict[str, Parameter]:
    return {name: Parameter(p.detach().clone(memory_format=torch.preserve_format)) for name, p in params.items()}


def set_grads(params: dict[str, Any], seed: int, but: Any = ()) -> None:
    """New gradients for all, and none for the names in `but`."""
    for name, a in arrays(seed, {name: tuple(p.shape) for name, p in params.items()}).items():
        params[name].grad = None if name in but else torch.tensor(a).to(params[name].dtype)


def walk(opt: Any, params: dict[str, Any], seeds: Any, schedulers: Any = (), but: Any = ()) -> None:
    """One step for each seed of gradients."""
    for seed in seeds:
        set_grads(params, 1000 + seed, but)
        opt.step()
        for scheduler in schedulers:
            scheduler.step()


def bits(x: Any) -> Any:
    """What two nests of tensors must share to be the same bit for bit."""
    if isinstance(x, Tensor):
        dense = x.detach().to_dense() if x.layout is not torch.strided else x.detach()
        empty = x.is_meta or hasattr(x, "fake_mode")
        flat = b"" if empty else dense.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
        return str(x.dtype), tuple(x.shape), flat
    if isinstance(x, dict):
        return {key: bits(value) for key, value in x.items()}
    return [bits(one) for one in x] if isinstance(x, (list, tuple)) else repr(x)


def everything(opt: Any, params: dict[str, Any]) -> Any:
    """All that an error must leave as it was."""
    grads = {name: p.grad for name, p in params.items()}
    return bits(params), bits(grads), bits(opt.state_dict()), repr(opt.skipped), sorted(opt.stats())


def numbers(params: dict[str, Any]) -> dict[str, Any]:
    return {name: p.detach().double().numpy().copy() for name, p in params.items()}


class Oracle:
    """The references of several groups, which share nothing but the norm of all gradients."""

    def __init__(self, case: Any, groups: Any) -> None:
        """`groups` holds a pair for each group: its options, and its arrays by name."""
        off = {name: False if name == "maximize" else None for name in UNSAFE if name in case.options}
        bare = [{**options, **off} for options, _ in groups]
        self.groups = [
            (options, case.reference(**one), dict(named)) for (options, named), one in zip(groups, bare, strict=True)
        ]

    def step(self, grads: dict[str, Any]) -> dict[str, Any]:
        prepared = []
        for options, _, named in self.groups:
            given = {name: [grads[name]] for name in named if grads.get(name) is not None}
            prepared.append(
                prepare(given, *(options.get(key) for key in ("maximize", "max_grad_value", UNSAFE[1])), None)
            )
        total = np.sqrt(sum((g * g).sum() for one in prepared for [g] in one.values()))
        new: dict[str, Any] = {}
        for (options, oracle, named), own in zip(self.groups, prepared, strict=True):
            bound = options.get("max_grad_norm")
            shorter = max(1.0, total / bound) if bound else 1.0
            named.update(oracle.step(named, {name: g / shorter for name, [g] in own.items()}))
            new.update(named)
        return new


def in_slices(monkeypatch: Any, size: int = 7) -> None:
    """Let every tensor of more elements than this be taken in slices."""
    engine = RuleEngine(Tensors(), size)
    monkeypatch.setattr(_engines, "ENGINES", (Candidate("rule", engine),))


def told_on_device(monkeypatch: Any, skip: bool) -> None:
    """Let it be known only on the device, as a tensor, whether the step is to be skipped."""
    monkeypatch.setattr(Stepper, "might_skip", True)
    monkeypatch.setattr(_checks, "to_skip", lambda *_: torch.tensor(skip))
