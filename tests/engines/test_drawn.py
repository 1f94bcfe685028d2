"""Steps drawn from all that kernels take, at all sizes of numbers, beside the rule (`drawn.py`)."""

from __future__ import annotations

import pytest
from draws import seeds
from engines.drawn import differences, drawn
from engines.worlds import needed

from layerwise.errors import ContradictionError, EngineError, HyperparameterError

pytestmark = needed


@pytest.mark.parametrize("first", seeds(1, 20))
def test_drawn_steps_are_the_rules(first):
    tried = 0
    for seed in range(100 * first, 100 * first + 100):
        try:
            assert not [*differences(drawn(seed))], seed
        except (ContradictionError, EngineError, HyperparameterError):
            continue  # options that contradict one another, or are too rare for kernels
        tried += 1
    assert tried > 80
