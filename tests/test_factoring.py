"""Which dimensions are rows and columns."""

from __future__ import annotations

import pytest

from layerwise.rules import factored_dims


@pytest.mark.parametrize(
    ("how", "shape", "smallest", "found"),
    [
        ("last", (2, 3, 4), 0, ((1,), (2,))),
        ("last", (3,), 0, None),
        ("last", (), 0, None),
        ("last", (8, 7), 8, None),
        ("matrix", (3, 4), 0, ((0,), (1,))),
        ("matrix", (2, 3, 4), 0, None),
        ("largest", (2, 9, 4), 0, ((1,), (2,))),
        ("largest", (9, 2, 4), 0, ((0,), (2,))),  # in the tensor's order, though the first is larger
        ("largest", (5, 5, 5), 0, ((1,), (2,))),  # of equals the later ones
        ("largest", (7, 5, 5), 0, ((0,), (2,))),
        ("largest", (128, 2, 127), 128, None),
        (((0,), (1, 2)), (5, 2, 3), 6, None),
        (((0,), (1, 2)), (6, 2, 3), 6, ((0,), (1, 2))),
        (((-1,), (0,)), (6, 2, 3), 0, ((2,), (0,))),
        (((0,), (3,)), (6, 2, 3), 0, None),
        (((0,), (-2,)), (6, 2), 0, None),  # one dimension by two names
        (False, (6, 2), 0, None),
    ],
)
def test_dims(how: object, shape: tuple[int, ...], smallest: int, found: object) -> None:
    assert factored_dims.dims(how, shape, smallest) == found


def test_blocks_are_judged_by_their_own_shape() -> None:
    assert factored_dims.dims("last", (3, 8, 4), 0, block_dims=(0,)) == ((1,), (2,))
    assert factored_dims.dims("last", (8, 3, 4), 0, block_dims=(1,)) == ((0,), (2,))
    assert factored_dims.dims("matrix", (3, 8, 4), 0, block_dims=(0,)) == ((1,), (2,))
    assert factored_dims.dims("last", (8, 3), 0, block_dims=(1,)) is None
