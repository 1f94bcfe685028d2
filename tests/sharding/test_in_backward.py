"""Steps in the backward pass are those after it, taken module by module, by all ranks or by none.

Where they could not be that, they are refused before a weight has moved: no replica drifts away in silence.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sharding.cells import DOUBLE, ODD, TOLERANCE
from sharding.counting import Collectives
from sharding.layouts import mesh_of
from sharding.models import FRONTS, Blend, Small, copies, local, measured, named, numbers, skipping, state_of
from sharding.releasing import PROGRAMS, Branching, Model
from sharding.wrappings import WRAPPINGS, batches, fsdp1, fsdp2, optimizer_of, tensor_parallel, zero_redundancy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from layerwise.errors import LayerwiseError
from layerwise.torch import Adafactor, Lamb, Lars, step_in_backward
from layerwise.torch.step._stepper import Stepper

TOGETHER = "SynchronizationError"
REST = "the rest"
ON_TWO = "FSDP2, resharded after forward"
# For the library.
LIKE_OTHERS = {"FSDP2, resharded after forward", "FSDP2, not resharded", "FSDP2, offloaded", "graph kept", "wide"}

# ---- the steps are those after the pass


def _trained(front: Any, program: str, options: Any, dtype: torch.dtype, release: bool) -> Any:
    """What a rank has in the end, the gradients left by passes, and of how many modules there were some at a time."""
    how = PROGRAMS[program]
    model = how.wrap(how.model(dtype))
    opt = optimizer_of(front, model, options)
    most = _watched(model)
    if how.unsharded:
        with torch.no_grad():
            model(batches(1)[0])
    handle = step_in_backward(opt, every=how.every) if release else None
    left = []
    for _ in how.passes(model, opt, release):
        left.append(sorted(name for name, p in named(model).items() if p.grad is not None))
        opt.step()
        opt.zero_grad()
    if handle:
        handle.remove()
    params = named(model)
    parts = {name: numbers(x).copy() for name, x in {**params, **state_of(opt, params)}.items()}
    return {**parts, **{f"{name} of stats": x for name, x in measured(opt).items()}}, left, max(most, default=0)


def _watched(model: Model) -> list[int]:
    """The numbers of modules of which gradients are there, whenever one more has arrived."""
    found: list[int] = []
    held: dict[int, int] = {}
    for i, module in enumerate([model.blocks[0], model.blocks[1], model]):
        for p in module.parameters():
            held.setdefault(id(p), i)
    params = list(model.parameters())
    for p in params:
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(
                lambda _: found.append(len({held[id(p)] for p in params if p.grad is not None}))
            )
    return found


def _compared(front: Any, program: str, options: Any, dtype: torch.dtype, tolerance: float) -> Any:
    """Where steps in the pass differ from those after it, what was left, at how many modules; and bits of weights."""
    ours, left, most = _trained(front, program, options, dtype, True)
    theirs, *_ = _trained(front, program, options, dtype, False)
    assert ours.keys() == theirs.keys()
    size = {name: tolerance * max(np.max(np.abs(x), initial=0), 1e-3) for name, x in theirs.items()}
    off = [n for n, x in theirs.items() if not np.allclose(ours[n], x, 0, size[n], equal_nan=True)]
    return off, left, most, {name: x.tobytes() for name, x in ours.items()}


def check(ranks: Any, front: Any, program: str, dtype: torch.dtype = DOUBLE, own: Any = (), **options: Any) -> Any:
    # Passes make more of the last digit, in which sums of tensors that step together may differ.
    tolerance = 1e-5 if "mixed precision" in program else 1e-9 if dtype == DOUBLE else 10 * TOLERANCE[dtype]
    found = ranks.run(PROGRAMS[program].world, _compared, front, program, options, dtype, tolerance)
    for off, left, most, _ in found:
        assert off == []
        assert most == PROGRAMS[program].modules
        assert left == [list(own)] * len(left)
    return [bits for *_, bits in found]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(one, marks=pytest.mark.slow if one in LIKE_OTHERS else ())
        for one in sorted(PROGRAMS, key=lambda name: PROGRAMS[name].world)
    ],
)
def test_the_steps_are_those_after_the_pass(ranks, program):
    """And there are gradients of two modules at a time where nothing keeps them."""
    own = {"in part": ["norm.bias", "norm.weight"], "parallel in part": ["blocks.0.up.weight"]}
    first, second, *others = check(ranks, Lamb, program, own=own.get(program, ()))
    if program == "HSDP":
        assert first == others[0] != second == others[1], "replicas end alike"


@pytest.mark.parametrize("front", [*FRONTS, Blend])
@pytest.mark.thinned(2)
def test_of_every_kind_of_optimizer(ranks, front):
    check(ranks, front, "used twice")


@pytest.mark.parametrize("front", [Lamb, Adafactor])
def test_in_few_bytes(ranks, front):
    check(ranks, front, "wide", torch.bfloat16, master_weights="split24", state_dtype="int8", lr=0.01)


# ---- turns


def on_two_meshes(model: Model) -> Model:
    """Each block on a mesh of two processes, and the rest on all."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh_of(2, 2)["inner"])
    return fully_shard(model, mesh=mesh_of(4))


