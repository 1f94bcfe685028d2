from __future__ import annotations

import numpy as np
import pytest
from storage.worlds import MAKERS


# Without jit, every operation of JAX is a program to compile.
@pytest.fixture(params=[pytest.param(x, marks=pytest.mark.slow) if x == "jax" else x for x in MAKERS])
def world(request):
    """An array library, in which nan and what overflows is as quiet as in a step."""
    with np.errstate(all="ignore"):
        yield MAKERS[request.param]()
