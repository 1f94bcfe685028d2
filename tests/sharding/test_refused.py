"""Parameters and gradients that do not lie as a step needs it are refused, by name, before anything has changed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from sharding.layouts import mesh_of
from sharding.models import local
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from layerwise.torch import Lamb
from layerwise.torch.step import _stepper


def _placed(mesh: Any, placement: Any) -> Any:
    if isinstance(placement, Partial):
        return DTensor.from_local(torch.ones(4, 6), mesh, [placement])
    return distribute_tensor(torch.ones(4, 6), mesh, [placement], src_data_rank=None)


def _refused(which: str) -> str:
    """The error of a step, which must leave the parameter as it was."""
    mesh, cut, own = mesh_of(2), Shard(0), dist.get_rank()
    if which == "another process's":
        mesh = DeviceMesh("cpu", [1 - own])
    p = nn.Parameter(_placed(mesh, Partial() if which == "partial" else cut))
    more: dict[str, Any] = {"differentiable": True} if which == "differentiable" else {}
    grad = _placed(mesh, cut)
    if which == "gradient elsewhere":
        grad = _placed(mesh_of(2, names=("another",)), cut)
    if which == "plain gradient":
        grad = torch.ones(4, 6)
    before = local(p).clone()
    captured = (
        patch.multiple(_stepper, on_gpu=lambda: True, capturing=lambda: True) if which == "captured" else nullcontext()
    )
    try:
        opt = Lamb([("weight", p)], lr=0.1, **more)
        p.grad = grad
        with captured:
            opt.step()
    except Exception as problem:
        assert torch.equal(local(p), before)
        return f"{type(problem).__name__}: {problem}"
    return ""


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("partial", "ParameterError: weight must be sharded or replicated"),
        ("another process's", "ParameterError: weight lies on"),
        ("plain gradient", "GradientError: weight is a DTensor, its gradient is not"),
        ("gradient elsewhere", "GradientError: weight lies on"),
        ("differentiable", "ContradictionError: `differentiable` must be False"),
        ("captured", "ContradictionError: a CUDA graph cannot capture"),
    ],
)
def test_what_no_step_can_take_is_refused_by_name(ranks, which, words):
    for said in ranks.run(2, _refused, which):
        assert said.startswith(words), said


def _by_placement(placement: Any) -> Any:
    torch.manual_seed(0)
    values, grad = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    p = nn.Parameter(distribute_tensor(values, mesh_of(2), [placement], src_data_rank=None))
    p.grad = distribute_tensor(grad, mesh_of(2), [placement], src_data_rank=None)
    Lamb([("weight", p)], lr=0.1, blocks={"weight": 2}).step()
    return p.full_tensor().detach().numpy()


def test_a_dimension_may_be_counted_from_the_end(ranks):
    wanted = ranks.run(2, _by_placement, Replicate())[0]
    for found in ranks.run(2, _by_placement, Shard(-1)):
        assert found == pytest.approx(wanted, rel=1e-12)
