"""Optimizers by name that step together: whose a name is, and what they may and may not be."""

from __future__ import annotations

import numpy as np
import pytest
from numpy_front.front import arrays, bits

from layerwise import optional
from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, StateError
from layerwise.numpy import SGD, AdamW, Lamb, Lans, Mixed

SHAPES = {"a.bias": (2,), "b.bias": (2,), "q": (2, 2)}


def two(**options):
    return Mixed({"*.bias": AdamW(lr=0.1), "*": Lamb(lr=0.1)}, **options)


def stepped(opt):
    weights = arrays(0, SHAPES)
    opt.step_all(weights, arrays(1, SHAPES))
    return weights


def test_a_name_goes_before_patterns_and_these_in_their_order():
    opt = Mixed({"*": Lamb(), "*.bias": SGD(), "a.bias": AdamW()})
    stepped(opt)
    assert {pattern: [*one.parameters] for pattern, one in opt.optimizers.items()} == {
        "*": ["b.bias", "q"],
        "*.bias": [],
        "a.bias": ["a.bias"],
    }
    assert (opt.parameters, opt.num_parameters, opt.steps) == (SHAPES, 3, 1)
    with pytest.raises(HyperparameterError, match="matches none"):
        stepped(Mixed({"*": Lamb(), "c": SGD()}))
    stepped(Mixed({"*": Lamb(), optional("c"): SGD()}))
    with pytest.raises(ParameterError, match=r'no optimizer steps \'q\'.*"\*" matches what is left'):
        stepped(Mixed({"*.bias": SGD()}))


def test_an_error_of_one_name_changes_nothing_of_any_optimizer():
    opt = two()
    weights = stepped(opt)
    before = bits(weights), bits(opt.state_dict())
    with pytest.raises(ParameterError, match="memory"):
        opt.step_all({**weights, "b.bias": weights["a.bias"]}, arrays(1, SHAPES))
    assert (bits(weights), bits(opt.state_dict())) == before


def test_steps_are_those_of_the_name_that_has_gone_furthest():
    opt = two()
    weights = stepped(opt)
    opt.step_all(weights, {"q": np.ones((2, 2))})
    assert opt.steps == 2
    opt.clear_state()
    assert (opt.steps, opt.num_parameters) == (0, 0)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"*.bias": SGD(), "*": Lamb()}, "state is of AdamW, not of SGD"),
        ({"*.bias": AdamW(), "q": Lans(), "*": Lamb()}, "is of 2 optimizers, and this Mixed has 3"),
        ({"a.*": AdamW(), "*": Lamb()}, r"'b.bias' was stepped by .* AdamW, and here it is by .* Lamb. Make it with"),
    ],
)
def test_a_state_of_other_optimizers_is_refused(there, words):
    opt, fresh = two(), Mixed(there)
    stepped(opt)
    before = bits(fresh.state_dict())
    with pytest.raises(StateError, match=words):
        fresh.load_state_dict(opt.state_dict())
    assert bits(fresh.state_dict()) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"members": None}, "'members' must be"),
        ({"skipped": np.array(-1)}, "'skipped' must be an integer ≥ 0"),
        ({"optimizer": np.array("Lamb")}, "the state is of Lamb, not of Mixed"),
        ({"2.lr": np.array(1.0)}, "the unknown key '2.lr'"),
        ({"lr": np.array(1.0)}, "the unknown key 'lr'"),
        ({"0.lr": np.array(-1.0)}, "'lr' must be"),
    ],
)
def test_a_state_that_cannot_be_right_is_refused(changes, words):
    opt = two()
    state = {key: value for key, value in {**opt.state_dict(), **changes}.items() if value is not None}
    with pytest.raises(StateError, match=words):
        opt.load_state_dict(state)


LAMB = Lamb()


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({}, HyperparameterError, "`optimizers` must be a mapping from names or patterns"),
        ([Lamb()], HyperparameterError, "`optimizers` must be a mapping from names or patterns"),
        ({"*": "lamb"}, HyperparameterError, r"`optimizers\['\*'\]` must be an optimizer of layerwise.numpy"),
        ({"a": LAMB, "*": LAMB}, HyperparameterError, "must be an optimizer of its own"),
        ({"*": Lamb(max_grad_norm=1.0)}, ContradictionError, "max_grad_norm` must be left out, but is 1.0. Pass"),
        ({"*": Lamb(skip_nonfinite=True)}, ContradictionError, "skip_nonfinite` must be left out"),
        ({"*": Lamb(engine="rule")}, ContradictionError, "engine` must be left out"),
    ],
)
def test_what_cannot_be_mixed_is_refused(given, kind, words):
    with pytest.raises(kind, match=words):
        Mixed(given)
