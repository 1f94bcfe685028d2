"""`make generate` says in a sentence what is missing, and what is too much."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from cases import CASES, case_of

from layerwise.catalog.registry import Entry

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "tools").exists(), reason="the tools are in the source alone")


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import generate

    return generate


def test_an_option_without_a_declaration_is_named(generate):
    lion = case_of("Lion")

    @dataclass(frozen=True)
    class Lioness(lion.hyper):
        pride: float = 0.5

    known = Entry("Lion", lion.rule, lion.hyper)
    generate.check_declared([known])
    with pytest.raises(SystemExit, match=r"^`pride` of Lioness has no declaration: its default is 0\.5") as found:
        generate.check_declared([known, Entry("Lioness", lion.rule, Lioness)])
    assert "layerwise.rules.lion" in str(found.value)


def test_the_site_s_tables_describe_rates_for_each_api(generate):
    """PyTorch takes a tensor and no function, NumPy, JAX and MLX a function: LAMB's page says it, others go there."""
    for case in CASES:
        table = generate.pages.options(case.name)
        rows = [row for row in table.splitlines() if row.startswith(("| `lr` |", "| `weight_decay` |"))]
        assert len(rows) == 2
        by_api = "in PyTorch also a tensor of one element, in NumPy, JAX and MLX also a function of the step"
        said = by_api if case.name == "Lamb" else "or [as in LAMB](lamb.md#options)"
        assert all(said in row for row in rows)
        named = re.findall(r"\w+", " ".join(re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)))
        assert sorted(named) == sorted(spec.name for spec in fields(case.hyper))


def test_a_file_that_nothing_prints_any_more_is_named(generate):
    there = [file for folder in generate.PRINTED for file in (ROOT / folder).iterdir()]
    generate.check_left_over(there)
    left = [file for file in there if file.stem == "lion"]
    assert len(left) == 2
    with pytest.raises(SystemExit, match=r"git rm csrc/printed/lion\.hpp src/layerwise/engines/gpu/printed/lion\.py$"):
        generate.check_left_over([file for file in there if file not in left])
