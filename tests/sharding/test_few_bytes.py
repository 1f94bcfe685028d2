"""Few bytes on many ranks: the same codes, remainders and random bits, however the tensors are cut."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sharding.counting import Collectives
from sharding.layouts import mesh_of, place
from sharding.models import copies, named, whole
from sharding.test_resume import load, save
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard

from layerwise.numpy._arrays import BITS as NUMPY
from layerwise.storage import quantized_groups
from layerwise.torch import Lamb, full_precision_state_dict, load_full_precision_state_dict

# Rows and columns that no number of ranks divides, one that all divide in groups, and small ones.
SHAPES = {"odd": (67, 70), "even": (16, 512), "stack": (5, 30, 33), "vector": (4352,), "small": (7, 5)}
SHAPES["wide"] = (32, 192)  # of whose rows each of two ranks has a group and a half
NUMBERS = {name: i for i, name in enumerate(SHAPES)}
SPLIT = {"master_weights": "split24", "state_dtype": "int8", "rounding": "stochastic", "seed": 3}
FORMATS: dict[str, dict[str, Any]] = {
    "split24 and int8": SPLIT,
    "split": {"master_weights": "split", "state_dtype": "int8"},
    "stochastic and bfloat16": {"rounding": "stochastic", "state_dtype": "bfloat16"},
}
OF_ELEMENTS = {"momentum": 0.9, "adapt": False}  # of LARS: no sum over ranks has a say


class Model(nn.Module):
    """Parameters of these shapes, in bfloat16."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=draw).to(torch.bfloat16)))


