"""The README names the layouts and wrappings that are tested, all of them and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sharding.layouts import LAYOUTS
from sharding.wrappings import WRAPPINGS

PAGE = Path(__file__).parents[1] / "sharding/README.md"


def table(heading: str) -> dict[str, int]:
    """How many processes each name of the table's first column is tested on."""
    _, rows = re.split(rf"^\| {heading} \| processes \|.*\n\|---.*\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    found: dict[str, int] = {}
    for row in rows.partition("\n\n")[0].splitlines():
        names, numbers, _ = (cell.strip() for cell in row.strip("|").split("|"))
        found |= dict(zip(re.findall(r"`([^`]+)`", names), map(int, numbers.split(",")), strict=True))
    return found


@pytest.mark.parametrize(("heading", "tested"), [("layout", LAYOUTS), ("wrapping", WRAPPINGS)])
def test_the_tables_are_what_is_tested(heading, tested):
    assert table(heading) == {name: ranks for name, (ranks, _) in tested.items()}
