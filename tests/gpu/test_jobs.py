"""The random jobs of all engines, stepped by the GPU engine beside the rule, whole and in parts."""

from __future__ import annotations

import pytest
from cases import KERNELED
from draws import seeds
from engines.jobs import Limits, drawn, held
from engines.parts import stepping_in_parts
from gpu.world import GPU, SMALL

from layerwise.engines.gpu.engine import GpuEngine

LIMITS = Limits(most=700, layouts=("plain", "transposed"), leading=True)
EACH = 8


@pytest.mark.every
@pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
@pytest.mark.parametrize("first", seeds(1, 5))
def test_any_jobs_are_stepped_as_by_the_rule(case, first):
    taken = 0
    for seed in range(EACH * first, EACH * (first + 1)):
        one = drawn(case, seed, LIMITS)
        step = GPU.engine().step
        if one.parts:
            step = stepping_in_parts(GpuEngine(None, SMALL), one.parts, one.cuts, GPU.array)
        taken += held(one, GPU, step)
    assert taken >= EACH / 2
