"""`benchmarks/precision.py`: its statistics beside tables of Student's t, a tiny run, and its table in the README."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from scripts import load

PAGE = Path(__file__).parents[1] / "benchmarks" / "README.md"

load("checkout")
load("rows")
script = load("precision")


class TestEquivalence:
    # Quantiles of Student's t at 95 %, from printed tables.

    def test_against_two_tests_of_scipy(self):
        from scipy.stats import ttest_1samp

        differences, margin = [0.01, -0.02, 0.015, 0.03, 0.0, -0.01], 0.025
        sides = (ttest_1samp(differences, m, alternative=a).pvalue for m, a in ((margin, "less"), (-margin, "greater")))
        assert script.tost(differences, margin).p == pytest.approx(max(sides))

    @pytest.mark.parametrize(
        ("differences", "other", "control"),
        [
            ([0.001, -0.001, 0.0, 0.001], "within", "shows nothing"),
            ([0.2, 0.21, 0.2, 0.22], "FAILS: worse", "worse, as it has to be"),
            ([0.3, -0.3, 0.2, -0.2], "FAILS: not shown", "shows nothing"),
            ([0.2, 0.21, 0.2, math.nan], "FAILS: not shown", "shows nothing"),  # a seed diverged
        ],
    )
    def test_verdicts(self, differences, other, control):
        tested = script.tost(differences, 0.1)
        assert script.verdict("split", tested) == other
        assert script.verdict(script.CONTROL, tested) == control


@pytest.fixture
def threads():
    import torch

    import layerwise

    before = torch.get_num_threads(), layerwise.get_num_threads()
    yield
    torch.set_num_threads(before[0])
    layerwise.set_num_threads(before[1])


def test_a_tiny_ladder(threads):
    """Every way to store is one of its own in bytes, and from the same seed starts at the same weights."""
    task, lamb = next(each for each in script.TRIED if (each[0].data, each[1].name) == ("digits", "LAMB"))
    tiny = replace(task, epochs=80 / task.examples)
    (found,) = script.ladder([(tiny, lamb)], range(2), 0)
    assert len(found) == 2 * len(script.STORAGE)
    assert {one["steps"] for one in found} == {10}
    size = {line.storage: line.bytes for line in script.lines(found)}
    assert size["float32"] == 12
    assert size["bf16 nearest"] == size["bf16 stochastic"] == 10
    assert size["split24"] == 11
    assert size["split"] == 12
    assert size["split24 and int8 state"] < size["int8 state"] < size["bf16 state"] < 12
    assert all(abs(float(one["loss"]) - math.log(10)) < 0.2 for one in found)  # three steps from guessing
    text = script.markdown(found)
    assert text.count("\n") == len(script.STORAGE) + 1
    assert len({line.count("|") for line in text.splitlines()}) == 1


def test_margins_are_there_for_all_that_is_tried():
    tried = {(task.data, contender.name) for task, contender in script.TRIED}
    assert set(script.MARGINS) == tried
    assert {name for _, name in tried} == {"LAMB", "LARS", "Adafactor+momentum", "Muon + AdamW"}


def test_the_table_in_the_docs_is_that_of_the_runs():
    rows = script.read(script.FOUND)
    counted = Counter((row["data"], row["optimizer"], row["storage"]) for row in rows)
    assert set(counted) == {(*place, storage) for place in script.MARGINS for storage in script.ways_of(place[1])}
    assert min(counted.values()) >= 10
    assert script.markdown(rows) in PAGE.read_text(encoding="utf-8")
