"""State in 8 bits, rounded to nearest, has the codes that the references say: of the formula, and of the format."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES
from contract.apis import arrays, rounded
from reference.storage import decoded, encoded, rounded32

pytestmark = pytest.mark.offers("state_dtype")
SHAPES = {"w": (64, 66), "v": (4100,)}  # rows that end in short groups
NEAREST = {"state_dtype": "int8", "rounding": "nearest"}


def through_codes(state) -> dict[bool, list[np.ndarray]]:
    """Store what a reference keeps of each element, and return the codes, by whether there are signs."""
    found: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for kept in state.values():
        if np.size(kept) < 4096:
            continue
        signed, rows = bool((kept < 0).any()), kept.shape[0] if kept.ndim > 1 else 1
        codes, scales = encoded([rounded32(x) for x in kept.ravel()], rows, signed)
        kept[...] = np.reshape(decoded(codes, scales, rows, signed), kept.shape)
        found[signed].append(np.reshape(codes, kept.shape))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.thinned(2)
def test_state_in_8_bits_is_that_of_the_references(api, engine, case):
    """Where a number lies between two codes, the last digit of float32 decides: for at most one of 4224 as measured."""
    options = case.consistent({**case.usual(), **case.busy})
    start = rounded(arrays(0, SHAPES), "float32")
    run = api.make(case.name, start, dtype="float32", engine=engine, **options, **NEAREST)
    reference, params = case.reference(**options), start
    for seed in range(3):
        grads = rounded(arrays(100 + seed, SHAPES), "float32")
        run.step(grads)
        params = reference.step(params, grads)
        for name, state in run.state().items():
            wanted = through_codes(reference.state.get(name, {}))
            for dtype, codes in (("int8", wanted[True]), ("uint8", wanted[False])):
                own = [x for x in state.values() if x.dtype == dtype]
                assert len(own) == len(codes), (name, dtype)
                for x, y in zip(own, codes, strict=True):
                    apart = abs(x.astype(int) - y)
                    assert apart.max() <= 1, (name, dtype, seed)
                    assert np.mean(apart > 0) < 1e-3, (name, dtype, seed)
    weights = run.weights()
    for name, one in params.items():
        length = np.linalg.norm(one - start[name])
        assert np.linalg.norm(weights[name] - one) < 5e-4 * length, name
