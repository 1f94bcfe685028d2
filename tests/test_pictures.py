"""Committed pictures and tables of figures beside the rows that they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from scripts import load

DOCS = Path(__file__).parents[1] / "docs"
load("rows")
load("tune_demo")
scaling = load("scaling")
pictures = load("pictures")


def words(picture):
    """Return the text of a picture: what does not depend on the version that drew it."""
    return re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("name", pictures.DRAWINGS)
def test_a_picture_shows_the_latest_rows(name, tmp_path):
    pictures.draw([name], tmp_path)
    for theme in pictures.THEMES:
        drawn, committed = words(tmp_path / f"{name}-{theme}.svg"), words(pictures.PICTURES / f"{name}-{theme}.svg")
        assert len(drawn) > 10
        assert drawn == committed, "run `python benchmarks/pictures.py`"


def test_the_table_of_times():
    found = {}
    for optimizer in ("Lamb", "Lars", "Adafactor"):
        rows = pictures.latest("formats.csv", "format", optimizer=optimizer)
        found |= {(optimizer, name): float(row["ratio"]) for name, row in rows.items()}
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    for _, name in [key for key in found if key[0] == "Lamb" and "torch" not in key[1]]:
        cells = " | ".join(f"{found[optimizer, name]:.2f}" for optimizer in ("Lamb", "Lars", "Adafactor"))
        assert f"| {name} | {cells} |" in text
    assert len(found) == 27


def test_the_table_of_bytes():
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    rows = pictures.latest("memory.csv", "row")
    assert len(rows) == 10
    for row in rows.values():
        assert f"| {float(row['kept']):.2f} | {int(row['peak_mib']):,} |" in text, row["row"]


@pytest.mark.parametrize("name", scaling.TASKS)
def test_the_tables_of_learning_rates(name):
    assert scaling.markdown(name) in (DOCS / "transfer.md").read_text(encoding="utf-8")
    seeds = {}
    for row in scaling.read(name):
        seeds.setdefault((row["optimizer"], row[name], row["lr"]), set()).add(row["seed"])
    assert len(seeds) == len(scaling.CONTENDERS) * len(scaling.PLACES[name]) * len(scaling.FACTORS[name])
    assert all(len(each) == len(scaling.SEEDS) for each in seeds.values())
