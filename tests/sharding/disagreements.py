"""What can be otherwise on one rank than on the others, and what then comes of a step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from sharding.models import everything, stats
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import layerwise.torch
from layerwise.errors import LayerwiseError
from layerwise.torch.sharding import _agreement
from sharding import counting, runs

ODD = 1  # the rank that is otherwise
NAME = "first.qkv"
Change = Callable[[Any, dict[str, Any]], None]
Spread = Callable[[dict[str, Any]], None]


def local(x: Any) -> Any:
    """What this rank has of it."""
    x = x.detach() if isinstance(x, Tensor) else x
    return x.to_local() if isinstance(x, DTensor) else x


def no_gradient(opt: Any, params: dict[str, Any]) -> None:
    params[NAME].grad = None


def no_gradients(opt: Any, params: dict[str, Any]) -> None:
    for p in params.values():
        p.grad = None


def another(option: str, value: Any) -> Change:
    return lambda opt, params: opt.param_groups[0].update({option: value})


def another_count(opt: Any, params: dict[str, Any]) -> None:
    opt.state[params[NAME]]["step"] += 1


def broken_state(opt: Any, params: dict[str, Any]) -> None:
    """Which this rank alone finds out, before it asks the others anything."""
    state = opt.state[params[NAME]]
    key = next(key for key in state if key != "step")
    state[key] = torch.zeros(3, 2, 1)


def plain_state(opt: Any, params: dict[str, Any]) -> None:
    """All of a state, where there should be a part of it."""
    state = opt.state[params[NAME]]
    key = next(key for key in state if key != "step")
    state[key] = torch.zeros(state[key].shape, dtype=state[key].dtype)


def missing_option(opt: Any, params: dict[str, Any]) -> None:
    """For which nobody has thought of an error."""
    del opt.param_groups[0]["maximize"]


def may_skip(opt: Any, params: dict[str, Any]) -> None:
    opt._skip_nonfinite = True


def scaler(opt: Any, params: dict[str, Any]) -> None:
    """As if there were a GradScaler, which has found nothing."""
    opt.found_inf = torch.tensor(0.0)


def arrived(opt: Any, params: dict[str, Any]) -> None:
    """A gradient that lies like its parameter already."""
    p, g = params[NAME], params[NAME].grad
    here = torch.zeros_like(local(p))
    p.grad = DTensor.from_local(here, g.device_mesh, p.placements, shape=p.shape, stride=p.stride())


def failing_hook(opt: Any, params: dict[str, Any]) -> None:
    def fail(*_: Any) -> None:
        1 / 0  # noqa: B018

    opt.hook = opt.register_step_pre_hook(fail)


CHANGES: dict[str, Change] = {
    "skip_nonfinite": may_skip,
    "found_inf": scaler,
    "failing hook": failing_hook,
    "no gradient": no_gradient,
    "no gradients": no_gradients,
    "lr": another("lr", 0.5),
    "weight decay": another("weight_decay", 0.5),
    "an option": another("max_grad_value", 0.5),
    "step count": another_count,
    "broken state": broken_state,
    "plain state": plain_state,
    "forbidden lr": another("lr", -1.0),
    "missing option": missing_option,
}


REDISTRIBUTED = {**CHANGES, "arrived": arrived}  # where gradients are


def as_given(params: dict[str, Any]) -> None:
    """Leave gradients where they are."""


@contextmanager
def changed(change: Change, opt: Any, params: dict[str, Any]) -> Iterator[None]:
    """While this is so on this rank."""
    grads, group = {name: p.grad for name, p in params.items()}, dict(opt.param_groups[0])
    state = {key: x.clone() for key, x in opt.state[params[NAME]].items()}
    change(opt, params)
    yield
    opt._skip_nonfinite = False
    opt.__dict__.pop("found_inf", None)
    if hook := opt.__dict__.pop("hook", None):
        hook.remove()
    opt.param_groups[0].update(group)
    opt.state[params[NAME]] = state
    for name, p in params.items():
        p.grad = grads[name]


def copies(opt: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank has of weights and state."""
    parts = {f"{name} {key}": x for name, p in params.items() for key, x in opt.state[p].items()}
    return {name: local(x).clone() for name, x in {**params, **parts}.items()}


