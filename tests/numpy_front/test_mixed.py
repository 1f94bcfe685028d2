"""Optimizers by name that step together."""

from __future__ import annotations

import copy
import pickle
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from cases import CASES
from numpy_front.front import BUSY, arrays, bits, close, copies

from layerwise import optional
from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, StateError
from layerwise.numpy import SGD, AdamW, Lamb, Lans, Lars, Mixed

SHAPES = {f"{case.name}.{key}": shape for case in CASES for key, shape in {"matrix": (4, 3), "vector": (5,)}.items()}
BOUND = 0.5


def members(**options: Any) -> dict[str, Any]:
    return {f"{case.name}.*": case.numpy(**{**BUSY[case.numpy], **options}) for case in CASES}


def walk(opt: Any, weights: Any, seeds: Any) -> None:
    for seed in seeds:
        opt.step_all(weights, arrays(100 + seed, SHAPES))


@pytest.mark.parametrize("engine", [None, "rule"])
@pytest.mark.parametrize("bound", [None, BOUND])
def test_each_steps_its_names_and_the_norm_is_of_all(bound, engine):
    ours, theirs = arrays(0, SHAPES), arrays(0, SHAPES)
    opt, apart = Mixed(members(), max_grad_norm=bound, engine=engine), members(engine=engine)
    walk(opt, ours, range(3))
    for seed in range(3):
        grads = arrays(100 + seed, SHAPES)
        norm = np.sqrt(sum(np.square(g).sum() for g in grads.values()))
        scale = 1.0 if bound is None else max(1.0, norm / bound)
        for pattern, one in apart.items():
            own = {name: g / scale for name, g in grads.items() if name.startswith(pattern[:-1])}
            one.step_all({name: theirs[name] for name in own}, own)
    close(ours, theirs)
    assert opt.steps == 3
    assert opt.parameters == SHAPES
    wanted = {name: one for member in apart.values() for name, one in member.stats().items()}
    for name, one in opt.stats().items():
        np.testing.assert_allclose(list(one.values()), list(wanted[name].values()), rtol=1e-10)


def test_a_name_goes_before_patterns_and_these_in_their_order():
    opt = Mixed({"*": Lamb(), "*.bias": SGD(), "a.bias": AdamW()})
    weights = {"a.bias": np.ones(2), "b.bias": np.ones(2)}
    with pytest.raises(HyperparameterError, match="matches none"):
        Mixed({"*": Lamb(), "c": SGD()}).step_all(weights, {})
    opt.step_all(weights, {name: np.ones(2) for name in weights})
    assert {pattern: list(one.parameters) for pattern, one in opt.optimizers.items()} == {
        "*": ["b.bias"],
        "*.bias": [],
        "a.bias": ["a.bias"],
    }
    Mixed({"*": Lamb(), optional("c"): SGD()}).step_all(weights, {})


def test_options_are_those_of_the_optimizers():
    opt = Mixed({"*.bias": SGD(lr=0.5), "*": Lars(lr=lambda step: 1.0)})
    weights = {"a.bias": np.ones(2), "a.weight": np.ones((2, 2))}
    opt["*.bias"].lr = 0.25
    opt.step_all(weights, {"a.bias": np.ones(2), "a.weight": None})
    np.testing.assert_allclose(weights["a.bias"], 0.75)
    opt.max_grad_norm = 1.0
    opt.step_all(weights, {"a.bias": np.full(2, 10.0)})
    np.testing.assert_allclose(weights["a.bias"], 0.75 - 0.25 / np.sqrt(2))
    with pytest.raises(AttributeError):
        opt.lr = 0.1
    with pytest.raises(HyperparameterError, match="`max_grad_norm` must be"):
        opt.max_grad_norm = -1.0


def test_nan_leaves_out_the_step_of_all():
    opt, weights = Mixed(members(), skip_nonfinite=True), arrays(0, SHAPES)
    walk(opt, weights, [0])
    before = bits(weights), bits(opt.state_dict())
    grads = arrays(1, SHAPES)
    next(iter(grads.values()))[0] = np.nan
    opt.step_all(weights, grads)
    assert (bits(weights), opt.skipped) == (before[0], 1)
    walk(opt, weights, [2])
    assert opt.steps == 2


def test_all_or_none():
    opt, weights = Mixed(members()), arrays(0, SHAPES)
    walk(opt, weights, [0])
    before = bits(weights), bits(opt.state_dict())
    last = list(SHAPES)[-1]
    with pytest.raises(ParameterError, match="memory"):
        opt.step_all({**weights, last: weights["Lamb.vector"]}, arrays(1, SHAPES))
    assert (bits(weights), bits(opt.state_dict())) == before


# ---- saved states


def test_a_saved_state_goes_on_bit_for_bit():
    opt, weights = Mixed(members(), max_grad_norm=BOUND), arrays(0, SHAPES)
    walk(opt, weights, range(2))
    file = BytesIO()
    np.savez(file, **opt.state_dict())
    file.seek(0)
    fresh, again = Mixed(members(), max_grad_norm=BOUND), copies(weights)
    fresh.load_state_dict(np.load(file))
    others = [(copy.deepcopy(opt), copies(weights)), (pickle.loads(pickle.dumps(opt)), copies(weights))]
    for one, own in ((opt, weights), (fresh, again), *others):
        walk(one, own, range(2, 4))
        assert bits(own) == bits(weights)
        assert bits(one.state_dict()) == bits(opt.state_dict())


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"*.bias": SGD(), "*": Lamb()}, "state is of AdamW, not of SGD"),
        ({"*.bias": AdamW(), "q": Lans(), "*": Lamb()}, "is of 2 optimizers, and this Mixed has 3"),
        ({"a.*": AdamW(), "*": Lamb()}, r"'b.bias' was stepped by .* AdamW, and here it is by .* Lamb. Make it with"),
    ],
)
def test_a_state_of_other_optimizers_is_refused(there, words):
    opt = Mixed({"*.bias": AdamW(), "*": Lamb()})
    weights = {"a.bias": np.ones(2), "b.bias": np.ones(2), "q": np.ones((2, 2))}
    opt.step_all(weights, copies(weights))
    fresh = Mixed(there)
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
def test_a_state_that_cannot_be_is_refused(changes, words):
    opt = Mixed({"*.bias": AdamW(), "*": Lamb()})
    state = {key: value for key, value in {**opt.state_dict(), **changes}.items() if value is not None}
    with pytest.raises(StateError, match=words):
        opt.load_state_dict(state)


# ---- what is refused


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
def test_what_cannot_be_mixed(given, kind, words):
    with pytest.raises(kind, match=words):
        Mixed(given)


def test_a_name_that_nobody_steps():
    opt = Mixed({"*.weight": Lamb(), "*.bias": SGD()})
    weights = {"a.weight": np.ones((2, 2)), "a.bias": np.ones(2), "scale": np.ones(1)}
    with pytest.raises(ParameterError, match=r'no optimizer steps \'scale\'.*"\*" matches what is left'):
        opt.step_all(weights, {})


def test_forgetting():
    opt, weights = Mixed(members()), arrays(0, SHAPES)
    walk(opt, weights, range(2))
    opt.clear_state("Lamb.matrix")
    assert "Lamb.matrix" not in opt.stats()
    assert "Lamb.vector" in opt.stats()
    opt.clear_state()
    assert (opt.steps, opt.stats(), opt.num_parameters) == (0, {}, 0)