def _per_pass(front: Any, wrap: Any) -> list[tuple[list[str], list[str]]]:
    """The collectives of backward passes and of the steps after them."""
    model, found = wrap(Small(DOUBLE)), []
    opt = optimizer_of(front, model, {})
    step_in_backward(opt)
    for batch in batches(3):
        loss = model(batch)
        with Collectives() as during:
            loss.backward()
        with Collectives() as after:
            opt.step()
        found.append(([name for name, _ in during.seen], [name for name, _ in after.seen]))
    return found


@pytest.mark.parametrize(("front", "rounds", "meshes"), [(Lars, 1, 1), (Lamb, 1, 1), (Lamb, 1, 2), (Adafactor, 2, 1)])
def test_a_module_has_its_turn_of_one_message_a_round_once_the_next_one_is_reduced(ranks, front, rounds, meshes):
    """Over the processes that have parts of this module, and no others."""
    reduced, stepped = "_reduce_scatter_base_", "allreduce_"
    for during, after in ranks.run(2 * meshes, _per_pass, front, [fsdp2, on_two_meshes][meshes - 1])[0][1:]:
        order = [name for name in during if name in (reduced, stepped)]
        assert order == [reduced, reduced, *[stepped] * rounds, reduced, *[stepped] * 2 * rounds]
        assert after == [stepped] * meshes  # that nothing is left is agreed on as well


def _on_two_meshes() -> set[str]:
    """What has moved of two models of one optimizer: half of the ranks use the first, and all use the second."""
    pairs, every = fsdp2(Small(DOUBLE), mesh_of(2, 2)["inner"]), fsdp2(Small(DOUBLE), mesh_of(4))
    both = {f"{which} {name}": p for which, m in (("pairs", pairs), ("every", every)) for name, p in named(m).items()}
    opt = Lamb(list(both.items()), lr=0.1)
    step_in_backward(opt)
    before = copies(opt, both)
    if dist.get_rank() < 2:
        pairs(batches(1)[0]).backward()
    every(batches(1)[0]).backward()
    opt.step()
    return {name.partition(" ")[0] for name, p in both.items() if not torch.equal(local(p), before[name])}


def test_processes_without_a_module_take_no_part_in_its_turn(ranks):
    both = {"pairs", "every"}
    assert ranks.run(4, _on_two_meshes) == [both, both, {"every"}, {"every"}]


# ---- disagreement, errors and death


def released(model: Model, **options: Any) -> tuple[Any, dict[str, Any]]:
    params = named(model)
    opt = Lamb(list(params.items()), lr=0.1, **options)
    step_in_backward(opt)
    return opt, params


def backward(model: Model, params: Mapping[str, Any], batch: Tensor | None = None) -> tuple[str, set[str]]:
    """The error of a pass, and the modules that have moved in it."""
    before, error = {name: local(p).clone() for name, p in params.items()}, ""
    try:
        model(batches(1)[0] if batch is None else batch).backward()
    except LayerwiseError as problem:
        error = f"{type(problem).__name__}: {problem}"
        model.reset_iter_state()
    moved = {name for name, p in params.items() if not torch.equal(local(p), before[name])}
    return error, {".".join(name.split(".")[:2]) if name.startswith("blocks") else REST for name in moved}


def _broken(model: Model, opt: Any, last: bool) -> None:
    """A state of the module that has its turn after another one, or last, when the pass is over."""
    opt.state[opt.param_groups[0]["params"][0] if last else model.blocks[0].up.weight]["exp_avg"] = torch.zeros(3, 2, 1)


