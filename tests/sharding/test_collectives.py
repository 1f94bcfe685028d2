"""What a step sends: sums, all of them together, as many times as the formula asks for some."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
import torch.distributed as dist
from cases import CASES
from sharding.counting import Collectives
from sharding.models import FRONT_OF, TOLERANCE, Irregular, close, named

from layerwise.torch import Lamb, Lars
from sharding import counting, runs

ROUNDS = {FRONT_OF[case.name]: case.exchanges() for case in CASES}
# Those that ranks meet in where tensors are cut along their first dimension.
ACROSS = {FRONT_OF[case.name]: max(1, case.rounds_across((3, 2))) for case in CASES}
ASKS = {FRONT_OF[case.name]: case.rounds > 0 for case in CASES}
ACROSS_VECTORS = {FRONT_OF[case.name]: max(1, case.rounds_across((3,))) for case in CASES}
ACROSS_STACKS = {FRONT_OF[case.name]: max(1, case.rounds_across((2, 3, 4))) for case in CASES}
fronts = pytest.mark.parametrize("front", ROUNDS)
ALL_REDUCE = {"allreduce_", "all_reduce", "all_reduce_"}
NUMBERS = sum(p.numel() for p in Irregular(0, torch.float32).parameters())


def steady(ranks, front, layout, **options):
    """The collectives of a step that is like the one before it, the same on every rank."""
    found = ranks.run(runs.layout_of(layout)[0], counting.per_step, front, layout, options)
    for steps in found:
        assert [len(one) for one in steps[1:]] == [len(found[0][1])] * (len(steps) - 1), found
    assert {name for steps in found for one in steps[1:] for name, _ in one} <= ALL_REDUCE, found
    return found[0][1]


def test_collectives_are_seen(ranks):
    """Whichever way they are called: what sees none proves nothing."""
    wanted = ["allreduce_", "broadcast_", "allgather_", "allgather_", "all_reduce", "all_gather_into_tensor"]
    assert ranks.run(2, counting.known_ones)[0] == wanted


@pytest.mark.parametrize("layout", ["fsdp on 2", "fsdp on 4", "nested", "hybrid", "part of the model"])
@fronts
@pytest.mark.thinned(1)
def test_one_for_each_round(ranks, front, layout):
    assert len(steady(ranks, front, layout)) == ACROSS[front]


@fronts
@pytest.mark.thinned(1)
def test_one_more_over_replicas_that_are_no_group_with_the_others(ranks, front):
    assert len(steady(ranks, front, "hybrid in part")) == ACROSS[front] + 1


def test_optimizers_that_take_turns_leave_each_other_room(ranks):
    """The larger one would otherwise send two messages in every step, as in its first."""
    for steps in ranks.run(2, counting.in_turn, Lamb, "fsdp on 2"):
        assert [len(one) for one in steps[2:]] == [ROUNDS[Lamb]] * (len(steps) - 2)


@fronts
@pytest.mark.thinned(1)
def test_one_more_before_gradients_are_redistributed(ranks, front):
    seen = ranks.run(2, counting.per_step, front, "fsdp on 2", {}, True)[0][-1]
    assert sum(name in ALL_REDUCE for name, _ in seen) == ACROSS[front] + 1


@fronts
@pytest.mark.thinned(1)
def test_by_the_rule_too(ranks, front):
    assert len(steady(ranks, front, "fsdp on 3", fused=False)) == ACROSS[front]


@fronts
@pytest.mark.thinned(1)
def test_the_rule_takes_what_it_can_hold(ranks, front):
    """One more for every bucket; they have no say in what comes out."""
    found, outcomes = zip(*ranks.run(3, counting.in_buckets, front, "fsdp on 3", 80), strict=True)
    fewer = counting.OF_VECTORS * (ACROSS[front] - ACROSS_VECTORS[front])
    fewer += counting.OF_STACKS * (ACROSS[front] - ACROSS_STACKS[front])
    assert len(found[0]) == (counting.BUCKETS_OF_40 * ACROSS[front] - fewer if ASKS[front] else 1)  # they meet once
    close(outcomes[0], runs.stepped(front, None, torch.float64, {}), TOLERANCE[torch.float64])


@pytest.mark.parametrize("front", [front for front, asks in ASKS.items() if asks])
@pytest.mark.thinned(1)
def test_sums_leave_while_others_are_on_their_way(ranks, front):
    """The first message arrives before anything else leaves; then buckets wait together that fit, and no others."""
    for size, several in ((80, True), (1, False)):
        for seen in ranks.run(2, counting.on_their_way, front, "fsdp on 2", size):
            assert [what for what, _ in seen].count("sent") * 2 == len(seen) > 4
            assert seen[:3] == [("sent", 0), ("arrived", 0), ("sent", 0 if several else seen[2][1])]
            waiting = accumulate(1 if what == "sent" else -1 for what, _ in seen)
            assert (max(waiting) > 1) == several
            assert seen[-1][1] > 0, "buckets are written as they are finished"


@fronts
@pytest.mark.thinned(1)
@pytest.mark.parametrize("fused", [False, None], ids=["rule", "any"])
def test_one_bucket_writes_nothing_before_the_last_sum_has_arrived(ranks, front, fused):
    for seen in ranks.run(2, counting.on_their_way, front, "fsdp on 2", 1 << 27, fused):
        assert {n for _, n in seen} == {0}


@fronts
@pytest.mark.kinds("rows and columns")
@pytest.mark.thinned(1)
def test_one_for_each_dimension_of_the_mesh(ranks, front):
    assert len(steady(ranks, front, "two-dimensional")) == 2 * ROUNDS[front]


@fronts
@pytest.mark.thinned(1)
def test_meshes_share_what_they_have_in_common(ranks, front):
    """A mesh of two dimensions, each of its dimensions, and one that is all ranks: three groups of ranks."""
    assert len(steady(ranks, front, "several meshes")) <= 3 * ROUNDS[front]


@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1)
def test_the_norm_of_all_gradients_takes_at_most_one_more(ranks, front):
    assert ACROSS[front] <= len(steady(ranks, front, "fsdp on 3", max_grad_norm=0.5)) <= ACROSS[front] + 1


@pytest.mark.parametrize("front", [Lamb, Lars])
def test_tensors_do_not_travel(ranks, front):
    assert sum(size for _, size in steady(ranks, front, "fsdp on 2")) < NUMBERS / 4


@fronts
@pytest.mark.needs("max_grad_norm")
def test_whole_tensors_send_nothing(ranks, front):
    assert steady(ranks, front, "plain", max_grad_norm=0.5) == []


@fronts
@pytest.mark.needs("max_grad_norm")
def test_nothing_is_sent_where_there_is_nobody(front):
    assert not dist.is_initialized()
    model, grads = Irregular(0, torch.float32), Irregular(1, torch.float32)
    opt = runs.made(front, named(model), {"max_grad_norm": 0.5})
    runs.give(named(model), named(grads))
    with Collectives() as collectives:
        opt.step()
    assert collectives.seen == []
