"""What ranks do that have whole tensors of a model each, as the stages of a pipeline have."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
import torch.distributed as dist
from sharding.models import BUSY, Irregular, everything, named

from layerwise.errors import ContradictionError
from layerwise.torch import Lamb
from sharding import runs

STEPS = 4


def stage(name: str, rank: int, world: int) -> bool:
    """Whether the parameter belongs to this rank, or to the model of all of them."""
    return world == 1 or (sum(map(ord, name)) + rank) % world == 0


def stepped(front: Any, options: dict[str, Any], nan_at: int | None = None, broken_at: int | None = None) -> Any:
    """Each rank steps its own tensors; at one step one rank's gradient is nan, or of another shape."""
    world, rank = dist.get_world_size(), dist.get_rank()
    return own(front, {**options, "model_group": dist.group.WORLD}, rank, world, nan_at, broken_at)


def own(
    front: Any, options: Any, rank: int, world: int, nan_at: int | None = None, broken_at: int | None = None
) -> Any:
    params = {k: p for k, p in named(Irregular(0, torch.float64)).items() if stage(k, rank, world)}
    opt = front(list(params.items()), **{**BUSY[front], **options})
    errors = []
    for t in range(STEPS):
        grads = named(Irregular(1 + t, torch.float64))
        runs.give(params, grads)
        odd = params.get("first.embed")  # which one rank has, or all of them together
        if odd is not None and t == nan_at:
            odd.grad[0] = torch.nan
        if odd is not None and t == broken_at:
            odd.grad = torch.sparse_coo_tensor(size=odd.shape, dtype=odd.dtype, check_invariants=True)
        try:
            opt.step()
        except Exception as problem:
            errors.append((t, type(problem).__name__))
    return everything(opt, params), opt.skipped, errors


def copied(front: Any, how: str, default: bool) -> tuple[str, bool]:
    """What a copy of an optimizer says of its group, and whether it then steps as the first does."""
    world, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD if default else dist.new_group()
    params = {k: p for k, p in named(Irregular(0, torch.float64)).items() if stage(k, rank, world)}
    opt = front(list(params.items()), **{**BUSY[front], "max_grad_norm": 0.5, "model_group": group})
    grads = [named(Irregular(1 + t, torch.float64)) for t in range(STEPS)]
    twin, said = None, ""
    for given in grads:
        for one in (opt, twin) if twin else (opt,):
            twins = dict(zip(params, one.param_groups[0]["params"], strict=True))
            runs.give(twins, given)
            try:
                one.step()
            except ContradictionError as problem:
                said, one.model_group = str(problem), group
                one.step()
        twin = twin or (copy.deepcopy(opt) if how == "copy" else pickle.loads(pickle.dumps(opt)))
    same = all(map(torch.equal, opt.param_groups[0]["params"], twin.param_groups[0]["params"]))
    return said, same and twin.model_group is group


def pickled() -> bytes:
    return pickle.dumps(Lamb([torch.nn.Parameter(torch.ones(2))], lr=0.1, model_group=dist.group.WORLD))


def contradiction() -> str:
    """What is said of two norms, of which the model's would be known in the second round only."""
    opt = Lamb([torch.nn.Parameter(torch.ones(2))], model_group=dist.group.WORLD)
    opt.param_groups[0] |= {"max_grad_norm": 1.0, "max_grad_norm_per_tensor": 1.0}
    try:
        opt.step()
    except Exception as problem:
        return type(problem).__name__
    return "nothing"