# What one rank does, and the error that it has of its own.
CHANGES: dict[str, tuple[Callable[[Model, Any], None], str]] = {
    "lr": (lambda model, opt: opt.param_groups[0].update(lr=0.5), TOGETHER),
    "broken state": (partial(_broken, last=False), "StateError"),
    "broken at the end": (partial(_broken, last=True), "StateError"),
    "clipping": (lambda model, opt: opt.param_groups[0].update(max_grad_norm=1.0), "ContradictionError"),
    "model_group": (lambda model, opt: setattr(opt, "model_group", dist.group.WORLD), "ContradictionError"),
    "skip_nonfinite": (lambda model, opt: skipping(opt), TOGETHER),
    "branch": (lambda model, opt: setattr(model, "which", 1), TOGETHER),
}
STEPPED = {"broken state": {"blocks.1"}, "broken at the end": {"blocks.1", "blocks.0"}}  # before that is known


def _through(changes: Any, wrapping: str, model: Any) -> dict[str, tuple[str, set[str], set[str]]]:
    """The error of a pass under each change and what had moved by then, and what the next pass moves."""
    model = WRAPPINGS[wrapping][1](model(DOUBLE))
    opt, params = released(model)
    assert not backward(model, params)[0]
    found = {}
    for name in changes:
        group, state = dict(opt.param_groups[0]), {p: dict(one) for p, one in opt.state.items()}
        if dist.get_rank() == ODD:
            CHANGES[name][0](model, opt)
        error, changed = backward(model, params)
        opt.param_groups[0].update(group)
        opt.state.update(state)
        skipping(opt, False)
        opt.model_group, model.which = None, 0
        opt.zero_grad()
        again, after = backward(model, params)
        assert not again
        opt.step()
        found[name] = error, changed, after
    return found


@pytest.mark.parametrize(
    ("wrapping", "changes", "model"),
    [
        (ON_TWO, [name for name in CHANGES if name != "branch"], Small),
        (ON_TWO, ["branch"], Branching),
        *((wrapping, ["lr", "broken state"], Small) for wrapping in ("HSDP", "TP and FSDP2")),
    ],
    ids=["changes", "branch", "HSDP", "TP and FSDP2"],
)
def test_all_raise_before_the_module_moves_whose_turn_it_is_and_then_go_on(ranks, wrapping, changes, model):
    world = WRAPPINGS[wrapping][0]
    found = ranks.run(world, _through, changes, wrapping, model)
    for name in changes:
        for rank, (error, changed, after) in enumerate(one[name] for one in found):
            assert error.partition(":")[0] == (CHANGES[name][1] if rank == ODD else TOGETHER), (name, error)
            assert changed == STEPPED.get(name, set()), name
            assert {"blocks.0", REST} <= after, name
        assert "nothing of this module was stepped; the modules before it" in found[0][name][0]
    if wrapping == ON_TWO and "lr" in changes:
        told = found[0]["broken state"][0]
        assert f"rank {ODD} cannot take the step (StateError: 'exp_avg' of blocks.0.up.weight" in told
    if "branch" in changes:
        assert "the gradient of 'blocks.0.up.weight' is there on one and missing" in found[0]["branch"][0]


