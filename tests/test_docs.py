"""What the documentation says is true: its code runs, its tables match the code, its links lead somewhere."""

from __future__ import annotations

import ast
import doctest
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from cases import CASES, Case

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@each_page
def test_code_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(page), "exec"), namespace)  # noqa: S102


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "module",
    [
        "layerwise.blocks",
        "layerwise.presets",
        "layerwise.numpy",
        "layerwise.jax",
        "layerwise.jax._presets",
        "layerwise.schedules",
        "layerwise.recipes",
    ],
)
def test_examples_in_docstrings(module: str) -> None:
    failed, tried = doctest.testmod(import_module(module))
    assert tried
    assert not failed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_option_tables_list_every_option_with_its_default(case: Case) -> None:
    text = (ROOT / "docs" / "optimizers" / f"{case.name.lower()}.md").read_text("utf-8")
    rows = {
        name: default.strip()
        for names, default in re.findall(r"^\| (`[a-z].*?`) \|([^|]*)\|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    options = {spec.name: spec.default for spec in fields(case.hyper)}
    assert rows.keys() == options.keys()
    for name, default in rows.items():
        if default == "off":
            assert not options[name]
        else:
            assert ast.literal_eval(default) == options[name], name


def test_coverage_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "coverage.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 100
    for file, test in named:
        assert re.search(rf"^def {test}\b", (ROOT / file).read_text("utf-8"), re.MULTILINE), f"{file}::{test}"