def disagreeing(front: Any, layout: str, change: str, spread: Spread = as_given) -> tuple[str, str, bool, Any]:
    """The error of a step about which ranks disagree, whether it changed anything, and what comes of going on."""
    params, grads = runs.prepared(layout, torch.float64)
    opt, error = runs.made(front, params, {}), None
    for i, one in enumerate(grads):
        runs.give(params, one)
        spread(params)
        if i == 2:
            with changed(REDISTRIBUTED[change], opt, params) if dist.get_rank() == ODD else nullcontext():
                before = copies(opt, params)
                try:
                    opt.step()
                except (LayerwiseError, KeyError, ZeroDivisionError) as problem:
                    error = problem
                after = copies(opt, params)
        opt.step()
    untouched = before.keys() == after.keys() and all(torch.equal(x, after[name]) for name, x in before.items())
    return type(error).__name__, str(error), untouched, everything(opt, params)


def at_first(front: Any, layout: str) -> tuple[str, int, Any]:
    """The error of a first step about whose rates the ranks disagree, how much state it left, and what came after."""
    params, grads = runs.prepared(layout, torch.float64)
    opt, error = runs.made(front, params, {}), None
    group = opt.param_groups[0]
    runs.give(params, grads[0])
    lr, group["lr"] = group["lr"], group["lr"] + dist.get_rank()
    try:
        opt.step()
    except LayerwiseError as problem:
        error = problem
    kept, group["lr"] = len(opt.state), lr
    for one in grads:
        runs.give(params, one)
        opt.step()
    return type(error).__name__, kept, everything(opt, params)


def skipping(front: Any, layout: str, spoil: Callable[[Any, dict[str, Any], bool], None] | None) -> tuple[int, Any]:
    """How many steps were skipped, and what came of the others; the third is spoiled on one rank."""
    params, grads = runs.prepared(layout, torch.float64)
    opt = runs.made(front, params, {"skip_nonfinite": True})
    for i, one in enumerate(grads):
        runs.give(params, one)
        if i == 2:
            if spoil is None:
                continue
            spoil(opt, params, dist.get_rank() == ODD)
        opt.step()
        for name in ("found_inf", "grad_scale"):
            opt.__dict__.pop(name, None)
    return int(opt.skipped), everything(opt, params)


def measured_last(front: Any, layout: str) -> tuple[Any, Any, Any]:
    """The measurements of a step, after one that is skipped, and after one that leaves out a parameter."""
    params, grads = runs.prepared(layout, torch.float64)
    opt, found = runs.made(front, params, {"skip_nonfinite": True}), []
    for i, one in enumerate(grads[:3]):
        runs.give(params, one, (NAME,) if i == 2 else ())
        if i == 1:
            with_nan(opt, params, dist.get_rank() == ODD)
        opt.step()
        found.append(stats(opt))
    return found[0], found[1], {key: x for key, x in found[2].items() if key.startswith(f"{NAME} ")}


def reloading(front: Any, layout: str, spread: Spread = as_given) -> Any:
    """What comes of a run in which one rank loads a checkpoint of its own, and the others load none."""
    params, grads = runs.prepared(layout, torch.float64)
    opt = runs.made(front, params, {})
    for i, one in enumerate(grads):
        runs.give(params, one)
        spread(params)
        if i == 2 and dist.get_rank() == ODD:
            opt.load_state_dict(opt.state_dict())
        opt.step()
    return everything(opt, params)


def made_again(front: Any, layout: str, *, loaded: bool) -> tuple[str, bool, Any]:
    """The error of a step for which one rank has made its optimizer again, and what the steps after it make.

    If that is `loaded` with what the old one had, all of them can go on at once, and else with the old one.
    """
    params, grads = runs.prepared(layout, torch.float64)
    old, error, untouched = runs.made(front, params, {}), None, True
    opt = old
    for i, one in enumerate(grads):
        runs.give(params, one)
        if i == 2:
            if dist.get_rank() == ODD:
                opt = runs.made(front, params, {})
                if loaded:
                    opt.load_state_dict(old.state_dict())
            before = copies(old, params)
            try:
                opt.step()
                continue
            except LayerwiseError as problem:
                error = problem
            untouched = all(torch.equal(x, before[name]) for name, x in copies(old, params).items())
            opt = old
        opt.step()
    return type(error).__name__, untouched, everything(opt, params)


