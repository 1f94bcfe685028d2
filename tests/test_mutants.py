"""Every oracle can fail: each small error in the mathematics turns those red that are meant to see it."""

from __future__ import annotations

from importlib import import_module
from inspect import getsource
from typing import Any

import numpy as np
import pytest
from cases import CASES
from mutants import MODULES, MUTANTS, Mutant, rebuilt
from oracles import ORACLES


@pytest.mark.parametrize(
    ("mutant", "oracle"),
    [
        pytest.param(mutant, oracle, id=f"{mutant.module.split('.')[-1]}: {mutant.error} / {oracle}")
        for mutant in MUTANTS
        for oracle in mutant.caught_by
    ],
)
def test_caught(mutant: Mutant, oracle: str) -> None:
    world = mutant.world()
    with pytest.raises(AssertionError, match=r"tolerance|Not equal"), np.errstate(all="ignore"):
        ORACLES[oracle](world)


@pytest.fixture(scope="module")
def unchanged() -> Any:
    return rebuilt({name: getsource(import_module(name)) for name in MODULES})


@pytest.mark.parametrize("oracle", ORACLES)
def test_rebuilding_alone_changes_nothing(oracle: str, unchanged: Any) -> None:
    """Every oracle accepts the rules as they are: what turns it red in `test_caught` is the error."""
    ORACLES[oracle](unchanged)


def test_every_oracle_has_mutants_of_its_own() -> None:
    assert {oracle for mutant in MUTANTS for oracle in mutant.caught_by} == set(ORACLES)
    rebuilt_alone = {"layerwise.drive", "layerwise.drive.parts"}  # the latter is tried where others hold parts
    assert {f"layerwise.{mutant.module}" for mutant in MUTANTS} == set(MODULES) - rebuilt_alone


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_rule_has_mutants(case):
    module = case.rule.__name__.removeprefix("layerwise.")
    assert sum(mutant.module == module for mutant in MUTANTS) >= 5, (
        f"{module} has too few mutants: add small errors in it, with the oracles that notice each, to tests/mutants.py."
    )
