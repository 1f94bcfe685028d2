"""Flat buffers hold what was described: descriptions must fit together, and nobody else may take them for tensors.

That their steps are those of one process is in the table of layouts.
"""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Mapping
from math import prod
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharding.cells import DOUBLE
from sharding.models import Irregular, Small, named, numbers, state_of
from sharding.test_few_bytes import Model
from sharding.wrappings import batches, fsdp1
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

from layerwise.errors import ParameterError, StateError, SynchronizationError
from layerwise.layout.blocks import Blocks
from layerwise.torch import Adafactor, AdamW, Lamb, Segments, Stretch, flat
from layerwise.torch.flat._boxes import boxes
from layerwise.torch.sharding._cuts import is_described
from sharding import flats


@pytest.mark.parametrize("seed", range(50))
def test_a_stretch_is_made_of_few_boxes(seed):
    draw = random.Random(seed)
    shape = tuple(draw.randint(1, 5) for _ in range(draw.randint(1, 4)))
    everything = torch.arange(prod(shape))
    start = draw.randint(0, prod(shape))
    stretch = everything[start : draw.randint(start, prod(shape))]
    found = list(boxes(shape, start, start + len(stretch)))
    for box, place in found:
        assert torch.equal(place.take_from(stretch), box.take_from(everything.view(shape), box.size))
    assert torch.equal(
        torch.cat([everything[:0], *(place.take_from(stretch).flatten() for _, place in found)]), stretch
    )
    assert len(found) < 2 * len(shape)


# ---- descriptions

SHAPE = (4, 6)
MISTAKES: dict[str, tuple[Any, str]] = {  # the first stretch of rank 1, in place of elements 10 to 24, and the error
    "an overlap": ([("a", SHAPE, 8, 24)], "ranks 0 and 1 both hold its elements 8 to 10"),
    "a gap": ([("a", SHAPE, 12, 24)], "no rank holds its elements 10 to 12"),
    "another shape": ([("a", (6, 4), 10, 24)], "with the shape"),
    "beyond the tensor": ([("a", SHAPE, 10, 25)], "has only 24"),
    "beyond the buffer": ([("a", SHAPE, 10, 24, 9)], "overlap others or exceed its 20"),
    "no shape": ([("a", 3)], "must have five entries"),
    "another buffer": ([("a", SHAPE, 10, 24)], "1 on rank 0, 2 on rank 1"),
}


def _mistaken(which: str) -> tuple[str, bool]:
    """The error of a rank where rank 1 describes something else, and whether anything was described then."""
    odd, buffer = dist.get_rank() == 1, nn.Parameter(torch.ones(20))
    given: Any = MISTAKES[which][0] if odd else [("a", SHAPE, 0, 10), ("b", (3,), 0, 3)]
    buffers = {buffer: given if len(given) > 1 else [*given, ("c", (2,), 0, 2)]}
    if odd and which == "another buffer":
        buffers[nn.Parameter(torch.ones(2))] = [Stretch("d", (2,), 0, 2)]
    try:
        Segments(buffers)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}", is_described(buffer)
    return "", True


@pytest.mark.parametrize("which", MISTAKES)
def test_descriptions_that_do_not_fit_together_are_refused_by_all(ranks, which):
    for said, described in ranks.run(2, _mistaken, which):
        assert said.startswith(("SynchronizationError", "ParameterError"))
        assert MISTAKES[which][1] in said
        assert not described


def test_a_buffer_of_nothing_but_padding_is_refused():
    with pytest.raises(ParameterError, match="of 3 elements holds no tensor on any rank"):
        Segments({nn.Parameter(torch.ones(3)): []})


def test_a_tensor_lies_in_one_buffer():
    buffers = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    with pytest.raises(SynchronizationError, match=r"'a' is in buffer 0 of rank 0 with .* and in buffer 1 of rank 0"):
        Segments({p: [("a", (2,), 0, 2)] for p in buffers})


@pytest.mark.parametrize(
    "wrong", [torch.ones(11, 6, device="meta"), torch.ones(3), 1.0], ids=["meta", "shape", "number"]
)
def test_a_whole_state_without_numbers_is_refused(wrong):
    segments, buffer = whole_buffer()
    opt = Lamb(segments.named_parameters())
    buffer.grad = torch.ones_like(buffer)
    opt.step()
    state = flat.full_state_dict(opt)
    state["state"][0]["exp_avg"] = wrong
    with pytest.raises(StateError, match=r"'exp_avg' of first\.embed"):
        flat.load_full_state_dict(opt, state)


@pytest.mark.parametrize(
    "now", [torch.ones(2, 2), torch.ones(5), torch.ones(8)[::2]], ids=["matrix", "longer", "strided"]
)
def test_a_buffer_keeps_the_length_that_was_described(now):
    buffer = nn.Parameter(torch.ones(4))
    opt = Lamb(Segments({buffer: [Stretch("w", (2, 2), 0, 4)]}).named_parameters())
    buffer.data = buffer.grad = now
    with pytest.raises(ParameterError, match="a flat buffer of 4 elements"):
        opt.step()


# ---- states


def whole_buffer() -> tuple[Segments, nn.Parameter]:
    model = named(Irregular(0, DOUBLE))
    buffer = nn.Parameter(torch.cat([p.detach().flatten() for p in model.values()]))
    return Segments({buffer: [(name, tuple(p.shape), 0, p.numel()) for name, p in model.items()]}), buffer


