"""The random jobs of all engines, stepped by the GPU engine beside the rule, whole and in parts."""

from __future__ import annotations

import pytest
from cases import KERNELED
from engines.jobs import Limits, drawn, held
from engines.parts import stepping_in_parts
from gpu.world import GPU, SMALL

from layerwise.engines.gpu import GpuEngine

LIMITS = Limits(most=700, layouts=("plain", "transposed"), leading=True)
# Jobs that are quick in an interpreter: among those of Adafactor and of Lamb are some of several programs, some that do
# not fill the last one, in parts, with blocks, in float64, in each dtype of 16 bits, and in formats.
CHOSEN = {
    "Adafactor": (2, 4, 6, 7),
    "AdamMini": (4, 5, 7),
    "AdamW": (2, 4),
    "Lamb": (0, 1, 4, 6),
    "Lans": (0, 4),
    "Lars": (2, 3, 4),
    "NovoGrad": (0, 3),
    "SGD": (1, 5),
    "StableAdamW": (0, 7),
}


@pytest.mark.every
@pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
@pytest.mark.parametrize("first", [None, *(pytest.param(first, marks=pytest.mark.slow) for first in range(0, 40, 8))])
def test_any_jobs_are_stepped_as_by_the_rule(case, first):
    taken, seeds = 0, CHOSEN.get(case.name, range(2)) if first is None else range(first, first + 8)
    for seed in seeds:
        one = drawn(case, seed, LIMITS)
        step = GPU.engine().step
        if one.parts:
            step = stepping_in_parts(GpuEngine(sizes=SMALL), one.parts, one.cuts, GPU.array)
        taken += held(one, GPU, step)
    assert taken >= len(seeds) / 2
