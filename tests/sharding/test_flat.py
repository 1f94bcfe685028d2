"""Flat buffers that hold stretches of tensors are stepped as one process steps the tensors."""

from __future__ import annotations

import copy
import pickle
import random
from math import prod
from typing import Any

import pytest
import torch
from sharding.flats import FLATS
from sharding.models import FRONTS, TOLERANCE, Blend, Irregular, close, named, same
from sharding.test_trajectories import alone, shared_stats
from torch import nn

from layerwise.errors import ParameterError, StateError
from layerwise.torch import Adafactor, Lamb, Segments, Stretch, flat, param_groups
from layerwise.torch.sharding._stretches import boxes
from sharding import flats, runs

fronts = pytest.mark.parametrize("front", FRONTS)
each_layout = pytest.mark.parametrize("layout", FLATS)
DOUBLE = torch.float64


def check(ranks: Any, front: Any, layout: str, dtype: torch.dtype, **options: Any) -> None:
    found = shared_stats(ranks.run(FLATS[layout][0], flats.stepped, front, layout, dtype, options))
    close(found[0], alone(front, dtype, **options), TOLERANCE[dtype], (layout, options))
    for other in found[1:]:
        same(other, found[0])


@pytest.mark.parametrize("seed", range(50))
def test_stretches_are_boxes(seed):
    draw = random.Random(seed)
    shape = tuple(draw.randint(1, 5) for _ in range(draw.randint(1, 4)))
    numbers = torch.arange(prod(shape))
    start = draw.randint(0, prod(shape))
    stretch = numbers[start : draw.randint(start, prod(shape))]
    found = list(boxes(shape, start, start + len(stretch)))
    for box in found:
        place = tuple(slice(at, at + n) for at, n in zip(box.origin, box.size, strict=True))
        assert torch.equal(box.view(stretch), numbers.view(shape)[place])
    assert torch.equal(torch.cat([numbers[:0], *(box.view(stretch).flatten() for box in found)]), stretch)
    assert len(found) < 2 * len(shape)


@each_layout
@fronts
@pytest.mark.kinds("rows and columns", "factored", "numbers of a layer")
@pytest.mark.thinned(2, 4)
def test_layouts(ranks, front, layout):
    check(ranks, front, layout, DOUBLE)


@pytest.mark.parametrize("layout", ["one flat buffer on 4", "interleaved"])
@fronts
@pytest.mark.thinned(1, 3)
def test_by_the_rule(ranks, front, layout):
    check(ranks, front, layout, DOUBLE, fused=False)


@fronts
@pytest.mark.thinned(1, 2)
def test_in_buckets(ranks, front):
    found = shared_stats(ranks.run(4, flats.in_buckets, front, "one flat buffer on 4", 40))
    close(found[0], alone(front, DOUBLE), TOLERANCE[DOUBLE])


@pytest.mark.parametrize("layout", ["one flat buffer", "a flat buffer each"])
@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1, 2)
def test_the_norm_of_all_gradients(ranks, front, layout):
    check(ranks, front, layout, DOUBLE, max_grad_norm=0.5)


@pytest.mark.parametrize("factored", ["largest", (0, 1), ((0,), (1, 2)), False], ids=str)
def test_factoring(ranks, factored):
    check(ranks, Adafactor, "one flat buffer on 4", DOUBLE, factored=factored)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@fronts
@pytest.mark.thinned(1, 2)
def test_dtypes(ranks, front, dtype):
    check(ranks, front, "one flat buffer", dtype, master_weights=dtype is torch.bfloat16)


def test_several_rules(ranks):
    check(ranks, Blend, "a flat buffer each", DOUBLE)


@pytest.mark.parametrize(("front", "rounds"), [(Lamb, 1), (Adafactor, 2)])
def test_one_collective_a_round(ranks, front, rounds):
    for steps in ranks.run(2, flats.sent, front, "one flat buffer"):
        assert [name for name, _ in steps[-1]] == ["allreduce_"] * rounds


