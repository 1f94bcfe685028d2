"""The fixture `api`: each API that offers what a test needs."""

from __future__ import annotations

import pytest
from contract.apis import APIS, EVERYWHERE


def pytest_generate_tests(metafunc):
    if "api" not in metafunc.fixturenames:
        return
    needed = {one for mark in metafunc.definition.iter_markers("offers") for one in mark.args}
    metafunc.parametrize("api", [_row(name) for name, api in APIS.items() if api.has(*needed)], indirect=True)


def _row(name):
    marks = [] if name in EVERYWHERE else [pytest.mark.slow]
    if name in ("Jax", "Keras"):  # XLA compiles each step: one optimizer, unless a test says how many it needs
        marks.append(pytest.mark.thinned(1, 2))
    return pytest.param(name, marks=marks, id=name)


@pytest.fixture
def api(request):
    """An API, in the world that it needs."""
    made = APIS[request.param]()
    with made.world():
        yield made
