"""Steps whose agreement stays on the device, with the machine's memory in the place of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from sharding.disagreements import CHANGES, ODD, changed, copies, with_nan
from sharding.layouts import mesh_of
from sharding.models import everything
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from layerwise.errors import LayerwiseError
from layerwise.torch.sharding import _on_device
from layerwise.torch.sharding._agreement import Agreement, Outcome
from layerwise.torch.step import _plan, _tensors
from sharding import gpu_engine, runs

OPTIONS = {"capturable": True, "fused": False}


@contextmanager
def agreeing() -> Iterator[list[Tensor]]:
    """Let agreements stay on the "device" meanwhile, and note their outcomes: whether ranks disagreed."""
    noted: list[Tensor] = []
    note = _on_device.Verdicts.note

    def noting(self: Any, disagreed: Tensor) -> None:
        noted.append(disagreed)
        note(self, disagreed)

    with patch.object(_on_device, "HOST", ()), patch.object(_on_device.Verdicts, "note", noting):
        yield noted


def stepped(front: Any, layout: str, options: Mapping[str, Any], recorded: bool = False) -> tuple[list[bool], Any]:
    """The outcomes of some steps, and what a rank has then; all but the first two as if a graph recorded them."""
    params, grads = runs.prepared(layout, torch.float64)
    opt = runs.made(front, params, {**OPTIONS, **options})
    with agreeing() as noted:
        for i, one in enumerate(grads):
            runs.give(params, one)
            with patch.object(_on_device, "captures", lambda device: True) if recorded and i > 1 else nullcontext():
                opt.step()
    return [bool(one) for one in noted], everything(opt, params)


def recorded_at_once(front: Any, layout: str) -> None:
    """Take a first step as if a graph recorded it."""
    params, grads = runs.prepared(layout, torch.float64)
    runs.give(params, grads[0])
    with agreeing(), patch.object(_on_device, "captures", lambda device: True):
        runs.made(front, params, OPTIONS).step()


def stepped_by_kernels(front: Any, layout: str) -> tuple[list[bool], Any]:
    """The same by the GPU engine, whose kernels prove themselves first."""
    with agreeing() as noted:
        found = gpu_engine.proven((), front, layout, torch.float64, {"capturable": True})
    return [bool(one) for one in noted], found


def taken(opt: Any, params: Mapping[str, Any]) -> tuple[str, str, bool]:
    """The name and the words of a step's error, and whether it changed anything."""
    before, error = copies(opt, params), None
    try:
        opt.step()
    except (LayerwiseError, ZeroDivisionError) as problem:
        error = problem
    after = copies(opt, params)
    return type(error).__name__, str(error), any(not torch.equal(x, after[name]) for name, x in before.items())


def disagreeing(front: Any, layout: str, change: str) -> tuple[list[tuple[str, str, bool]], int, Any]:
    """What comes of a step about which ranks disagree, and of those after it; and what there is in the end."""
    with agreeing():
        params, grads = runs.prepared(layout, torch.float64)
        opt = runs.made(front, params, OPTIONS)
        for one in grads[:2]:
            runs.give(params, one)
            opt.step()
        runs.give(params, grads[2])
        group = dict(opt.param_groups[0])
        if dist.get_rank() == ODD:
            CHANGES[change](opt, params)
        found = [taken(opt, params)]
        opt.param_groups[0].update(group)
        runs.give(params, grads[3])
        found += [taken(opt, params) for _ in range(2)]
        return found, int(opt.skipped), everything(opt, params)


def made_again(front: Any, layout: str) -> list[tuple[str, str, bool]]:
    """What comes of steps for the first of which one rank has made its optimizer again, with the state it had."""
    with agreeing():
        params, grads = runs.prepared(layout, torch.float64)
        opt = old = runs.made(front, params, OPTIONS)
        for one in grads[:2]:
            runs.give(params, one)
            opt.step()
        if dist.get_rank() == ODD:
            opt = runs.made(front, params, OPTIONS)
            opt.load_state_dict(old.state_dict())
        return [taken(opt, params) for _ in range(3)]


def read(front: Any, layout: str) -> list[str]:
    """The errors of `stats`, of the step after it, and of `stats` again, after a step about which ranks disagreed."""
    with agreeing():
        params, grads = runs.prepared(layout, torch.float64)
        opt, found = runs.made(front, params, OPTIONS), []
        for i, one in enumerate(grads[:3]):
            runs.give(params, one)
            with changed(CHANGES["lr"], opt, params) if i == 2 and dist.get_rank() == ODD else nullcontext():
                opt.step()
        runs.give(params, grads[3])
        for act in (opt.stats, opt.step, opt.stats):
            try:
                act()
                found.append("")
            except LayerwiseError as problem:
                found.append(type(problem).__name__)
        return found


def skipping(front: Any, layout: str, spoiled: bool) -> tuple[int, Any]:
    """How many steps were skipped, and what came of the others; the third has a nan on one rank, or is not taken."""
    with agreeing() as noted:
        params, grads = runs.prepared(layout, torch.float64)
        opt = runs.made(front, params, {**OPTIONS, "skip_nonfinite": True})
        for i, one in enumerate(grads):
            runs.give(params, one)
            if i == 2 and not spoiled:
                continue
            if i == 2:
                with_nan(opt, params, dist.get_rank() == ODD)
            opt.step()
        assert not any(noted)
        return int(opt.skipped), everything(opt, params)


def without_the_third(front: Any) -> Any:
    """What one process has that takes the first two steps and the last one."""
    params, grads = runs.prepared(None, torch.float64)
    opt = runs.made(front, params, OPTIONS)
    for i in (0, 1, 3):
        runs.give(params, grads[i])
        opt.step()
    return everything(opt, params)


class Gone:
    """A sum on its way over a device that holds no numbers: none can be waited for."""

    def wait(self) -> None:
        """The stream would wait, and no host."""


def on_nothing(front: Any, options: Mapping[str, Any]) -> int:
    """How many steps the device agreed on whose parameters are on the meta device: what reads a number raises there."""

    def agreed(self: Any, *_: Any) -> Any:
        yield
        return Outcome(False, new=True)  # so that the first step makes room

    mesh = mesh_of(2)
    with patch.object(mesh, "_device_type", "meta"):
        whole = {"matrix": (8, 12), "vector": (9,), "stack": (3, 8, 4)}
        params = {
            name: nn.Parameter(DTensor.from_local(torch.ones(4, *shape[1:], device="meta"), mesh, [Shard(0)]))
            for name, shape in whole.items()
        }
        for p in params.values():
            p.grad = torch.ones_like(p)
        lets = patch.object(_tensors, "check_parameter"), patch.object(_plan, "check_parameter")
        sums = patch.object(Agreement, "_exchange", agreed), patch.object(dist, "all_reduce", lambda *_, **__: Gone())
        with agreeing() as noted, lets[0], lets[1], sums[0], sums[1], patch.object(_on_device, "HOST", ("cpu",)):
            opt = front(list(params.items()), capturable=True, lr=torch.ones((), device="meta"), **options)
            for _ in range(3):
                opt.step()
    return len(noted)
