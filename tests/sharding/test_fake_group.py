"""A dry run on a fake process group, which sends nothing, takes steps; errors name few of many ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from sharding.simulating import simulated
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from layerwise.torch import Lamb, Muon
from layerwise.torch.sharding._cuts import ranks_named


@pytest.mark.parametrize(
    ("front", "mesh", "names", "in_group"),
    [(Lamb, (1024,), ("s",), True), (Muon, (8, 128), ("r", "s"), False)],
)
def test_a_dry_run_on_a_fake_group_takes_steps(front, mesh, names, in_group):
    with simulated(1024):
        model = nn.Sequential(nn.Linear(8, 1024), nn.Linear(1024, 8))
        fully_shard(model, mesh=init_device_mesh("cpu", mesh, mesh_dim_names=names))
        more = {"model_group": dist.group.WORLD} if in_group else {}
        opt = front(model.named_parameters(), lr=0.01, max_grad_norm=1.0, **more)
        before = [p.to_local().clone() for p in model.parameters()]
        for _ in range(2):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            opt.step()
        assert any(not torch.equal(p.to_local(), old) for p, old in zip(model.parameters(), before, strict=True))


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
