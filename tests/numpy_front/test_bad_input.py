"""Mistakes have their message, and leave everything as it was."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy_front.front import arrays, bits, busy, everything, fronts

from layerwise.errors import GradientError, LayerwiseError, ParameterError


def read_only(array):
    array.flags.writeable = False
    return array


class Sparse:
    def tocoo(self):
        return self


W = (2, 3)
TURNED = (3, 2)
# Of the rows the second begins where the first has its second element, and bytes between them are not used.
GAPS = np.lib.stride_tricks.as_strided(np.ones(40), (2, 3), (80, 80))
BROADCAST = np.lib.stride_tricks.as_strided(np.ones(3), (2, 3), (0, 8))
# what: (weights, gradient, error, words of the message), by functions so that nothing is shared
ENTRIES = {
    "read-only weights": (lambda: read_only(np.ones(W)), np.ones, ParameterError, ("read-only", "copy()")),
    "broadcast weights": (lambda: np.broadcast_to(np.ones(3), W), np.ones, ParameterError, ("read-only",)),
    "weights that overlap themselves": (lambda: BROADCAST, np.ones, ParameterError, ("share memory", "copy()")),
    "weights that overlap themselves, with gaps": (lambda: GAPS, np.ones, ParameterError, ("share memory", "copy()")),
    "a list of weights": (lambda: [[1.0] * 3] * 2, np.ones, ParameterError, ("NumPy array", "list", "np.asarray")),
    "masked weights": (lambda: np.ma.ones(W), np.ones, ParameterError, ("NumPy array", "MaskedArray")),
    "a number as weights": (lambda: 1.0, np.ones, ParameterError, ("NumPy array", "float")),
    "a numpy scalar as weights": (lambda: np.float64(1), np.ones, ParameterError, ("NumPy array", "float64")),
    "no weights": (lambda: None, np.ones, ParameterError, ("NumPy array", "NoneType")),
    "integer weights": (lambda: np.ones(W, int), np.ones, ParameterError, ("floating", "int64", "float32")),
    "boolean weights": (lambda: np.ones(W, bool), np.ones, ParameterError, ("floating", "bool")),
    "complex weights": (lambda: np.ones(W, complex), np.ones, ParameterError, ("real", "complex128", "imaginary")),
    "text weights": (lambda: np.full(W, "a"), np.ones, ParameterError, ("floating", "<U1")),
    "object weights": (lambda: np.ones(W, object), np.ones, ParameterError, ("floating", "object")),
    "float8 e4m3 weights": (lambda: np.ones(W, ml_dtypes.float8_e4m3fn), np.ones, ParameterError, ("float8_e4m3fn",)),
    "float8 e5m2 weights": (lambda: np.ones(W, ml_dtypes.float8_e5m2), np.ones, ParameterError, ("float8_e5m2",)),
    "structured weights": (lambda: np.ones(W, [("x", "f4")]), np.ones, ParameterError, ("floating",)),
    "another shape than before": (
        lambda: np.ones(TURNED),
        lambda w: np.ones(TURNED),
        ParameterError,
        ("(2, 3)", "(3, 2)"),
    ),
    "a transposed gradient": (lambda: np.ones(W), lambda w: np.ones((3, 2)), GradientError, ("(2, 3)", "(3, 2)")),
    "a broadcast gradient": (lambda: np.ones(W), lambda w: np.ones((1, 3)), GradientError, ("(2, 3)", "broadcast")),
    "a number as gradient": (lambda: np.ones(W), lambda w: 1.0, GradientError, ("(2, 3)", "()")),
    "a complex gradient": (lambda: np.ones(W), lambda w: np.ones(W, complex), GradientError, ("real", "complex128")),
    "a boolean gradient": (lambda: np.ones(W), lambda w: np.ones(W, bool), GradientError, ("real", "bool")),
    "a text gradient": (lambda: np.ones(W), lambda w: "ones", GradientError, ("real", "<U4")),
    "an object gradient": (lambda: np.ones(W), lambda w: np.ones(W, object), GradientError, ("real", "object")),
    "a ragged gradient": (lambda: np.ones(W), lambda w: [[1.0], [1.0, 2.0]], GradientError, ("gradient",)),
    "a sparse gradient": (lambda: np.ones(W), lambda w: Sparse(), GradientError, ("sparse", "Sparse", "toarray")),
    "a time as gradient": (lambda: np.ones(W), lambda w: np.ones(W, "m8[s]"), GradientError, ("real", "timedelta64")),
}


@fronts
@pytest.mark.parametrize("what", ENTRIES)
def test_one_bad_entry_changes_nothing(front, what):
    make, gradient_of, error, words = ENTRIES[what]
    opt, calm = busy(front, lr=lambda step: 0.1 / (1 + step)), busy(front, lr=lambda step: 0.1 / (1 + step))
    weights, expected = arrays(1), arrays(1)
    weights["bad"], expected["bad"] = np.ones(W), np.ones(W)

    def good_step(t):
        grads = arrays(10 + t, {name: w.shape for name, w in weights.items()})
        opt.step_all(weights, grads)
        calm.step_all(expected, grads)

    good_step(0)
    before = everything(opt, weights)
    bad = make()
    for new in ({}, {"late": np.ones(4)}):
        spoilt = {**weights, **new, "bad": bad}
        grads = arrays(20, {name: w.shape for name, w in {**weights, **new}.items()})
        with pytest.raises(error) as caught:
            opt.step_all(spoilt, {**grads, "bad": gradient_of(np.ones(W).shape)})
        assert [word for word in ("'bad'", *words) if word not in str(caught.value)] == []
        assert everything(opt, weights) == before
        assert all((array == 1).all() for array in new.values())
    with pytest.raises(error):
        opt.step("bad", bad, gradient_of(np.ones(W).shape))
    assert everything(opt, weights) == before
    assert opt.lr == calm.lr
    good_step(1)
    assert bits(weights) == bits(expected)
    assert bits(opt.state_dict()) == bits(calm.state_dict())


@fronts
def test_a_gradient_is_needed(front):
    with pytest.raises(GradientError, match="'w' has no gradient"):
        busy(front).step("w", np.ones(2), None)


@fronts
def test_a_gradient_without_a_parameter_is_refused(front):
    opt, weights = busy(front), arrays(2)
    with pytest.raises(GradientError, match=r"'vektor'.*'matrix'"):
        opt.step_all(weights, {**arrays(3), "vektor": np.ones(5)})
    assert bits(weights) == bits(arrays(2))
    assert opt.num_parameters == 0


@fronts
@pytest.mark.parametrize("name", ["", "a\0b", 7.0, np.float64(7), True, np.True_, None, b"w", ("w",)], ids=repr)
def test_names_are_text_or_integers(front, name):
    opt, w, good = busy(front), np.ones(2), np.ones(2)
    for step in (
        lambda: opt.step_all({"good": good, name: w}, {"good": np.ones(2), name: np.ones(2)}),
        lambda: opt.step(name, w, np.ones(2)),
    ):
        with pytest.raises(ParameterError, match="non-empty string without NUL, or an integer") as caught:
            step()
        assert repr(name) in str(caught.value)
    assert (w == 1).all()
    assert (good == 1).all()


@fronts
@pytest.mark.parametrize(
    ("weights", "grads"), [([np.ones(2)], [np.ones(2)]), (np.ones(2), np.ones(2)), ({"w": np.ones(2)}, None)]
)
def test_mappings_are_needed(front, weights, grads):
    with pytest.raises(LayerwiseError):
        busy(front).step_all(weights, grads)
