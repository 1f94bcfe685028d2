"""`layerwise bench`: what is measured and how it is told, never how fast anything is."""

from __future__ import annotations

import csv
import json
import re
from io import StringIO

import numpy as np
import pytest
import torch
from cli.program import here, on_a_terminal, run
from rich.console import Console

from layerwise.cli.bench import memory, shapes, tensors
from layerwise.cli.bench import run as bench_run
from layerwise.cli.bench.arrays import NUMPY_PEERS, held
from layerwise.cli.bench.groups import Cost, grouped
from layerwise.cli.bench.measure import Measurement, Table
from layerwise.cli.bench.peers import PEERS, Peer
from layerwise.threads import available_processors

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
"""


@pytest.fixture
def bench(capsys, threads):
    """Run the command in this process, where torch has been imported; what it prints and says."""
    return lambda *arguments, code=0: here(capsys, "bench", *arguments, code=code)


@pytest.mark.slow
def test_in_a_pipe_with_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("bench", *QUICK, "digits", "--optimizer", "LARS", "--csv", "rows.csv", "--json", "all.json")
    assert "\x1b" not in done.stdout
    assert "━" not in done.stdout
    assert done.stderr == ""
    (written,) = json.loads((tmp_path / "all.json").read_text())["tables"]
    assert (written["parameters"], written["tensors"], written["threads"]) == (9610, 4, 1)
    rows = list(csv.DictReader(StringIO((tmp_path / "rows.csv").read_text())))
    assert [row["implementation"] for row in rows] == [row["implementation"] for row in written["rows"]]
    installed = {peer.label for peer in PEERS["Lars"] if peer.installed and not peer.gpu}
    assert {row["implementation"] for row in rows} == installed
    assert written["left_out"].keys() == {peer.label for peer in PEERS["Lars"]} - installed
    for row in written["rows"]:
        assert sum(line.startswith(f"{row['implementation']} ") for line in done.stdout.splitlines()) == 1
        assert row["rounds"] == len(row["seconds"]) == 3
        state = 8 if "Adam" in row["implementation"] else 4
        assert row["state_bytes_per_parameter"] == pytest.approx(state, abs=0.01)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "all.json"}


def test_files_have_the_figures_of_the_table(tmp_path, bench):
    files = ("--csv", str(tmp_path / "rows.csv"), "--json", str(tmp_path / "all.json"))
    out = bench(*QUICK, "digits", "--no-peers", "--against", "theirs", "--optimizer", "lars", *files).out
    assert re.search(r"^torch.optim.SGD, fused  .* 1\.00  +1\.00–1\.00 ", out, re.MULTILINE)
    assert "ratio: to torch.optim.SGD, fused in the same round" in out
    (written,) = json.loads((tmp_path / "all.json").read_text())["tables"]
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert [row["implementation"] for row in rows] == [row["implementation"] for row in written["rows"]]
    for row in written["rows"]:
        assert row["rounds"] == len(row["seconds"]) == 3
        assert row["step_ms_q1"] <= row["step_ms"] <= row["step_ms_q3"]
        assert row["host_ms"] > 0
        assert row["state_bytes_per_parameter"] == pytest.approx(4, abs=0.01)
        assert (row["ratio"] == row["ratio_q1"] == row["ratio_q3"] == 1) == ("SGD" in row["implementation"])


@pytest.mark.parametrize(
    ("front", "ours"),
    [
        ("numpy", "layerwise.numpy.Adafactor"),
        pytest.param("jax", "layerwise.jax.adafactor", marks=pytest.mark.slow),
    ],
)
def test_other_apis_are_measured_alike(front, ours, bench):
    threads = ("--threads", str(available_processors())) if front == "numpy" else ()
    out = bench("digits", "--rounds", "3", *threads, "--front", front, "--optimizer", "adafactor").out
    (row,) = [line for line in out.splitlines() if line.startswith(f"{ours} ")]
    assert f"ratio: to {ours} in the same round" in out
    assert re.search(r"^optax.adafactor.* [\d.,–]+ *$", out, re.MULTILINE)
    assert re.fullmatch(rf"{ours}( +[\d.,–]+){{7}}\s*", row)


def test_a_model_is_what_it_trains(tmp_path, bench, monkeypatch):
    """Shared weights once, and frozen ones not at all."""
    (tmp_path / "tied.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    out = bench(*QUICK, "--model", "tied:Tied", "--no-peers", "--optimizer", "lamb", "--dtype", "bfloat16").out
    assert "Lamb on tied:Tied: 30 parameters in 2 tensors, bfloat16 on cpu, 1 thread\n" in out
    assert "pytorch_optimizer" not in out
    assert re.search(r"^layerwise.torch.Lamb, by the rule ", out, re.MULTILINE)


def test_a_file_that_cannot_be_finished_is_one_line(tmp_path, bench, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("layerwise.cli.files.replace_text", full)
    out = str(tmp_path / "rows.csv")
    done = bench(*QUICK, "digits", "--no-peers", "--optimizer", "lars", "--csv", out, code=2)
    assert done.err == f"layerwise: cannot write {out}: No space left on device\n"


@pytest.mark.slow
def test_ctrl_c_shows_what_there_is(tmp_path):
    out = tmp_path / "all.json"
    arguments = ("bench", "digits", "--rounds", "4000", "--no-peers", "--optimizer", "lars", "--json", str(out))
    seen, code = on_a_terminal(*arguments, interrupt_at=rb" [1-9]%", COLUMNS="200")
    assert code == 130
    assert "Interrupted: above is what was measured until then. No file is written." in seen
    assert re.search(r"layerwise.torch.Lars +\d+\.\d+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen))
    assert "Traceback" not in seen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
    assert not out.exists()


class Made(Peer):
    """A peer with this state in bytes, that raises an error at its start, or of full size at a step or at its peak."""

    installed = True

    def start(self, work):
        if self.options.get("at") == "start":
            raise self.options["error"]
        return Stepped(self.label, work, **self.options)


class Stepped:
    copied = 0

    def __init__(self, label, work, state=0, at=None, error=None):
        self.label, self._times, self._steps = label, shapes.parameters(work.shapes) / 256, 0
        self.state_bytes, self._at, self._error = int(state * self._times), at, error

    def _reaches(self, where):
        if self._times == 1 and self._at == where:
            raise self._error

    def step(self):
        self._steps += 1
        self._reaches(self._steps)

    def peak(self):
        self._reaches("peak")
        return int(100 * self._times)


class Told(list):
    def begin(self, what, steps):
        self.append((what, steps))

    def advance(self, what, steps):
        self.append((what, steps))


def measured(*peers, rounds=3, room=1e9, enough=bool):
    work = held({"a": (16, 16)})
    table = Table("Lamb", "a", work.shapes, "float32", "cpu", 1, peers[0].label)
    measurement = Measurement(table, peers, work, room, Told(), enough)
    return table, lambda: measurement.run(rounds)


def rounds_of(table):
    return {label: (len(row.timing.rounds), len(row.ratio.rounds)) for label, row in table.rows.items()}


class TestMeasurement:
    @pytest.mark.parametrize(("columns", "peaks"), [(60, False), (80, True), (200, True)])
    def test_on_a_terminal_the_table_is_as_wide_as_that(self, columns, peaks):
        table, measure = measured(*(Made(peer.label, "") for peer in PEERS["Adafactor"]))
        measure()
        console = Console(file=StringIO(), width=columns, color_system=None, force_terminal=True)
        bench_run.show(console, table)
        rows = console.file.getvalue().splitlines()
        assert max(map(len, rows)) <= columns
        assert ("MiB" in "".join(rows)) is peaks
        assert "…" not in "".join(rows)
        assert sum("pytorch_optimizer.AdaFactor," in row for row in rows) == 2

    @pytest.mark.parametrize("at", ["start", 1, 4, "peak"])
    def test_what_fails_is_left_out_and_said(self, at):
        error = MemoryError("no\nmore")
        table, measure = measured(Made("ours", ""), Made("theirs", "", {"at": at, "error": error}), Made("last", ""))
        measure()
        assert rounds_of(table) == {"ours": (3, 3), "last": (3, 3)}
        assert table.left_out == {"theirs": "MemoryError: no more"}

    def test_ctrl_c_leaves_what_was_measured(self):
        interrupting = Made("theirs", "", {"at": 5, "error": KeyboardInterrupt()})
        table, measure = measured(Made("ours", ""), interrupting, rounds=9)
        with pytest.raises(KeyboardInterrupt):
            measure()
        assert rounds_of(table) == {"ours": (3, 3), "theirs": (2, 2)}

    def test_what_does_not_fit_side_by_side_is_timed_with_ours_one_by_one(self):
        sizes = {"ours": 500, "a": 300, "b": 9e9, "c": 300}
        table, measure = measured(*(Made(name, "", {"state": state}) for name, state in sizes.items()), room=1000)
        measure()
        assert table.apart
        assert rounds_of(table) == {"ours": (6, 6), "a": (3, 3), "c": (3, 3)}
        assert table.left_out.keys() == {"b"}
        assert "may be taken" in table.left_out["b"]

    @pytest.mark.parametrize(
        ("room", "expected"),
        [
            (100, [["ours", "a", "b", "c"]]),
            (50, [["ours", "a"], ["ours", "b"], ["ours", "c"]]),
            (45, [["ours", "a"], ["b"], ["ours", "c"]]),
            (25, [["a"], ["c"], ["ours"]]),
        ],
    )
    def test_groups_fit_the_memory_with_the_largest_peak(self, room, expected):
        costs = {"ours": Cost(20, 5), "a": Cost(20, 5), "b": Cost(20, 10), "c": Cost(10, 15)}
        assert sorted(grouped(costs, "ours", room)) == sorted(expected)

    def test_the_clock_of_a_gpu(self, monkeypatch):
        """The host's time is of the first step, the GPU's of the second, which follows on what holds the GPU up."""
        told = []

        class Event:
            def __init__(self, enable_timing):
                told.append("event")

            def record(self):
                told.append("record")

            def elapsed_time(self, other):
                return 7.0  # milliseconds

        for name, call in {"synchronize": "wait", "_sleep": "sleep"}.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, call=call: told.append(call))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        host, device = tensors.on_cuda(lambda: told.append("step"))
        assert " ".join(told) == "wait step event event wait sleep record step record wait"
        assert 0 < host < 1
        assert device == 7e-3


class TestPeers:
    @pytest.mark.parametrize(
        ("dtype", "more", "why"),
        [("float32", 0, None), ("float32", 1, "--threads does not reach JAX"), ("float64", 0, "JAX makes float64")],
    )
    def test_optax_beside_numpy_does_the_same_or_is_left_out(self, dtype, more, why):
        pytest.importorskip("optax")
        (peer,) = (peer for peer in NUMPY_PEERS["Lamb"] if peer.package == "optax")
        found = peer.why_not(held({"a": (2, 2)}, dtype), available_processors() + more)
        assert found is None if why is None else found.startswith(why)


class TestShapesAndMemory:
    @pytest.mark.parametrize(
        ("name", "size", "tensors"),
        [("resnet50", 25_557_032, 161), ("bert-base", 108_891_648, 197), ("gpt2-medium", 354_823_168, 292)],
    )
    def test_models_have_their_published_sizes(self, name, size, tensors):
        found = shapes.SETS[name]()
        assert (shapes.parameters(found), len(found)) == (size, tensors)

    def test_available_memory_is_the_least_of_the_machines_and_the_control_groups(self, tmp_path):
        meminfo = tmp_path / "meminfo"
        meminfo.write_text("MemTotal: 4000 kB\nMemAvailable:    3000 kB\n")
        assert memory.available(meminfo, tmp_path) == 3000 * 1024
        (tmp_path / "memory.current").write_text("1024000\n")
        for limit, found in (("2048000\n", 1024000), ("max\n", 3000 * 1024)):
            (tmp_path / "memory.max").write_text(limit)
            assert memory.available(meminfo, tmp_path) == found
        assert memory.available(tmp_path / "none", tmp_path) > 0

    def test_state_is_counted_once(self):
        a = np.zeros(10, np.float32)
        assert memory.bytes_in({"x": [a, (a, None)], "y": {"z": np.zeros(3), "step": 4, "name": "ab"}}) == 40 + 24

    def test_the_peak_of_a_step_is_what_it_holds_at_the_same_time(self):
        kept = []

        def step():
            kept[:] = [torch.empty(1000)]  # the old one goes when the new one is there
            torch.empty(3000)

        assert memory.peak_on_cpu(step) == 12000
