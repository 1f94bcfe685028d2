"""Ranks that disagree about a step find it out together: all raise and nothing has changed, and none waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cases import CASES
from sharding.cells import (
    CLIP,
    MAY_SKIP,
    NAME,
    ODD,
    Found,
    Lying,
    Row,
    agree,
    alone,
    in_buckets_of,
    with_nan,
    world_of,
)
from sharding.counting import NAMESPACES
from sharding.models import FRONT_OF, FRONTS, Blend, copies, local, measured, skipping, unchanged
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from layerwise.engines.compiled import _native
from layerwise.errors import LayerwiseError
from layerwise.torch import Lamb
from layerwise.torch.sharding import _agreement

fronts = pytest.mark.parametrize("front", FRONTS)
ASKING = [FRONT_OF[case.name] for case in CASES if case.rounds]  # of those, some send more than one message
TOGETHER = "SynchronizationError"
OVER_REPLICAS = ["hybrid", "hybrid in part"]  # the replicas of ranks that hold parts agree as those do


def is_odd() -> bool:
    return dist.get_rank() == ODD


# ---- what can be otherwise on one rank


def _no_gradients(opt: Any, params: dict[str, Any]) -> None:
    for p in params.values():
        p.grad = None


def _option(name: str, value: Any) -> Callable[..., None]:
    return lambda opt, params: opt.param_groups[0].update({name: value})


def _attribute(name: str, value: Any) -> Callable[..., None]:
    return lambda opt, params: setattr(opt, name, value)


def _count(opt: Any, params: dict[str, Any]) -> None:
    opt.state[params[NAME]]["step"] += 1


def _state(opt: Any, params: dict[str, Any], plain: bool) -> None:
    """All of a state where there should be a part of it, or something else."""
    state = opt.state[params[NAME]]
    key = next(key for key in state if key != "step")
    state[key] = torch.zeros(state[key].shape if plain else (3, 2, 1), dtype=state[key].dtype)


def _arrived(opt: Any, params: dict[str, Any]) -> None:
    """A gradient that lies like its parameter already."""
    p = params[NAME]
    p.grad = DTensor.from_local(
        torch.zeros_like(local(p)), p.device_mesh, p.placements, shape=p.shape, stride=p.stride()
    )


def _failing_hook(opt: Any, params: dict[str, Any]) -> None:
    opt.hook = opt.register_step_pre_hook(lambda *_: 1 / 0)


class Change(NamedTuple):
    act: Callable[[Any, dict[str, Any]], None]
    said: str  # to all other ranks
    own: str = TOGETHER  # the error of the odd rank


CHANGES = {
    "skip_nonfinite": Change(lambda opt, params: skipping(opt), "skip_nonfinite is"),
    "found_inf": Change(_attribute("found_inf", torch.tensor(0.0)), "found_inf of a GradScaler is"),
    "grad_scale": Change(_attribute("grad_scale", torch.tensor(4.0)), "grad_scale is"),
    "failing hook": Change(_failing_hook, "(ZeroDivisionError: ", "ZeroDivisionError"),
    "no gradient": Change(lambda opt, params: setattr(params[NAME], "grad", None), f"the gradient of '{NAME}' is"),
    "no gradients": Change(_no_gradients, "the gradient of"),
    "lr": Change(_option("lr", 0.5), "lr"),
    "weight decay": Change(_option("weight_decay", 0.5), "weight_decay"),
    "an option": Change(_option("max_grad_value", 0.5), "max_grad_value"),
    "step count": Change(_count, "step"),
    "broken state": Change(partial(_state, plain=False), "(StateError: ", "StateError"),
    "plain state": Change(partial(_state, plain=True), "(StateError: ", "StateError"),
    "forbidden lr": Change(_option("lr", -1.0), "(HyperparameterError: ", "HyperparameterError"),
    "missing option": Change(
        lambda opt, params: opt.param_groups[0].pop("maximize"), "(HyperparameterError: ", "HyperparameterError"
    ),
}
REDISTRIBUTED = {**CHANGES, "arrived": Change(_arrived, "the gradient of")}  # where gradients are


@contextmanager
def changed(change: Change, opt: Any, params: dict[str, Any]) -> Iterator[None]:
    """While this is so on this rank."""
    grads, group = {name: p.grad for name, p in params.items()}, dict(opt.param_groups[0])
    state = {key: x.clone() for key, x in opt.state[params[NAME]].items()}
    change.act(opt, params)
    yield
    skipping(opt, False)
    for name in ("found_inf", "grad_scale"):
        opt.__dict__.pop(name, None)
    if hook := opt.__dict__.pop("hook", None):
        hook.remove()
    opt.param_groups[0].update(group)
    opt.state[params[NAME]] = state
    for name, p in params.items():
        p.grad = grads[name]


def tried(opt: Any, params: dict[str, Any]) -> tuple[str, bool]:
    """The error of a step, and whether it left weights and state as they were."""
    before = copies(opt, params)
    try:
        opt.step()
    except (LayerwiseError, KeyError, ZeroDivisionError) as problem:
        return f"{type(problem).__name__}: {problem}", unchanged(opt, params, before)
    return "", unchanged(opt, params, before)


# ---- disagreement in a step


def _through(front: Any, layout: str, partial_sums: bool, wanted: Any) -> tuple[dict[str, tuple[str, bool]], Found]:
    """What comes of every change after the second step; a step that all agree on follows each."""
    lying = Lying(layout)
    opt, said = lying.optimizer(front), {}
    changes = list(REDISTRIBUTED.items() if partial_sums else CHANGES.items())
    for i in range(2 + len(changes)):
        lying.give(i % 4)
        if partial_sums:
            lying.in_partial_sums()
        if i >= 2:
            name, change = changes[i - 2]
            with changed(change, opt, lying.params) if is_odd() else nullcontext():
                said[name] = tried(opt, lying.params)
        opt.step()
    return said, lying.found(opt, wanted)


@pytest.mark.parametrize(
    ("front", "layout", "partial_sums"),
    [
        *((front, "fsdp on 2", False) for front in FRONTS),
        # How a report travels does not depend on what else is in it.
        *((Lamb, layout, False) for layout in OVER_REPLICAS),
        pytest.param(Lamb, "two-dimensional", False, marks=pytest.mark.slow),
        (Lamb, "tensor parallel on 2", True),
    ],
)
@pytest.mark.thinned(2, 4)
def test_all_ranks_raise_change_nothing_and_take_the_next_step_as_usual(ranks, front, layout, partial_sums):
    changes, world = REDISTRIBUTED if partial_sums else CHANGES, world_of(layout)
    wanted = alone(front, Row(None, steps=2 + len(changes)))._replace(tolerance=1e-9)
    found = ranks.run(world, _through, front, layout, partial_sums, wanted)
    for name, change in changes.items():
        for rank, (said, _) in enumerate(found):
            error, untouched = said[name]
            assert error.partition(":")[0] == (change.own if rank == ODD else TOGETHER), (name, error)
            assert untouched, name
        told, own = found[0][0][name][0], found[ODD][0][name][0]
        if world == 2:  # beyond one group, ranks hear that there is something, and not what
            together = f"{TOGETHER}: ranks 0 and {ODD} disagree about the step: "
            begins = together if change.own == TOGETHER else f"{TOGETHER}: rank {ODD} cannot take the step ("
            assert told.startswith(begins), (name, told)
            assert change.said in told, (name, told)
            assert change.own == TOGETHER or own.rstrip(".") in told, (name, told)
            assert "nothing was stepped" in told
    agree([one for _, one in found], wanted)


def _at_first(front: Any, layout: str, wanted: Any) -> tuple[str, int, Found]:
    lying = Lying(layout)
    opt = lying.optimizer(front)
    lying.give(0)
    group = opt.param_groups[0]
    lr, group["lr"] = group["lr"], group["lr"] + dist.get_rank()
    (error, untouched), group["lr"] = tried(opt, lying.params), lr
    kept = len(opt.state) + (not untouched)
    for i in range(4):
        lying.give(i)
        opt.step()
    return error, kept, lying.found(opt, wanted)


@fronts
@pytest.mark.thinned(1, 2)
def test_a_first_step_that_is_not_taken_leaves_no_state(ranks, front):
    wanted = alone(front, Row(None, steps=4))
    errors, kept, found = zip(*ranks.run(2, _at_first, front, "fsdp on 2", wanted), strict=True)
    assert all(one.startswith(TOGETHER) for one in errors)
    assert kept == (0, 0)
    agree(found, wanted)


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of all ranks, and what the odd one has otherwise
    "engine": (CLIP, {"fused": False}),
    **dict.fromkeys(["buckets", "later buckets"], ({"fused": False}, {})),
}
# The sizes of buckets in the second step, on most ranks and on the odd one. The first bucket of 40 is that of 42.
BUCKETS = {"buckets": (1 << 27, 40), "later buckets": (40, 42)}


def _otherwise(layout: str, which: str, in_group: bool) -> tuple[str, bool]:
    """The error of a step by an optimizer that was made otherwise on one rank, and whether it changed nothing."""
    lying, odd = Lying(layout), is_odd()
    every, own = OPTIONS.get(which, ({}, {}))
    options = {**every, **(own if odd else {}), **({"model_group": dist.group.WORLD} if in_group else {})}
    version = patch.object(_agreement, "__version__", "0.0.1")
    with version if odd and which == "version" else nullcontext():
        opt = lying.optimizer(Blend if which == "rule" else Lamb, options)
        lying.give(0)
        if odd and which == "rule":
            group = next(group for group in opt.param_groups if group["rule"] == "Lamb")
            group.update(
                opt._stepper.groups.filled({"rule": "AdamW", "lr": group["lr"], "weight_decay": group["weight_decay"]})
            )
        if which == "model_group":
            opt.step()
            opt.model_group = None if odd else opt.model_group
        if which not in BUCKETS:
            return tried(opt, lying.params)
        with in_buckets_of(BUCKETS[which][0]):
            opt.step()
        lying.give(1)
        with in_buckets_of(BUCKETS[which][odd]):
            return tried(opt, lying.params)


by_two_engines = pytest.mark.skipif(_native is None, reason="there is one engine alone")


@pytest.mark.parametrize(
    ("layout", "which", "in_group", "words"),
    [
        ("fsdp on 2", "version", False, ["the version of layerwise is", "0.0.1"]),
        ("fsdp on 2", "rule", False, ["the rule of", "Lamb", "AdamW"]),
        pytest.param(
            *("fsdp on 2", "engine", False, ["the engine is the compiled engine on the first and the rule"]),
            marks=by_two_engines,
        ),
        ("fsdp on 2", "model_group", True, ["model_group is present on the first and missing"]),
        ("two-dimensional", "model_group", True, ["model_group is present on the first and missing"]),
        *(("fsdp on 2", which, False, ["the engine is"]) for which in BUCKETS),
    ],
)
def test_ranks_whose_optimizers_differ_raise(ranks, layout, which, in_group, words):
    """Nobody waits for the odd one, neither those that share parts with it nor those that hear of it from them."""
    found = ranks.run(world_of(layout), _otherwise, layout, which, in_group)
    assert all(error.startswith(TOGETHER) and untouched for error, untouched in found)
    assert all(word in found[ODD][0] for word in words)


def _made_again(front: Any, layout: str, loaded: bool, wanted: Any) -> tuple[str, bool, Found]:
    """One rank makes its optimizer again; with what the old one had, it goes on, and else with the old one."""
    lying = Lying(layout)
    opt = old = lying.optimizer(front)
    error, untouched = "", True
    for i in range(4):
        lying.give(i)
        if i == 2:
            if is_odd():
                opt = lying.optimizer(front)
            if is_odd() and loaded:
                opt.load_state_dict(old.state_dict())
            if not loaded:
                before = copies(old, lying.params)
                error, _ = tried(opt, lying.params)
                opt, untouched = old, unchanged(old, lying.params, before)
        opt.step()
    return error, untouched, lying.found(opt, wanted)


@fronts
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize(
    ("layout", "loaded"),
    # Of three: where a single one is left, what it has sent meanwhile is its own again.
    [*((layout, False) for layout in ("fsdp on 2", "several meshes", *OVER_REPLICAS)), ("fsdp on 3", True)],
)
def test_an_optimizer_that_one_rank_makes_again_goes_on_once_it_has_its_state(ranks, front, layout, loaded):
    """It has no state, and has sent nothing yet, while the others send sums."""
    wanted = alone(front, Row(None, steps=4))
    errors, untouched, found = zip(
        *ranks.run(world_of(layout), _made_again, front, layout, loaded, wanted), strict=True
    )
    assert {one.partition(":")[0] for one in errors} == ({""} if loaded else {TOGETHER})
    assert all(untouched)
    agree(found, wanted)


# ---- closures


def _with_closures() -> None:
    """The closure of the third step fails on one rank."""
    lying = Lying("fsdp on 2")
    opt = lying.optimizer(Lamb)

    def loss(fails: bool = False) -> float:
        if fails:
            raise ArithmeticError
        dist.all_reduce(torch.ones(3))
        return 1.0

    for i in range(3):
        lying.give(i)
        opt.step(partial(loss, i == 2 and is_odd()))


def test_a_closure_that_fails_on_one_rank_is_its_error_alone(ranks):
    """The others wait for a collective of its closure, and for no report."""
    found = ranks.outcomes(2, _with_closures, timeout=6.0)
    assert [one.error for one in found] == ["RuntimeError", "ArithmeticError"]


# ---- skipped steps


def _measured_last(front: Any) -> tuple[Any, Any, Any]:
    """The measurements of a step, after one that is skipped, and after one that leaves out a parameter."""
    lying = Lying("fsdp on 2")
    opt, found = lying.optimizer(front, MAY_SKIP), []
    for i in (0, 2, 3):
        lying.give(i, (NAME,) if i == 3 else ())
        with_nan(lying, opt, i)
        opt.step()
        found.append(measured(opt))
    return found[0], found[1], {key: x for key, x in found[2].items() if key.startswith(f"{NAME} ")}


@fronts
@pytest.mark.thinned(1, 2)
def test_a_skipped_step_leaves_the_measurements_of_the_last_one(ranks, front):
    for taken, skipped, of_absent in ranks.run(2, _measured_last, front):
        np.testing.assert_equal(skipped, taken)
        np.testing.assert_equal(of_absent, {key: taken[key] for key in of_absent})
        assert of_absent


# ---- death


class Dying(TorchDispatchMode):
    """Ends the process when it is about to send something for the first time, or a later one."""

    def __init__(self, message: int) -> None:
        super().__init__()
        self.left = message

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= func.namespace in NAMESPACES
        if not self.left:
            os._exit(7)
        return func(*args, **(kwargs or {}))


def _dying(front: Any, layout: str, options: Any = None, elements: int = 1 << 27, message: int = 1) -> None:
    lying = Lying(layout)
    opt = lying.optimizer(front, options)
    with in_buckets_of(elements):
        for i in range(4):
            lying.give(i)
            with Dying(message) if i == 2 and is_odd() else nullcontext():
                opt.step()


IN_BUCKETS = {"fused": False}, 40, 3


@pytest.mark.parametrize("front", ASKING)
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize(
    ("layout", "given"),
    [
        ("fsdp on 3", ()),
        pytest.param("a flat buffer each", (), marks=pytest.mark.slow),
        pytest.param("fsdp on 3", IN_BUCKETS, marks=pytest.mark.slow),
    ],
    ids=["at first", "flat", "in buckets"],
)
def test_if_a_rank_dies_in_a_step_the_others_raise(ranks, front, layout, given):
    found = ranks.outcomes(3, _dying, front, layout, *given)
    assert found[ODD].error == "died"
    assert "exit code 7" in found[ODD].traceback
    assert all(one.error not in ("", "died") for i, one in enumerate(found) if i != ODD)
