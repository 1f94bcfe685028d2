"""Steps of the fused engine against the rule in float64, on the same device; skipped steps; the same bits again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from math import inf, isnan, nan
from typing import Any

import numpy as np
import torch
from torch.nn import Parameter

from harness.measure import in_short
from layerwise.errors import EngineError
from on_gpu.options import Variant, variants
from on_gpu.place import LISTS, OPTIMIZERS, RULE, Place, ours, parameters, set_gradients
from on_gpu.rivals import FORMATS

SHAPES: dict[str, tuple[int, ...]] = {
    "matrix": (17, 9),
    "vector": (57,),
    "number": (),
    "stack": (3, 4, 5),
    "row": (1, 30),
    "empty": (0, 4),
    "zeros": (40,),  # at first
}
LARGE: dict[str, tuple[int, ...]] = {"tall": (1030, 70), "wide": (1000, 1003), "long": ((1 << 21) + 3,)}
STEPS, RUNS = 3, 3
DOUBLE = 1e-12
OTHERWISE = 0.02  # of weights in a format may be rounded to others: what was rounded differs a little
FACTOR = 64  # roundings of the arithmetic's dtype that may come together; a step moves what is 10^4 of them
LOW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Outcome:
    """What was held against what, and what came of it."""

    what: str
    error: float = nan  # the largest of all
    bound: float = 0.0
    where: str = ""
    problem: str = ""  # why there is no error
    left: bool = False  # to the rule, by an engine that does not take it

    @property
    def wrong(self) -> bool:
        return not self.left and not 0 <= self.error <= self.bound  # nan is wrong

    def __str__(self) -> str:
        if self.problem:
            return f"{'left to the rule' if self.left else 'WRONG'}: {self.what}: {self.problem}"
        return f"{'WRONG' if self.wrong else 'right'}: {self.what}: {self.error:.1e} of {self.bound:.1e} ({self.where})"


def outcomes(place: Place) -> Iterator[Outcome]:
    """What matters most first, since the time may be short where kernels are compiled for every option."""
    for optimizer in OPTIMIZERS:
        usual = Variant(optimizer)
        yield attempt(str(usual), partial(against_rule, place, usual), required=True)
        what = f"{optimizer}: {RUNS} runs of {STEPS} steps"
        yield attempt(what, partial(again, what, place, optimizer), required=True)
        lists = Variant(optimizer, LISTS)
        yield attempt(str(lists), partial(against_rule, place, lists), required=True)
        for stored in FORMATS:
            what = f"{optimizer}, bfloat16, {stored}: weights as the rule's"
            yield attempt(what, partial(in_format, what, place, optimizer, FORMATS[stored]), required=True)
        what = f"{optimizer}: a step with found_inf changes nothing"
        yield attempt(what, partial(skipped, what, place, optimizer))
    for side_by_side in zip_longest(*map(variants, OPTIMIZERS)):
        for variant in filter(None, side_by_side):
            yield attempt(str(variant), partial(against_rule, place, variant))


def attempt(what: str, tried: Callable[[], Outcome], required: bool = False) -> Outcome:
    """An engine may leave to the rule what is not required."""
    try:
        return tried()
    except EngineError as problem:
        return Outcome(what, problem=in_short(problem), left=not required)
    except Exception as problem:
        return Outcome(what, problem=in_short(problem))


def shapes_at(place: Place) -> dict[str, tuple[int, ...]]:
    return SHAPES if place.interpreted else SHAPES | LARGE


# ---- against the rule


class Pair:
    """The same parameters twice: stepped by the engine, and in float64 by the rule."""

    def __init__(self, place: Place, variant: Variant) -> None:
        self._place, self.variant, self._shapes = place, variant, shapes_at(place)
        self.cuts_off = place.interpreted and variant.dtype == torch.bfloat16  # which GPUs do not
        drawn = place.draw(0, self._shapes.values(), variant.dtype)
        drawn[list(self._shapes).index("zeros")].zero_()
        self.mine, self.its = parameters(drawn), parameters(x.double() for x in drawn)
        options = dict(variant.options)
        self.rule = ours(variant.optimizer, self._named(self.its), {**plain(options), **RULE})
        if variant.lr_on_device:
            options["lr"] = torch.tensor(options["lr"], device=place.device)
        self.engine = ours(variant.optimizer, self._named(self.mine), options)
        if variant.scaled is not None:
            self.engine.grad_scale = torch.tensor(variant.scaled, device=place.device)
            self.engine.found_inf = torch.zeros((), device=place.device)

    def _named(self, params: list[Parameter]) -> list[tuple[str, Parameter]]:
        return list(zip(self._shapes, params, strict=True))

    def step(self, seed: int) -> None:
        grads = self._place.draw(seed, self._shapes.values(), self.variant.dtype)
        scale = 1.0 if self.variant.scaled is None else self.variant.scaled
        set_gradients(self.mine, [g * scale for g in grads])
        set_gradients(self.its, [g.double() for g in grads])
        self.engine.step()
        self.rule.step()

    def stored(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """What is kept of each parameter, by both."""
        for name, mine, its in zip(self._shapes, self.mine, self.its, strict=True):
            state, wanted = self.engine.state[mine], self.rule.state[its]
            yield f"p of {name}", mine.detach(), its.detach()
            if "master" in state:
                yield f"master of {name}", state["master"], its.detach()
            yield from ((f"{key} of {name}", state[key], wanted[key]) for key in wanted)

    def from_here(self) -> None:
        """Let the rule go on from where the engine is, so that one rounding does not grow into more."""
        with torch.no_grad():
            for _, mine, its in self.stored():  # master weights after what they were rounded to
                its.copy_(mine)


def plain(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in ("master_weights", "capturable")}


def against_rule(place: Place, variant: Variant) -> Outcome:
    pair, found = Pair(place, variant), []
    for step in range(1, STEPS + 1):
        pair.step(step)
        found += errors(pair, step)
        pair.from_here()
    return Outcome(str(variant), *max(found, key=lambda one: _share(*one[:2])))


def errors(pair: Pair, step: int) -> Iterator[tuple[float, float, str]]:
    """Each error with its bound."""
    measured, wanted = pair.engine.stats(), pair.rule.stats()
    arithmetic = bound(torch.float32 if pair.variant.dtype in LOW else pair.variant.dtype)
    for name, mine, its in pair.stored():
        yield relative(mine, its), bound(mine.dtype, pair.cuts_off), f"{name}, step {step}"
    for name, numbers in wanted.items():
        for key, x in numbers.items():
            mine, its = (torch.as_tensor(np.asarray(one, np.float64)) for one in (measured[name][key], x))
            yield relative(mine, its), arithmetic, f"{key} of {name}, step {step}"


def relative(mine: torch.Tensor, its: torch.Tensor) -> float:
    """The length of the difference as a part of the length; what is nan with both is no difference."""
    a, b = mine.double().reshape(-1), its.double().reshape(-1)
    a, b = (torch.where(a.isnan() & b.isnan(), 0.0, x) for x in (a, b))
    length = float(b.norm())
    return float((a - b).norm()) / (length or 1.0)


def bound(dtype: torch.dtype, cuts_off: bool = False) -> float:
    if not dtype.is_floating_point:
        return 0.0
    if dtype in LOW:  # what is stored is rounded once more, or cut off
        return torch.finfo(dtype).eps / (1 if cuts_off else 2) + bound(torch.float32)
    if dtype == torch.float64:  # what it is held against has no more digits, and adds up a million numbers otherwise
        return DOUBLE
    return FACTOR * torch.finfo(dtype).eps


def _share(error: float, limit: float) -> float:
    """How much of its bound an error takes."""
    if isnan(error) or not limit:
        return 0.0 if error == 0 else inf
    return error / limit


def in_format(what: str, place: Place, optimizer: str, options: Mapping[str, Any]) -> Outcome:
    """Compare weights in a storage format with the rule's in the same: few are rounded to others."""
    shapes = {**shapes_at(place), "groups": (64, 70)}
    drawn = place.draw(0, shapes.values(), torch.bfloat16)
    both = [parameters(drawn), parameters(drawn)]
    given = {**dict(Variant(optimizer).options), **options}
    opts = [
        ours(optimizer, zip(shapes, params, strict=True), {**given, **how})
        for params, how in zip(both, ({}, RULE), strict=True)
    ]
    for step in (1, 2):
        for params, opt in zip(both, opts, strict=True):
            set_gradients(params, place.draw(step, shapes.values(), torch.bfloat16))
            opt.step()
    mine, its = (torch.cat([p.detach().reshape(-1) for p in params]) for params in both)
    return Outcome(what, float((mine != its).double().mean()), OTHERWISE, "part of the weights")


