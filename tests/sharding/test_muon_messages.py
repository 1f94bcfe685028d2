"""`benchmarks/muon_messages.py` counts what real steps send, and its table is that of the page."""

from __future__ import annotations

import csv
import importlib.util
import sys
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from sharding.layouts import mesh_of
from torch import nn
from torch.distributed.tensor import Replicate, Shard, ones

import layerwise.torch
from layerwise.torch import Muon

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script():
    with patch.object(sys, "path", [str(BENCHMARKS), *sys.path]):
        before = set(sys.modules)
        spec = importlib.util.spec_from_file_location("muon_messages", BENCHMARKS / "muon_messages.py")
        found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    yield found
    layerwise.torch.set_most_peers(512)
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


def _sent(shapes: Any, axes: tuple[int, ...], replicas: int, peers: int) -> tuple[int, int]:
    """How many bytes of matrices this rank sends to others in a step, and in how many messages."""
    layerwise.torch.set_most_peers(peers)
    mesh, sent, exchange = mesh_of(*axes), [], dist.all_to_all_single

    def counted(here: Any, there: torch.Tensor, coming: Any, going: list[int], **more: Any) -> Any:
        sent.append((sum(going) - going[dist.get_rank(more["group"])]) * there.itemsize)
        return exchange(here, there, coming, going, **more)

    params = []
    for shape, cuts in shapes:
        cuts = [*(None for _ in range(replicas)), *cuts][: len(axes)]
        placements = [Replicate() if cut is None else Shard(cut) for cut in cuts]
        params.append(nn.Parameter(ones(shape, device_mesh=mesh, placements=placements)))
        params[-1].grad = ones(shape, device_mesh=mesh, placements=placements)
    with patch.object(dist, "all_to_all_single", counted):
        Muon(params, lr=0.1, ns_dtype="float16").step()
    layerwise.torch.set_most_peers(512)
    return sum(sent), len(sent)


@pytest.mark.parametrize(
    ("axes", "replicas", "peers"),
    [((2,), 0, 512), ((4,), 0, 512), ((2, 2), 0, 512), ((2, 2), 1, 512), ((4,), 1, 512), ((4,), 0, 2), ((4,), 1, 2)],
    ids=str,
)
def test_every_rank_sends_as_many_bytes_as_counted(ranks, script, axes, replicas, peers):
    parallel = len(axes) - replicas > 1
    model = script.MODELS[0]._replace(width=16, layers=2, keys=8, inner=28, tokens=36)
    parameters = [one for one in script.tensors(model, tensor_parallel=parallel) if one.hidden]
    wanted = script.counted(parameters, script.Layout("", axes, replicas, peers), "float16")
    found = ranks.run(prod(axes), _sent, [(one.shape, one.cuts) for one in parameters], axes, replicas, peers)
    assert [sent for sent, _ in found] == wanted.sent.ravel().tolist()
    assert {messages for _, messages in found} == {wanted.messages}


def test_the_table_of_the_page_is_that_of_the_rows(script):
    with (BENCHMARKS / "results" / script.TABLE).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert "\n".join(script.table(rows)) in (BENCHMARKS / "README.md").read_text("utf-8")
    again = script.figures(script.LAYOUTS[1], "float16")
    kept = next(row for row in rows if (row["layout"], row["processes"]) == ("FSDP2", "64"))
    assert {key: str(x) for key, x in again.items()} == kept


def test_work_overlaps_with_the_messages_of_others(script):
    """By hand: three waves that take 2 s there, 5 s of work and 1 s back, beside one that takes long on its way."""
    there, back = ((script.np.array([x * 1e9]), script.np.array([0.0])) for x in (2, 1))
    wave = script.Wave(there, script.np.array([5e12]), back)
    found = script.predicted(script.Counted(6, 1, [wave] * 3), 0.0, 1.0, 1.0)
    assert found == pytest.approx((9, 15, 2 + 5 + 5 + 5 + 1))
    slow = script.Wave(tuple(10 * x for x in there), wave.multiplied, back)
    found = script.predicted(script.Counted(6, 1, [wave, slow]), 0.0, 1.0, 1.0)
    assert found.overlapped == pytest.approx(2 + 20 + 5 + 1)
