"""However parameters lie on ranks, steps are those of one process that has them whole: each row is a cell of a table.

Ranks send their sums in another order than one process adds them up, so the last digits may differ.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cases import CASES
from sharding.cells import CLIP, DOUBLE, Lying, Row, agree, alone, check, kernels, world_of
from sharding.flats import FLATS
from sharding.layouts import LAYOUTS, fsdp, mesh_of, place
from sharding.models import BUSY, FRONT_OF, FRONTS, KERNELED, Blend, close, local, whole
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import layerwise.torch
from layerwise.errors import SynchronizationError
from layerwise.layout.blocks import Blocks
from layerwise.torch import Adafactor, Came, Lamb, Lars, SinkGD

fronts = pytest.mark.parametrize("front", FRONTS)
BY_WORLD = sorted([*LAYOUTS, *FLATS], key=world_of)  # to make a process group takes longer than most cells
ONE, ON_4 = "one flat buffer", "one flat buffer on 4"
# By events and in dtypes, as another number of the same cuts, or as the same: modules make no difference.
TRIED_BELOW = {"fsdp on 1", "fsdp on 2", "fsdp on 3", "fsdp on 4", "nested", "by columns", "tensor parallel on 2"}
TRIED_BELOW |= {"hybrid", "two-dimensional", "several meshes", ONE, ON_4, "interleaved"}
BY_RULE, IN_LISTS = {"fused": False}, {"foreach": True}
FACTORED = "largest", "matrix", (0, 1), ((0,), (1, 2)), False
SINGLE, HALF = torch.float32, torch.bfloat16


def table(*rows: Any) -> Any:
    return pytest.mark.parametrize("row", rows, ids=str)


def later(row: Row) -> Any:
    """A row that `make test-all` tries, and `make test` does not."""
    return pytest.param(row, id=str(row), marks=pytest.mark.slow)


@fronts
@pytest.mark.thinned(1, 3)
@table(*(later(Row(layout)) if layout in TRIED_BELOW else Row(layout) for layout in BY_WORLD))
def test_a_step_is_that_of_one_process(ranks, front, row):
    check(ranks, front, row)


@fronts
@pytest.mark.thinned(1, 2)
@table(
    *(Row(layout, dtype=dtype) for layout in ("several meshes", ONE) for dtype in (SINGLE, HALF)),
    *(later(Row("fsdp on 4", dtype=dtype)) for dtype in (SINGLE, HALF)),
    *(Row(layout, dtype=HALF, options={"master_weights": True}) for layout in ("fsdp on 3", ONE)),
    *(Row(layout, options=BY_RULE) for layout in ("fsdp on 3", "interleaved")),
    *(later(Row(layout, options=BY_RULE)) for layout in ("two-dimensional", ON_4)),
    Row(ON_4, options=BY_RULE, buckets=20),
    *(Row(layout, options=IN_LISTS) for layout in ("fsdp on 3", ONE)),
    Row(ON_4, options=IN_LISTS, buckets=20),
    Row("hybrid", "some gradients are missing"),
    later(Row("several meshes", "some gradients are missing")),
    *(Row(layout, "gradients are partial sums at times") for layout in ("fsdp on 2", "tensor parallel on 2")),
    *(Row("fsdp on 2", f"one rank loads its state{more}") for more in ("", " while gradients are partial sums")),
)
def test_it_is_in_every_dtype_and_engine_with_whatever_gradients(ranks, front, row):
    check(ranks, front, row)


@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1, 2)
@table(
    *(Row(layout, options=CLIP) for layout in ("several meshes", ONE)),
    *(later(Row(layout, options=CLIP)) for layout in ("hybrid", "a flat buffer each")),
    Row("hybrid", options={**CLIP, **BY_RULE}),
    Row("hybrid", options={**CLIP, **IN_LISTS}),
    Row("several meshes", options={**CLIP, "max_grad_norm_per_tensor": 2.0}),
)
def test_the_norm_of_all_gradients_is_that_of_the_whole_model(ranks, front, row):
    check(ranks, front, row)


@table(
    *(Row(ON_4, options={"factored": how}) for how in FACTORED),
    *(Row("two-dimensional", options={"factored": how}) for how in FACTORED[:2]),
    Row("fsdp on 3", options={"momentum_dtype": "bfloat16"}),
)
def test_adafactor_steps_with_its_factoring_and_momentum_dtype(ranks, row):
    check(ranks, Adafactor, row)


@table(
    Row("fsdp on 2"),
    *(Row("several meshes", options=options) for options in (CLIP, {**CLIP, **BY_RULE})),
    *(later(Row(layout)) for layout in ("several meshes", "hybrid")),
    *(later(Row("hybrid", options=options)) for options in (CLIP, {**CLIP, **BY_RULE})),
    Row("a flat buffer each"),
)
def test_several_rules_share_a_step(ranks, row):
    check(ranks, Blend, row)


def test_all_rules_take_part_where_several_share_a_step():
    opt = Lying(None).optimizer(Blend)
    assert {FRONT_OF[group["rule"]] for group in opt.param_groups} == {*KERNELED}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4))])
def test_drawn_layouts_and_options(ranks, case, seed):
    check(ranks, getattr(layerwise.torch, case.name), Row(seed, options=case.drawn(seed)))


# ---- where some gradients cannot be stepped


@fronts
@pytest.mark.thinned(1, 2)
@table(
    *(Row(layout, "nan on one rank") for layout in ("fsdp on 2", "hybrid in part", ONE)),
    *(later(Row(layout, "nan on one rank")) for layout in ("hybrid", "two-dimensional", "several meshes")),
    Row(ONE, "nan is nowhere"),
    *(Row(layout, "inf found on one rank") for layout in ("two-dimensional", ONE)),
    *(later(Row(layout, "inf found on one rank")) for layout in ("hybrid", "fsdp on 2")),
)
def test_all_skip_what_one_cannot_take(ranks, front, row):
    check(ranks, front, row)


# ---- after many steps


@fronts
@pytest.mark.thinned(1, 2)
@table(
    Row("strided", options={"max_grad_value": 1.5}, steps=10),
    later(Row("tensor parallel on 4", options={"max_grad_value": 0.5}, steps=10)),
)
def test_it_is_so_after_many_steps(ranks, front, row):
    check(ranks, front, row)


# ---- by kernels


@pytest.mark.skipif(torch.cuda.is_available(), reason="the ranks have their tensors in the machine's memory")
@pytest.mark.parametrize(
    ("front", "layout", "options"),
    [(Lamb, "tensor parallel on 2", CLIP), (Adafactor, ONE, CLIP)]
    + [pytest.param(front, "fsdp on 3", CLIP, marks=pytest.mark.slow) for front in KERNELED],
)
def test_kernels_take_the_same_steps(ranks, front, layout, options):
    pytest.importorskip("triton", reason="kernels need Triton")
    check(ranks, front, Row(layout, options={**options, "fused": True}, steps=2, by_kernels=True))


def _by_broken_kernels(broken: tuple[int, ...], wanted: Any) -> Any:
    """The same where kernels do nothing on some ranks, which their proof finds: what there is then, or an error."""
    from layerwise.engines.gpu.kernels import common

    run = type(common.root).run

    def nothing(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if self.__name__ == "apply" else run(self, *args, **kwargs)

    lying = Lying("fsdp on 2")
    opt = lying.optimizer(Lamb)
    how = patch.object(type(common.root), "run", nothing) if dist.get_rank() in broken else nullcontext()
    with how, kernels(proven=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for i in range(2):
                lying.give(i)
                opt.step()
        except SynchronizationError as problem:
            return str(problem)
    return lying.found(opt, wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the ranks have their tensors in the machine's memory")
@pytest.mark.parametrize("broken", [(0, 1), (0,)], ids=["on all ranks", "on one rank"])
def test_kernels_that_fail_their_proof_leave_the_step_to_the_rule_on_all_ranks_or_none(ranks, broken):
    """Where one rank fails, no rank waits for sums: each reports which engine steps on which rank."""
    pytest.importorskip("triton", reason="kernels need Triton")
    wanted = alone(Lamb, Row(None, steps=2))
    found = ranks.run(2, _by_broken_kernels, broken, wanted)
    if len(broken) == 2:
        agree(found, wanted)
    else:
        words = "the engine is the rule, ", "on the first and the GPU engine on the second"
        assert all(word in said for word in words for said in found)


# ---- odd tensors, and where state lies


def _by_uneven_columns(front: Any, sharded: bool = True) -> Any:
    """The columns that a rank has of a weight after some steps; with four of them, the last one has none."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 8, bias=False)).double()
    grads = [torch.randn(8, 5, dtype=DOUBLE) for _ in range(4)]
    if sharded:
        mesh = mesh_of(1, 4)
        place(model, "1.weight", mesh["inner"], [Shard(1)])
        fsdp([model], mesh["outer"])
    p = model[1].weight
    opt = front([("weight", p)], **{**BUSY[front], "blocks": {"weight": 4}})
    for g in grads:
        if sharded:  # with the local part's own shape, as FSDP2 gives it
            here = local(distribute_tensor(g, p.device_mesh, p.placements, src_data_rank=None)).reshape(local(p).shape)
            g = DTensor.from_local(here, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())
        p.grad = g
        opt.step()
    return local(p).reshape(8, -1 if local(p).numel() else 0).numpy()