# ---- in few bits


@pytest.mark.parametrize("master_weights", [False, "split24"])
def test_random_bits_are_those_of_the_whole_tensor(ranks, master_weights):
    """AdamW asks for no sums, so every bit is that of one process."""
    options = {"rounding": "stochastic", "state_dtype": "bfloat16", "seed": 3, "master_weights": master_weights}
    wanted, _ = flats.in_bits(options, None)
    for found, warned in ranks.run(3, flats.in_bits, options, "equal"):
        assert not warned
        close_bits(found, wanted)


def close_bits(found: Any, wanted: Any) -> None:
    for part in ("weights", "state"):
        same({part: found[part]}, {part: {name: wanted[part][name] for name in found[part]}})


def test_groups_of_8_bits_become_floats_and_a_warning_says_so(ranks):
    wanted, _ = flats.in_bits({}, None)
    for found, warned in ranks.run(2, flats.in_bits, {"state_dtype": "int8"}, "equal"):
        assert any("'exp_avg' of odd is stored in float32 and not in 8 bits" in one for one in warned)
        close_bits(found, wanted)


# ---- checkpoints


@pytest.fixture(scope="module")
def after_two_steps(ranks):
    def made(front: Any) -> tuple[Any, Any, Any]:
        states = ranks.run(4, flats.saved, front, "one flat buffer on 4", DOUBLE, 2)
        whole = runs.stepped(front, None, DOUBLE, {}, steps=3)
        return (*states[0], whole)

    return made


@pytest.mark.parametrize(
    ("world", "layout"), [(1, None), (2, "fsdp on 2"), (2, "interleaved"), (3, "a flat buffer each")]
)
@fronts
@pytest.mark.thinned(1, 2)
def test_goes_on_with_the_same_numbers(ranks, after_two_steps, front, world, layout):
    """Two steps on four ranks, and the third one elsewhere."""
    state, weights, wanted = after_two_steps(front)
    found = shared_stats(ranks.run(world, flats.resumed, front, layout, DOUBLE, state, weights, 2))
    close(found[0], wanted, TOLERANCE[DOUBLE], layout)


def test_a_whole_state_is_that_of_one_process():
    """Its groups and names too, so that load_state_dict of any optimizer takes it."""
    opt = Lamb(list(named(Irregular(0, DOUBLE)).items()))
    segments, _ = whole_buffer()
    found = flat.full_state_dict(Lamb(segments.named_parameters()))
    assert found["param_groups"] == opt.state_dict()["param_groups"]


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


@pytest.mark.parametrize("orig", [True, False])
@pytest.mark.parametrize("front", [Lamb, Adafactor])
def test_pytorch_cannot_make_whole_states_of_it(ranks, front, orig):
    """FSDP1 fails at what does not lie as the parameter does, and on a CPU it returns exp_avg_sq as exp_avg."""
    for *said, names, own in ranks.run(2, flats.asked_by_pytorch, front, orig):
        assert (names, own) == ("True", "True")
        assert len(said) == 3
        assert all(one.startswith("StateError") and "flat.full_state_dict(optimizer)" in one for one in said), said


@pytest.mark.parametrize("name", ["__main__", "torch.distributed", "my.torch.distributed.checkpoint", None])
def test_everybody_else_gets_the_state_of_a_rank(name):
    opt = Lamb(whole_buffer()[0].named_parameters())
    within = {"ask": opt.state_dict, "__name__": name}
    assert eval("ask()", within)["param_groups"]  # noqa: S307


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_a_copy_does_not_know_what_it_holds(copied):
    segments, _ = whole_buffer()
    opt = copied(Lamb(segments.named_parameters()))
    [p] = opt.parameters()
    p.grad = torch.ones_like(p)
    assert not opt._step_supports_amp_scaling  # read by trainers, to whom errors of the step say nothing
    with pytest.raises(ParameterError, match="is the copy of a flat buffer"):
        opt.step()


