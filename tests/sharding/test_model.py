"""`benchmarks/sharding_model.py` predicts what real steps send, and its tables are those of the page."""

from __future__ import annotations

import importlib.util
import sys
from math import prod
from pathlib import Path

import pytest
import torch.distributed as dist

import layerwise.torch
from sharding import predicted


@pytest.fixture(scope="module")
def model():
    path = Path(__file__).parents[2] / "benchmarks" / "sharding_model.py"
    spec = importlib.util.spec_from_file_location("sharding_model", path)
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    yield found
    del sys.modules[spec.name]


names = pytest.mark.parametrize("name", ["Lamb", pytest.param("Lars", marks=pytest.mark.slow), "Adafactor"])
MESHES = [(2,), (3,), (4,), (2, 2)]


@pytest.mark.parametrize("fused", [None, pytest.param(False, marks=pytest.mark.slow)], ids=["any", "rule"])
@pytest.mark.parametrize("axes", MESHES, ids=str)
@names
def test_messages_on_ranks(ranks, model, name, axes, fused):
    """Of a model that no rank divides evenly in one dimension, and all do in two."""
    small = model.Model("small", 16, 2, 8, 28 if len(axes) > 1 else 26, 36 if len(axes) > 1 else 35)
    parameters = list(model.tensors(small, tensor_parallel=len(axes) > 1))
    wanted = [length for _, length in model.messages(name, parameters, axes)]
    given = [(one.shape, one.cuts) for one in parameters]
    found = ranks.run(prod(axes), predicted.sent, getattr(layerwise.torch, name), given, axes, fused)
    assert found == [(wanted, model.NUMBER * sum(wanted))] * prod(axes)


@pytest.mark.parametrize(("number", "axes"), [(0, (1024,)), (1, (128, 8))], ids=str)
@names
def test_messages_of_1024_ranks(model, name, number, axes):
    """The first is what is there: of the 7 B model all of it, of the 70 B model two layers."""
    assert not dist.is_initialized()
    one = model.MODELS[number]
    parameters = list(model.tensors(one if number == 0 else one._replace(layers=2), tensor_parallel=len(axes) > 1))
    with predicted.simulated(prod(axes)):
        given = [(one.shape, one.cuts) for one in parameters]
        found = predicted.sent(getattr(layerwise.torch, name), given, axes, None)
    wanted = [length for _, length in model.messages(name, parameters, axes)]
    assert found == (wanted, model.NUMBER * sum(wanted))


def test_bytes_and_hops(model):
    """By hand: two all-reduces among 8, of 100 and 4 numbers."""
    found = model.cost([(0, 100), (0, 4)], (8,), 10.0, 50.0)
    assert found == pytest.approx((2, 2 * 7 / 8 * 8 * 104, 2 * 2 * 3 * 10e-6, 2 * 7 / 8 * 8 * 104 / 50e9))


@pytest.mark.parametrize(("number", "count"), [(0, 6_738_415_616), (1, 68_976_648_192), (2, 405_853_388_800)])
def test_the_models_have_as_many_parameters_as_was_published(model, number, count):
    assert sum(prod(one.shape) for one in model.tensors(model.MODELS[number])) == count


def test_the_tables_of_the_page_are_those_of_the_script(model):
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text("utf-8")
    for table in (model.table, model.tensor_parallel_table):
        assert "\n".join(table(model.HOP, model.BANDWIDTH)) in page
