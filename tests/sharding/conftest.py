from __future__ import annotations

from pathlib import Path

import pytest
from sharding.ranks import Ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory):
    """The ranks that all tests here share."""
    pool = Ranks(Path(tmp_path_factory.mktemp("ranks")))
    yield pool
    pool.close()
