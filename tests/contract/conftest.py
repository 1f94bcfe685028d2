"""The fixture `api`: each API that offers what a test needs; with `engine` beside it, by each that steps it."""

from __future__ import annotations

import pytest
from contract.apis import APIS, EVERYWHERE


def pytest_generate_tests(metafunc):
    if "api" not in metafunc.fixturenames:
        return
    needed = {one for mark in metafunc.definition.iter_markers("offers") for one in mark.args}
    names = [name for name, api in APIS.items() if api.has(*needed)]
    if "engine" not in metafunc.fixturenames or _has_own_engines(metafunc.definition):
        metafunc.parametrize("api", [_row(name) for name in names], indirect=True)
        return
    pairs = [(name, None) for name in names]
    pairs += [(name, engine) for engine, needed in ENGINES.items() for name in names if APIS[name].has(needed)]
    metafunc.parametrize(("api", "engine"), [_row(*pair) for pair in pairs], indirect=["api"])


ENGINES = {"rule": "engines", "foreach": "foreach"}  # and what APIs that have them offer
SLOWLY = "Jax", "Paddle", "Paddle static"  # XLA compiles each step, and Paddle takes long for each operation


def _row(name, *engine):
    marks = [] if name in EVERYWHERE else [pytest.mark.slow]
    if name in SLOWLY:  # one optimizer, unless a test says how many it needs
        marks.append(pytest.mark.thinned(1, 2))
    return pytest.param(name, *engine, marks=marks, id=" ".join([name, *filter(None, engine)]))


@pytest.fixture
def api(request):
    """An API, in the world that it needs."""
    made = APIS[request.param]()
    with made.world():
        yield made


def _has_own_engines(test):
    return any("engine" in mark.args[0] for mark in test.iter_markers("parametrize"))
