"""`layerwise bench`: what is measured and how it is printed, never how fast anything is."""

from __future__ import annotations

import re

import pytest
from cli.program import here

from layerwise.cli import bench

QUICK = ("--rounds", "3", "--threads", "1")
MODEL = """
import torch

class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(6, 4)
        self.head = torch.nn.Linear(4, 6)
        self.head.weight = self.words.weight
        self.frozen = torch.nn.Parameter(torch.zeros(50), requires_grad=False)

def hidden():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
"""


@pytest.fixture
def told(capsys, threads, tmp_path, monkeypatch):
    """Run the command in this process, where torch has been imported; what it prints."""
    (tmp_path / "tied.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: here(capsys, "bench", *arguments, *QUICK).out.splitlines()


def test_a_model_is_what_it_trains(told):
    """Shared weights once, and frozen ones not at all."""
    title, headings, *rows = told("tied:Tied", "--dtype", "bfloat16")
    assert title == "Lamb on tied:Tied: 30 parameters in 2 tensors, bfloat16 on cpu, 1 thread"
    assert {len(row) for row in rows} == {len(headings)}
    assert [re.split("  +", row)[0] for row in rows] == [
        "layerwise.torch.Lamb",
        "torch.optim.AdamW",
        "torch.optim.AdamW, fused",
    ]
    assert rows[0].endswith(" 8.53")  # two numbers of four bytes for each, and a count of eight for each tensor


@pytest.mark.parametrize(
    ("optimizer", "theirs"), [("adafactor", "Adafactor"), ("lars", "SGD"), ("sgd", "SGD"), ("muon", "AdamW")]
)
def test_it_is_compared_with_what_pytorch_has(told, optimizer, theirs):
    """Also a rule for matrices, whose vectors AdamW steps."""
    title, _, ours, other, _ = told("tied:hidden", "--optimizer", optimizer)
    assert title.startswith(f"{re.match('[a-zA-Z.]+', ours)[0].removeprefix('layerwise.torch.')} on tied:hidden: 144 ")
    assert other.startswith(f"torch.optim.{theirs} ")


def test_steps_take_turns_and_the_first_do_not_count():
    taken = []

    class One:
        def __init__(self, label):
            self.step = lambda: taken.append(label)

    import torch

    found = bench._in_turns({"a": One("a"), "b": One("b")}, 4, torch.device("cpu"))
    assert "".join(taken) == "ab" * (bench.WARMUP + 4)
    assert {label: len(seconds) for label, seconds in found.items()} == {"a": 4, "b": 4}


def test_the_figures_are_a_median_between_quartiles():
    [_, row] = bench._table({"a": [0.001, 0.002, 0.003, 0.004, 5.0]}, {"a": 8.0})
    assert row.split() == ["a", "3.00", "2.00–4.00", "8.00"]
    assert [bench._in_digits(x) for x in (12.34, 123.4, 1234.5)] == ["12.3", "123", "1,234"]
