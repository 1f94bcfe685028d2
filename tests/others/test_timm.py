"""timm's tests of its optimizers on those of layerwise.torch, by their names in timm's factory.

They are in its source distribution alone. `make test-timm` fetches it; LAYERWISE_TIMM_TESTS is the folder they lie in.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path

import pytest
from others.theirs import check_expected, tried

import layerwise
from layerwise.catalog.registry import ENTRIES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
FOLDER = os.environ.get("LAYERWISE_TIMM_TESTS")
if not FOLDER:
    pytest.skip("timm's tests are not in its wheel: `make test-timm` runs them", allow_module_level=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    layerwise.register("timm")
    spec = importlib.util.spec_from_file_location("test_optim", Path(FOLDER) / "test_optim.py")
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)

NAMES = [f"layerwise_{name.lower()}" for name in ENTRIES]
CASES = [
    *(pytest.param("test_optim_factory", name, id=f"factory-{name}") for name in NAMES),
    *(
        pytest.param("test_optimizer_convergence", name, id=f"convergence-{name}")
        for name in theirs._CONVERGENCE_CFGS
        if f"layerwise_{name}" in NAMES
    ),
]


@pytest.mark.parametrize(("test", "optimizer"), CASES)
def test_tests_of_others_pass_with_our_optimizers(test, optimizer, monkeypatch, request):
    make = theirs.create_optimizer_v2

    def ours(params, opt, **options):
        return make(params, f"layerwise_{opt.removeprefix('layerwise_')}", **options)

    monkeypatch.setattr(theirs, "create_optimizer_v2", ours)
    tried(lambda: getattr(theirs, test)(optimizer), "timm", request.node.callspec.id)


def test_expected_differences_are_up_to_date():
    check_expected("timm", CASES)
