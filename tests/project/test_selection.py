"""Which optimizers tests are tried with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from selection import KINDS, Case, thin

pytestmark = pytest.mark.slow


class Function:
    """A test as pytest collects it, before it has items."""

    def __init__(self, name: str, marks: list[Any]) -> None:
        self.nodeid, self.path, self.marks = name, Path("tests/front/test.py"), marks

    def iter_markers(self, name: str) -> Any:
        return (mark for mark in self.marks if mark.name == name)


def cases(test: Function, combinations: int) -> list[Case]:
    params = ({"name": name, "other": other} for other in range(combinations) for name in KINDS)
    return [Case.of(test, SimpleNamespace(params=one, marks=[])) for one in params]


KEPT = pytest.mark.kinds("rows and columns", "numbers of a layer").mark


@pytest.mark.parametrize(
    ("combinations", "marks", "number", "always"),
    [
        (1, [], len({*KINDS.values()}), {*KINDS.values()}),
        (2, [], len({*KINDS.values()}) - 1, set()),
        (3, [], 3, set()),
        (4, [], 2, set()),
        (4, [KEPT], 2, {*KEPT.args}),
        (3, [pytest.mark.thinned(1).mark], 1, set()),
        (3, [pytest.mark.thinned(1).mark, KEPT], 2, {*KEPT.args}),
    ],
)
def test_each_case_is_tried_with_the_kinds_that_it_is_about(
    combinations: int, marks: list[Any], number: int, always: set[str]
) -> None:
    tried: dict[Any, list[str]] = {}
    for test in ("a", "b"):
        for case in thin(cases(Function(test, marks), combinations)):
            if not case.is_slow:
                tried.setdefault((test, case.call.params["other"]), []).append(KINDS[case.call.params["name"]])
    assert len(tried) == 2 * combinations
    assert all(len(kinds) == len({*kinds}) == number and {*kinds} >= always for kinds in tried.values())
    if not marks:
        assert {kind for (test, _), kinds in tried.items() for kind in kinds if test == "a"} == {*KINDS.values()}


def test_one_at_a_time_goes_through_all_kinds() -> None:
    n = len({*KINDS.values()})
    one = thin(cases(Function("a", [pytest.mark.thinned(1).mark]), 2 * n))
    tried = [KINDS[case.call.params["name"]] for case in one if not case.is_slow]
    assert {*tried[:n]} == {*tried[n:]} == {*KINDS.values()}


def test_of_an_optimizer_that_is_asked_for_every_case_is_tried() -> None:
    for asked in KINDS:
        found = thin(cases(Function("a", [pytest.mark.thinned(1).mark]), 3), {asked})
        tried = [case for case in found if not case.is_slow and case.call.params["name"] == asked]
        assert len(tried) == 3
