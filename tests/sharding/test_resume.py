"""A run that stops and goes on, on as many ranks or on others, is the run that never stopped."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharding.cells import CLIP, DOUBLE, Found, Layout, Lying, Row, agree, alone, world_of
from sharding.models import FRONTS, Blend, Small, measured, numbers
from sharding.wrappings import batches, optimizer_of
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from layerwise.torch import Adafactor, flat
from sharding import flats

fronts = pytest.mark.parametrize("front", FRONTS)
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
OPTIONS = {
    "dcp": StateDictOptions(),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
    "full": FULL,
    "from rank 0": StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True),
}
LIKE_OTHERS = "flat", "from rank 0"  # for the library
FILE = "full.pt"
SINGLE = torch.float32


def save(how: str, path: str, model: nn.Module, opt: Any) -> None:
    options = FULL if how == "from rank 0" else OPTIONS[how]
    parts = {
        "model": get_model_state_dict(model, options=options),
        "optim": get_optimizer_state_dict(model, opt, options=options),
    }
    if not options.full_state_dict:
        dcp.save(parts, checkpoint_id=path)
    elif dist.get_rank() == 0:
        torch.save(parts, Path(path, FILE))


def load(how: str, path: str, model: nn.Module, opt: Any) -> None:
    options = OPTIONS[how]
    if options.full_state_dict:
        reads = dist.get_rank() == 0 or not options.broadcast_from_rank0
        parts = torch.load(Path(path, FILE), weights_only=False) if reads else {"model": {}, "optim": {}}
    else:
        parts = {
            "model": get_model_state_dict(model, options=options),
            "optim": get_optimizer_state_dict(model, opt, options=options),
        }
        dcp.load(parts, checkpoint_id=path)
    set_model_state_dict(model, parts["model"], options=options)
    set_optimizer_state_dict(model, opt, parts["optim"], options=options)


def _walked(lying: Lying, opt: Any, *steps: int) -> None:
    for i in steps:
        lying.give(i)
        opt.step()
        opt.zero_grad()


def _saved(front: Any, row: Row, how: str, path: str) -> Any:
    """The checkpoint after two steps, and the bits and measurements two steps later."""
    lying = Lying(row.layout, row.dtype)
    opt = lying.optimizer(front, row.options)
    _walked(lying, opt, 0, 1)
    save(how, path, lying.model, opt)
    _walked(lying, opt, 2, 3)
    return {name: numbers(x).tobytes() for name, x in lying.parts(opt).items()}, measured(opt)


def _resumed(front: Any, row: Row, how: str, path: str, wanted: Any) -> tuple[Any, Found | None]:
    lying = Lying(row.layout, row.dtype, seed=99)
    opt = lying.optimizer(front, row.options)
    load(how, path, lying.model, opt)
    _walked(lying, opt, 2, 3)
    bits = {name: numbers(x).tobytes() for name, x in lying.parts(opt).items()}
    return (bits, measured(opt)), wanted and lying.found(opt, wanted)


@pytest.fixture(scope="module")
def saved(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Checkpoints by how and where they were made, each with what its run came to in the end on each rank."""

    @cache
    def find(front: Any, layout: str, dtype: torch.dtype, options: tuple[Any, ...], how: str) -> Any:
        path = str(tmp_path_factory.mktemp("checkpoint"))
        return path, ranks.run(
            world_of(layout), _saved, front, Row(layout, dtype=dtype, options=dict(options)), how, path
        )

    def of(front: Any, row: Row, how: str) -> Any:
        return find(front, row.layout, row.dtype, tuple(row.options.items()), how)

    return of


RELATIVE = {"lr": None, "warmup_init": True, "factored": "largest"}


@fronts
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize(
    "how", [pytest.param(one, marks=pytest.mark.slow if one in LIKE_OTHERS else ()) for one in OPTIONS]
)
def test_the_same_layout_goes_on_bit_for_bit(ranks, saved, front, how):
    goes_on(ranks, saved, front, Row("fsdp on 2", dtype=SINGLE), how)


