"""Rules that multiply matrices: who does the work, and what is sent for it, follow from the shape and the cuts."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from cases import CASES
from sharding.cells import CLIP, Lying, Row, agree, alone, in_buckets_of
from sharding.counting import Collectives
from sharding.layouts import mesh_of
from sharding.models import FRONT_OF, whole
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from layerwise.errors import SynchronizationError
from layerwise.rules.muon import JORDAN
from layerwise.rules.muon import Muon as Rule
from layerwise.rules.newton_schulz import gram_dims, in_stretches, sharded_gram_dims
from layerwise.torch import Mixed, Muon
from layerwise.torch.arrays import _library

STRETCHES = in_stretches(JORDAN * 5)
OF_MATRICES = [FRONT_OF[case.name] for case in CASES if case.hyper().of_matrices]


def test_dimensions_that_count_matrices_may_be_cut_for_nothing():
    """The work is done at once on what is there."""
    sides = gram_dims((6, 40, 50), (1,), (2,))
    for replicas in (0, 1):
        assert sharded_gram_dims(sides, (6, 40, 50), (3, 1, 1), STRETCHES, replicas) == sides


def test_stretches_end_before_rounding_grows():
    assert [len(one) for one in STRETCHES] == [3, 2]
    assert [len(one) for one in in_stretches([(2.0, 0.0, 0.0)] * 9)] == [5, 4]
    assert [len(one) for one in in_stretches([(20.0, 0.0, 0.0)] * 2)] == [1, 1]


@pytest.mark.parametrize(
    ("shape", "parts", "lengths"),
    [
        ((2000, 2800), (1, 1), [1] * 5),
        ((2000, 2800), (1, 8), [3, 2]),  # added up, once for each stretch
        ((40, 40), (1, 1), [1] * 5),  # 15 products of squares; 3 and 2 take 18
        ((40, 59), (1, 1), [1] * 5),
        ((59, 40), (1, 1), [1] * 5),
        ((40, 61), (1, 1), [3, 2]),
        ((40, 40), None, [1] * 5),  # brought together
        ((40, 40), (2, 2), [1] * 5),
        ((4096, 4096), (1, 2), [1] * 5),
        ((2, 2, 2), (2, 1, 1), [1] * 5),
    ],
)
def test_stretches_take_the_fewest_multiplications_or_messages(shape, parts, lengths):
    last = Rule(dims="last").fit(shape, (), 1e-7).for_shards(shape, parts, 0)
    assert [len(one) for one in last.ns_coefficients] == lengths


def _stepped(shape: Any, dim: int, cut: bool) -> tuple[Any, list[str], set[str]]:
    """A matrix after some steps, and what the last of them sends."""
    draw = torch.Generator().manual_seed(0)
    each = [torch.randn(*shape, generator=draw, dtype=torch.float64) for _ in range(4)]
    if cut:
        each = [distribute_tensor(x, mesh_of(2), [Shard(dim)], src_data_rank=None) for x in each]
    p, dtypes, exchange = nn.Parameter(each[0]), set[str](), dist.all_to_all_single
    opt = Muon([p], lr=0.1)

    def noting(here: Any, *args: Any, **more: Any) -> Any:
        dtypes.add(str(here.dtype))
        return exchange(here, *args, **more)

    dist.all_to_all_single = noting
    try:
        for g in each[1:]:
            p.grad = g
            with Collectives() as collectives:
                opt.step()
    finally:
        dist.all_to_all_single = exchange
    return whole(p), [name for name, _ in collectives.seen], dtypes


@pytest.mark.parametrize(
    ("shape", "dim", "wanted"),
    [
        ((4, 300), 1, ["allreduce_"] * 3),  # of its size, with the agreement, and one for each stretch
        ((300, 4), 0, ["allreduce_"] * 3),
        ((20, 30), 0, ["allreduce_"] + ["alltoall_base_"] * 2),
    ],
)
def test_a_gram_is_added_up_or_a_matrix_travels(ranks, shape, dim, wanted):
    after, *_ = _stepped(shape, dim, False)
    for found, seen, dtypes in ranks.run(2, _stepped, shape, dim, True):
        assert seen == wanted
        assert dtypes == ({"torch.float64"} if "alltoall_base_" in wanted else set())
        torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(after), rtol=0, atol=1e-12)


def _in_buckets(front: Any, size: int, wanted: Any, options: Any) -> Any:
    lying = Lying("TP × FSDP")
    opt = lying.optimizer(front, options)
    with in_buckets_of(size):
        for i in range(3):
            lying.give(i)
            opt.step()
    return lying.found(opt, wanted)


@pytest.mark.parametrize("front", OF_MATRICES)
@pytest.mark.parametrize("options", [{}, CLIP], ids=["", "clipped"])
def test_buckets_have_no_say_in_what_comes_out(ranks, front, options):
    wanted = alone(front, Row(None, options=options))
    agree(ranks.run(4, _in_buckets, front, 40, wanted, options), wanted)


def _beside_others(cut: bool) -> dict[str, Any]:
    """Matrices of two dtypes, and another rule, in one step."""
    draw, params = torch.Generator().manual_seed(0), {}
    for name, dtype in {"a": torch.float32, "b": torch.float64, "c": torch.float32, "d": torch.float64}.items():
        each = [torch.randn(12, 10, generator=draw, dtype=torch.float64).to(dtype) for _ in range(2)]
        if cut:
            each = [distribute_tensor(x, mesh_of(2), [Shard(0)], src_data_rank=None) for x in each]
        params[name] = nn.Parameter(each[0])
        params[name].grad = each[1]
    groups = [
        {"params": [(name, params[name]) for name in names], "rule": rule, "lr": 0.1}
        for rule, names in (("muon", "ab"), ("adamw", "cd"))
    ]
    opt = Mixed(groups, max_grad_norm=0.5)
    for _ in range(2):
        opt.step()
    return {name: torch.as_tensor(whole(p)) for name, p in params.items()}


def test_dtypes_and_rules_share_a_step(ranks):
    wanted = _beside_others(False)
    for found in ranks.run(2, _beside_others, True):
        for name, x in found.items():
            close = 1e-12 if name in "bd" else 2e-5
            torch.testing.assert_close(x.double(), wanted[name].double(), rtol=0, atol=close)


def _on_other_processors(dtype: str | None) -> Any:
    """What a step says and leaves where the processor of rank 1 alone has units for bfloat16."""
    draw = torch.Generator().manual_seed(0)
    w, g = (torch.randn(12, 10, generator=draw) for _ in range(2))
    p = nn.Parameter(distribute_tensor(w, mesh_of(2), [Shard(0)], src_data_rank=None))
    p.grad = distribute_tensor(g, mesh_of(2), [Shard(0)], src_data_rank=None)
    quick = "bfloat16" if dist.get_rank() else None
    _library.multiplies.cache_clear()
    with patch.object(_library, "_quick", lambda device: quick):
        opt, said = Muon([("w", p)], lr=0.1, ns_dtype=dtype), ""
        try:
            opt.step()
        except SynchronizationError as problem:
            said = str(problem)
    _library.multiplies.cache_clear()
    return said, float(abs(whole(p) - w.numpy()).max())


def test_processors_that_multiply_in_other_dtypes_are_named_and_may_share_one_that_is_given(ranks):
    for said, moved in ranks.run(2, _on_other_processors, None):
        assert "`ns_dtype` of 'w' is None on the first and bfloat16 on the second" in said
        assert moved == 0
    one, other = ranks.run(2, _on_other_processors, "bfloat16")
    assert one == other
    assert 0.01 < one[1] < 0.2
