"""Drawn steps of the compiled engine beside the rule: all rules, formats, sizes of numbers, blocks, changed options.

Both step the same numbers. They may differ by as much as the rule differs from itself where what it is given changes in
the last digits, and by the rounding of what is stored.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from cases import KERNELED

import layerwise.torch

STEPS = 3
SHAPES = ((1,), (5,), (70,), (4, 3), (9, 70), (3, 8, 5), (2, 2, 2, 3), (70, 90), (17_000,))
SIZES = (1e-20, 1e-12, 1e-6, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e6, 1e12)
RATES = (0.0, 1e-10, 1e-5, 1e-3, 0.1, 1.0, 1e3)
FORMATS: tuple[dict[str, Any], ...] = (
    *({},) * 4,
    {"state_dtype": "bfloat16"},
    {"state_dtype": "bfloat16", "rounding": "nearest"},
    {"state_dtype": "int8"},
    {"master_weights": True},
    {"master_weights": "split"},
    {"master_weights": "split24"},
    {"rounding": "stochastic"},
)
EPS = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
CLOSE, SENSITIVE, SHAKES = 256, 30, 3  # in roundings; how much more than the rule itself; of how many tries
LEAST = 1e-18  # squares of less are no normal numbers of float32
SHAKEN = 2.0**-22  # by so much of itself every number given to the rule changes, to see what its roundings do


@dataclass
class Drawn:
    """A model with its optimizer by the engine, and its copies stepped by the rule."""

    name: str
    options: dict[str, Any]
    params: list[torch.Tensor]
    sizes: list[float]
    seed: int
    changes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def narrow(self) -> bool:
        """Whether the norm of all comes in part of arithmetic in float32, which then shows in float64 too."""
        clips = any(given.get("max_grad_norm") for given in (self.options, *self.changes))
        return clips and any(p.dtype != torch.float64 for p in self.params)


def drawn(seed: int) -> Drawn:
    """A model, options that kernels take, and what changes from step to step."""
    rng = random.Random(seed)
    case = rng.choice(KERNELED)
    options = {**case.drawn(seed), "lr": rng.choice(RATES), "weight_decay": rng.choice((0.0, 0.0, 0.1, 3.0))}
    options |= rng.choice(FORMATS)
    if rng.random() < 0.3:
        options["blocks"] = "each"
    master = options.get("master_weights", False)
    low = (torch.bfloat16,) if master in ("split", "split24") else (torch.bfloat16, torch.float16)
    dtypes = low if master or "rounding" in options else (torch.float32, torch.float32, *EPS)
    shapes = [rng.choice(SHAPES) for _ in range(rng.randint(1, 3))]
    sizes = [rng.choice(SIZES) for _ in shapes]
    params = [_numbers(rng, shape, size, rng.choice(dtypes)) for shape, size in zip(shapes, sizes, strict=True)]
    changes = [{"lr": rng.choice(RATES)} for _ in range(STEPS - 1)]
    changes[-1] |= {name: value for name, value in case.drawn(seed + 1).items() if rng.random() < 0.3}
    return Drawn(case.name, options, params, sizes, seed, changes)


def _numbers(rng: random.Random, shape: tuple[int, ...], size: float, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    found = torch.randn(shape, generator=generator, dtype=torch.float64) * size
    kind = rng.random()
    if kind < 0.1:  # of very different sizes
        found = found * 10.0 ** (torch.rand(shape, generator=generator, dtype=torch.float64) * 12 - 6)
    if 0.1 < kind < 0.2:
        found = found * (torch.rand(shape, generator=generator) < 0.3)
    if kind > 0.95:
        found.view(-1)[0] = rng.choice((float("inf"), float("nan"), 0.0))
    most = torch.finfo(dtype).max
    return torch.where(found.isfinite(), found.clamp(-most, most), found).to(dtype)


def gradients(one: Drawn, t: int) -> list[torch.Tensor]:
    rng = random.Random(one.seed * 31 + t)
    size = rng.choice(SIZES)
    return [_numbers(rng, tuple(p.shape), rng.choice((size, rng.choice(SIZES))), p.dtype) for p in one.params]


def differences(one: Drawn) -> Iterator[str]:
    """Take the steps, each from where the engine stands, and describe where the rule comes to elsewhere."""
    engine, rule = Walk(one, True), Walk(one, False)
    for t in range(STEPS):
        for walk in (engine, rule) if t else ():
            walk.opt.param_groups[0].update(one.changes[t - 1])
        before, saved, grads = engine.numbers(), copy.deepcopy(engine.opt.state_dict()), gradients(one, t)
        rule.set_to(before)
        found, wanted = engine.stepped(grads), rule.stepped(grads)
        sizes = {key: apart(found[key], x, before.get(key), one.narrow) for key, x in wanted.items()}
        if max(sizes.values()) <= CLOSE:
            continue
        around = dict.fromkeys(wanted, 0.0)
        for k in range(SHAKES):
            again = _shaken_step(one, before, saved, grads, k)
            around = {
                key: max(x, apart(again[key], wanted[key], before.get(key), one.narrow)) for key, x in around.items()
            }
        for key, size in sizes.items():
            if not size <= CLOSE + SENSITIVE * around[key]:
                yield f"step {t}, {key}: {size:.2g} roundings beside {around[key]:.2g}"


def _shaken_step(one: Drawn, before: Any, saved: Any, grads: list[torch.Tensor], k: int) -> dict[str, torch.Tensor]:
    """The rule's step where the last digits of all that it reads are others."""
    walk = Walk(one, False)
    walk.set_to(before)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that options are others than at first
        walk.opt.load_state_dict(saved)
    walk.set_to({key: _shaken(x, k) for key, x in before.items()})
    return walk.stepped([_shaken(g, k) for g in grads])


