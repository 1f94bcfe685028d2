"""A rank with DTensors whose local parts are on the device that stands in: the host steps them as it does its own.

python -m offload.sharded RANK WORLD FILE
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from offload.device import Far, StandIn, near, set_up
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import layerwise.torch as lw
from layerwise.torch.sharding._dtensors import dtensor, local
from layerwise.torch.step._stepper import stepper_of

SHAPES = {"first": (10, 6), "second": (5, 4), "third": (7,)}


def cut(whole: torch.Tensor, mesh: Any, on_device: bool) -> Any:
    x = distribute_tensor(whole, mesh, [Shard(0)])
    here = Far(local(x)) if on_device else local(x)
    return dtensor(here, mesh, x.placements, tuple(whole.shape), whole.stride())


def stepped(front: Any, on_device: bool, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    params = {name: torch.nn.Parameter(cut(torch.randn(shape), mesh, on_device)) for name, shape in SHAPES.items()}
    opt = front(params.items(), lr=0.01, offload=on_device, **options)
    for i in range(4):
        for p in params.values():
            g = torch.randn(p.shape)
            if i == 2 and options.get("skip_nonfinite"):
                g[-1] = torch.inf  # which one rank has
            p.grad = cut(g, mesh, on_device)
        opt.step()
    StandIn.end()
    assert opt.skipped == int("skip_nonfinite" in options)
    assert all(local(x).device.type == "cpu" for state in opt.state.values() for x in state.values())
    assert not on_device or len(stepper_of(opt).host._now.parts) == 1
    found = [near(local(p.detach())).clone() for p in params.values()]
    return found + [local(x).clone() for state in opt.state.values() for _, x in sorted(state.items())]


def offloaded_by_fsdp(offload: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 2))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    opt = lw.Lamb(model.named_parameters(), lr=0.01, max_grad_norm=1.0, offload=offload)
    for _ in range(3):
        model(torch.ones(3, 6)).square().mean().backward()
        opt.step()
        opt.zero_grad()
    return [local(p.detach()).clone() for p in model.parameters()]


def main(rank: int, world: int, file: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(file, world), rank=rank, world_size=world)
    set_up()
    for schedule in ("late", 1):
        StandIn.begin(schedule)
        for front in (lw.Lamb, lw.Adafactor):
            for options in ({}, {"max_grad_norm": 0.5, "skip_nonfinite": True}, {"state_dtype": "bfloat16"}):
                expected, found = stepped(front, False, **options), stepped(front, True, **options)
                assert all(torch.equal(x, y) for x, y in zip(expected, found, strict=True)), (front, options)
    expected, found = offloaded_by_fsdp(False), offloaded_by_fsdp(True)
    assert all(torch.equal(x, y) for x, y in zip(expected, found, strict=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
