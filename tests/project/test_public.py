"""Public names and their arguments are those of the list: what goes from it or changes in it concerns users."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
public = import_module("public")

SLOW = ("keras", "paddle")  # need the packages of the parity tests, which take seconds to import
each_module = [
    pytest.param(module, needs, id=module, marks=pytest.mark.slow if needs in SLOW else ())
    for module, needs in public.MODULES.items()
]


@pytest.mark.filterwarnings("ignore")  # of what a framework warns while it is imported
@pytest.mark.parametrize(("module", "needs"), each_module)
def test_names_and_arguments_are_the_list(module, needs, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "numpy")
    if find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    found, listed = public.lines(module), public.listed(module)
    gone, new = sorted({*listed} - {*found}), sorted({*found} - {*listed})
    assert (gone, new) == ([], []), "deprecate what goes for one minor version (docs/start.md), then: make generate"


def test_the_list_has_what_users_call():
    assert "Lamb.stats(self)" not in public.listed("layerwise.torch")  # but once, where it is defined
    assert "Optimizer.stats(self)" in public.listed("layerwise.torch")
    lamb = next(line for line in public.listed("layerwise.torch") if line.startswith("Lamb("))
    assert lamb.startswith("Lamb(params, lr=0.001, betas=(0.9, 0.999)")
    assert "0x" not in public.LIST.read_text("utf-8")