class Flat(nn.Module):
    """A matrix of which the number of entries matters, and the shape does not."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape, dtype=DOUBLE))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight.square().sum() * tokens.numel()


def _otherwise(which: str) -> tuple[str, set[str]]:
    """The error of the first pass where one rank was made otherwise, and what has moved."""
    odd = dist.get_rank() == ODD
    if which == "shape":
        model: Any = fully_shard(Flat(*((6, 4) if odd else (4, 6))), mesh=mesh_of(2))
    else:
        model = fsdp2(Small(DOUBLE))
    opt = Lamb(list(named(model).items()), lr=0.1)
    step_in_backward(opt, every=2 if which == "every" and odd else 1)
    params = named(model)
    if which == "dropped" and odd:
        del opt
    return backward(model, params)


@pytest.mark.parametrize(
    ("which", "own", "said"),
    [("every", TOGETHER, ""), ("shape", TOGETHER, "shape"), ("dropped", "ParameterError", "no longer exists")],
)
def test_ranks_that_were_made_otherwise_step_nothing(ranks, which, own, said):
    """They take other numbers of passes for a step, have other shapes of as many entries, or no optimizer."""
    (told, moved), (error, also) = ranks.run(2, _otherwise, which)
    assert told.startswith(TOGETHER)
    assert error.startswith(own)
    assert said in told
    assert not moved | also


def _skipping() -> tuple[int, set[str], list[str]]:
    """How many turns were skipped, what has moved, and of what there are gradients: one is nan on one rank."""
    model = fsdp2(Small(DOUBLE))

    def spoil(p: Any) -> None:
        if dist.get_rank() == ODD:
            p.grad.to_local().view(-1)[0] = torch.nan

    model.blocks[0].up.weight.register_post_accumulate_grad_hook(spoil)
    opt, params = released(model, skip_nonfinite=True)
    error, changed = backward(model, params)
    assert not error
    opt.step()
    return int(opt.skipped), changed, [name for name, p in params.items() if p.grad is not None]


def test_all_skip_the_module_that_one_cannot_step(ranks):
    assert ranks.run(2, _skipping) == [(1, {"blocks.1", REST}, [])] * 2


def _end(dies: bool) -> None:
    if dies:
        os._exit(7)
    raise ArithmeticError


def _interrupted(dies: bool) -> None:
    """Take passes in the second of which one rank ends, in the middle."""
    model = fsdp2(Small(DOUBLE))
    opt, params = released(model)
    assert not backward(model, params)[0]
    before = copies(opt, params)
    if dist.get_rank() == ODD:
        params["blocks.0.up.weight"].register_post_accumulate_grad_hook(lambda _: _end(dies))
    try:
        model(batches(2)[1]).backward()
    finally:
        moved = {name for name, p in params.items() if not torch.equal(local(p), before[name])}
        assert all(name.startswith("blocks.1") for name in moved)
        del opt


@pytest.mark.parametrize("dies", [True, False])
def test_a_rank_that_ends_in_the_middle_is_an_error_of_all(ranks, dies):
    found = ranks.outcomes(3, _interrupted, dies, timeout=6.0)
    assert found[ODD].error == ("died" if dies else "ArithmeticError")
    assert all(one.error not in ("", "died", "AssertionError") for i, one in enumerate(found) if i != ODD), found


def _stopped(in_a_turn: bool) -> tuple[bool, dict[str, int]]:
    """Whether what should stay did, and step counts after two more steps: Ctrl-C comes on all ranks.

    It comes between a pass and its step, or within the first turn of a pass, which it lets end.
    """
    model = fsdp2(Small(DOUBLE))
    opt, params = released(model)
    batch, step = batches(1)[0], Stepper.step_due
    model(batch).backward()
    before = copies(opt, params)

    def stepped(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return step(*args)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    came = False
    try:
        if in_a_turn:
            with patch.object(Stepper, "step_due", stepped):
                model(batch).backward()
        signal.raise_signal(signal.SIGINT)
        opt.step()
    except KeyboardInterrupt:
        came = True
    finally:
        signal.signal(signal.SIGINT, handler)
    moved = {name for name, x in copies(opt, params).items() if not torch.equal(x, before[name])}
    model.reset_iter_state()
    model.zero_grad()
    for _ in range(2):
        model(batch).backward()
        opt.step()
    kept = all("blocks.1." in name for name in moved) and bool(moved) is in_a_turn and came
    return kept, {name: int(opt.state[p]["step"]) for name, p in params.items()}


@pytest.mark.parametrize("in_a_turn", [True, False])
def test_ctrl_c_waits_for_the_end_of_a_turn(ranks, in_a_turn):
    """So that nothing is half stepped, and the passes after it are as usual."""
    for kept, steps in ranks.run(2, _stopped, in_a_turn):
        assert kept
        assert steps == {name: 3 + (in_a_turn and name.startswith("blocks.1.")) for name in steps}


# ---- what is refused


def _refused() -> list[str]:
    """What is said of sharded parameters, and of optimizers that wrap one of ours, and of that one itself."""
    zero_class = zero_redundancy()
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    said = []

    def attempt(opt: Any, **more: Any) -> None:
        try:
            step_in_backward(opt, **more)
        except LayerwiseError as problem:
            said.append(f"{type(problem).__name__}: {problem}")

    model, bare = fsdp2(Small(DOUBLE)), Small(DOUBLE)
    parallel = tensor_parallel(Small(DOUBLE), mesh_of(2))
    of = partial(Lamb, lr=0.1)
    attempt(of(parallel.named_parameters()))
    attempt(of(model.named_parameters()), alone=True)
    attempt(of(model.named_parameters(), model_group=dist.group.WORLD))
    attempt(of(model.named_parameters(), max_grad_norm=1.0))
    zero = zero_class(bare.parameters(), Lamb, lr=0.1)
    averaging = PostLocalSGDOptimizer(of(bare.parameters()), PeriodicModelAverager(period=2))
    for opt in (zero, zero.optim, averaging, averaging.optim):
        attempt(opt)
    return said


def test_what_cannot_be_stepped_in_the_backward_pass_is_refused(ranks):
    wanted = [
        ("ContradictionError", "no module of fully_shard"),
        ("ContradictionError", "`alone` must be False"),
        ("ContradictionError", "`model_group` must be None"),
        ("ContradictionError", "`max_grad_norm` must be None"),
        *[("HyperparameterError", ""), ("ContradictionError", "")] * 2,
    ]
    for said in ranks.run(2, _refused):
        assert len(said) == len(wanted)
        assert all(one.startswith(kind) and words in one for one, (kind, words) in zip(said, wanted, strict=True)), said


DDP: dict[str, dict[str, Any]] = {
    "as it is": {},
    "bucket views": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "unused parameters": {"find_unused_parameters": True},
}


def _wrapped(wrap: str, options: str, wrapped_first: bool, every: int, alone: bool) -> tuple[list[str], bool]:
    """What is said where a model is wrapped before or after the hooks, and whether a weight has moved."""
    model: Any = Small(DOUBLE)
    before = {name: p.detach().clone() for name, p in named(model).items()}
    wrappers: dict[str, Any] = {"FSDP1": partial(fsdp1, described=False), "FSDP2": fsdp2}
    wrapping = wrappers.get(wrap, lambda model: DistributedDataParallel(model, **DDP[options]))
    said = []
    try:
        wrapped = wrapping(model) if wrapped_first else model
        opt = Lamb((wrapped if wrap != "DDP" else model).named_parameters(), lr=0.1)
        step_in_backward(opt, every=every, alone=alone)
        wrapped = wrapped if wrapped_first else wrapping(model)
        for i in range(2 * every):
            with nullcontext() if wrap != "DDP" or (i + 1) % every == 0 else wrapped.no_sync():
                wrapped(batches(dist.get_rank() + 1)[-1]).backward()
        opt.step()
    except LayerwiseError as problem:
        said.append(f"{type(problem).__name__}: {problem}")
    if wrap == "FSDP1":  # whose pieces are not compared
        return said, False
    whole = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in named(wrapped).items()}
    return said, any(not torch.equal(p, before[name]) for name, p in whole.items())


@pytest.mark.parametrize(
    ("world", "wrap", "options", "wrapped_first", "every", "alone", "words"),
    [
        *((2, "DDP", options, True, 1, False, "alone=True") for options in DDP),
        (2, "DDP", "as it is", True, 3, False, "alone=True"),
        (2, "DDP", "as it is", False, 1, False, "alone=True"),
        *((2, "DDP", "as it is", first, 1, True, "DistributedDataParallel") for first in (True, False)),
        # One process would step twice: DistributedDataParallel gives back a gradient that was freed, as zeros.
        *((1, "DDP", "as it is", first, 1, False, "DistributedDataParallel") for first in (True, False)),
        (2, "FSDP1", "", True, 1, False, ""),
        *((2, wrap, "", False, 1, True, "") for wrap in ("FSDP1", "FSDP2")),
    ],
)
def test_models_that_others_reduce_are_refused_before_a_weight_has_moved(
    ranks, world, wrap, options, wrapped_first, every, alone, words
):
    """All but those that fully_shard has cut up before the optimizer was made."""
    for said, moved in ranks.run(world, _wrapped, wrap, options, wrapped_first, every, alone):
        assert not moved
        assert len(said) == 1
        assert words in said[0]
        assert wrap != "DDP" or said[0].startswith("ContradictionError")


def _of_their_own() -> bool:
    """Whether ranks with models of their own end where each would by steps after the backward pass."""
    ends = []
    for in_backward in (True, False):
        model = Small(DOUBLE)
        opt = Lamb(model.named_parameters(), lr=0.1)
        if in_backward:
            step_in_backward(opt, alone=True)
        for i in range(3):
            model(batches(i + 3 * dist.get_rank() + 1)[-1]).backward()
            opt.step()
            opt.zero_grad()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.allclose(*ends, rtol=1e-10, atol=1e-14)


def test_models_of_their_own_are_stepped_where_each_rank_is_said_to_be_alone(ranks):
    assert ranks.run(2, _of_their_own) == [True, True]
