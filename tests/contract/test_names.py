"""Each name has a state, a count and settings of its own, whatever steps beside it."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES
from contract.apis import arrays, bits, close

from layerwise import optional
from layerwise.errors import HyperparameterError

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
TWO = {"old": (3, 2), "new": (3, 2)}
SHAPES = {"a.weight": (4, 3), "a.bias": (3,)}


@pytest.mark.offers("own_counts")
@each
def test_a_name_that_comes_late_steps_as_one_that_is_fresh(api, case):
    weights = arrays(3, TWO)
    run, alone = api.busy(case.name, weights), api.busy(case.name, {"new": weights["new"]})
    for t in range(2):
        run.step({"old": arrays(30 + t, TWO)["old"]})
    for t in range(3):
        grads = {"new": arrays(60 + t, TWO)["new"]}
        run.step({**grads, "old": grads["new"]})
        alone.step(grads)
    close({"new": run.weights()["new"]}, alone.weights(), 1e-14)


@pytest.mark.offers("own_counts", "none")
@each
@pytest.mark.parametrize("absent", [{}, {"b": None}], ids=["left out", "None"])
def test_a_name_without_a_gradient_is_left_alone(api, case, absent):
    weights = arrays(4, {"a": (3,), "b": (3,)})
    run, calm = api.busy(case.name, weights), api.busy(case.name, {"b": weights["b"]})
    both = {"a": np.ones(3), "b": np.arange(3.0)}
    run.step(both)
    between = run.bits()["b"], bits(run.state()["b"])
    run.step({"a": np.ones(3), **absent})
    assert (run.bits()["b"], bits(run.state()["b"])) == between
    run.step(both)
    for _ in range(2):
        calm.step({"b": both["b"]})
    close({"b": run.weights()["b"]}, calm.weights(), 1e-14)


@pytest.mark.offers("own_counts", "none")
@each
def test_a_step_without_gradients_does_nothing(api, case):
    run = api.busy(case.name, arrays(4))
    run.step(arrays(5))
    before = run.everything()
    for nothing in ({}, {"matrix": None, "vector": None}):
        run.step(nothing)
        assert run.everything() == before


@pytest.mark.offers("own_counts", "clear")
@each
def test_a_cleared_name_starts_over(api, case):
    run = api.busy(case.name, arrays(1, SHAPES))
    for t in range(2):
        run.step(arrays(10 + t, SHAPES))
    run.opt.clear_state("a.bias")
    assert run.state().keys() == {"a.weight"}
    fresh = api.busy(case.name, {"a.bias": run.weights()["a.bias"]})
    kept = bits(run.state()["a.weight"])
    run.step({"a.bias": np.arange(3.0)})
    fresh.step({"a.bias": np.arange(3.0)})
    assert bits(run.state()["a.weight"]) == kept
    assert bits(run.state()["a.bias"]) == bits(fresh.state()["a.bias"])
    with pytest.raises(ValueError, match=r"no state is kept for 'other'\. Names with state: '?a.weight'?, '?a.bias"):
        run.opt.clear_state("other")
    run.opt.clear_state()
    assert run.state() == {}
    assert run.stats() == {}


@pytest.mark.offers("own_counts", "clear")
def test_an_optimizer_knows_how_many_parameters_it_steps(api):
    run = api.busy("Lamb", arrays(1, SHAPES))
    run.step({"a.weight": arrays(2, SHAPES)["a.weight"], "a.bias": None})
    assert run.opt.num_parameters == 2


@pytest.mark.offers("blocks", "patterns")
def test_a_pattern_that_matches_nothing_is_named_with_its_nearest(api):
    """A typing error would be accepted and ignored; `optional` says that it is none."""
    weights = arrays(1, SHAPES)
    with pytest.raises(HyperparameterError) as caught:  # noqa: PT012  # at the latest by the first step
        run = api.busy("Lamb", weights, blocks={"a.bias": 3, "a.wieght": 2})
        run.step(weights)
    said = ("pattern 'a.wieght' in `blocks`", "matches no parameter", "'a.weight'", "layerwise.optional('a.wieght')")
    assert [word for word in said if word not in str(caught.value)] == []
    run = api.busy("Lamb", weights, blocks={"a.bias": 3, optional("a.wieght"): 2, optional("*.qkv"): 2})
    run.step(weights)
    assert np.shape(run.stats()["a.bias"]["trust_ratio"]) == (3,)


@pytest.mark.offers("blocks", "patterns")
def test_names_of_blocks_are_names_or_patterns(api):
    with pytest.raises(
        HyperparameterError, match=r"`blocks` must be a mapping from names or patterns, but is \('w',\)"
    ):
        api.busy("Lamb", arrays(1, SHAPES), blocks={("w",): 2})
