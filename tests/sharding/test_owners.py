"""Who multiplies which matrix, when it travels, and that nobody does work twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from sharding.counting import Collectives
from sharding.layouts import mesh_of
from sharding.models import whole
from sharding.simulating import simulated
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

import layerwise.torch
from layerwise.core.plan import LocalPart
from layerwise.drivers import GatherRequest
from layerwise.layout.pieces import lay_out
from layerwise.rules import muon
from layerwise.rules.newton_schulz import WholeIterations
from layerwise.rules.requests import WholeMatrices
from layerwise.torch import Mixed, Muon
from layerwise.torch.sharding import _routes
from layerwise.torch.sharding._cuts import Cut, axis_of
from layerwise.torch.sharding._routes import Owners, Route, hops_of, waves_of

Shape = tuple[int, ...]
LLAMA_7B = [*[(4096, 4096)] * 4, *[(11008, 4096)] * 2, (4096, 11008)] * 32
QWEN3_8B = [*[(4096, 4096)] * 2, *[(1024, 4096)] * 2, *[(12288, 4096)] * 2, (4096, 12288)] * 36
EXPERTS = [*[(2048, 7168)] * 2, (7168, 2048)] * 256 * 2  # of two layers, beside their attention
DEEPSEEK = [*EXPERTS, *[(1536, 7168), (24576, 1536), (576, 7168), (32768, 512), (7168, 16384)] * 2]


def _routes_of(shapes: Sequence[Shape], ranks: int) -> list[Route]:
    """By rows over so many ranks."""
    mesh = mesh_of(ranks)
    axis = axis_of(mesh.get_group())
    helds: dict[Shape, LocalPart] = {}
    for shape in {*shapes}:
        cut = Cut(mesh, (Shard(0),), ((axis, 0),))
        layout = lay_out("p", muon, muon.Muon(), shape, None, 1e-7)
        [helds[shape]] = cut.parts_here(layout, {"momentum_buffer": (True, True)}, ())
    wholes = [
        GatherRequest(i, WholeMatrices(torch.empty(shape, device="meta"), (0,), (1,), abs))
        for i, shape in enumerate(shapes)
    ]
    return Owners((axis,)).routes(wholes, [helds[shape] for shape in shapes])


def work(shape: Shape) -> float:
    """Multiplications of an iteration, k²·n."""
    return float(min(shape) * prod(shape))


@pytest.mark.parametrize("ranks", [8, 64, 1024])
@pytest.mark.parametrize("shapes", [LLAMA_7B, QWEN3_8B, DEEPSEEK], ids=["Llama 7 B", "Qwen3 8 B", "DeepSeek-V3"])
def test_all_ranks_have_as_much_work(shapes, ranks):
    """Or one matrix each, if there are not enough for all."""
    with simulated(ranks):
        routes = _routes_of(shapes, ranks)
        loads = Counter[Any]()
        for route, shape in zip(routes, shapes, strict=True):
            assert len(route.axes) == (2 if ranks > 512 else 1)
            loads[route.owner] += work(shape)
        least_possible = max(sum(loads.values()) / ranks, *map(work, shapes))
        assert max(loads.values()) <= 1.17 * least_possible
        waves = waves_of(routes, routes[0].cut)
        assert len(waves) == max(Counter(route.owner for route in routes).values())
        for wave in waves:
            assert len({route.owner for route in wave.tensors.values()}) == len(wave.tensors)


def test_a_matrix_whole_on_one_rank_stays_there():
    """A single row is on the first rank, and takes less time to multiply than to send."""
    with simulated(8):
        assert [route.owner for route in _routes_of([(1, 4096)] * 3, 8)] == [(0,)] * 3


def _events(sizes: int) -> list[str]:
    """In which order messages begin and matrices are worked on: six of them, three for each of two ranks."""
    draw, params, seen = torch.Generator().manual_seed(0), [], list[str]()
    for _ in range(6):
        each = [torch.randn(20, 30, generator=draw, dtype=torch.float64) for _ in range(2)]
        p, g = (distribute_tensor(x, mesh_of(2), [Shard(0)], src_data_rank=None) for x in each)
        params.append(nn.Parameter(p))
        params[-1].grad = g
    exchange, multiply = dist.all_to_all_single, WholeIterations.__call__

    def noting(*args: Any, **more: Any) -> Any:
        seen.append("message")
        return exchange(*args, **more)

    def working(self: Any, x: Any) -> Any:
        seen.append(f"work on {1 if x.ndim == 2 else x.shape[-1]}")
        return multiply(self, x)

    with (
        patch.object(dist, "all_to_all_single", noting),
        patch.object(WholeIterations, "__call__", working),
        patch.object(_routes, "TOGETHER", sizes),
    ):
        Muon(params, lr=0.1).step()
    return seen


def test_the_next_matrix_is_on_its_way_while_one_is_worked_on(ranks):
    there, one, back = "message", "work on 1", "message"
    wanted = [there, there, one, back, there, one, back, one, back]
    assert ranks.run(2, _events, 0) == [wanted] * 2
    assert ranks.run(2, _events, 6 * 600) == [[there, "work on 3", back]] * 2


SHAPES = [(24, 40), (40, 24), (24, 24), (8, 60)] * 2
STEPS = 3


PLACED: dict[str, Any] = {
    "HSDP": ((2, 2), [Replicate(), Shard(0)]),
    "FSDP": ((4,), [Shard(0)]),
    "replicated": ((4,), [Replicate()]),
}


def _trained(layout: str, dtype: torch.dtype, peers: int = 512) -> tuple[list[torch.Tensor], float, Counter[str]]:
    """Matrices after some steps, the multiplications of each iteration in the last of them, and its collectives."""
    layerwise.torch.set_most_peers(peers)
    draw, params, grads = torch.Generator().manual_seed(0), list[nn.Parameter](), list[Any]()
    placed = PLACED.get(layout)
    for shape in SHAPES:
        each = [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for _ in range(1 + STEPS)]
        if placed:
            each = [distribute_tensor(x, mesh_of(*placed[0]), placed[1], src_data_rank=None) for x in each]
        params.append(nn.Parameter(each[0]))
        grads.append(each[1:])
    opt = Muon(params, lr=0.1, **({"replica_group": dist.group.WORLD} if layout == "DDP" else {}))
    multiply, done = WholeIterations.__call__, list[float]()

    def counting(self: Any, x: Any) -> Any:
        done.append(work(tuple(x.shape[:2])) * (1 if x.ndim == 2 else x.shape[-1]))
        return multiply(self, x)

    for i in range(STEPS):
        done.clear()
        for p, own in zip(params, grads, strict=True):
            p.grad = own[i]
        with Collectives() as collectives, patch.object(WholeIterations, "__call__", counting):
            opt.step()
    return [whole(p) for p in params], sum(done), Counter(name for name, _ in collectives.seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", ["HSDP", "DDP", "replicated"])
def test_replicas_share_the_work(ranks, layout, dtype):
    """Each of four does a quarter of the products, and has what one process has: under DDP in float32 bit for bit."""
    wanted, *_ = _trained("", dtype)
    found = ranks.run(4, _trained, layout, dtype)
    total = sum(map(work, SHAPES))
    assert sum(done for _, done, _ in found) == total
    assert max(done for _, done, _ in found) <= 1.35 * total / 4
    for params, _, seen in found:
        assert seen["allreduce_"] == (2 if layout == "HSDP" else 1)
        for x, y in zip(params, wanted, strict=True):
            close = 1e-12 if dtype == torch.float64 else 1e-6 if layout == "HSDP" else 0
            torch.testing.assert_close(torch.as_tensor(x), torch.as_tensor(y), rtol=0, atol=close)


@pytest.mark.parametrize("layout", ["FSDP", "DDP"])
def test_many_ranks_are_reached_in_two_hops(ranks, layout):
    """Here four are many."""
    wanted, *_ = _trained("", torch.float64)
    messages = []
    for peers in (2, 4):
        found = ranks.run(4, _trained, layout, torch.float64, peers)
        assert sum(done for _, done, _ in found) == sum(map(work, SHAPES))
        messages.append(found[0][2]["alltoall_base_"])
        for params, *_ in found:
            for x, y in zip(params, wanted, strict=True):
                torch.testing.assert_close(torch.as_tensor(x), torch.as_tensor(y), rtol=0, atol=1e-12)
    assert messages == ([4, 2] if layout == "FSDP" else [2, 1])


def test_hops_are_as_even_as_they_can_be():
    for ranks, wanted in (1024, [32, 32]), (768, [32, 24]), (1021, [1021]), (512, [512]):
        with simulated(ranks):
            axis = axis_of(mesh_of(ranks).get_group())
            hops = hops_of(axis)
            assert [len(hop.ranks) for hop in hops] == wanted
            if len(hops) > 1:
                assert hops[1].ranks == axis.ranks[: wanted[1]], "the second is among neighbours"


def _experts(placements: Any, axes: Any) -> tuple[Any, Counter[str], int]:
    """Experts in one tensor, a block each, after two steps; the collectives of the second, and what is sent of them."""
    draw = torch.Generator().manual_seed(0)
    each = [torch.randn(6, 20, 30, generator=draw, dtype=torch.float64) for _ in range(3)]
    if axes:
        each = [distribute_tensor(x, mesh_of(*axes), placements, src_data_rank=None) for x in each]
    p, sent, exchange = nn.Parameter(each[0]), list[int](), dist.all_to_all_single

    def noting(here: Any, there: Any, *args: Any, **more: Any) -> Any:
        sent.append(there.numel())
        return exchange(here, there, *args, **more)

    opt = Muon([("experts", p)], lr=0.1, blocks={"experts": "each"})
    for g in each[1:]:
        p.grad = g
        sent.clear()
        with Collectives() as collectives, patch.object(dist, "all_to_all_single", noting):
            opt.step()
    return whole(p), Counter(name for name, _ in collectives.seen), sum(sent)


@pytest.mark.parametrize(
    ("placements", "axes", "sent"),
    [
        ([Shard(0)], (2,), 0),
        ([Shard(0)], (4,), 0),  # unevenly
        ([Shard(0), Shard(0)], (2, 2), 0),
        ([Shard(0), Shard(1)], (2, 2), 6 * 600 * 2 // 4),  # to one of two and back, not to one of four
        ([Replicate(), Shard(0)], (2, 2), None),
    ],
    ids=str,
)
def test_experts_that_are_whole_on_a_rank_stay_there(ranks, placements, axes, sent):
    wanted, *_ = _experts(None, None)
    found = ranks.run(prod(axes), _experts, placements, axes)
    for experts, seen, own in found:
        torch.testing.assert_close(torch.as_tensor(experts), torch.as_tensor(wanted), rtol=0, atol=1e-12)
        assert seen["alltoall_base_"] == 0 if sent == 0 else seen["alltoall_base_"] > 0
        assert sent is None or own <= 2 * sent
    if sent:
        assert sum(own for *_, own in found) == 4 * sent


def _mixed(group: bool) -> tuple[dict[str, torch.Tensor], int]:
    """A model in one step of two rules, with clipping and a gradient that is not finite on one rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Linear(16, 8)).double()
    matrices = [(name, p) for name, p in model.named_parameters() if p.ndim == 2]
    others = [(name, p) for name, p in model.named_parameters() if p.ndim == 1]
    groups = [{"params": matrices, "rule": "muon", "lr": 0.1}, {"params": others, "rule": "adamw", "lr": 0.01}]
    options = {"replica_group": dist.group.WORLD} if group else {}
    opt = Mixed(groups, max_grad_norm=0.5, skip_nonfinite=True, **options)
    for i in range(3):
        model(torch.ones(2, 12, dtype=torch.float64) * (i + 1)).square().mean().backward()
        if group and i == 1 and dist.get_rank() == 1:
            model[0].weight.grad[0, 0] = torch.nan
        if group or i != 1:
            opt.step()
        opt.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}, int(opt.skipped)


