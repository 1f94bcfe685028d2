"""A rank writes down what it knows, and asks nobody for it."""

from __future__ import annotations

import numpy as np
import pytest
from sharding.models import FRONTS

from sharding import recording, runs


@pytest.mark.parametrize("layout", ["fsdp on 3", "two-dimensional"])
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.thinned(1)
def test_tables_of_ranks(ranks, front, layout, tmp_path):
    """All ranks together know all that one process knows, each of them the same of what is not in blocks."""
    world = runs.layout_of(layout)[0]
    found = ranks.run(world, recording.of_rank, front, layout, tmp_path, world)
    _, alone = recording.recorded(front, None, tmp_path / "alone.csv")
    assert {key for _, rows in found for key in rows} == alone.keys()
    for _, rows in found:
        assert {key for key in alone if not key[2]} <= rows.keys()
        for key, numbers in rows.items():
            np.testing.assert_allclose(numbers, alone[key], rtol=1e-9, err_msg=str(key))
    assert any(rows.keys() < alone.keys() for _, rows in found)


def test_one_rank_may_write_alone(ranks, tmp_path):
    """No collective is needed, or the others would be missed."""
    front, layout = FRONTS[0], "fsdp on 2"
    first, second = ranks.run(2, recording.of_rank, front, layout, tmp_path, 1)
    plain = ranks.run(2, recording.of_rank, front, layout, tmp_path, 0)
    assert first[1]
    assert not second[1]
    # The first message of all is as long as any that these processes have sent before.
    for step, (one, other, wanted) in enumerate(zip(first[0], second[0], plain[0][0], strict=True)):
        assert one == other
        assert len(one) == len(wanted)
        assert step == 0 or one == wanted