def with_closures(front: Any, layout: str, *, sending: bool) -> None:
    """Take a step whose closure fails on one rank, where closures send something or not.

    Those that send something have done so before, as the passes of a sharded model do.
    """
    params, grads = runs.prepared(layout, torch.float64)
    opt = runs.made(front, params, {})

    def loss(fails: bool = False) -> float:
        if fails:
            raise ArithmeticError
        if sending:
            dist.all_reduce(torch.ones(3))
        return 1.0

    for one in grads[:2]:
        runs.give(params, one)
        opt.step(loss)
    opt.step(lambda: loss(dist.get_rank() == ODD))


def scaled(front: Any, layout: str) -> str:
    """The error of a step for which one rank has scaled its gradients."""
    params, grads = runs.prepared(layout, torch.float64)
    opt = runs.made(front, params, {})
    runs.give(params, grads[0])
    opt.grad_scale = torch.tensor(4.0 if dist.get_rank() == ODD else 2.0)
    try:
        opt.step()
    except LayerwiseError as problem:
        return str(problem)
    return ""


def with_another_version(front: Any, layout: str) -> str:
    """The error of a step where one rank has another version of the library."""
    params, grads = runs.prepared(layout, torch.float64)
    with patch.object(_agreement, "__version__", "0.0.1") if dist.get_rank() == ODD else nullcontext():
        opt = runs.made(front, params, {})
        runs.give(params, grads[0])
        try:
            opt.step()
        except LayerwiseError as problem:
            return str(problem)
    return ""


def without_a_model_group(front: Any, layout: str) -> tuple[str, bool]:
    """The error of a second step before which one rank gives up its model_group, and whether it changed nothing."""
    params, grads = runs.prepared(layout, torch.float64)
    opt = runs.made(front, params, {"model_group": dist.group.WORLD})
    runs.give(params, grads[0])
    opt.step()
    if dist.get_rank() == ODD:
        opt.model_group = None
    before, error = copies(opt, params), ""
    try:
        opt.step()
    except LayerwiseError as problem:
        error = f"{type(problem).__name__}: {problem}"
    return error, all(torch.equal(x, before[name]) for name, x in copies(opt, params).items())


def by_different_engines(front: Any, layout: str) -> str:
    """The error of a step that one rank takes by the rule; the first sums that it asks for are those of the others."""
    params, grads = runs.prepared(layout, torch.float64)
    opt = runs.made(front, params, {"max_grad_norm": 0.5, "fused": False if dist.get_rank() == ODD else None})
    runs.give(params, grads[0])
    try:
        opt.step()
    except LayerwiseError as problem:
        return str(problem)
    return ""


def with_nan(opt: Any, params: dict[str, Any], here: bool) -> None:
    if here:
        local(params[NAME].grad).view(-1)[0] = torch.nan


def with_inf_found(opt: Any, params: dict[str, Any], here: bool) -> None:
    """As a GradScaler says it: each rank what it has found in its own part."""
    opt.grad_scale, opt.found_inf = torch.tensor(2.0), torch.tensor(float(here))


class Dying(TorchDispatchMode):
    """Ends the process when it is about to send something for the first time, or a later one."""

    def __init__(self, message: int) -> None:
        super().__init__()
        self.left = message

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= func.namespace in counting.NAMESPACES
        if not self.left:
            os._exit(7)
        return func(*args, **(kwargs or {}))


def dying(front: Any, layout: str, options: Mapping[str, Any], elements: int = 1 << 27, message: int = 1) -> None:
    """Die where the third step would send its first message, or a later one."""
    layerwise.torch.set_bucket_size(elements)
    params, grads = runs.prepared(layout, torch.float64)
    opt = runs.made(front, params, options)
    try:
        for i, one in enumerate(grads):
            runs.give(params, one)
            with Dying(message) if i == 2 and dist.get_rank() == ODD else nullcontext():
                opt.step()
    finally:
        layerwise.torch.set_bucket_size(1 << 27)
