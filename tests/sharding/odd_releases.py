"""What may be otherwise on a rank in a backward pass that steps, and what then comes of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from sharding.layouts import mesh_of
from sharding.models import Small, everything, named
from sharding.releasing import STEPS, Branching, Model
from sharding.runs import batches, optimizer_of
from sharding.wrappings import WRAPPINGS, fsdp2, tensor_parallel
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from layerwise.errors import LayerwiseError
from layerwise.torch import Lamb, step_in_backward
from layerwise.torch._optimizer import Optimizer
from sharding import counting

ODD = 1  # the rank that is otherwise


def another_lr(model: Model, opt: Any) -> None:
    opt.param_groups[0]["lr"] = 0.5


def broken_state(model: Model, opt: Any) -> None:
    """Of the module that has its turn after another one."""
    opt.state[model.blocks[0].up.weight]["exp_avg"] = torch.zeros(3, 2, 1)


def broken_at_the_end(model: Model, opt: Any) -> None:
    """Of the module that has its turn last, when the pass is over."""
    opt.state[opt.param_groups[0]["params"][0]]["exp_avg"] = torch.zeros(3, 2, 1)


def clipping(model: Model, opt: Any) -> None:
    opt.param_groups[0]["max_grad_norm"] = 1.0


def stages(model: Model, opt: Any) -> None:
    opt.model_group = dist.group.WORLD


def another_branch(model: Model, opt: Any) -> None:
    model.which = 1


def may_skip(model: Model, opt: Any) -> None:
    opt._skip_nonfinite = True


CHANGES = {
    "lr": another_lr,
    "broken state": broken_state,
    "broken at the end": broken_at_the_end,
    "clipping": clipping,
    "model_group": stages,
    "branch": another_branch,
    "skip_nonfinite": may_skip,
}


def copies(params: Mapping[str, Any]) -> dict[str, Tensor]:
    """What this rank has of the weights."""
    return {name: p.to_local().detach().clone() for name, p in params.items()}


def moved(params: Mapping[str, Any], before: Mapping[str, Tensor]) -> set[str]:
    """The modules that have other weights than before."""
    names = {name for name, x in copies(params).items() if not torch.equal(x, before[name])}
    return {".".join(name.split(".")[:2]) if name.startswith("blocks") else "the rest" for name in names}


def released(model: Model, **options: Any) -> tuple[Any, dict[str, Any]]:
    """An optimizer that steps in the backward pass, and its parameters."""
    params = named(model)
    opt = Lamb(list(params.items()), lr=0.1, **options)
    step_in_backward(opt)
    return opt, params


def backward(model: Model, params: Mapping[str, Any], batch: Tensor) -> tuple[str, set[str]]:
    """The error of a pass, and what has moved in it."""
    before, error = copies(params), ""
    try:
        model(batch).backward()
    except LayerwiseError as problem:
        error = f"{type(problem).__name__}: {problem}"
        model.reset_iter_state()
    return error, moved(params, before)


def disagreeing(change: str, wrapping: str) -> tuple[str, set[str], set[str]]:
    """The error of the second pass and what had moved by then, and what the next one moves."""
    model = WRAPPINGS[wrapping][1](Branching(torch.float64) if change == "branch" else Small(torch.float64))
    opt, params = released(model)
    first, second, third = batches(3)
    assert not backward(model, params, first)[0]
    group, state = dict(opt.param_groups[0]), {p: dict(one) for p, one in opt.state.items()}
    if dist.get_rank() == ODD:
        CHANGES[change](model, opt)
    error, changed = backward(model, params, second)
    opt.param_groups[0].update(group)
    opt.state.update(state)
    opt._skip_nonfinite, opt.model_group, model.which = False, None, 0
    opt.zero_grad()
    again, after = backward(model, params, third)
    assert not again
    opt.step()
    return error, changed, after


def different_every() -> tuple[str, set[str]]:
    """The error where ranks do not take as many passes for a step, and what has moved."""
    model = fsdp2(Small(torch.float64))
    params = named(model)
    opt = Lamb(list(params.items()), lr=0.1)
    step_in_backward(opt, every=1 + (dist.get_rank() == ODD))
    return backward(model, params, batches(1)[0])


class Flat(nn.Module):
    """A matrix of which the number of entries matters, and the shape does not."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape, dtype=torch.float64))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight.square().sum() * tokens.numel()


def other_shapes() -> tuple[str, set[str]]:
    """The error where FSDP2 adds up gradients of other shapes, as many numbers of each, and what has moved."""
    model = fully_shard(Flat(*((6, 4) if dist.get_rank() == ODD else (4, 6))), mesh=mesh_of(2))
    opt, params = released(model)
    found = backward(model, params, batches(1)[0])
    del opt
    return found


def dropped() -> tuple[str, set[str]]:
    """The same where one rank has no optimizer any more."""
    model = fsdp2(Small(torch.float64))
    opt, params = released(model)
    if dist.get_rank() == ODD:
        del opt
    return backward(model, params, batches(1)[0])