def test_replicas_take_and_skip_steps_together(ranks):
    wanted, _ = _mixed(False)
    for found, skipped in ranks.run(2, _mixed, True):
        assert skipped == 1
        for name, x in found.items():
            torch.testing.assert_close(x, wanted[name], rtol=0, atol=1e-12)


def _in_half(dtype: torch.dtype, ns_dtype: str, cut: bool) -> tuple[list[torch.Tensor], set[str], int]:
    """Matrices after some steps, the dtypes in which they travel, and the bytes of the last step."""
    draw, params, grads = torch.Generator().manual_seed(0), list[nn.Parameter](), list[Any]()
    for shape in SHAPES:
        each = [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for _ in range(3)]
        if cut:
            each = [distribute_tensor(x, mesh_of(2), [Shard(0)], src_data_rank=None) for x in each]
        params.append(nn.Parameter(each[0]))
        grads.append(each[1:])
    opt, exchange, dtypes = Muon(params, lr=0.1, ns_dtype=ns_dtype), dist.all_to_all_single, set[str]()
    sent = list[int]()

    def noting(here: Any, there: Any, *args: Any, **more: Any) -> Any:
        dtypes.add(str(there.dtype).removeprefix("torch."))
        sent.append(there.nbytes)
        return exchange(here, there, *args, **more)

    with patch.object(dist, "all_to_all_single", noting):
        for i in range(2):
            sent.clear()
            for p, own in zip(params, grads, strict=True):
                p.grad = own[i]
            opt.step()
    return [whole(p) for p in params], dtypes, sum(sent)