# ---- what has to be the same to the bit


def bits(opt: Any) -> list[torch.Tensor]:
    params = [p for group in opt.param_groups for p in group["params"]]
    return [x.detach().clone() for p in params for x in (p, *opt.state[p].values())]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    pairs = list(zip(ours, theirs, strict=True))
    return all(a.dtype == b.dtype and bool((_raw(a) == _raw(b)).all()) for a, b in pairs)


def _raw(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def exact(what: str, is_same: bool) -> Outcome:
    return Outcome(what, 0.0 if is_same else inf, 0.0, "the same bits" if is_same else "other bits")


def skipped(what: str, place: Place, optimizer: str) -> Outcome:
    """A step that a GradScaler calls off leaves everything as it was."""
    opt = _stepped(place, optimizer, 1)
    before = bits(opt)
    opt.grad_scale = torch.tensor(8.0, device=place.device)
    opt.found_inf = torch.ones((), device=place.device)
    opt.step()
    after = [x.to(old.device) for x, old in zip(bits(opt), before, strict=True)]  # a count may have moved to the device
    return exact(what, same(after, before))


def again(what: str, place: Place, optimizer: str) -> Outcome:
    first, *others = (bits(_stepped(place, optimizer, STEPS)) for _ in range(RUNS))
    return exact(what, all(same(first, other) for other in others))


def _stepped(place: Place, optimizer: str, steps: int) -> Any:
    shapes = list(shapes_at(place).values())
    params = parameters(place.draw(0, shapes, torch.float32))
    opt = ours(optimizer, params, Variant(optimizer).options)
    for step in range(1, steps + 1):
        set_gradients(params, place.draw(step, shapes, torch.float32))
        opt.step()
    return opt
