"""A state that is read in one API and written in another continues there."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from cases import CASES
from contract.apis import NumPy, arrays, close, walk

from layerwise import convert

SHAPES = {"matrix": (4, 3), "column": (5, 1), "vector": (5,), "stack": (2, 3, 4)}
LATER = range(3, 23)


def of(run: Any) -> tuple[Any, ...]:
    """What says which state is meant."""
    return (run.opt, run._state, run._weights) if run.api.name == "Jax" else (run.opt,)


def read(run: Any) -> Any:
    with run.program.world() if run.api.name == "Paddle static" else nullcontext():
        return convert.read(*of(run))


def write(kept: Any, run: Any, **more: Any) -> None:
    with run.program.world() if run.api.name == "Paddle static" else nullcontext():
        params = run._weights if run.api.name in ("Jax", "MLX") else None
        made = convert.write(kept, run.opt, params, **more)
    if run.api.name == "Jax":
        run._state = made
    else:
        assert made is run.opt


RATE = {"lr": 0.125}  # which float32 has, in which MLX and Keras hold rates


@pytest.mark.every
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_goes_on_in_another_api_and_back(api, case):
    own = {"exclude_layers": ()} if (api.name, case.name) == ("Keras", "Muon") else {}
    shapes = {name: x for name, x in SHAPES.items() if len(x) == 2} if own else SHAPES  # it leaves others to AdamW
    one = walk(NumPy().busy(case.name, arrays(0, shapes), **RATE), range(3))
    other = api.busy(case.name, one.weights(), **RATE, **own)
    write(read(one), other)
    close(walk(other, LATER).weights(), walk(one, LATER).weights(), 1e-9)
    back = NumPy().busy(case.name, other.weights(), **RATE)
    write(read(other), back)
    more = range(23, 43)
    close(walk(back, more).weights(), walk(other, more).weights(), 1e-9)
