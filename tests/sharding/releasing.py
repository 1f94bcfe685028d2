"""Ways to train models of fully_shard, with steps in the backward pass or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from sharding.layouts import mesh_of
from sharding.models import Small
from sharding.wrappings import WRAPPINGS, batches, fsdp2, tensor_parallel
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

STEPS = 2
Model = Any


class Other(Small):
    """The same with its blocks used in another way."""

    def through(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.through(self.embed(tokens))))
        return cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


class Twice(Other):
    def through(self, x: Tensor) -> Tensor:
        for block in (*self.blocks, *self.blocks):
            x = block(x)
        return x


class Checkpointed(Other):
    """What is in its blocks is computed once more in the backward pass."""

    nested = False

    def through(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.nested)
        return x


class Nested(Checkpointed):
    """In a backward pass of its own for each block."""

    nested = True


class Branching(Other):
    """Only one of the blocks is used, which may be another one on another rank."""

    which = 0

    def through(self, x: Tensor) -> Tensor:
        found: Tensor = self.blocks[self.which](x)
        return found


class Wide(Small):
    """Matrices are large enough for state in 8 bits."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype, 64)


class Apart(Small):
    """Entrance and exit are no longer one tensor, in modules of their own."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self.head.weight = nn.Parameter(self.embed.weight.detach().clone())


def apart(model: Model) -> Model:
    fully_shard(model.embed, mesh=mesh_of(dist.get_world_size()))
    return fsdp2(model)


def together(model: Model) -> Model:
    """With the last two modules reduced at once, and the embedding by itself, of which no input has a gradient."""
    fully_shard([model.norm, model.head], mesh=mesh_of(dist.get_world_size()))
    return apart(model)


def in_part(model: Model) -> Model:
    """With parameters that fully_shard ignores, and a frozen one."""
    model.blocks[0].up.weight.requires_grad_(False)
    mesh = mesh_of(dist.get_world_size())
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, ignored_params={model.norm.weight, model.norm.bias})
    return model


def parallel_in_part(model: Model) -> Model:
    """With a tensor-parallel parameter whose gradient FSDP2 leaves alone; here it is the same on all."""
    mesh = mesh_of(2, 2)
    tensor_parallel(model, mesh["inner"])
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh["outer"], ignored_params={model.blocks[0].up.weight})
    return model


def each(model: Model, opt: Any, release: bool) -> Iterator[None]:
    for batch in batches(STEPS):
        model(batch).backward()
        yield


def mean_of_replicas(model: Model, opt: Any, release: bool) -> Iterator[None]:
    """What no module of FSDP2 has is averaged by hand."""
    for _ in each(model, opt, release):
        for p in (model.norm.weight, model.norm.bias):
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        yield


def accumulated(before: Callable[[Model, bool], None]) -> Callable[[Model, Any, bool], Iterator[None]]:
    """Every second pass adds to the gradients of the first."""

    def passes(model: Model, opt: Any, release: bool) -> Iterator[None]:
        for batch in batches(STEPS):
            for last in (False, True):
                before(model, last)
                model(batch if last else batch.flip(1)).backward()
            yield

    return passes


def without_sync(model: Model, last: bool) -> None:
    model.set_requires_gradient_sync(last)
    model.set_is_last_backward(last)


def graph_kept(model: Model, opt: Any, release: bool) -> Iterator[None]:
    """One forward pass and two backward passes."""
    for batch in batches(STEPS):
        loss = model(batch)
        loss.backward(retain_graph=True)
        loss.backward()
        yield


def unused(model: Model, opt: Any, release: bool) -> Iterator[None]:
    """One of the modules in turn has no gradients."""
    for i, batch in enumerate(batches(3)):
        model.which = i % 2
        model(batch).backward()
        yield


def without_steps(model: Model, opt: Any, release: bool) -> Iterator[None]:
    """Passes are steps by themselves."""
    for batch in batches(STEPS):
        model(batch).backward()
        if not release:
            opt.step()
            opt.zero_grad()
    yield


def scheduled(model: Model, opt: Any, release: bool) -> Iterator[None]:
    """With a schedule, and the state loaded into the optimizer that it was saved from."""
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    for _ in each(model, opt, release):
        yield
        schedule.step()
        opt.load_state_dict(opt.state_dict())


def scaled(model: Model, opt: Any, release: bool) -> Iterator[None]:
    """Gradients are divided by a number that the caller names, also in a step that finds none."""
    opt.grad_scale = torch.tensor(4.0, dtype=torch.float64)
    yield from each(model, opt, release)


def evaluated(model: Model, opt: Any, release: bool) -> Iterator[None]:
    """With forward passes that no backward pass follows, one of which is kept."""
    kept = []
    for batch in batches(STEPS):
        kept.append(model(batch))
        with torch.no_grad():
            model(batch)
        model(batch).backward()
        yield


@dataclass(frozen=True)
class Program:
    """A way to train: ranks, the model, what wraps it, passes, and how many passes make a step."""

    world: int = 2
    model: Callable[[torch.dtype], Model] = Small
    wrap: Callable[[Model], Model] = fsdp2
    passes: Callable[[Model, Any, bool], Iterator[None]] = each
    every: int = 1
    modules: int = 2  # of which there are gradients at a time; the model has three
    unsharded: bool = False  # whether the optimizer steps in the backward pass only once a forward pass was taken


PROGRAMS = {
    **{
        name: Program(world, wrap=wrap)
        for name, (world, wrap) in WRAPPINGS.items()
        if "FSDP2" in name or name == "HSDP"
    },
    "without sync": Program(passes=accumulated(without_sync)),
    "without all-reduce": Program(
        4,
        wrap=lambda model: fsdp2(model, mesh_of(2, 2)),
        passes=accumulated(lambda m, last: m.set_requires_all_reduce(last)),
    ),
    "with sync": Program(passes=accumulated(lambda model, last: None), every=2, modules=3),
    "used twice": Program(model=Twice),
    "graph kept": Program(passes=graph_kept, every=2, modules=3),
    "checkpointed": Program(model=Checkpointed),
    "checkpointed, nested": Program(model=Nested, modules=1),
    "modules together": Program(4, model=Apart, wrap=together),
    "in part": Program(wrap=in_part, passes=mean_of_replicas, modules=3),
    "without steps": Program(passes=without_steps),
    "scheduled": Program(passes=scheduled),
    "scaled": Program(passes=scaled),
    "wide": Program(model=Wide),
    "parallel in part": Program(4, wrap=parallel_in_part),
    "unused": Program(model=Branching, passes=unused),
    "evaluated": Program(passes=evaluated, unsharded=True),
}