@pytest.mark.parametrize(
    ("front", "row", "how"),
    [
        (Blend, Row("fsdp on 2", dtype=SINGLE, options=CLIP), "dcp"),
        # To have a state to load into, PyTorch takes a step at lr=0: options that do not go with an lr must bear it.
        (Adafactor, Row("fsdp on 3", dtype=SINGLE, options=RELATIVE), "dcp"),
        *((front, Row("fsdp on 2", dtype=torch.bfloat16, options={"master_weights": True}), "dcp") for front in FRONTS),
    ],
    ids=str,
)
@pytest.mark.thinned(1, 2)
def test_so_do_several_rules_relative_steps_and_master_weights(ranks, saved, front, row, how):
    goes_on(ranks, saved, front, row, how)


def goes_on(ranks: Any, saved: Any, front: Any, row: Row, how: str) -> None:
    path, wanted = saved(front, row, how)
    for (bits, stats), (wanted_bits, wanted_stats) in zip(
        [one for one, _ in ranks.run(world_of(row.layout), _resumed, front, row, how, path, None)], wanted, strict=True
    ):
        assert bits == wanted_bits
        assert {name: x.tobytes() for name, x in stats.items()} == {n: x.tobytes() for n, x in wanted_stats.items()}


@fronts
@pytest.mark.kinds("factored")
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize(
    ("here", "there", "how"),
    [
        ("fsdp on 4", "tensor parallel on 2", "dcp"),
        ("tensor parallel on 4", "fsdp on 3", "full"),
        # PyTorch, and not the library, makes of these what it makes of the others.
        *(
            pytest.param("fsdp on 4", there, "dcp", marks=pytest.mark.slow)
            for there in ("plain", "fsdp on 1", "hybrid")
        ),
        pytest.param("strided", "fsdp on 3", "dcp", marks=pytest.mark.slow),
        pytest.param("plain", "fsdp on 4", "dcp", marks=pytest.mark.slow),
        *(
            pytest.param("tensor parallel on 4", "fsdp on 3", how, marks=pytest.mark.slow)
            for how in ("flat", "from rank 0")
        ),
    ],
)
def test_another_layout_goes_on_with_the_same_numbers(ranks, saved, front, here, there, how):
    path, _ = saved(front, Row(here), how)
    wanted = alone(front, Row(None, steps=4))
    agree([one for _, one in ranks.run(world_of(there), _resumed, front, Row(there), how, path, wanted)], wanted)


# ---- flat buffers, whose whole state is that of one process


def _saved_flat(front: Any) -> tuple[Any, dict[str, Any]]:
    lying = Lying("one flat buffer on 4")
    opt = lying.optimizer(front)
    _walked(lying, opt, 0, 1)
    weights = {name: x for name, x in lying.parts(opt).items() if name in flats.TENSORS}
    return flat.full_state_dict(opt), weights


def _resumed_flat(front: Any, layout: Layout, state: Any, weights: Any, wanted: Any) -> Found:
    lying = Lying(layout, values=weights)
    opt = lying.optimizer(front)
    flat.load_full_state_dict(opt, state) if layout in flats.FLATS else opt.load_state_dict(state)
    _walked(lying, opt, 2)
    return lying.found(opt, wanted)


@fronts
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize(
    "layout", [None, "fsdp on 2", "interleaved", pytest.param("a flat buffer each", marks=pytest.mark.slow)]
)
def test_flat_buffers_go_on_whole_sharded_and_flat(ranks, front, layout):
    state, weights = ranks.run(4, _saved_flat, front)[0]
    wanted = alone(front, Row(None, steps=3))
    agree(ranks.run(world_of(layout), _resumed_flat, front, layout, state, weights, wanted), wanted)


# ---- what other programs keep in the state


def _beside(lying: Lying, opt: Any) -> dict[str, Any]:
    """Let the state have a copy of the weights and a number, and return the copies."""
    for p in lying.params.values():
        opt.state[p].update(z=p.detach().clone(), k=3)
    return {name: opt.state[p]["z"] for name, p in lying.params.items()}


def _saved_with_others(front: Any, layout: Layout, path: str) -> tuple[Any, Any]:
    lying = Lying(layout)
    opt = lying.optimizer(front)
    _walked(lying, opt, 0, 1)
    kept = _beside(lying, opt)
    whole = {name: numbers(full(z)) for name, z in kept.items()}
    if layout in flats.FLATS:
        return flat.full_state_dict(opt), lying.parts(opt)
    save("full", path, lying.model, opt)
    _walked(lying, opt, 2, 3)
    assert all(numbers(full(opt.state[p]["z"])).tobytes() == whole[name].tobytes() for name, p in lying.params.items())
    return whole, {name: numbers(full(p)) for name, p in lying.params.items()}


