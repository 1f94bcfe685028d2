"""Ranks that have whole tensors of one model each, as stages of a pipeline, clip by its norm and skip together."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sharding.cells import CLIP, DOUBLE, MAY_SKIP, gradients
from sharding.models import BUSY, FRONTS, Irregular, named, numbers

from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.torch import Adafactor, Lamb

fronts = pytest.mark.parametrize("front", FRONTS)
ODD = "first.embed"  # which one rank has, or all of them together


def stage(of_all: bool) -> dict[str, Any]:
    """The parameters of this rank, or those of the model."""
    each = named(Irregular(0, DOUBLE))
    return (
        each
        if of_all
        else {k: p for k, p in each.items() if (sum(map(ord, k)) + dist.get_rank()) % dist.get_world_size() == 0}
    )


def _stepped(front: Any, options: Any, at: int | None = None, how: str = "", of_all: bool = False) -> Any:
    """Weights, skipped steps and errors; at one step a gradient is nan, or of no kind that can be stepped."""
    group = {} if of_all else {"model_group": dist.group.WORLD}
    params, errors = stage(of_all), []
    opt = front(list(params.items()), **{**BUSY[front], **options, **group})
    for t in range(4):
        for name, p in params.items():
            p.grad = gradients(None)[t][name].detach().clone()
        if ODD in params and t == at:
            grad = params[ODD].grad
            empty = torch.sparse_coo_tensor(size=grad.shape, dtype=DOUBLE, check_invariants=True)
            params[ODD].grad = torch.full_like(grad, torch.nan) if how == "nan" else empty
        try:
            opt.step()
        except Exception as problem:
            errors.append((t, type(problem).__name__))
    return {name: numbers(p).copy() for name, p in params.items()}, opt.skipped, errors


def check(found: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    """The ranks' tensors together are those of the one that has all."""
    weights = {name: x for outcome, *_ in found for name, x in outcome.items()}
    assert weights.keys() == wanted.keys()
    for name, x in wanted.items():
        np.testing.assert_allclose(weights[name], x, 0, tolerance * np.abs(x).max())


@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("world", "options", "at", "how"),
    [
        (2, {}, None, ""),
        (4, {"fused": False}, None, ""),
        (3, {}, None, ""),
        (2, MAY_SKIP, 1, "nan"),
        (2, {}, 2, "sparse"),
    ],
    ids=["on 2", "by the rule on 4", "on 3", "all skip", "what one cannot step none does"],
)
def test_steps_are_those_of_one_process_with_all_tensors(ranks, front, world, options, at, how):
    options = {**CLIP, **options}
    found = ranks.run(world, _stepped, front, options, at, how)
    wanted, skipped, errors = _stepped(front, options, at, how, of_all=True)
    check(found, wanted, 1e-12)
    assert [one for _, one, _ in found] == [skipped] * world == [int(how == "nan")] * world
    assert errors == ([(2, "GradientError")] if how == "sparse" else [])
    others = [[(2, "SynchronizationError")]] if how == "sparse" else [[]]
    assert sorted(one for *_, one in found) == sorted([errors, *others * (world - 1)])
    if front is not Adafactor:  # which divides by the size of gradients
        with pytest.raises(AssertionError):
            check(found, _stepped(front, {**options, "max_grad_norm": None}, at, how, of_all=True)[0])


@fronts
def test_other_things_than_groups_are_refused(front):
    p = torch.nn.Parameter(torch.ones(2))
    for given in ({"params": [p], "model_group": 3}, p):
        with pytest.raises(HyperparameterError, match="model_group"):
            front([given], **({} if isinstance(given, dict) else {"model_group": 3}))


def _of_two_norms() -> None:
    opt = Lamb([torch.nn.Parameter(torch.ones(2))], model_group=dist.group.WORLD)
    opt.param_groups[0] |= {"max_grad_norm": 1.0, "max_grad_norm_per_tensor": 1.0}
    opt.step()


def test_two_norms_of_which_the_models_is_known_too_late_are_a_contradiction(ranks):
    assert [one.error for one in ranks.outcomes(1, _of_two_norms)] == ["ContradictionError"]


def _copied(front: Any, how: str, default: bool) -> tuple[str, bool]:
    """What a copy of an optimizer says of its group, and whether it then steps as the first does."""
    group = dist.group.WORLD if default else dist.new_group()
    params = stage(False)
    opt = front(list(params.items()), **{**BUSY[front], **CLIP, "model_group": group})
    twin, said = None, ""
    for grads in gradients(None):
        for one in (opt, twin) if twin else (opt,):
            for name, p in zip(params, one.param_groups[0]["params"], strict=True):
                p.grad = grads[name].detach().clone()
            try:
                one.step()
            except ContradictionError as problem:
                said, one.model_group = str(problem), group
                one.step()
        twin = twin or (copy.deepcopy(opt) if how == "copy" else pickle.loads(pickle.dumps(opt)))
    same = all(map(torch.equal, opt.param_groups[0]["params"], twin.param_groups[0]["params"]))
    return said, same and twin.model_group is group


@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1)
@pytest.mark.parametrize("default", [True, False], ids=["all ranks", "a group of its own"])
@pytest.mark.parametrize("how", ["copy", "pickle"])
def test_copies_have_the_group_and_pickles_only_that_of_all_ranks(ranks, front, how, default):
    for said, same in ranks.run(2, _copied, front, how, default):
        assert same
        assert bool(said) == (how == "pickle" and not default)
        assert not said or "optimizer.model_group" in said