class Walk:
    """A copy of the model with its optimizer."""

    def __init__(self, one: Drawn, fused: bool) -> None:
        self.params = [p.clone().requires_grad_() for p in one.params]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.opt = getattr(layerwise.torch, one.name)(self.params, fused=fused, **one.options)

    def numbers(self) -> dict[str, torch.Tensor]:
        """Weights and state by name, copied."""
        found = {f"p{i}": p.detach().clone() for i, p in enumerate(self.params)}
        for i, p in enumerate(self.params):
            found |= {
                f"p{i}.{name}": x.clone()
                for name, x in self.opt.state.get(p, {}).items()
                if name not in ("step", "remainder")
            }
        return found

    def set_to(self, numbers: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for i, p in enumerate(self.params):
                state = {f"p{i}.{name}": x for name, x in self.opt.state.get(p, {}).items()}
                for name, place in {f"p{i}": p, **state}.items():
                    if name in numbers:
                        place.copy_(numbers[name])

    def stepped(self, grads: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        for p, g in zip(self.params, grads, strict=True):
            p.grad = g.clone()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.opt.step()
        of_each = zip(self.params, self.opt.stats().items(), strict=True)
        stats = {
            f"{name}: {key}": torch.as_tensor(x, dtype=_arithmetic(p.dtype))
            for p, (name, each) in of_each
            for key, x in each.items()
        }
        return self.numbers() | stats


def _arithmetic(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _shaken(x: torch.Tensor, k: int) -> torch.Tensor:
    if x.dtype not in (torch.float32, torch.float64):
        return x
    return x * (1 + SHAKEN * (torch.randint(0, 3, x.shape, generator=torch.Generator().manual_seed(k)) - 1))


def apart(x: torch.Tensor, y: torch.Tensor, before: torch.Tensor | None, narrow: bool) -> float:
    """Return how far arrays differ, in roundings of float32 or float64; what is stored in less is rounded once more."""
    if x.dtype in (torch.int8, torch.uint8):
        return 1e9 * float((x.short() - y.short()).abs().max() > 1) if x.numel() else 0.0
    if not x.is_floating_point() or not x.numel():
        return 0.0
    eps, own = EPS[torch.float32 if narrow else _arithmetic(x.dtype)], EPS[x.dtype]
    x, y = x.double(), y.double()
    finite = x.isfinite()
    if not torch.equal(finite, y.isfinite()):
        return float("inf")
    x, y = x[finite], y[finite]
    if not x.numel() or y.abs().max() < LEAST:
        return 0.0
    size = max(float(y.abs().max()), 0.0 if before is None else float(before.double()[finite].abs().max()))
    stored = own * y.abs() if own > eps else 0.0
    return float(((x - y).abs() - stored).max()) / (eps * size + 1e-300)
