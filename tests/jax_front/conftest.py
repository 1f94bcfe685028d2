from __future__ import annotations

import pytest
from promotion import strict


@pytest.fixture(scope="session", autouse=True)
def _strict():
    with strict():
        yield
