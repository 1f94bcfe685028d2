"""Every oracle can fail: each small error in the mathematics turns those red that are meant to see it.

Errors elsewhere are tried by `make mutants`. Here, their rows are checked.
"""

from __future__ import annotations

import ast
import json
from importlib import import_module
from inspect import getsource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import touched
from cases import CASES
from mutants import record
from mutants.errors import ROOT, Error
from mutants.nearest import nearest
from mutants.rooms import ROOMS, Room, room_of
from mutants.rules import MODULES, MUTANTS, module_of, rebuilt, world
from oracles import ORACLES


@pytest.mark.slow  # checks the tests, and not the library
@pytest.mark.parametrize(
    ("mutant", "oracle"),
    [pytest.param(mutant, oracle, id=f"{mutant.name} / {oracle}") for mutant in MUTANTS for oracle in mutant.oracles],
)
def test_caught(mutant: Error, oracle: str) -> None:
    broken = world(mutant)
    with pytest.raises(AssertionError, match=r"tolerance|Not equal"), np.errstate(all="ignore"):
        ORACLES[oracle](broken)


@pytest.fixture(scope="module")
def unchanged() -> Any:
    return rebuilt({name: getsource(import_module(name)) for name in MODULES})


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ORACLES)
def test_rebuilding_alone_changes_nothing(oracle: str, unchanged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every oracle accepts the rules as they are: what turns it red in `test_caught` is the error."""
    monkeypatch.delenv("CI", raising=False)  # with few draws, if they are the same rules
    ORACLES[oracle](unchanged)


def test_every_oracle_has_mutants_of_its_own() -> None:
    assert {oracle for mutant in MUTANTS for oracle in mutant.oracles} == set(ORACLES)
    rebuilt_alone = {"layerwise.drivers", "layerwise.drivers.sharded"}  # the latter is tried where others hold parts
    assert {*map(module_of, MUTANTS)} == set(MODULES) - rebuilt_alone


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_rule_has_mutants(case):
    module = case.rule.__name__
    assert sum(module_of(mutant) == module for mutant in MUTANTS) >= 5, (
        f"{module} has too few mutants: add small errors in it, with the oracles that notice each, to "
        "tests/mutants/errors/rules.txt."
    )


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_the_errors_of_a_room_can_be_made(room: Room) -> None:
    for error in room.errors:
        broken = error.broken()
        if error.file.endswith(".py"):
            ast.parse(broken, error.name)
    assert [error.name for error in room.errors if error.old == error.new] == []
    assert [path for path in room.near if not (ROOT / path).exists()] == []


def test_errors_have_names_of_their_own() -> None:
    names = [error.name for room in ROOMS for error in room.errors]
    assert sorted(names) == sorted(set(names))


def test_every_file_is_of_a_room_and_every_room_has_errors() -> None:
    files = [file for folder in ("src/layerwise", "csrc") for file in (ROOT / folder).rglob("*.[pch]*")]
    names = [str(file.relative_to(ROOT)) for file in files if file.suffix in {".py", ".cpp", ".hpp"}]
    assert len(names) > 100
    assert [name for name in names if room_of(name) is None] == []
    assert {room.name: len(room.errors) for room in ROOMS if len(room.errors) < 5} == {}
    elsewhere = [error.name for room in ROOMS for error in room.errors if room_of(error.file) is not room]
    assert elsewhere == [], "the room's `paths` lack its file"


def test_every_file_has_tests_that_are_nearest_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(touched, "FOLDER", tmp_path)
    files = [str(file.relative_to(ROOT)) for file in (ROOT / "src/layerwise").rglob("*.py")]
    assert [file for file in files if not nearest(file)] == []
    [first, *_] = nearest("src/layerwise/options/checks.py")
    assert first == "tests/test_options.py::test_an_option_refuses_what_is_out_of_its_range_and_says_the_way_out"
    assert len(nearest("src/layerwise/torch/step/_work.py")) > 20  # of which nothing is recorded: those of its room
    with pytest.raises(SystemExit, match=r"^tests/cases\.py is no file of the library"):
        nearest("tests/cases.py")


def test_tests_that_call_a_file_are_near_to_it_the_quickest_of_each_function_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(touched, "FOLDER", tmp_path)
    file, own = "src/layerwise/rules/lamb.py", "tests/test_mutants.py::test_"
    tests = [f"{own}errors_have_names_of_their_own", f"{own}caught", f"{own}every_rule_has_mutants[a]"]
    seconds = {"step": [(3.0, tests[0]), (1.0, tests[1])], "shapes": [(0.5, tests[2])], "of": [(99.0, tests[0])]}
    (tmp_path / "gw0.json").write_text(json.dumps({f"{file}::{name}": one for name, one in seconds.items()}))
    assert nearest(file) == [tests[1], tests[2], tests[0]]


def test_the_table_is_of_the_errors_that_there_are() -> None:
    kept, table = record.read(), record.TABLE.read_text(encoding="utf-8")
    again = "run: make mutants MUTANTS_ARGS=--table"
    assert set(kept) <= {error.name for room in ROOMS for error in room.errors}, again
    assert table == record.table(kept, ROOMS), again
