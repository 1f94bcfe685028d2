"""A run that was saved goes on bit for bit, whatever is stored how; a checkpoint and a copy belong to nobody else."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from cases import CASES
from contract.apis import SHAPES, Run, arrays, bits, walk
from contract.test_storage import EVERYTHING

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
LARGE = {"w": (64, 80), "v": (4100,), "b": (7,)}


def goes_on(api, run: Run, fresh: Run | None = None) -> None:
    """After loading what the other saved, the next steps are its own."""
    fresh = api.again(run) if fresh is None else fresh
    assert bits(fresh.save()) == bits(run.save())
    for one in (run, fresh):
        walk(one, range(3, 5))
    assert fresh.bits() == run.bits()
    assert bits(fresh.save()) == bits(run.save())


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@each
def test_a_run_goes_on_bit_for_bit(api, case, dtype):
    """Also one in which a parameter has not had every gradient."""
    run = api.busy(case.name, arrays(1), dtype=dtype)
    goes_on(api, walk(run, range(3), but=["vector"] if api.has("none") else ()))


STORED = {
    "8 bits": {"state_dtype": "int8"},
    "bfloat16": {"state_dtype": "bfloat16", "rounding": "stochastic"},
    "split": {"master_weights": "split"},
    "masters": {"master_weights": True, "state_dtype": "bfloat16"},
    "everything": EVERYTHING,
}


@pytest.mark.offers("state_dtype")
@pytest.mark.parametrize("stored", STORED)
@each
@pytest.mark.thinned(1)
def test_a_run_stored_in_few_bytes_goes_on_bit_for_bit(api, case, stored):
    """Weights come from the model's checkpoint, and what is held beside them from the optimizer's."""
    goes_on(api, walk(api.busy(case.name, arrays(0, LARGE), dtype="bfloat16", **STORED[stored]), range(2)))


@pytest.mark.offers("state_dtype")
def test_bfloat16_momentum_goes_on_bit_for_bit(api):
    run = walk(api.busy("Adafactor", arrays(1), dtype="float32", momentum_dtype="bfloat16"), range(2))
    assert {x.dtype.name for one in run.state().values() for key, x in one.items() if key == "exp_avg"} == {"bfloat16"}
    goes_on(api, run)


@pytest.mark.offers("saves_lr")
@each
def test_rates_that_a_run_changed_come_back(api, case):
    run = api.busy(case.name, arrays(1), lr=0.5)
    run.set_lr(0.25)
    other = api.busy(case.name, arrays(1), lr=0.125)
    other.load(walk(run, range(2)).save())
    fresh = api.busy(case.name, run.weights(), lr=0.125)
    fresh.load(run.save())
    for one in (run, fresh):
        walk(one, [2])
    assert fresh.bits() == run.bits()


@pytest.mark.offers("skip", "in_place")
def test_the_count_of_skipped_steps_is_saved(api):
    run = api.busy("Lamb", arrays(1), skip_nonfinite=True)
    walk(run, [0])
    run.step({**arrays(2), "vector": np.full(5, np.nan)})
    assert run.skipped == 1
    goes_on(api, run)


@each
def test_a_saved_state_does_not_change_with_the_run_that_loads_it(api, case):
    run = walk(api.busy(case.name, arrays(1)), range(2))
    saved = run.save()
    before = bits(saved)
    fresh = api.busy(case.name, run.weights())
    fresh.load(saved)
    assert bits(saved) == before
    walk(fresh, [2])
    assert bits(saved) == before
    walk(run, [2])
    assert bits(saved) == before


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda opt: pickle.loads(pickle.dumps(opt))}


@pytest.mark.offers("copies")
@pytest.mark.parametrize("stored", [{}, {"blocks": {"w": 2}}, EVERYTHING, STORED["split"] | STORED["8 bits"]], ids=len)
@pytest.mark.parametrize("how", COPIES)
@each
@pytest.mark.thinned(1)
def test_copies_go_their_own_way_from_where_they_were_made(api, case, how, stored):
    run = api.busy(
        case.name, arrays(0, LARGE), dtype="bfloat16" if stored else "float64", skip_nonfinite=True, **stored
    )
    twin = walk(run, range(2)).copied(COPIES[how])
    assert type(twin.opt) is type(run.opt)
    assert twin.everything() == run.everything()
    before = run.everything()
    walk(twin, [2])
    twin.step({"w": np.full((64, 80), np.nan)})
    assert run.everything() == before
    walk(run, [2])
    assert (run.bits(), bits(run.stats())) == (twin.bits(), bits(twin.stats()))
    run.set_lr(0.7)
    before = twin.everything()
    walk(run, [3])
    assert twin.everything() == before


@pytest.mark.offers("own_counts", "spoiled")
@each
@pytest.mark.thinned(1)
def test_counts_are_exact_beyond_float32(api, case):
    run = walk(api.busy(case.name, arrays(1)), [0])
    run.load(run.spoiled("matrix", "step", lambda count: count + 2**24))
    walk(run, [1])
    assert {name: int(one["step"]) for name, one in run.state().items()} == {
        **dict.fromkeys(SHAPES, 2),
        "matrix": 2**24 + 2,
    }
