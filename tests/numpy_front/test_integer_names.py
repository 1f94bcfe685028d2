"""Integers name parameters as strings do, stay integers in a checkpoint, and are not mixed with their digits."""

from __future__ import annotations

import io

import numpy as np
import pytest
from numpy_front.front import arrays, bits, busy, everything, fronts

from layerwise.errors import GradientError, ParameterError

pytestmark = pytest.mark.thinned(1, 3)
IDS = {7: (3, 2), -1: (3,), 2**70: (2,), 0: ()}


def trained(front, names, **options):
    opt = busy(front, **options)
    shapes = dict(zip(names, IDS.values(), strict=True))
    weights = arrays(1, shapes)
    for t in range(2):
        opt.step_all(weights, arrays(10 + t, shapes))
    return opt, weights


@fronts
def test_integers_name_parameters_as_strings_do(front):
    (ids, weights), (names, same) = trained(front, IDS), trained(front, [str(i) for i in IDS])
    assert [w.tobytes() for w in weights.values()] == [w.tobytes() for w in same.values()]
    assert ids.parameters == IDS
    assert names.parameters == {str(i): shape for i, shape in IDS.items()}
    assert ids.stats().keys() == IDS.keys()


@fronts
def test_integers_are_integers_after_loading(front):
    opt, weights = trained(front, IDS)
    file = io.BytesIO()
    np.savez(file, **opt.state_dict())
    file.seek(0)
    for state in (opt.state_dict(), dict(np.load(file))):
        fresh = busy(front)
        fresh.load_state_dict(state)
        assert fresh.parameters == IDS
        assert bits(fresh.state_dict()) == bits(opt.state_dict())
    other = {name: w.copy() for name, w in weights.items()}
    for one, named in ((opt, weights), (fresh, other)):
        one.step_all(named, {name: np.ones(w.shape) for name, w in named.items()})
    assert bits(weights) == bits(other)


@fronts
@pytest.mark.parametrize(("first", "second"), [(7, "7"), ("7", 7), (-1, "-1"), ("0", 0)])
def test_an_integer_and_its_digits_are_not_mixed(front, first, second):
    opt, w, other, g = busy(front), np.ones(3), np.ones(3), np.ones(3)
    with pytest.raises(ParameterError, match=rf"both .*{first!r}.* are names of parameters"):
        opt.step_all({first: w, second: other}, {first: g, second: g})
    opt.step(first, w, g)
    before = everything(opt, {"w": w})
    fresh = busy(front)
    fresh.load_state_dict(opt.state_dict())
    for call in (
        lambda: opt.step(second, other, g),
        lambda: opt.step_all({second: other}, {second: g}),
        lambda: fresh.step(second, other, g),
    ):
        with pytest.raises(ParameterError, match="are names of parameters"):
            call()
    assert (other == 1).all()
    assert everything(opt, {"w": w}) == before


@fronts
def test_errors_and_blocks_name_the_integer(front):
    opt, w = busy(front, blocks={7: 3}), np.ones((6, 2))
    opt.step(7, w, np.ones((6, 2)))
    assert opt.stats()[7]["trust_ratio"].shape == (3,)
    with pytest.raises(ParameterError, match=r"weights of 7 had the shape .*clear_state\(7\)"):
        opt.step(7, np.ones((2, 6)), np.ones((2, 6)))
    with pytest.raises(GradientError, match="gradient of 7 must have the shape"):
        opt.step(7, w, np.ones(2))
    with pytest.raises(GradientError, match=r"gradient for 8, but no weights\. Weights: 7"):
        opt.step_all({7: w}, {8: w})
    for name in (8, "7", True):
        with pytest.raises(ParameterError, match="no state is kept for"):
            opt.clear_state(name)
    opt.clear_state(np.int64(7))
    assert opt.parameters == {}