def skipping() -> tuple[int, set[str], list[str]]:
    """How many turns were skipped, what has moved, and of what there are gradients: one is nan on one rank."""
    model = fsdp2(Small(torch.float64))

    def spoil(p: Any) -> None:
        if dist.get_rank() == ODD:
            p.grad.to_local().view(-1)[0] = torch.nan

    model.blocks[0].up.weight.register_post_accumulate_grad_hook(spoil)
    opt, params = released(model, skip_nonfinite=True)
    error, changed = backward(model, params, batches(1)[0])
    assert not error
    opt.step()
    return int(opt.skipped), changed, [name for name, p in params.items() if p.grad is not None]


def interrupted(end: Callable[[], None]) -> None:
    """Take passes in the second of which one rank ends like this, in the middle."""
    model = fsdp2(Small(torch.float64))
    opt, params = released(model)
    first, second = batches(2)
    assert not backward(model, params, first)[0]
    before = copies(params)
    if dist.get_rank() == ODD:
        params["blocks.0.up.weight"].register_post_accumulate_grad_hook(lambda _: end())
    try:
        model(second).backward()
    finally:
        assert moved(params, before) <= {"blocks.1"}
        del opt


def failing_everywhere() -> list[str]:
    """Of what there are gradients after a pass that follows one that failed on all ranks."""
    model = fsdp2(Small(torch.float64))
    opt, params = released(model)
    hook = params["blocks.0.up.weight"].register_post_accumulate_grad_hook(lambda _: fail())
    try:
        model(batches(1)[0]).backward()
    except ArithmeticError:
        hook.remove()
        model.reset_iter_state()
        model.zero_grad()
    model(batches(1)[0]).backward()
    left = [name for name, p in params.items() if p.grad is not None]
    opt.step()
    return left


def stopped(where: str) -> tuple[bool, bool, Any]:
    """Whether Ctrl-C left state and step counts as they were, whether it came through, and all after two more steps.

    It comes on all ranks: between a pass and its step, or within the first turn of a pass, which it lets end.
    """
    model = fsdp2(Small(torch.float64))
    opt, params = released(model)
    batch = batches(1)[0]
    model(batch).backward()
    before, came = everything(opt, params), False
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if where == "in a turn":
            with patch.object(Optimizer, "_step_due", _after_ctrl_c(Optimizer._step_due)):
                model(batch).backward()
        signal.raise_signal(signal.SIGINT)
        opt.step()
    except KeyboardInterrupt:
        came = True
    finally:
        signal.signal(signal.SIGINT, handler)
    after = everything(opt, params)
    own = {
        f"{part} {name}"
        for part in ("weights", "state")
        for name in before[part]
        if _differs(before, after, part, name)
    }
    kept = all("blocks.1." in one for one in own) if where == "in a turn" else not own
    model.reset_iter_state()
    model.zero_grad()
    for _ in range(2):
        model(batch).backward()
        opt.step()
    return kept, came, everything(opt, params)


def _differs(before: Any, after: Any, part: str, name: str) -> bool:
    return not (before[part][name] == after[part][name]).all()


def _after_ctrl_c(step: Any) -> Any:
    def stepped(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return step(*args)

    return stepped


def die() -> None:
    os._exit(7)


def fail() -> None:
    raise ArithmeticError


def with_others_on_another_mesh() -> set[str]:
    """What has moved of two models of one optimizer: half of the ranks use the first, and all use the second."""
    pairs = fsdp2(Small(torch.float64), mesh_of(2, 2)["inner"])
    every = fsdp2(Small(torch.float64), mesh_of(4))
    both = {f"pairs.{name}": p for name, p in named(pairs).items()}
    both |= {f"every.{name}": p for name, p in named(every).items()}
    opt = Lamb(list(both.items()), lr=0.1)
    step_in_backward(opt)
    before = copies(both)
    if dist.get_rank() < 2:
        pairs(batches(1)[0]).backward()
    every(batches(1)[0]).backward()
    opt.step()
    names = {name for name, x in copies(both).items() if not torch.equal(x, before[name])}
    return {name.partition(".")[0] for name in names}


def per_pass(front: Any, options: dict[str, Any]) -> list[tuple[list[str], list[str]]]:
    """The collectives of each backward pass and of the step after it."""
    model = fsdp2(Small(torch.float64))
    opt = optimizer_of(front, model, options)
    step_in_backward(opt)
    found = []
    for batch in batches(STEPS):
        loss = model(batch)
        with counting.Collectives() as during:
            loss.backward()
        with counting.Collectives() as after:
            opt.step()
        found.append(([name for name, _ in during.seen], [name for name, _ in after.seen]))
    return found


def refused() -> list[str]:
    """What is said of sharded parameters that cannot be stepped in the backward pass."""
    world, said = dist.get_world_size(), []
    model = fsdp2(Small(torch.float64))
    parallel = tensor_parallel(Small(torch.float64), mesh_of(world))

    def attempt(of: Model, options: Mapping[str, Any], **more: Any) -> None:
        try:
            step_in_backward(Lamb(of.named_parameters(), lr=0.1, **options), **more)
        except LayerwiseError as problem:
            said.append(f"{type(problem).__name__}: {problem}")

    attempt(parallel, {})
    attempt(model, {}, alone=True)
    attempt(model, {"model_group": dist.group.WORLD})
    attempt(model, {"max_grad_norm": 1.0})
    with patch.object(torch.autograd.Variable, "_execution_engine", None):
        attempt(model, {})
    return said
