from __future__ import annotations

import numpy as np
import pytest
from storage.worlds import MAKERS


@pytest.fixture(params=[*MAKERS])
def world(request):
    """An array library, in which nan and what overflows is as quiet as in a step."""
    with np.errstate(all="ignore"):
        yield MAKERS[request.param]()