@pytest.mark.parametrize("front", [Adafactor, Came, SinkGD, Lars])
@pytest.mark.every
def test_a_rank_without_a_column_takes_part(ranks, front):
    """FSDP2 says that it has no row either, which is not so for statistics by rows, and for blocks."""
    found = ranks.run(4, _by_uneven_columns, front)
    assert [x.shape[1] for x in found] == [2, 2, 1, 0]
    np.testing.assert_allclose(np.concatenate(found, 1), _by_uneven_columns(front, sharded=False), 0, 1e-12)


def _in_uneven_blocks(front: Any, cut: bool) -> dict[str, Any]:
    """A weight whose rows are blocks of several lengths."""
    draw = torch.Generator().manual_seed(0)
    each = [torch.randn(8, 6, generator=draw, dtype=DOUBLE) for _ in range(4)]
    if cut:
        each = [distribute_tensor(x, mesh_of(2), [Shard(0)], src_data_rank=None) for x in each]
    p = nn.Parameter(each[0])
    opt = front([("weight", p)], **{**BUSY[front], "blocks": Blocks((3, 5))})
    for p.grad in each[1:]:
        opt.step()
    return {"weight": whole(p)}


@pytest.mark.parametrize("front", [Adafactor, Lamb])
def test_blocks_of_several_lengths_have_statistics_of_their_own_where_they_are_cut(ranks, front):
    wanted = _in_uneven_blocks(front, False)
    for found in ranks.run(2, _in_uneven_blocks, front, True):
        close(found, wanted, 1e-12)