def full(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def _resumed_with_others(front: Any, layout: Layout, path: str) -> tuple[Any, Any]:
    lying = Lying(layout, seed=99)
    opt = lying.optimizer(front)
    _walked(lying, opt, 0)
    _beside(lying, opt)  # PyTorch loads those entries alone that are there
    load("full", path, lying.model, opt)
    assert {opt.state[p]["k"] for p in lying.params.values()} == {3}
    kept = {name: opt.state[p]["z"] for name, p in lying.params.items()}
    assert all(isinstance(z, DTensor) == isinstance(lying.params[name], DTensor) for name, z in kept.items())
    _walked(lying, opt, 2, 3)
    z, weights = ({name: numbers(full(x)) for name, x in each.items()} for each in (kept, lying.params))
    return z, weights


@fronts
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize("there", ["fsdp on 2", pytest.param("fsdp on 3", marks=pytest.mark.slow), None])
def test_entries_of_others_are_sharded_like_the_parameter(ranks, tmp_path, front, there):
    kept, weights = ranks.run(2, _saved_with_others, front, "fsdp on 2", str(tmp_path))[0]
    again, end = ranks.run(world_of(there), _resumed_with_others, front, there, str(tmp_path))[0]
    assert {name: x.tobytes() for name, x in again.items()} == {name: x.tobytes() for name, x in kept.items()}
    assert all(np.allclose(x, weights[name], rtol=1e-9, atol=1e-12) for name, x in end.items())


def _divided(front: Any, layout: Layout, state: Any, wanted: Any) -> None:
    lying = Lying(layout)
    opt = lying.optimizer(front)
    if layout in flats.FLATS:
        flat.load_full_state_dict(opt, state)
        parts = lying.parts(opt)
        found = {name: parts[f"{name} z"] for name in flats.TENSORS}
    else:
        opt.load_state_dict(state)
        found = {name: full(opt.state[p]["z"]) for name, p in lying.params.items()}
    assert {opt.state[p]["k"] for p in lying.params.values()} == {3}
    assert all(np.array_equal(numbers(x), wanted[name]) for name, x in found.items())
    _walked(lying, opt, 2)


@fronts
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize("layout", [None, "fsdp on 2", "interleaved"])
def test_entries_of_others_for_a_flat_buffer_are_divided_like_it(ranks, front, layout):
    state, parts = ranks.run(4, _saved_with_others, front, "one flat buffer on 4", "")[0]
    [group] = state["param_groups"]
    weights = {name: numbers(parts[name]) for name in group["param_names"]}
    kept = (state["state"][key]["z"] for key in group["params"])
    assert all(np.array_equal(numbers(z), x) for z, x in zip(kept, weights.values(), strict=True))
    ranks.run(world_of(layout), _divided, front, layout, state, weights)


# ---- ranks that step some whole parameters each


def _by_zero_redundancy(front: Any) -> tuple[bool, int]:
    """Whether a loaded run ends as one that never stopped, and for how many parameters there was state."""
    opts, models = [], []
    for _ in range(2):
        models.append(DistributedDataParallel(Small(DOUBLE)))
        opts.append(optimizer_of(front, models[-1], {"max_grad_norm": 0.1}, zero=True))

    def train(which: int, some: Any) -> None:
        for batch in some:
            opts[which].zero_grad()
            models[which](batch).backward()
            opts[which].step()

    opts[0].consolidate_state_dict(0)  # also before there is any state
    train(0, batches(4)[:2])
    opts[0].consolidate_state_dict(0)
    file, saved = BytesIO(), [None]
    if dist.get_rank() == 0:
        torch.save(opts[0].state_dict(), file)
        file.seek(0)
        saved = [torch.load(file, weights_only=True)]
    dist.broadcast_object_list(saved, 0)
    state: Any = saved[0]
    found = len(state["state"])
    models[1].load_state_dict(models[0].state_dict())
    opts[1].load_state_dict(state)
    for which in range(2):
        train(which, batches(4)[2:])
    return all(map(torch.equal, models[0].parameters(), models[1].parameters())), found


@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1, 2)
def test_zero_redundancy_optimizer_saves_without_its_model_group(ranks, front):
    """A process group is nothing that a checkpoint could hold, and none has to."""
    assert ranks.run(2, _by_zero_redundancy, front) == [(True, len(list(Small(DOUBLE).parameters())))] * 2
