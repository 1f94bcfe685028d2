"""Checkpoints and copies of an optimizer whose groups have different rules."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from torch_front.front import BUSY, bits, fronts, parameters, walk
from torch_front.mixing import BOUND, NAMES, SHAPES, everything, mixed, models

from layerwise.errors import HyperparameterError, StateError
from layerwise.torch import AdamW, Lamb, Lars, Mixed


@pytest.mark.parametrize("copied", [lambda x: x, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_checkpoint_goes_on_bit_for_bit(copied):
    found, again = models(), models(9)
    opt, fresh = mixed(found, max_grad_norm=BOUND), mixed(again, max_grad_norm=BOUND)
    walk(opt, everything(found), range(2))
    for p, q in zip(everything(found).values(), everything(again).values(), strict=True):
        q.data.copy_(p.data)
    fresh.load_state_dict(copied(opt.state_dict()))
    walk(opt, everything(found), range(2, 4))
    walk(fresh, everything(again), range(2, 4))
    assert bits(everything(found)) == bits(everything(again))
    assert [one["rule"] for one in fresh.state_dict()["param_groups"]] == NAMES


def test_copies_go_on():
    found = models()
    opt = mixed(found, max_grad_norm=BOUND)
    walk(opt, everything(found), range(2))
    gone_on = []
    for made in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert [one["rule"] for one in made.param_groups] == NAMES
        own = {name: p for i in range(len(NAMES)) for p, name in made._named(i)}
        walk(made, own, range(2, 4))
        gone_on.append(bits(own))
    walk(opt, everything(found), range(2, 4))
    assert gone_on == [bits(everything(found))] * 2


def test_another_rule_in_a_checkpoint_is_refused():
    params, again = parameters(0, SHAPES), parameters(0, SHAPES)
    opt = Mixed([{"params": list(params.items()), "rule": "adamw"}])
    walk(opt, params, range(2))
    fresh = Mixed([{"params": list(again.items()), "rule": "lamb"}])
    walk(fresh, again, range(1))
    before = bits(again), bits(fresh.state_dict())
    for saved in (opt.state_dict(), AdamW(params.items()).state_dict()):
        with pytest.raises(
            StateError, match=r"group 0 were stepped by AdamW in the checkpoint, and here they are by Lamb"
        ):
            fresh.load_state_dict(saved)
    with pytest.raises(StateError, match="was written by AdamW, and this is Lamb"):
        Lamb(again.items()).load_state_dict(opt.state_dict())
    assert (bits(again), bits(fresh.state_dict())) == before


def test_parameters_that_changed_places_keep_their_rules():
    params, again = parameters(0, SHAPES), parameters(0, SHAPES)

    def made(ps: Any, first: str, second: str, *rules: str) -> Mixed:
        return Mixed([{"params": [(n, ps[n])], "rule": rule} for n, rule in zip((first, second), rules, strict=True)])

    opt = made(params, "matrix", "vector", "lamb", "sgd")
    walk(opt, params, range(2))
    made(again, "vector", "matrix", "sgd", "lamb").load_state_dict(opt.state_dict())
    with pytest.raises(StateError, match="were stepped by SGD in the checkpoint, and here they are by Lamb"):
        made(again, "vector", "matrix", "lamb", "sgd").load_state_dict(opt.state_dict())


@fronts
def test_checkpoints_of_one_optimizer_and_of_a_group_are_the_same(front):
    params, again = parameters(0, SHAPES), parameters(0, SHAPES)
    own, fresh = (
        front(params.items(), **BUSY[front]),
        Mixed([{"params": list(again.items()), "rule": front, **BUSY[front]}]),
    )
    walk(own, params, range(2))
    for p, q in zip(params.values(), again.values(), strict=True):
        q.data.copy_(p.data)
    fresh.load_state_dict(own.state_dict())
    walk(own, params, [2])
    walk(fresh, again, [2])
    assert bits(params) == bits(again)
    own.load_state_dict(fresh.state_dict())


def test_a_rule_changed_by_hand_finds_another_state():
    params = parameters(0, SHAPES)
    opt = Mixed([{"params": list(params.items()), "rule": "lamb"}])
    walk(opt, params, range(2))
    opt.param_groups[0]["rule"] = "lars"
    with pytest.raises(HyperparameterError, match="a group with the rule Lars lacks its option 'momentum'"):
        walk(opt, params, [2])
    opt.param_groups[0].update({"rule": "lars", **Lars(parameters(0).items()).defaults})
    with pytest.raises(StateError, match=r"'exp_avg' of matrix is no state of Lars.*clear_state"):
        walk(opt, params, [2])
    opt.clear_state()
    walk(opt, params, [2])
    assert set(opt.state[params["matrix"]]) == {"step", "momentum_buffer"}
