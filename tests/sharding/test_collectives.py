"""What a step sends: sums, all of them together, as many times as the formula asks for some."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from cases import CASES, KERNELED
from sharding.cells import CLIP, Found, Lying, Row, agree, alone, in_buckets_of, world_of
from sharding.counting import Collectives, Seen
from sharding.layouts import mesh_of
from sharding.models import FRONT_OF, SHAPES, Blend, local
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from layerwise.contrib.records import rows_of
from layerwise.torch import AdamW, Lamb, Mixed, monitor

ADDING = [case for case in CASES if not case.hyper().of_matrices]  # whose messages are sums alone
ROUNDS = {FRONT_OF[case.name]: case.exchanges() for case in ADDING}
# Those that ranks meet in where tensors are cut along their first dimension.
ACROSS, ACROSS_VECTORS, ACROSS_STACKS = (
    {FRONT_OF[case.name]: max(1, case.rounds_across(shape)) for case in ADDING} for shape in ((3, 2), (3,), (2, 3, 4))
)
ASKS = {FRONT_OF[case.name]: case.rounds > 0 for case in ADDING}
BUCKETS, OF_VECTORS, OF_STACKS = 5, 1, 1  # of 40 elements, a third of the model's; of these, those of nothing else
fronts = pytest.mark.parametrize("front", ROUNDS)
ALL_REDUCE = {"allreduce_", "all_reduce", "all_reduce_"}
BY_RULE = {"fused": False}


def _per_step(front: Any, layout: str, options: Any = None, partial_sums: bool = False) -> list[Seen]:
    """The collectives of each of some steps."""
    lying, found = Lying(layout, torch.float32), []
    opt = lying.optimizer(front, options)
    for i in range(3):
        lying.give(i)
        if partial_sums:
            lying.in_partial_sums()
        with Collectives() as collectives:
            opt.step()
        found.append(collectives.seen)
    return found


def steady(ranks: Any, front: Any, layout: str, **options: Any) -> Seen:
    """The collectives of a step that is like the one before it, the same on every rank."""
    found = ranks.run(world_of(layout), _per_step, front, layout, options)
    for steps in found:
        assert [len(one) for one in steps[1:]] == [len(found[0][1])] * (len(steps) - 1), found
    assert {name for steps in found for one in steps[1:] for name, _ in one} <= ALL_REDUCE, found
    return found[0][1]


def _known_ones() -> list[str]:
    """The names of one collective each of what a step could call."""
    from torch.distributed._functional_collectives import all_reduce

    x = torch.ones(2)
    sharded = distribute_tensor(torch.ones(2), mesh_of(2), [Shard(0)], src_data_rank=None)
    with Collectives() as collectives:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather_object([None] * dist.get_world_size(), 1)
        assert all_reduce(x, "sum", dist.group.WORLD).sum() > 0
        sharded.full_tensor()
    return [name for name, _ in collectives.seen]


def test_collectives_are_seen(ranks):
    """Whichever way they are called: what sees none proves nothing."""
    wanted = ["allreduce_", "broadcast_", "allgather_", "allgather_", "all_reduce", "all_gather_into_tensor"]
    assert ranks.run(2, _known_ones)[0] == wanted


@fronts
@pytest.mark.kinds("rows and columns")
@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("layout", "number", "options"),
    [
        *((layout, lambda n, across: across, {}) for layout in ("fsdp on 2", "part of the model")),
        ("fsdp on 3", lambda n, across: across, BY_RULE),
        *((layout, lambda n, across: across + 1, {}) for layout in ("hybrid", "hybrid in part")),  # over replicas
        ("two-dimensional", lambda n, across: 2 * n, {}),
        ("one flat buffer", lambda n, across: n, {}),
    ],
    ids=["fsdp", "in part", "by the rule", "hybrid", "hybrid in part", "two-dimensional", "flat"],
)
def test_one_all_reduce_for_each_round_and_each_dimension_that_cuts(
    ranks, front, layout: str, number: Callable[[int, int], int], options
):
    assert len(steady(ranks, front, layout, **options)) == number(ROUNDS[front], ACROSS[front])


@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1)
def test_the_norm_of_all_gradients_takes_at_most_one_more(ranks, front):
    assert ACROSS[front] <= len(steady(ranks, front, "fsdp on 3", **CLIP)) <= ACROSS[front] + 1


@fronts
@pytest.mark.thinned(1)
def test_one_more_before_gradients_are_redistributed(ranks, front):
    seen = ranks.run(2, _per_step, front, "fsdp on 2", {}, True)[0][-1]
    assert sum(name in ALL_REDUCE for name, _ in seen) == ACROSS[front] + 1


@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1)
def test_whole_tensors_send_nothing(ranks, front):
    assert steady(ranks, front, "plain", **CLIP) == []
    assert not dist.is_initialized()
    assert _per_step(front, None, CLIP) == [[]] * 3


def _separately() -> int:
    """The collectives of a step of an optimizer for each of several rules."""
    lying = Lying("fsdp on 2", torch.float32)
    opts = [Mixed([group]) for group in Blend.groups(lying.params.items())]
    for i in range(3):
        lying.give(i)
        with Collectives() as collectives:
            for opt in opts:
                opt.step()
    return len(collectives.seen)


def test_several_rules_in_one_optimizer_share_the_rounds_of_the_longest(ranks):
    rounds = max(case.exchanges() for case in KERNELED)
    assert len(steady(ranks, Blend, "fsdp on 2")) == rounds
    assert rounds <= len(steady(ranks, Blend, "fsdp on 2", **CLIP)) <= rounds + 1
    shapes = [shape for module in SHAPES.values() for shape in module.values()]
    cut = {KERNELED[i % len(KERNELED)].name for i, shape in enumerate(shapes) if shape}  # a scalar is whole everywhere
    assert ranks.run(2, _separately) == [sum(case.exchanges() for case in KERNELED if case.name in cut)] * 2


# ---- buckets, by which the rule bounds what it holds


def _in_buckets(front: Any, size: int, wanted: Any) -> tuple[int, Found]:
    lying = Lying("fsdp on 3")
    opt = lying.optimizer(front, BY_RULE)
    with in_buckets_of(size):
        for i in range(4):
            lying.give(i)
            with Collectives() as collectives:
                opt.step()
    return len(collectives.seen), lying.found(opt, wanted)


@fronts
@pytest.mark.thinned(1)
def test_each_bucket_has_rounds_of_its_own_and_no_say_in_what_comes_out(ranks, front):
    wanted = alone(front, Row(None, steps=4))
    numbers, found = zip(*ranks.run(3, _in_buckets, front, 40, wanted), strict=True)
    fewer = OF_VECTORS * (ACROSS[front] - ACROSS_VECTORS[front]) + OF_STACKS * (ACROSS[front] - ACROSS_STACKS[front])
    assert numbers[0] == (BUCKETS * ACROSS[front] - fewer if ASKS[front] else 1)  # they meet once
    agree(found, wanted)


def test_ranks_meet_once_where_no_rule_asks_for_a_sum(ranks):
    """Else nobody would know that another cannot take the step."""
    assert not ASKS[AdamW]
    assert len(steady(ranks, AdamW, "fsdp on 2", **BY_RULE)) == 1


def _of_squares() -> int:
    """The collectives of a step of eight matrices of 64 elements, of which each of four ranks has 16."""
    mesh, params = mesh_of(2, 2), []
    for _ in range(8):
        x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0), Shard(1)], src_data_rank=None)
        params.append(nn.Parameter(x))
        params[-1].grad = x.clone()
    opt = Lamb(params, lr=0.1, **BY_RULE)
    with in_buckets_of(32):
        opt.step()
        with Collectives() as collectives:
            opt.step()
    return len(collectives.seen)


def test_buckets_are_as_large_as_what_a_rank_has(ranks):
    """Two matrices each, and two dimensions of the mesh that cut them."""
    assert ranks.run(4, _of_squares) == [8 // 2 * 2] * 4


def _written_by_then(front: Any, size: int, fused: bool | None) -> list[int]:
    """How many weights have changed when each message of a step is sent."""
    lying, seen = Lying("fsdp on 2"), []
    opt, all_reduce = lying.optimizer(front, {"fused": fused}), dist.all_reduce

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append(sum(not torch.equal(local(cut[name]), x) for name, x in before.items()))
        return all_reduce(*args, **kwargs)

    with in_buckets_of(size):
        for i in range(3):
            lying.give(i)
            if i < 2:
                opt.step()
        cut = {name: p for name, p in lying.params.items() if isinstance(p, DTensor)}
        before = {name: local(p).clone() for name, p in cut.items()}
        with patch.object(dist, "all_reduce", counted):
            opt.step()
    return seen


@pytest.mark.parametrize("front", [front for front, asks in ASKS.items() if asks])
@pytest.mark.thinned(1)
def test_buckets_are_written_as_they_are_finished(ranks, front):
    for seen in ranks.run(2, _written_by_then, front, 40, False):
        assert seen[0] == 0 < seen[-1]


@fronts
@pytest.mark.thinned(1)
@pytest.mark.parametrize("fused", [False, None], ids=["rule", "any"])
def test_one_bucket_writes_nothing_before_the_last_sum_has_arrived(ranks, front, fused):
    for seen in ranks.run(2, _written_by_then, front, 1 << 27, fused):
        assert {*seen} == {0}


# ---- a monitor writes down what its rank knows


def _recorded(front: Any, layout: Any, folder: Any, watched: int) -> tuple[list[Seen], dict[Any, list[float]]]:
    """The collectives of each step, and the table of a rank, if it is one of the first so many."""
    rank = dist.get_rank() if layout else 0
    lying, found, path = Lying(layout), [], folder / f"{layout}{rank}.csv"
    opt = lying.optimizer(front)
    with monitor(opt, path) if rank < watched else nullcontext():
        for i in range(4):
            lying.give(i)
            with Collectives() as collectives:
                opt.step()
            found.append(collectives.seen)
    rows = (
        {tuple(row.pop(key) for key in ("step", "name", "block")): row for row in rows_of(path)}
        if path.exists()
        else {}
    )
    return found, {key: [float(x) for x in row.values() if x] for key, row in rows.items()}


def test_a_monitor_of_one_rank_sends_nothing(ranks, tmp_path):
    """No collective is needed, or the others would be missed."""
    (sent, rows), (others, none) = ranks.run(2, _recorded, Lamb, "fsdp on 2", tmp_path, 1)
    plain, _ = ranks.run(2, _recorded, Lamb, "fsdp on 2", tmp_path / "none", 0)[0]
    assert rows
    assert not none
    assert sent == others
    # The first message of all is as long as any that these processes have sent before.
    assert list(map(len, sent)) == list(map(len, plain))
    assert sent[1:] == plain[1:]
