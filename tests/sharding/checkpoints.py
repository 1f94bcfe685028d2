"""Saving and loading as `torch.distributed.checkpoint` has it, in all of its ways."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharding.models import Irregular, Small, everything, named
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.parallel import DistributedDataParallel

from sharding import runs

BEFORE, AFTER = 2, 2  # steps before the checkpoint, and after it

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
OPTIONS = {
    "dcp": StateDictOptions(),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
    "full": FULL,
    "from rank 0": StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True),
}
FILE = "full.pt"


def save(how: str, path: str, model: nn.Module, opt: torch.optim.Optimizer) -> None:
    options = FULL if how == "from rank 0" else OPTIONS[how]
    parts = {
        "model": get_model_state_dict(model, options=options),
        "optim": get_optimizer_state_dict(model, opt, options=options),
    }
    if not options.full_state_dict:
        dcp.save(parts, checkpoint_id=path)
    elif dist.get_rank() == 0:
        torch.save(parts, Path(path, FILE))


def load(how: str, path: str, model: nn.Module, opt: torch.optim.Optimizer) -> None:
    options = OPTIONS[how]
    if options.full_state_dict:
        reads = dist.get_rank() == 0 or not options.broadcast_from_rank0
        parts = torch.load(Path(path, FILE), weights_only=False) if reads else {"model": {}, "optim": {}}
    else:
        parts = {
            "model": get_model_state_dict(model, options=options),
            "optim": get_optimizer_state_dict(model, opt, options=options),
        }
        dcp.load(parts, checkpoint_id=path)
    set_model_state_dict(model, parts["model"], options=options)
    set_optimizer_state_dict(model, opt, parts["optim"], options=options)


def by_zero_redundancy(front: Any) -> tuple[bool, int]:
    """Save what ranks have that step some whole parameters each, and go on from there.

    Return whether that makes the weights of those who never stopped, and for how many parameters there was state.
    """
    opts, models = [], []
    for _ in range(2):
        models.append(DistributedDataParallel(Small(torch.float64)))
        opts.append(runs.optimizer_of(front, models[-1], {"max_grad_norm": 0.1}, zero=True))

    def train(which: int, batches: Any) -> None:
        for batch in batches:
            opts[which].zero_grad()
            models[which](batch).backward()
            opts[which].step()

    batches = runs.batches(BEFORE + AFTER)
    opts[0].consolidate_state_dict(0)  # also before there is any state
    train(0, batches[:BEFORE])
    opts[0].consolidate_state_dict(0)
    file, saved = BytesIO(), [None]
    if dist.get_rank() == 0:
        torch.save(opts[0].state_dict(), file)
        file.seek(0)
        saved = [torch.load(file, weights_only=True)]
    dist.broadcast_object_list(saved, 0)
    state: Any = saved[0]
    found = len(state["state"])
    models[1].load_state_dict(models[0].state_dict())
    opts[1].load_state_dict(state)
    for which in range(2):
        train(which, batches[BEFORE:])
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    return all(torch.equal(*pair) for pair in pairs), found


def trained(
    front: Any, layout: str, dtype: torch.dtype, options: Mapping[str, Any], how: str, path: str, resume: bool
) -> Any:
    """What comes of some steps, a checkpoint after half of them, and the rest; or of the rest, from the checkpoint."""
    [model] = runs.sharded(layout, [Irregular(99 if resume else 0, dtype)])
    grads = runs.gradients(layout, dtype, BEFORE + AFTER)
    params = named(model)
    opt = runs.made(front, params, options)
    for i, one in enumerate(grads):
        if i == BEFORE:
            (load if resume else save)(how, path, model, opt)
        if i >= BEFORE or not resume:
            runs.give(params, one)
            opt.step()
            opt.zero_grad()
    return everything(opt, params)