def test_whole_states_do_not_fit_by_load_state_dict():
    segments, buffer = whole_buffer()
    opt = Lamb(segments.named_parameters())
    buffer.grad = torch.ones_like(buffer)
    opt.step()
    state = opt.state_dict()
    state["state"][0] = {**state["state"][0], "exp_avg": torch.ones(11, 6)}
    with pytest.raises(StateError, match="load_full_state_dict"):
        opt.load_state_dict(state)


def test_a_whole_state_that_does_not_fit_changes_nothing():
    """Also beside DeepSpeed, which takes the buffers out of the groups between steps."""
    segments, buffer = whole_buffer()
    opt = Lamb(segments.named_parameters())
    buffer.grad = torch.ones_like(buffer)
    opt.step()
    state, before = flat.full_state_dict(opt), copy.deepcopy(opt.state[buffer])
    opt._stepper.members.buffers = [opt.param_groups[0]["params"]]
    opt.param_groups[0]["params"] = out = []
    state["state"][1]["step"] = torch.tensor(7)
    with pytest.raises(StateError, match=r"have taken \[1, 7\] steps, but a flat buffer has one count"):
        flat.load_full_state_dict(opt, state)
    assert opt.param_groups[0]["params"] is out
    assert all(torch.equal(x, before[key]) for key, x in opt.state[buffer].items())


def _asked_by_pytorch(front: Any, orig: bool) -> tuple[list[str], bool]:
    """What is said to FSDP1 and torch.distributed.checkpoint, asked for the state, and whether ours has all tensors."""
    model = fsdp1(Small(torch.float32), use_orig_params=orig)
    opt = front(flat.from_fsdp1(model).named_parameters(), lr=0.01)
    model(batches(1)[0]).backward()
    opt.step()
    said = []
    for ask in (
        lambda: FullyShardedDataParallel.optim_state_dict(model, opt),
        lambda: FullyShardedDataParallel.full_optim_state_dict(model, opt),
        lambda: get_optimizer_state_dict(model, opt),
        opt.state_dict,
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            try:
                ask()
            except StateError as problem:
                said.append(str(problem))
    names = flat.full_state_dict(opt)["param_groups"][0]["param_names"]
    return said, sorted(names) == sorted(named(Small(torch.float32)))


@pytest.mark.parametrize(("front", "orig"), [(Adafactor, True), (Lamb, False)])
def test_pytorch_cannot_make_whole_states_and_is_told_what_can(ranks, front, orig):
    """FSDP1 fails at what does not lie as the parameter does, and on a CPU it returns exp_avg_sq as exp_avg."""
    for said, has_all in ranks.run(2, _asked_by_pytorch, front, orig):
        assert has_all
        assert len(said) == 4
        assert all("flat.full_state_dict(optimizer)" in one for one in said), said


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_a_copy_does_not_know_what_it_holds(copied):
    opt = copied(Lamb(whole_buffer()[0].named_parameters()))
    [p] = opt.parameters()
    p.grad = torch.ones_like(p)
    assert not opt._step_supports_amp_scaling  # read by trainers, to whom errors of the step say nothing
    with pytest.raises(ParameterError, match="is a copy of a flat buffer"):
        opt.step()


# ---- few bytes


def _in_bits(options: Mapping[str, Any], flat_: bool) -> tuple[dict[str, Any], list[str]]:
    """Weights and state in few bits after some steps, and what was warned of."""
    params: Any = dict(Model(0).named_parameters())
    if flat_:
        world, rank = dist.get_world_size(), dist.get_rank()
        each = {name: [i * p.numel() // world for i in (rank, rank + 1)] for name, p in params.items()}
        described = [[Stretch(name, tuple(params[name].shape), *ends, 0)] for name, ends in each.items()]
        segments = Segments({nn.Parameter(flats.filled(one, params, torch.bfloat16)): one for one in described})
    blocks = {"even": Blocks((4, 12))}
    opt = AdamW(segments.named_parameters() if flat_ else params.items(), lr=0.01, blocks=blocks, **options)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for t in range(3):
            grads = dict(Model(100 + t).named_parameters())
            if flat_:
                flats.given(segments, described, grads)
            for name, p in () if flat_ else params.items():
                p.grad = grads[name].detach().clone()
            opt.step()
    parts = flats.whole(opt, segments) if flat_ else {**params, **state_of(opt, params)}
    return {name: numbers(x).copy() for name, x in parts.items()}, [str(one.message) for one in warned]


RANDOM = {"rounding": "stochastic", "state_dtype": "bfloat16", "seed": 3}


@pytest.mark.parametrize("master_weights", [False, "split24"])
def test_random_bits_are_those_of_the_whole_tensor(ranks, master_weights):
    """AdamW asks for no sums, so every bit is that of one process."""
    options = {**RANDOM, "master_weights": master_weights}
    wanted, _ = _in_bits(options, False)
    for found, warned in ranks.run(3, _in_bits, options, True):
        assert not warned
        assert all((x == wanted[name].reshape(x.shape)).all() for name, x in found.items())


def test_groups_of_8_bits_become_floats_and_a_warning_says_so(ranks):
    wanted, _ = _in_bits({}, False)
    for found, warned in ranks.run(2, _in_bits, {"state_dtype": "int8"}, True):
        assert any("'exp_avg' of odd is stored in float32 instead of 8 bits" in one for one in warned)
        assert all((x == wanted[name].reshape(x.shape)).all() for name, x in found.items())
