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

from drawn import losses, memory, sharded, speed, style  # noqa: E402

SIZE = re.compile(r"font: (?:bold )?([\d.]+)px|font-size: ([\d.]+)px")


def words(picture):
    """Return the text of a picture: what does not depend on the version that drew it."""
    return re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(encoding="utf-8"), re.DOTALL)


def of(name, theme="light"):
    return pictures.PICTURES / f"{name}-{theme}.svg"


@pytest.mark.parametrize("name", pictures.DRAWINGS)
def test_a_picture_shows_the_latest_rows(name, tmp_path):
    pictures.draw([name], tmp_path)
    for theme in pictures.THEMES:
        drawn, committed = words(tmp_path / f"{name}-{theme}.svg"), words(of(name, theme))
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


def test_step_times_are_rows_beside_ours():
    drawn = words(of("speed"))
    rows = style.rows_of(speed.TABLE, table="table", shapes=speed.SHAPES)
    found = speed.groups()
    assert [group.name for group in found] == ["LAMB", "LARS", "Adafactor"]
    others = [bar for group in found for bar in group.bars[1:]]
    assert {bar.label for bar in others} >= {"timm", "PyTorch", "transformers", "pytorch_optimizer"}
    for bar in others:
        assert f"{bar.ms:.0f} ms, {style.times(bar.ratio)}" in drawn
        assert any((float(row["median_ms"]), float(row["ratio"])) == (bar.ms, bar.ratio) for row in rows)
    ends = [f"{end(bar.ratio for bar in others):.1f}" for end in (min, max)]
    assert f"{ends[0]} to {ends[1]} times" in " ".join(drawn)


def test_of_a_package_the_fastest_variant_counts():
    row = {"optimizer": "Lamb", "date": ""}
    timed = (("layerwise.torch.Lamb", 2, 1), (speed.SCALE, 1, 0.5), ("timm.Lamb, foreach", 6, 3), ("timm.Lamb", 4, 2))
    rows = [{**row, "implementation": a, "median_ms": str(b), "ratio": str(float(c))} for a, b, c in timed]
    assert speed.group_of(rows) == ("LAMB", [("layerwise", 2, 1), ("timm", 4, 2)], 1)


def test_messages_of_a_sharded_step_are_those_of_the_rows():
    rows = style.latest(sharded.TABLE, "implementation", ranks="2", tensors="200")
    title = " ".join(words(of("sharded"))[-8:])
    assert rows["layerwise.torch.Lamb"]["collectives"] == "1"
    assert f"LAMB sends one message where timm's sends {rows['timm.Lamb']['collectives']}" in title
    assert any(f"{float(rows['timm.Lamb']['median_ms']):.0f} ms" in text for text in words(of("sharded")))


def test_the_least_bytes_keep_the_loss_and_rounding_to_nearest_does_not():
    found = [line for line in losses.lines(losses.read(losses.FOUND)) if line.tested]
    for line in found:
        if line.storage == losses.LEAST and line.optimizer == "LAMB":
            assert line.tested.low <= 0 <= line.tested.high or abs(line.tested.mean) < 0.005 * sum(line.losses) / 10
        if line.storage == losses.CONTROL:
            assert line.tested.low > 0
    assert "8-bit state" in " ".join(words(of("losses")))


def test_the_peaks_in_the_title_are_rows():
    rows = style.latest(memory.TABLE, "row")
    title = (
        f"{int(rows[memory.TO]['peak_mib']):,} MiB where AdamW in float32 takes {int(rows[memory.FROM]['peak_mib']):,}"
    )
    assert title in " ".join(words(of("memory")))


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
