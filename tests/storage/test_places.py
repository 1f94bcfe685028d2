"""Each element of a part has the random bits of its place in the whole tensor, however the part is cut."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from layerwise.storage.index import part_of

WHOLE = (4, 6, 5)


@pytest.mark.parametrize(
    "along", [{}, {0: (1, 2)}, {2: (0, 2, 3)}, {1: (0, 2, 4, 5)}, {0: (0, 3), 2: (1, 4)}, {1: ()}], ids=str
)
@pytest.mark.parametrize("cut", [(), (slice(1, 2),), (slice(None), slice(1, 3), slice(1, None))], ids=str)
@pytest.mark.parametrize("blocks", [False, True], ids=["", "blocks"])
def test_places_are_those_in_the_whole_of_any_slice_of_any_part(along, cut, blocks):
    wanted = np.arange(prod(WHOLE)).reshape(WHOLE)
    for d, entries in along.items():
        wanted = wanted.take(np.array(entries, int), d)
    index = part_of(WHOLE, along)[cut]
    wanted = wanted[cut]
    if blocks and 0 not in along:
        apart = (1, *wanted.shape)
        index, wanted = index.reshape(apart), wanted.reshape(apart)
    np.testing.assert_array_equal(np.broadcast_to(index.numbers(np.arange, np.asarray), wanted.shape), wanted)
