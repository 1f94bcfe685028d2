"""Committed pictures and tables of figures beside the rows that they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from scripts import HOME, load

from layerwise import presets

DOCS = Path(__file__).parents[2] / "docs"
load("checkout")
load("rows")
load("tune_demo")
load("precision")
formats = load("formats")
large_models = load("large_models")
scaling = load("scaling")
demo = load("full_demo")
load("drawn", "drawn/__init__.py", submodule_search_locations=[str(HOME / "drawn")])
pictures = load("pictures")

from drawn import speed, style  # noqa: E402

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
    page = (HOME.parent / "demo" / "README.md").read_text(encoding="utf-8")
    for result, _ in map(demo.read, (demo.demo(), demo.longer())):
        assert demo.markdown(result) in page, "run `benchmarks/full_demo.py --show`"
        assert len(result.outcomes) == len(result.runs())


def test_the_quoted_loss_at_a_large_batch():
    result, _ = demo.read(demo.demo())
    text = {row.case.name: row.brief for row in result.last(result.acts[1])}
    said = quoted("../README.md", r"\[([\d.]+) with Muon, ([\d.]+) with LAMB and ([\d.]+) with AdamW\]")
    assert said == [float(text[name]) for name in ("Muon + AdamW", "LAMB", "AdamW")]


def test_the_quoted_loss_in_few_bytes():
    result, _ = demo.read(demo.longer())
    rows = {row.case.name: row for row in result.rows(result.acts[0])}
    small, adamw = rows["8-bit Muon + AdamW"], rows["AdamW"]
    said = quoted("small-memory.md", r"in ([\d.]+)\s+bytes a parameter, ended ([\d.]+) nats below AdamW in (\d+)")
    assert said == [round(small.bytes, 2), round(adamw.mean - small.mean, 2), adamw.bytes]


# ---- figures that pages quote


def quoted(page, pattern):
    """Return the numbers that a sentence or row of a page has; every pattern has to be there."""
    found = re.search(pattern, (DOCS / page).read_text(encoding="utf-8"))
    assert found, f"{page} lacks {pattern}"
    return [float(one.replace(",", "")) for one in found.groups()]


def test_the_numbers_of_the_readme():
    times = [bar.ratio for group in speed.groups() for bar in group.bars[1:]]
    span = [round(min(times), 1), round(max(times), 1)]
    assert quoted("../README.md", r"\[([\d.]+) to ([\d.]+) times as\s+long\]\(docs/performance\.md#a-step") == span
    kept = {name: float(row["kept"]) for name, row in style.latest("memory.csv", "row").items()}
    told = ("AdamW of torch, float32", "LAMB, 24 bits, 8-bit state", "Adafactor, bfloat16 rounded at random, released")
    bytes_of = quoted(
        "../README.md", r"\[([\d.]+) → ([\d.]+) → ([\d.]+) bytes a parameter\]\(docs/performance\.md#memory"
    )
    assert bytes_of == [round(kept[name], 1) for name in told]
    sent = style.latest("sharding.csv", "implementation", ranks="2", tensors="200")["timm.Lamb"]["collectives"]
    assert quoted("../README.md", r"timm's LAMB \[sends (\d+)\]") == [int(sent)]
    assert quoted("../README.md", r"\[(\d+) such\s+presets\]") == [len(presets())]


def test_quoted_times_beside_other_packages():
    groups = speed.groups()
    fastest = [group.bars[1].ratio for group in groups]
    span = [round(min(fastest), 1), round(max(fastest), 1)]
    for page in ("choosing.md", "performance.md"):
        assert quoted(page, r"\[([\d.]+) to ([\d.]+) times as fast\]\(\S*#a-step-on-a-cpu\)") == span
    assert quoted("performance.md", r"\| a step, ms \| (\d+) \| (\d+) \| (\d+) \|") == [round(one.ms) for one in groups]
    found = {name: style.last_run(style.rows_of("cpu_engine.csv", table="table", shapes="bert-base", optimizer=name))
             for name in speed.NAMES}  # fmt: skip

    def ratios(*implementations):
        each = zip(found.values(), implementations * (3 // len(implementations)), strict=True)
        return [float(row["ratio"]) for rows, name in each for row in rows if row["implementation"] == name]

    beside_torch = [round(1 / one, 2) for one in ratios(speed.SCALE, "torch.optim.SGD, fused", speed.SCALE)]
    row = r"\| ours over PyTorch's fused Adam \(for LARS, SGD\) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|"
    assert quoted("performance.md", row) == beside_torch
    for page in ("choosing.md", "troubleshooting.md"):
        assert quoted(page, r"\[([\d.]+) times\]\(performance\.md#a-step-on-a-cpu\)") == beside_torch[:1]
    assert quoted("choosing.md", r"SGD's state; ([\d.]+) times its time") == [round(beside_torch[1], 1)]
    halves = [round(one + 1e-9, 2) for one in ratios("layerwise.torch, bfloat16")]
    assert quoted("performance.md", r"bfloat16 .*×([\d.]+) \| ×([\d.]+) \| ×([\d.]+) \|") == pytest.approx(
        halves, abs=0.006
    )
    for ours, theirs in (("pytorch_optimizer.Lamb", r"\| pytorch_optimizer.*?\| ×([\d.]+); ×([\d.]+); ×([\d.]+) \|"),
                         ("timm.Lamb", r"\| timm, one by one; foreach \| ×([\d.]+); ×([\d.]+) \|")):  # fmt: skip
        ways = ("one by one", "foreach", "compiled")[: theirs.count(r"\d")]
        expected = [
            float(row["ratio"]) for way in ways for row in found["Lamb"] if row["implementation"] == f"{ours}, {way}"
        ]
        assert quoted("performance.md", theirs) == pytest.approx(expected, abs=0.006)


def test_a_picture_of_times_shows_ratios_alone():
    """Two times that were not measured together do not divide to the ratio of those that were."""
    said = words(of("speed"))
    assert sum(one.endswith(" ms") for one in said) == len(speed.NAMES)
    assert not any("ms" in one and "×" in one for one in said)


def test_quoted_times_in_jax():
    for name in ("Lamb", "Lars", "Adafactor"):
        rows = style.latest("jax_front.csv", "implementation", shapes="bert-base", optimizer=name)
        ours, optax = (rows[f"{package}.{name.lower()}"] for package in ("layerwise.jax", "optax"))
        times = [round(float(row["median_ms"])) for row in (ours, optax)]
        compiled = [round(float(row["compile_s"]), 1) for row in (ours, optax)]
        row = rf"`{name.lower()}` \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|"
        assert quoted("performance.md", row) == times + compiled
        assert 0.25 <= float(ours["median_ms"]) / float(optax["median_ms"]) <= 0.5  # "a quarter to a half"


def test_quoted_times_in_other_frameworks():
    def ratios(api, optimizer, shapes):
        rows = style.latest("frameworks.csv", "implementation", api=api, optimizer=optimizer, shapes=shapes)
        return [float(row["ratio"]) for name, row in rows.items() if name.startswith("layerwise")]

    number = r"([\d.]+)"
    for row, api, optimizer, sets in (
        (rf"Paddle: `AdamW` \| {number} \| {number} \|", "paddle", "AdamW", ("bert-base", "tiny-1000")),
        (rf"Paddle: `Lamb` \| {number} \| {number} \|", "paddle", "Lamb", ("bert-base", "tiny-1000")),
        (
            rf"MLX, compiled and plain: `AdamW` \|{f' {number}, {number} [|]' * 2}",
            "mlx",
            "AdamW",
            ("bert-base", "tiny-1000"),
        ),
        (rf"MLX: `Adafactor` \|{f' {number}, {number} [|]' * 2}", "mlx", "Adafactor", ("bert-base", "tiny-1000")),
        (
            rf"MLX: `Lamb`, over MLX's AdamW \|{f' {number}, {number} [|]' * 2}",
            "mlx",
            "Lamb",
            ("bert-base", "tiny-1000"),
        ),
        (rf"Keras on JAX `AdamW` {number}", "keras on jax", "AdamW", ("square-197",)),
        (rf"`AdamW` [\d.]+, `Adafactor` {number}", "keras on jax", "Adafactor", ("square-197",)),
        (rf"Keras on JAX: `Lamb` \| {number} \|", "keras on jax", "Lamb", ("bert-base",)),
        (rf"`Adafactor` [\d.]+, `Lamb` {number},", "keras on jax", "Lamb", ("square-197",)),
        (rf"does not compile, `Lamb` takes {number}", "keras on tensorflow", "Lamb", ("square-197",)),
        (r"and on PyTorch ([\d.]+[0-9])", "keras on torch", "Lamb", ("square-197",)),
    ):
        wanted = [round(one, 2) for shapes in sets for one in ratios(api, optimizer, shapes)]
        assert quoted("performance.md", row) == wanted, (api, optimizer)


def test_quoted_times_of_sharded_steps():
    names = {"LAMB": "layerwise.torch.Lamb", "LARS": "layerwise.torch.Lars", "Adafactor": "layerwise.torch.Adafactor",
             "timm's LAMB, 800 collectives": "timm.Lamb"}  # fmt: skip
    found = [style.latest("sharding.csv", "implementation", ranks=ranks, tensors="200") for ranks in ("2", "4")]
    for label, name in names.items():
        ms = [float(rows[name]["median_ms"]) for rows in found]
        said = quoted("performance.md", rf"(?s)\| 2 processes \| 4 .*?\| {label} \| ([\d.,]+) \| ([\d.,]+) \|")
        assert said == [round(one, 0 if one >= 10 else 1) for one in ms]
    assert {found[0][name]["collectives"] for name in names.values() if "layerwise" in name} == {"1", "2"}
    assert "[one or two messages]" in (DOCS.parent / "README.md").read_text(encoding="utf-8")


def test_the_quoted_distance_of_learning_rates():
    factors = []
    for name in scaling.TASKS:
        losses = scaling.losses(name)
        for place, of_lamb in losses["LAMB"].items():
            of_adamw = losses["AdamW"][place]
            factors.append(min(of_lamb, key=of_lamb.get) / min(of_adamw, key=of_adamw.get))
    assert quoted("start.md", r"LAMB\nwas ([\d.]+) to (\d+) times AdamW's") == pytest.approx(
        [min(factors), max(factors)]
    )


def test_the_table_of_large_models():
    assert large_models.markdown() in (DOCS / "small-memory.md").read_text(encoding="utf-8"), (
        "run `python benchmarks/large_models.py`"
    )
    rows = style.rows_of("large_models.csv", model="qwen3-1.7b")
    assert len(style.rows_of("large_models.csv")) == 4 * len(rows) == 4 * 3 * len(large_models.KINDS)
    for counted, row in zip(large_models.rows_of("qwen3-1.7b"), rows, strict=True):
        assert {key: str(x) for key, x in counted.items()}.items() <= row.items()
