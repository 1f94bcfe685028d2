"""`benchmarks/sharding_model.py` predicts what real steps send, and its tables are those of the page."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from sharding.counting import Collectives
from sharding.layouts import mesh_of
from sharding.simulating import simulated
from torch import nn
from torch.distributed.tensor import Replicate, Shard, ones

from layerwise.torch import Adafactor, Lamb, Lars
from layerwise.torch.sharding._agreement import rooms

ROOT = Path(__file__).parents[2]
Lying = tuple[tuple[int, ...], tuple[int | None, ...]]  # a shape, and the dimension that each axis cuts


@pytest.fixture(scope="module")
def model():
    spec = importlib.util.spec_from_file_location("sharding_model", ROOT / "benchmarks" / "sharding_model.py")
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    yield found
    del sys.modules[spec.name]


def _sent(front: Any, parameters: Sequence[Lying], axes: Sequence[int], fused: bool | None) -> tuple[list[int], int]:
    """How many numbers each message of a step has that is like the two before it, and the bytes of all."""
    mesh = mesh_of(*axes)
    rooms.clear()  # in which larger models have been
    params = []
    for shape, cuts in parameters:
        placements = [Replicate() if cut is None else Shard(cut) for cut in cuts]
        params.append(nn.Parameter(ones(shape, device_mesh=mesh, placements=placements)))
        params[-1].grad = ones(shape, device_mesh=mesh, placements=placements)
    opt = front(params, lr=0.1, fused=fused)
    for _ in range(3):
        with Collectives() as collectives:
            opt.step()
    assert {name for name, _ in collectives.seen} <= {"allreduce_"}
    return [size for _, size in collectives.seen], collectives.bytes


fronts = pytest.mark.parametrize("front", [Lamb, pytest.param(Lars, marks=pytest.mark.slow), Adafactor])


@fronts
@pytest.mark.parametrize("fused", [None, pytest.param(False, marks=pytest.mark.slow)], ids=["any", "rule"])
@pytest.mark.parametrize("axes", [(2,), (3,), (4,), (2, 2)], ids=str)
def test_messages_on_ranks_are_as_predicted(ranks, model, front, axes, fused):
    """Of a model that no rank divides evenly in one dimension, and all do in two."""
    small = model.Model("small", 16, 2, 8, 28 if len(axes) > 1 else 26, 36 if len(axes) > 1 else 35)
    parameters = list(model.tensors(small, tensor_parallel=len(axes) > 1))
    wanted = [length for _, length in model.messages(front.__name__, parameters, axes)]
    given = [(one.shape, one.cuts) for one in parameters]
    found = ranks.run(prod(axes), _sent, front, given, axes, fused)
    assert found == [(wanted, model.NUMBER * sum(wanted))] * prod(axes)


@fronts
@pytest.mark.parametrize(
    ("number", "layers", "axes"),
    [(0, 2, (1024,)), (1, 2, (128, 8)), pytest.param(0, None, (1024,), marks=pytest.mark.slow)],
    ids=str,
)
def test_messages_of_1024_ranks_are_as_predicted(model, front, number, layers, axes):
    """Of the 7 B model and the 70 B model, all of it or two layers."""
    assert not dist.is_initialized()
    one = model.MODELS[number]
    one = one._replace(layers=layers) if layers else one
    parameters = list(model.tensors(one, tensor_parallel=len(axes) > 1))
    with simulated(prod(axes)):
        found = _sent(front, [(one.shape, one.cuts) for one in parameters], axes, None)
    wanted = [length for _, length in model.messages(front.__name__, parameters, axes)]
    assert found == (wanted, model.NUMBER * sum(wanted))


def test_bytes_and_hops_are_those_of_a_ring(model):
    """By hand: two all-reduces among 8, of 100 and 4 numbers."""
    found = model.cost([(0, 100), (0, 4)], (8,), 10.0, 50.0)
    assert found == pytest.approx((2, 2 * 7 / 8 * 8 * 104, 2 * 2 * 3 * 10e-6, 2 * 7 / 8 * 8 * 104 / 50e9))


@pytest.mark.parametrize(("number", "count"), [(0, 6_738_415_616), (1, 68_976_648_192), (2, 405_853_388_800)])
def test_the_models_have_as_many_parameters_as_was_published(model, number, count):
    assert sum(prod(one.shape) for one in model.tensors(model.MODELS[number])) == count


def test_the_tables_of_the_page_are_those_of_the_script(model):
    page = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    for table in (model.table, model.tensor_parallel_table):
        assert "\n".join(table(model.HOP, model.BANDWIDTH)) in page
