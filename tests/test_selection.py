"""Which optimizers tests are tried with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from selection import KINDS, thin

pytestmark = pytest.mark.slow


class Item:
    """A case of a test as pytest collects it."""

    def __init__(self, test: str, optimizer: str, other: int, marks: list[Any]) -> None:
        self.nodeid, self.path, self.marks = f"{test}[{optimizer}-{other}]", Path("tests/front/test.py"), marks[:]
        self.callspec = SimpleNamespace(params={"name": optimizer, "other": other})

    def iter_markers(self, name: str) -> Any:
        return (mark for mark in self.marks if mark.name == name)

    def get_closest_marker(self, name: str) -> Any:
        return next(self.iter_markers(name), None)

    def add_marker(self, mark: Any) -> None:
        self.marks.append(mark)

    def kind(self) -> str:
        return KINDS[self.callspec.params["name"]]


KEPT = pytest.mark.kinds("rows and columns", "numbers of a layer").mark


@pytest.mark.parametrize(
    ("combinations", "marks", "number", "always"),
    [
        (2, [], len({*KINDS.values()}), {*KINDS.values()}),
        (3, [], 3, set()),
        (3, [KEPT], 3, {*KEPT.args}),
        (3, [pytest.mark.thinned(1).mark], 1, set()),
        (3, [pytest.mark.thinned(1).mark, KEPT], 2, {*KEPT.args}),
    ],
)
def test_each_case_is_tried_with_the_kinds_that_it_is_about(
    combinations: int, marks: list[Any], number: int, always: set[str]
) -> None:
    items = [Item(test, name, i, marks) for test in ("a", "b") for i in range(combinations) for name in KINDS]
    left_out = thin(items, pytest.mark.slow.mark)
    tried: dict[Any, list[str]] = {}
    for item in items:
        if item not in left_out and item.get_closest_marker("slow") is None:
            tried.setdefault((item.nodeid[0], item.callspec.params["other"]), []).append(item.kind())
    assert len(tried) == 2 * combinations
    assert all(len(kinds) == len({*kinds}) == number and {*kinds} >= always for kinds in tried.values())
    if number == 3:
        assert {kind for (test, _), kinds in tried.items() for kind in kinds if test == "a"} == {*KINDS.values()}


def test_one_at_a_time_goes_through_all_kinds() -> None:
    n = len({*KINDS.values()})
    items = [Item("a", name, other, [pytest.mark.thinned(1).mark]) for other in range(2 * n) for name in KINDS]
    thin(items, pytest.mark.slow.mark)
    tried = [item for item in items if item.get_closest_marker("slow") is None]
    assert {item.kind() for item in tried[:n]} == {item.kind() for item in tried[n:]} == {*KINDS.values()}
