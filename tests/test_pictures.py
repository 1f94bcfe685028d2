"""Committed pictures and tables of figures beside the rows that they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from scripts import HOME, load

DOCS = Path(__file__).parents[1] / "docs"
load("checkout")
load("rows")
load("tune_demo")
load("precision")
formats = load("formats")
scaling = load("scaling")
demo = load("full_demo")
load("drawn", "drawn/__init__.py", submodule_search_locations=[str(HOME / "drawn")])
pictures = load("pictures")

from drawn import style  # noqa: E402

SIZE = re.compile(r"font: (?:bold )?([\d.]+)px|font-size: ([\d.]+)px")


def words(picture):
    """Return the text of a picture: what does not depend on the version that drew it."""
    return re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(encoding="utf-8"), re.DOTALL)


def of(name, theme="light"):
    return pictures.PICTURES / f"{name}-{theme}.svg"


@pytest.mark.parametrize("name", pictures.DRAWINGS)
def test_a_picture_shows_the_latest_rows(name, tmp_path):
    pictures.draw([name], tmp_path, ["light"])  # the next test compares the words of both themes
    drawn, committed = words(tmp_path / f"{name}-light.svg"), words(of(name))
    assert len(drawn) > 10
    assert drawn == committed, "run `python benchmarks/pictures.py`"


@pytest.mark.parametrize("name", pictures.DRAWINGS)
def test_a_picture_can_be_read_on_a_phone_and_in_the_dark(name):
    light, dark = (of(name, theme).read_text(encoding="utf-8") for theme in ("light", "dark"))
    assert 'width="450pt"' in light
    assert words(of(name)) == words(of(name, "dark"))
    assert style.THEMES["dark"]["ink"] in dark
    assert style.THEMES["light"]["ink"] not in dark
    for text in (light, dark):
        points = [float(one or other) for one, other in SIZE.findall(text)]
        assert min(points) * 420 / 450 >= 7.9  # pixels, where the picture is 420 wide
        assert text.count("system-ui") == text.count("sans-serif") == len(points)


def test_the_table_of_times():
    found = {}
    for optimizer in ("Lamb", "Lars", "Adafactor"):
        rows = style.latest("formats.csv", "format", optimizer=optimizer)
        found |= {(optimizer, name): float(row["ratio"]) for name, row in rows.items() if name != formats.TORCHAO}
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    for _, name in [key for key in found if key[0] == "Lamb" and "torch" not in key[1]]:
        cells = " | ".join(f"{found[optimizer, name]:.2f}" for optimizer in ("Lamb", "Lars", "Adafactor"))
        assert f"| {name} | {cells} |" in text
    assert len(found) == 27


def test_the_table_of_bytes():
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    rows = style.latest("memory.csv", "row")
    assert len(rows) == 10
    for row in rows.values():
        assert f"| {float(row['kept']):.2f} | {int(row['peak_mib']):,} |" in text, row["row"]


@pytest.mark.parametrize("name", scaling.TASKS)
def test_the_tables_of_learning_rates(name):
    assert scaling.markdown(name) in (HOME / "README.md").read_text(encoding="utf-8")
    seeds = {}
    for row in scaling.read(scaling.FOUND, map=name):
        seeds.setdefault((row["optimizer"], row[name], row["lr"]), set()).add(row["seed"])
    assert len(seeds) == len(scaling.OF_MAP[name]) * len(scaling.PLACES[name]) * len(scaling.FACTORS[name])
    assert all(len(each) == len(scaling.SEEDS) for each in seeds.values())


def test_the_tables_of_the_demo():
    result, _ = demo.read()
    assert demo.markdown(result) in (HOME.parent / "demo" / "README.md").read_text(encoding="utf-8"), (
        "run `benchmarks/full_demo.py --show`"
    )
    assert sum(1 for _ in demo.rows_of(result)) == len(result.runs())
    first, second = (re.findall(r"^\| (\w+) \|.* ([\d.]+) ± [\d.]+ (?:% )?\| [\d.]+ \|$", table, re.MULTILINE)
                     for table in demo.markdown(result).split("\n\n")[:2])  # fmt: skip
    title = " ".join(words(of("demo")))
    assert f"{float(dict(second)['AdamW']) - float(dict(second)['LAMB']):.2f} nats below AdamW" in title
    assert dict(first).keys() == {"SGD", "AdamW", "LARS"}