def _stacked(front: Any, cut: bool) -> dict[str, Any]:
    """Small weights of two shapes, which the rule can step in two stacks."""
    draw, params = torch.Generator().manual_seed(0), {}
    for i, n in enumerate((12, 6, 12, 6)):
        each = torch.randn(2, n, 6, generator=draw, dtype=DOUBLE)
        if cut:
            each = [distribute_tensor(x, mesh_of(2), [Shard(0)], src_data_rank=None) for x in each]
        params[str(i)], grad = nn.Parameter(each[0]), each[1]
        params[str(i)].grad = grad
    opt = front(list(params.items()), **{**BUSY[front], **CLIP, **BY_RULE})
    for _ in range(3):
        opt.step()
    return {name: whole(p) for name, p in params.items()}


@pytest.mark.parametrize("front", [Lamb, Adafactor])
def test_tensors_of_a_stack_have_shares_of_their_own_in_the_norm_of_all(ranks, front):
    wanted = _stacked(front, False)
    for found in ranks.run(2, _stacked, front, True):
        close(found, wanted, 1e-12)


def _measured_empty() -> Any:
    model = nn.Module()
    model.register_parameter("empty", nn.Parameter(torch.ones(8, 0)))
    fsdp([model], mesh_of(2))
    opt = Lamb(model.named_parameters(), lr=0.1, blocks={"empty": "each"})
    model.empty.grad = model.empty.detach().clone()
    opt.step()
    return opt.stats()["empty"]["weight_norm"]


def test_blocks_without_elements_are_measured_where_they_are(ranks):
    first, second = ranks.run(2, _measured_empty)
    np.testing.assert_equal(np.stack([first, second]), [[0] * 4 + [np.nan] * 4, [np.nan] * 4 + [0] * 4])


def _places_of_state(front: Any, layout: str) -> list[str]:
    """The parts of the state that do not lie as their parameter does, along the dimensions that they share with it."""
    lying = Lying(layout)
    opt = lying.optimizer(front)
    lying.give(0)
    opt.step()
    cut = {name: p for name, p in lying.params.items() if isinstance(p, DTensor)}
    parts = [(p, key, x) for p in cut.values() for key, x in opt.state[p].items() if key != "step"]
    assert parts
    alike = {key for _, key, _ in parts} - {key for p, key, x in parts if x.shape != p.shape}
    astray = [key for p, key, x in parts if not isinstance(x, DTensor) or x.device_mesh != p.device_mesh]
    return astray + [key for p, key, x in parts if key in alike and x.placements != p.placements]


@fronts
@pytest.mark.kinds("factored", "numbers of a layer")
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize("layout", ["fsdp on 4", "two-dimensional", "several meshes"])
def test_state_lies_as_its_parameter_does(ranks, front, layout):
    """So that torch.distributed.checkpoint can cut it otherwise."""
    assert ranks.run(world_of(layout), _places_of_state, front, layout) == [[]] * world_of(layout)


def _devices_of_state(front: Any) -> set[str]:
    """With parameters in the host's memory, on a mesh of another device."""
    mesh = mesh_of(1)
    shapes = (3,), (4, 5)
    params = [nn.Parameter(distribute_tensor(torch.ones(n), mesh, [Shard(0)], src_data_rank=None)) for n in shapes]
    for p in params:
        p.grad = torch.ones_like(p)
    opt = front(params, lr=0.1)
    with patch.object(params[0].device_mesh, "_device_type", "meta"):
        opt.step()
    return {x.device.type for p in params for x in opt.state[p].values()}


@fronts
def test_state_of_offloaded_parameters_stays_with_them(ranks, front):
    assert ranks.run(1, _devices_of_state, front) == [{"cpu"}]