def strided(model: nn.Module) -> None:
    mesh = mesh_of(2, dist.get_world_size() // 2)
    for name, p in list(model.named_parameters()):
        place(model, name, mesh["inner"], [Shard(0) if p.shape[0] % 4 == 0 else Replicate()])
    fully_shard(model, mesh=mesh["outer"])


def by(d: int, model: nn.Module) -> None:
    """Along a dimension, evenly or not."""
    for name, p in list(model.named_parameters()):
        place(model, name, mesh_of(dist.get_world_size()), [Shard(min(d, p.ndim - 1))])


LAYOUTS: dict[str, Any] = {
    "whole": lambda model: None,
    "fsdp": lambda model: fully_shard(model, mesh=mesh_of(dist.get_world_size())),
    "hybrid": lambda model: fully_shard(model, mesh=mesh_of(2, dist.get_world_size() // 2)),
    "rows": lambda model: by(0, model),
    "columns": lambda model: by(1, model),
    "strided": strided,
}
# Whose groups of 64 would be cut: these keep float32.
CUT = {key: ["vector"] for key in ((4, "strided"), (3, "fsdp"), (3, "rows"))}
CUT[2, "columns"] = ["odd", "stack", "wide"]


def cut_by(world: int, layout: str, form: str) -> list[str]:
    return CUT.get((world, layout), []) if "int8" in FORMATS[form].values() else []


def made(layout: str, options: Mapping[str, Any], seed: int = 0, front: Any = Lamb) -> tuple[nn.Module, Any]:
    model = Model(seed)
    LAYOUTS[layout](model)
    return model, front(model.named_parameters(), lr=0.01, blocks={"stack": "each"}, **options)


def walk(layout: str, model: nn.Module, opt: Any, *steps: int) -> None:
    for t in steps:
        grads = Model(100 + t)
        LAYOUTS[layout](grads)
        theirs = named(grads)
        for name, p in named(model).items():
            p.grad = theirs[name].detach().clone()
        opt.step()


def gathered(model: nn.Module, opt: Any) -> dict[str, Any]:
    """Weights, and state by the number of its parameter, whole, as they are saved; and weights in full."""
    found = {name: whole(p) for name, p in named(model).items()}
    states = {f"{i} {field}": whole(x) for i, one in opt.state_dict()["state"].items() for field, x in one.items()}
    full = full_precision_state_dict(model, opt)
    return {**found, **states, **{f"{name} in full": whole(x) for name, x in full.items()}}


def _stepped(layout: str, options: Mapping[str, Any], steps: int, front: Any = Lamb) -> Any:
    """What a rank has in the end, how it is stored, what it was warned of, and the bits it has itself."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, opt = made(layout, options, front=front)
        walk(layout, model, opt, *range(steps))
    bits = [x.contiguous().view(torch.uint8).numpy().tobytes() for x in copies(opt, named(model)).values() if x.ndim]
    said = sorted({str(one.message) for one in caught if "stored in float32" in str(one.message)})
    return gathered(model, opt), opt.storage(), said, bits


def same(ours: dict[str, Any], theirs: dict[str, Any], but: Any = ()) -> None:
    """Bit for bit, but for what is stored of these tensors."""
    left_out = [start for name in but for start in (name, f"{NUMBERS[name]} ")]
    for key, x in theirs.items():
        if not key.startswith(tuple(left_out)):
            np.testing.assert_array_equal(ours[key], x, err_msg=key)


def cases(*fast: tuple[int, str, str]) -> Any:
    """Every layout with every format, all but these slow."""
    layouts = [(2, "fsdp"), (2, "columns"), (3, "fsdp"), (3, "rows"), (4, "hybrid"), (4, "strided")]
    every = [(*one, form) for one in layouts for form in FORMATS]
    each = [pytest.param(*one, marks=() if one in fast else pytest.mark.slow) for one in every]
    return pytest.mark.parametrize(("world", "layout", "form"), each)


FIRST = "split24 and int8"


def test_replicas_are_alike_and_a_step_takes_one_collective(ranks):
    bits = [one[-1] for one in ranks.run(4, _stepped, "hybrid", SPLIT, 2)]
    assert bits[:2] == bits[2:]
    assert bits[0] != bits[1]
    assert ranks.run(2, _collectives) == [1, 1]


def _collectives() -> int:
    """How many a step takes that is like the one before."""
    model, opt = made("fsdp", SPLIT)
    walk("fsdp", model, opt, 0, 1)
    with Collectives() as seen:
        opt.step()
    return len(seen.seen)


def _disagreeing(option: str, values: Any) -> None:
    model, opt = made("fsdp", {**SPLIT, option: values[dist.get_rank()]})
    walk("fsdp", model, opt, 0)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("seed", (3, 4)),
        ("rounding", ("stochastic", None)),
        ("state_dtype", ("int8", "bfloat16")),
        ("master_weights", ("split", "split24")),
    ],
)
def test_ranks_with_other_storage_are_detected(ranks, option, values):
    for outcome in ranks.outcomes(2, _disagreeing, option, values):
        assert outcome.error == "SynchronizationError"
        assert f"`{option}`" in outcome.traceback or "the dtype of" in outcome.traceback


# ---- checkpoints


def _saved(form: str, path: str, how: str) -> Any:
    """Steps before a checkpoint, and those after it."""
    model, opt = made("fsdp", FORMATS[form])
    walk("fsdp", model, opt, 0, 1)
    save(how, path, model, opt)
    before = gathered(model, opt)
    walk("fsdp", model, opt, 2, 3)
    return before, gathered(model, opt)


def _resumed(layout: str, form: str, path: str, how: str, **options: Any) -> Any:
    """What was loaded by others than those that saved, and the steps after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, opt = made(layout, {**FORMATS[form], **options}, seed=9)
        load(how, path, model, opt)
        before = gathered(model, opt)
        walk(layout, model, opt, 2, 3)
    return before, gathered(model, opt)


@pytest.mark.parametrize(
    ("world", "layout", "how", "form"),
    [
        (2, "fsdp", "dcp", FIRST),
        (2, "columns", "full", FIRST),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                (1, "whole", "dcp", "split"),
                (1, "fsdp", "dcp", "split"),
                (3, "rows", "dcp", "stochastic and bfloat16"),
                (4, "hybrid", "from rank 0", "split"),
                (4, "hybrid", "flat", "split"),
            )
        ),
    ],
)
def test_others_go_on_with_the_same_numbers(ranks, tmp_path, world, layout, how, form):
    """Four ranks save, and others load what they saved; what they would cut becomes the numbers that codes mean."""
    before, after = ranks.run(4, _saved, form, str(tmp_path), how)[0]
    loaded, gone_on = ranks.run(world, _resumed, layout, form, str(tmp_path), how)[0]
    cut = cut_by(world, layout, form)
    states = [f"{NUMBERS[name]} exp" for name in cut]
    kept = [key for key in before if not key.startswith(tuple(states))]
    same({key: loaded[key] for key in kept}, {key: before[key] for key in kept})
    for key, signed in (
        (f"{NUMBERS[name]} {one}", one == "exp_avg") for name in cut for one in ("exp_avg", "exp_avg_sq")
    ):
        codes, scale = before[key].reshape(len(before[key]), -1), before[f"{key}_unit"]
        wanted = quantized_groups.decode(NUMPY, codes, scale, signed).reshape(loaded[key].shape)
        np.testing.assert_allclose(loaded[key], wanted, rtol=1e-6, err_msg=key)
    for name in SHAPES:
        x, y = after[f"{name} in full"], gone_on[f"{name} in full"]
        assert np.abs(x - y).max() < (2e-2 if name in cut else 2e-3) * np.abs(x).max(), name


def _full_and_back(layout: str) -> Any:
    """Weights in full, and what is read after they were set: as parts, and from whole tensors."""
    options = {"master_weights": "split"}
    model, opt = made(layout, options)
    walk(layout, model, opt, 0, 1)
    full, found = full_precision_state_dict(model, opt), []
    for given in (full, {key: torch.tensor(whole(x)) for key, x in full.items()}):
        other, new = made(layout, options, seed=9)
        load_full_precision_state_dict(other, new, given)
        found.append({key: whole(x) for key, x in full_precision_state_dict(other, new).items()})
    assert all(x.placements == p.placements for p, x in zip(model.parameters(), full.values(), strict=True))
    return {key: whole(x) for key, x in full.items()}, found


@pytest.mark.parametrize("layout", ["fsdp", pytest.param("columns", marks=pytest.mark.slow)])
def test_weights_in_full_are_read_and_set(ranks, layout):
    for full, found in ranks.run(2, _full_and_back, layout):
        for one in found:
            same(one, full)
