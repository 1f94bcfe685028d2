"""A dry run on a fake process group, which sends nothing, takes steps; errors name few of many ranks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sharding.ranks import ENVIRONMENT

from layerwise.torch.sharding._cuts import ranks_named

DRY_RUN = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
import layerwise.torch

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1024)
mesh = init_device_mesh("cpu", {mesh}, mesh_dim_names={names})
model = torch.nn.Sequential(torch.nn.Linear(8, 1024), torch.nn.Linear(1024, 8))
fully_shard(model, mesh=mesh)
more = dict(model_group=dist.group.WORLD) if {in_group} else {{}}
opt = layerwise.torch.{optimizer}(model.named_parameters(), lr=0.01, max_grad_norm=1.0, **more)
before = [p.to_local().clone() for p in model.parameters()]
for _ in range(2):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    opt.step()
assert any(not torch.equal(p.to_local(), old) for p, old in zip(model.parameters(), before))
"""


@pytest.mark.parametrize(
    ("optimizer", "mesh", "names", "in_group"),
    [("Lamb", (1024,), ("s",), True), ("Muon", (8, 128), ("r", "s"), False)],
)
def test_a_dry_run_on_a_fake_group_takes_steps(optimizer, mesh, names, in_group):
    program = DRY_RUN.format(optimizer=optimizer, mesh=mesh, names=names, in_group=in_group)
    env = {**os.environ, **ENVIRONMENT}
    ran = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((3,), "rank 3"),
        ((0, 4), "ranks 0 and 4"),
        ((0, 1, 5), "ranks 0, 1 and 5"),
        (tuple(range(0, 2048, 2)), "1,024 ranks (0, 2, 4, 6, …)"),
    ],
)
def test_errors_name_few_of_many_ranks(ranks, words):
    assert ranks_named(ranks) == words


def test_errors_name_all_ranks_at_once(monkeypatch):
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1024)
    monkeypatch.setattr("layerwise.torch.sharding._cuts.in_group", lambda: True)
    assert ranks_named(range(1024)) == "all 1,024 ranks"
