"""State has the fields of the rule; what cannot be right is an error that names it, and leaves everything as it was."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES
from contract.apis import SHAPES, Run, arrays, walk
from contract.test_storage import EVERYTHING, kept_of

from layerwise.errors import StateError

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.mark.every
@pytest.mark.offers("own_counts", "spoiled")
@each
def test_each_parameter_has_the_fields_of_the_rule_and_counts_its_own_steps(api, case):
    run = api.busy(case.name, arrays(1), dtype="float32")
    assert run.state() == {}
    walk(run, range(3), but=["vector"])
    assert run.state().keys() == SHAPES.keys() - {"vector"}
    state = walk(run, [3]).state()
    assert {name: int(one["step"]) for name, one in state.items()} == {**dict.fromkeys(SHAPES, 4), "vector": 1}
    for name, shape in SHAPES.items():
        kept = dict(kept_of(case, shape, case.busy))
        assert {key: x.shape for key, x in state[name].items() if key != "step"} == kept
        assert {x.dtype.name for key, x in state[name].items() if key != "step"} <= {"float32"}


@pytest.mark.offers("state_dtype")
@pytest.mark.parametrize(
    ("name", "options", "gone"),
    [("Lars", {"momentum": 0.0}, "momentum_buffer"), ("Adafactor", {"beta1": None}, "exp_avg")],
)
def test_without_momentum_no_buffer_is_kept(api, name, options, gone):
    assert gone not in walk(api.busy(name, arrays(1), **options), [1]).state()["matrix"]
    assert gone in walk(api.busy(name, arrays(1)), [1]).state()["matrix"]


def first(case) -> str:
    fields = (field for field, shape in kept_of(case, (4, 3), {**case.busy, **case.whole}) if shape == (4, 3))
    return next(fields)


def refused(run: Run, saved, *named: str) -> None:
    """The state is refused in a sentence that has these words, and nothing is changed."""
    before = run.everything()
    with pytest.raises(StateError) as found:
        run.load(saved)
    assert all(word in str(found.value) for word in named), str(found.value)
    assert run.everything() == before


COUNTS = (-1, 2.5, 1 << 62, (1 << 53) + 1, "one", np.array([1, 2]), np.array(2 + 1j), None)
FIELDS = {
    "missing": lambda x: None,
    "another shape": lambda x: x[..., None],
    "transposed": lambda x: x.T.copy(),
    "shortened": lambda x: x[:3],
    "integers": lambda x: x.astype(np.int64),
    "codes without scales": lambda x: x.astype(np.int8),
    "complex": lambda x: x.astype(complex),
}


@pytest.mark.offers("spoiled")
@pytest.mark.parametrize("what", FIELDS)
@each
def test_a_field_that_does_not_fit_is_named_and_changes_nothing(api, case, what):
    run = walk(api.busy(case.name, arrays(1), **case.whole), range(2))
    saved = run.spoiled("matrix", first(case), FIELDS[what])
    refused(walk(run, [2]), saved, "matrix", first(case))
    walk(run, [3])


@pytest.mark.offers("spoiled")
@pytest.mark.parametrize("count", COUNTS, ids=repr)
@each
@pytest.mark.thinned(1)
def test_an_impossible_count_is_named_and_changes_nothing(api, case, count):
    run = walk(api.busy(case.name, arrays(1)), range(2))
    refused(walk(run, [2]), run.spoiled("matrix", "step", lambda _: count), "matrix", "step")


@pytest.mark.offers("spoiled")
def test_a_field_that_the_rule_does_not_have_is_named(api):
    run = walk(api.busy("Lamb", arrays(1)), range(2))
    refused(run, run.spoiled("matrix", "max_exp_avg_sq", lambda _: np.zeros((4, 3))), "matrix", "max_exp_avg_sq")


STORED = {
    "no scales": ("exp_avg_unit", lambda x: None, "exp_avg_unit"),
    "other groups": ("exp_avg_unit", lambda x: x[:, :1], "exp_avg_unit"),
    "codes of no sign": ("exp_avg", lambda x: x.astype(np.uint8), "int8"),
    "codes with a sign": ("exp_avg_sq", lambda x: x.astype(np.int8), "uint8"),
    "codes of 16 bits": ("exp_avg", lambda x: x.astype(np.int16), "exp_avg"),
    "integers for scales": ("exp_avg_sq_unit", lambda x: x.astype(np.int8), "exp_avg_sq_unit"),
    "scales of 16 bits": ("exp_avg_sq_unit", lambda x: x.astype(np.float16), "exp_avg_sq_unit"),
    "a remainder of 32 bits": ("remainder", lambda x: x.astype(np.int32), "remainder"),
    "a short remainder": ("remainder", lambda x: x[:3], "remainder"),
}


@pytest.mark.offers("spoiled", "state_dtype")
@pytest.mark.parametrize("what", STORED)
def test_state_in_few_bytes_that_does_not_fit_is_named_and_changes_nothing(api, what):
    field, change, named = STORED[what]
    run = walk(api.make("Lamb", arrays(0, {"w": (64, 80), "b": (7,)}), dtype="bfloat16", **EVERYTHING), range(2))
    refused(run, run.spoiled("w", field, change), named)


@pytest.mark.offers("own_counts")
@each
def test_the_state_of_another_optimizer_is_refused(api, case):
    other = next(one for one in CASES if one is not case)
    saved = walk(api.busy(other.name, arrays(1)), [0]).save()
    refused(walk(api.busy(case.name, arrays(1)), [0]), saved, case.name, other.name)


OPTIONS = [
    ("Adafactor", {}, {"beta1": None}),
    ("Adafactor", {"beta1": None}, {}),
    ("Adafactor", {}, {"factored": False}),
    ("Adafactor", {"factored": (1, 0)}, {"factored": False}),
    ("Adafactor", {}, {"min_dim_size_to_factor": 128}),
]


@pytest.mark.offers("spoiled")
@pytest.mark.filterwarnings("ignore:the checkpoint was written with other options")
@pytest.mark.parametrize(("name", "saved_with", "here"), OPTIONS)
def test_state_of_options_that_keep_other_fields_is_refused(api, name, saved_with, here):
    weights = arrays(1, {"w": (2, 3)})
    saved = walk(api.busy(name, weights, **saved_with), [0]).save()
    run = api.busy(name, weights, **here)
    refused(run, saved, "w", "does not fit")
    assert run.state() == {}


@pytest.mark.offers("own_counts")
@each
def test_an_empty_checkpoint_forgets_everything(api, case):
    run, empty = walk(api.busy(case.name, arrays(1)), range(2)), api.busy(case.name, arrays(1))
    run.load(empty.save())
    assert run.state() == {}
    for one in (run, fresh := api.busy(case.name, run.weights())):
        walk(one, [5])
    assert run.bits() == fresh.bits()