@pytest.mark.parametrize("ns_dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_matrices_travel_in_the_dtype_of_the_products(ranks, dtype, ns_dtype):
    """Which holds them, so that nothing changes but the order of sums."""
    wanted, *_ = _in_half(dtype, ns_dtype, False)
    found = ranks.run(2, _in_half, dtype, ns_dtype, True)
    halves = ns_dtype != "float32"
    arithmetic = torch.float64 if dtype == torch.float64 else torch.float32
    for params, dtypes, _ in found:
        assert dtypes == {ns_dtype if halves else str(arithmetic).removeprefix("torch.")}
        close = 2**-7 if dtype == torch.bfloat16 else 2e-3 if ns_dtype == "bfloat16" else 5e-4 if halves else 1e-6
        for x, y in zip(params, wanted, strict=True):
            torch.testing.assert_close(torch.as_tensor(x), torch.as_tensor(y), rtol=0, atol=close)
    numbers = 2 * sum(map(prod, SHAPES))
    assert sum(sent for *_, sent in found) == numbers * (2 if halves else arithmetic.itemsize)


class Calls(TorchDispatchMode):
    """How many of PyTorch's operations are called."""

    found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found += 1
        return func(*args, **(kwargs or {}))


def _of_alike(foreach: bool) -> tuple[list[torch.Tensor], int]:
    """Twelve matrices of one shape after some steps, and the calls of the last."""
    draw, params = torch.Generator().manual_seed(0), list[nn.Parameter]()
    for _ in range(12):
        x = torch.randn(24, 40, generator=draw)
        params.append(nn.Parameter(distribute_tensor(x, mesh_of(2), [Shard(0)], src_data_rank=None)))
    opt = Muon(params, lr=0.1, weight_decay=0.1, foreach=foreach, fused=None if foreach else False)
    for _ in range(STEPS):
        for p in params:
            g = torch.randn(24, 40, generator=draw)
            p.grad = distribute_tensor(g, mesh_of(2), [Shard(0)], src_data_rank=None)
        with Calls() as calls:
            opt.step()
    assert set(opt.engines().values()) == {"foreach" if foreach else "the rule"}
    return [whole(p) for p in params], calls.found


def test_sharded_matrices_of_one_shape_are_a_list_around_their_products(ranks):
    for (ours, few), (theirs, many) in zip(ranks.run(2, _of_alike, True), ranks.run(2, _of_alike, False), strict=True):
        for x, y in zip(ours, theirs, strict=True):
            torch.testing.assert_close(torch.as_tensor(x), torch.as_tensor(y), rtol=0, atol=1e-6)
        assert many - few > 7 * 12  # calls for each matrix
