"""Compiled kernels that are kept: they are launched with what Triton itself would launch them with."""

from __future__ import annotations

import pytest
from gpu.test_compiles import printed


@pytest.mark.parametrize(("optimizer", "launches"), [("Lamb", 3), ("Lans", 5), ("Adafactor", 10)])
def test_a_second_launch_is_given_what_the_first_one_was(optimizer, launches):
    found = printed("gpu.launching", optimizer)
    assert [one["launches"] for one in found] == [launches] * 6
    assert [bool(one["searched"]) for one in found] == [True, False] * 3
    for first, again in zip(found[::2], found[1::2], strict=True):
        assert first["given"] == again["given"]