@each_layout
def test_a_scaler_is_told_what_the_step_will_find(ranks, layout):
    for flag, shared in ranks.run(FLATS[layout][0], flats.flagged, layout):
        assert flag is shared


# ---- mistakes and failures

MISTAKES = {
    "overlap": "ranks 0 and 1 both hold its elements 8 to 10",
    "a gap": "no rank holds its elements 10 to 12",
    "another shape": "different shapes",
    "another order": "in other orders",
    "another buffer": "1 on rank 0, 2 on rank 1",
    "beyond the tensor": "has 24",
    "beyond the buffer": "lie on others, or beyond its 20",
    "no shape": "must be five things",
}


@pytest.mark.parametrize("which", MISTAKES)
def test_descriptions_that_do_not_fit_together(ranks, which):
    for kind, message, described in ranks.run(2, flats.mistaken, which):
        assert kind in ("SynchronizationError", "ParameterError")
        assert MISTAKES[which] in message
        assert not described


@pytest.mark.parametrize(("where", "skipped"), [("padding", 0), ("a stretch", 1)])
def test_skipping(ranks, where, skipped):
    """What lies between stretches is nan here, and nobody's gradient."""
    for count, kept in ranks.run(2, flats.skipping, where):
        assert (count, all(kept)) == (skipped, bool(skipped))


def test_a_rank_that_dies(ranks):
    found = ranks.outcomes(3, flats.dying, "a flat buffer each", timeout=20.0)
    assert found[1].error == "died"
    assert all(found[i].error not in ("", "died") for i in (0, 2))


def test_a_buffer_has_the_length_that_was_described():
    buffer = nn.Parameter(torch.ones(4))
    opt = Lamb(Segments({buffer: [Stretch("w", (2, 2), 0, 4)]}).named_parameters())
    buffer.data = torch.ones(2, 2)
    buffer.grad = torch.ones(2, 2)
    with pytest.raises(ParameterError, match="a flat buffer of 4 elements"):
        opt.step()


def test_a_buffer_that_is_described_again_holds_something_else():
    buffer = nn.Parameter(torch.ones(16))
    opt = Lamb(Segments({buffer: [Stretch("a", (8,), 0, 8), Stretch("b", (8,), 0, 8)]}).named_parameters(), lr=0.1)
    buffer.grad = torch.ones(16)
    opt.step()
    assert opt.stats().keys() == {"a", "b"}
    Segments({buffer: [Stretch("w", (4, 4), 0, 16)]})
    opt.step()
    assert opt.stats().keys() == {"w"}


def test_a_rank_that_holds_nothing_takes_part(ranks):
    found = ranks.run(2, flats.with_nothing)
    assert found[0] == found[1] == (2, 2)


def test_exemptions_follow_the_whole_tensor():
    """A matrix is one in groups by dimensions, although its stretch is none."""
    model = nn.Linear(3, 2)
    model.weight.data, model.bias.data = model.weight.data.flatten(), model.bias.data.clone()
    Segments({model.weight: [("weight", (2, 3), 0, 6)], model.bias: [("bias", (2,), 0, 2)]})
    groups = param_groups(model, no_decay=[1])
    assert [[name for name, _ in group["params"]] for group in groups] == [["weight"], ["bias"]]
    assert "2×3" in str(groups)


@pytest.mark.parametrize("layout", ["one flat buffer on 4", "interleaved"])
@pytest.mark.parametrize("front", [Lamb, Adafactor])
def test_the_same_bits(ranks, front, layout):
    """Exact sums do not depend on where a tensor is cut, nor on how many boxes of it a rank has."""
    options = {"reproducible": True, "max_grad_norm": 0.5}
    found = shared_stats(ranks.run(FLATS[layout][0], flats.stepped, front, layout, torch.float32, options))
    same(found[0], alone(front, torch.float32, **options))
