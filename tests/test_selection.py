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


@pytest.mark.parametrize(
    ("marks", "always"),
    [
        ([], {*KINDS.values()}),
        ([pytest.mark.thinned(1).mark, pytest.mark.kinds("factored").mark], {"factored"}),
        (
            [pytest.mark.thinned(1).mark, pytest.mark.kinds("rows and columns", "numbers of a layer").mark],
            {"rows and columns", "numbers of a layer"},
        ),
    ],
    ids=["usually", "one", "two"],
)
def test_each_case_is_tried_with_the_kinds_that_it_is_about(marks: list[Any], always: set[str]) -> None:
    items = [
        Item(test, name, other, marks) for test in ("a", "b", "c", "d", "e") for other in range(3) for name in KINDS
    ]
    left_out = thin(items, pytest.mark.slow.mark)
    tried: dict[Any, list[Item]] = {}
    for item in items:
        if item not in left_out and item.get_closest_marker("slow") is None:
            tried.setdefault((item.nodeid[0], item.callspec.params["other"]), []).append(item)
    assert len(tried) == 15
    for cases in tried.values():
        assert {item.kind() for item in cases} == always
        assert len(cases) == len(always)


def test_one_at_a_time_goes_through_all_kinds() -> None:
    n = len({*KINDS.values()})
    items = [Item("a", name, other, [pytest.mark.thinned(1).mark]) for other in range(2 * n) for name in KINDS]
    thin(items, pytest.mark.slow.mark)
    tried = [item for item in items if item.get_closest_marker("slow") is None]
    assert {item.kind() for item in tried[:n]} == {item.kind() for item in tried[n:]} == {*KINDS.values()}
