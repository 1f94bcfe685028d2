"""`layerwise bench`: what is measured and how it is told, never how fast anything is."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from io import StringIO
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.program import on_a_terminal, run
from rich.console import Console

import layerwise
from layerwise.cli import app
from layerwise.cli.bench import memory, report, shapes, timing
from layerwise.cli.bench.arrays import held
from layerwise.cli.bench.groups import Cost, grouped
from layerwise.cli.bench.measure import Measurement, Table
from layerwise.cli.bench.peers import PEERS, Peer
from layerwise.cli.bench.shapes import parameters

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

def make_model():
    return Tied()

def raises():
    raise ValueError("no such\\nfile")

def exits():
    raise SystemExit("usage: mymodel")

def number():
    return 3

def empty():
    return torch.nn.ReLU()

def on_meta():
    return torch.nn.Linear(2, 2, device="meta")

value = 7
module = torch.nn.Linear(3, 2)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model in it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mymodel.py").write_text(MODEL)
    (tmp_path / "broken.py").write_text("import nonesuch\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("mymodel", "broken"):
        sys.modules.pop(name, None)


@pytest.fixture
def threads():
    """What the command sets for its process, put back."""
    ours, theirs = layerwise.get_num_threads(), torch.get_num_threads()
    yield
    layerwise.set_num_threads(ours)
    torch.set_num_threads(theirs)


@pytest.fixture
def bench(capsys, threads):
    """Run the command in this process, where torch has been imported; what it prints and says."""

    def call(*arguments, code=0):
        assert app.run(["bench", *arguments]) == code
        return capsys.readouterr()

    return call


class TestTables:
    def test_in_a_pipe_with_files(self, here):
        done = run("bench", *QUICK, "digits", "--optimizer", "LARS", "--csv", "rows.csv", "--json", "all.json")
        assert "\x1b" not in done.stdout
        assert "━" not in done.stdout
        assert done.stderr == ""
        (written,) = json.loads((here / "all.json").read_text())["tables"]
        assert (written["parameters"], written["tensors"], written["threads"]) == (9610, 4, 1)
        rows = list(csv.DictReader(StringIO((here / "rows.csv").read_text())))
        assert [row["implementation"] for row in rows] == [row["implementation"] for row in written["rows"]]
        installed = {peer.label for peer in PEERS["Lars"] if peer.installed and not peer.gpu}
        assert {row["implementation"] for row in rows} == installed
        assert written["left_out"].keys() == {peer.label for peer in PEERS["Lars"]} - installed
        for row in written["rows"]:
            assert sum(line.startswith(f"{row['implementation']} ") for line in done.stdout.splitlines()) == 1
            assert row["rounds"] == len(row["seconds"]) == 3
            assert row["step_ms_q1"] <= row["step_ms"] <= row["step_ms_q3"]
            assert row["host_ms"] > 0
            state = 8 if "Adam" in row["implementation"] else 4
            assert row["state_bytes_per_parameter"] == pytest.approx(state, abs=0.01)
        ours = written["rows"][0]
        assert ours["ratio"] == ours["ratio_q1"] == ours["ratio_q3"] == 1
        assert {path.name for path in here.iterdir()} >= {"rows.csv", "all.json"}
        assert not list(here.glob(".*json*"))

    @pytest.mark.parametrize(
        ("front", "ours"), [("numpy", "layerwise.numpy.Adafactor"), ("jax", "layerwise.jax.adafactor")]
    )
    def test_other_fronts(self, front, ours, bench):
        threads = ("--threads", "1") if front == "numpy" else ()
        out = bench("digits", "--rounds", "3", *threads, "--front", front, "--optimizer", "adafactor").out
        (row,) = [line for line in out.splitlines() if line.startswith(f"{ours} ")]
        assert f"ratio: to {ours} in the same round" in out
        assert "optax.adafactor" in out
        assert re.fullmatch(rf"{ours}( +[\d.,–]+){{7}}\s*", row)

    def test_a_model(self, here, bench):
        done = bench(
            *QUICK, "--model", "mymodel:make_model", "--no-peers", "--optimizer", "lamb", "--dtype", "bfloat16"
        )
        assert "Lamb on mymodel:make_model: 30 parameters in 2 tensors, bfloat16 on cpu, 1 thread\n" in done.out
        assert "pytorch_optimizer" not in done.out
        assert re.search(r"^layerwise.torch.Lamb, by the rule ", done.out, re.MULTILINE)

    def test_ratios_to_theirs(self, bench):
        done = bench(*QUICK, "digits", "--no-peers", "--against", "theirs", "--optimizer", "lars")
        assert re.search(r"^torch.optim.SGD, fused  .* 1\.00  +1\.00–1\.00 ", done.out, re.MULTILINE)
        assert "ratio: to torch.optim.SGD, fused in the same round" in done.out

    @pytest.mark.parametrize(("columns", "peaks"), [(60, False), (80, True), (200, True)])
    def test_on_a_terminal_it_is_as_wide_as_that(self, columns, peaks):
        table, measurement = measured(*(Sleeping(peer.label, "") for peer in PEERS["Adafactor"]))
        measurement.run(3)
        console = Console(file=StringIO(), width=columns, force_terminal=True, color_system=None)
        report.show(console, table)
        rows = console.file.getvalue().splitlines()
        assert max(map(len, rows)) <= columns
        assert ("MiB" in "".join(rows)) is peaks
        assert "…" not in "".join(rows)
        assert sum("pytorch_optimizer.AdaFactor," in row for row in rows) == 2

    def test_the_list_needs_no_framework(self):
        program = (
            "import sys; sys.modules |= dict.fromkeys(['torch', 'jax', 'optax']); sys.argv[1:] = ['bench', '--list']; "
            "import layerwise.cli; layerwise.cli.main()"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "shapes     resnet50: 25,557,032 parameters in 161 tensors\n" in done.stdout
        assert "torch.optim.AdamW, fused: not installed\n" in done.stdout


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("bert-bas",), "there is no set of shapes 'bert-bas'. Did you mean bert-base?"),
            (("--optimizer", "sgd"), "there is no optimizer 'sgd'. There are Lamb, Lars, Adafactor."),
            (("--dtype", "f32"), "there is no dtype 'f32'. Did you mean float32?"),
            (("--rounds", "x"), "invalid value for '--rounds': "),
            (("--rounds", "2"), "invalid value for '--rounds': "),
            (("--thread", "2"), "no such option: --thread. Did you mean --threads?"),
            (("--csv", "missing/rows.csv"), "cannot write missing/rows.csv: there is no folder missing"),
            (("--json", "."), "cannot write .: it is a folder"),
            (("digits", "--model", "mymodel:make_model"), "give shapes or --model, not both"),
            (("--front", "jax", "--threads", "1"), "--threads does not reach JAX"),
            (("--front", "numpy", "--dtype", "bfloat16"), "--dtype must be float32, float64, float16"),
            (("--front", "numpy", "--device", "cuda"), "--device must be cpu"),
            (("--device", "cpux"), "--device 'cpux' is not to be had: "),
            (("--device", "meta"), "--device must be cpu or cuda, but is 'meta'"),
            (("bert-base", "--memory", "0.5"), "bert-base does not fit the memory: it takes 0.8 GiB before"),
            (("--model", "mymodel"), "--model 'mymodel' has no callable in it"),
            (("--model", "nonesuch:f"), "cannot import nonesuch: ModuleNotFoundError: No module named 'nonesuch'."),
            (("--model", "broken:f"), "cannot import broken: ModuleNotFoundError: No module named 'nonesuch'."),
            (("--model", "mymodel:mak_model"), "mymodel has no mak_model. Did you mean make_model?"),
            (("--model", "mymodel:raises"), "raises() failed: ValueError: no such file. LAYERWISE_TRACEBACK=1"),
            (("--model", "mymodel:exits"), "exits() failed: SystemExit: usage: mymodel. "),
            (("--model", "mymodel:number"), "must return a torch.nn.Module, but returned a value of type int."),
            (("--model", "mymodel:value"), "value is no callable but of type int."),
            (("--model", "mymodel:empty"), "the model has no parameter that requires grad"),
            (("--model", "mymodel:on_meta"), "has parameters on the meta device"),
        ],
    )
    def test_one_line_with_the_way_out(self, here, bench, arguments, why):
        done = bench(*arguments, code=2)
        assert done.out == ""
        assert re.fullmatch(rf"layerwise.*: .*{re.escape(why)}.*\n", done.err), done.err

    def test_the_traceback_is_there_for_who_wants_it(self, here, bench, monkeypatch):
        monkeypatch.setenv("LAYERWISE_TRACEBACK", "1")
        with pytest.raises(ValueError, match="no such"):
            bench("--model", "mymodel:raises")

    def test_a_file_that_cannot_be_finished(self, bench):
        done = bench(*QUICK, "digits", "--no-peers", "--optimizer", "lars", "--csv", "/dev/full", code=2)
        assert done.err == "layerwise: cannot write /dev/full: No space left on device\n"
        assert Path("/dev/full").is_char_device()


class Failing(Peer):
    def start(self, work):
        raise RuntimeError("does\nnot work here")


class Sleeping(Peer):
    """Keeps a state of so many bytes, and interrupts its fifth step if told to."""

    def start(self, work):
        return Slept(self.label, work, **self.options)


class Slept:
    copied = 0

    def __init__(self, label, work, state=0, interrupts=False):
        self.label, self._times, self._left = label, parameters(work.shapes) / 256, 5 if interrupts else None
        self.state_bytes = int(state * self._times)

    def step(self):
        if self._left is not None and self._times == 1:
            self._left -= 1
            if not self._left:
                raise KeyboardInterrupt

    def peak(self):
        return int(100 * self._times)


class Told(list):
    def begin(self, what, steps):
        self.append((what, steps))

    def tell(self, what, steps):
        self.append((what, steps))


def measured(*peers, room=1e9):
    work = held({"a": (16, 16)})
    table = Table("Lamb", "a", work.shapes, "float32", "cpu", 1, peers[0].label)
    measurement = Measurement(table, peers, work, room, Told())
    return table, measurement


class TestMeasurement:
    def test_what_fails_is_left_out(self):
        table, measurement = measured(Sleeping("ours", ""), Failing("theirs", ""))
        measurement.run(3)
        assert list(table.rows) == ["ours"]
        assert table.left_out == {"theirs": "RuntimeError: does not work here"}

    def test_what_does_not_fit_side_by_side_is_timed_with_ours_one_by_one(self):
        peers = [
            Sleeping(name, "", {"state": state}) for name, state in [("ours", 500), ("a", 300), ("b", 9e9), ("c", 300)]
        ]
        table, measurement = measured(*peers, room=1000)
        measurement.run(3)
        assert table.apart
        assert {label: (len(row.timing.rounds), len(row.ratio.rounds)) for label, row in table.rows.items()} == {
            "ours": (6, 6),
            "a": (3, 3),
            "c": (3, 3),
        }
        assert table.left_out.keys() == {"b"}
        assert "may be taken" in table.left_out["b"]

    def test_ctrl_c_leaves_what_was_measured(self):
        table, measurement = measured(Sleeping("ours", ""), Sleeping("theirs", "", {"interrupts": True}))
        with pytest.raises(KeyboardInterrupt):
            measurement.run(9)
        assert [len(row.timing.rounds) for row in table.rows.values()] == [3, 2]
        assert [len(row.ratio.rounds) for row in table.rows.values()] == [3, 2]


class TestParts:
    @pytest.mark.parametrize(
        ("room", "expected"),
        [
            (100, [["ours", "a", "b", "c"]]),
            (50, [["ours", "a"], ["ours", "b"], ["ours", "c"]]),
            (45, [["ours", "a"], ["b"], ["ours", "c"]]),
            (25, [["a"], ["c"], ["ours"]]),
        ],
    )
    def test_groups(self, room, expected):
        costs = {"ours": Cost(20, 5), "a": Cost(20, 5), "b": Cost(20, 10), "c": Cost(10, 15)}
        found = list(grouped(costs, "ours", room))
        assert sorted(found) == sorted(expected)

    def test_ratios_are_of_the_same_round(self):
        ours, theirs = timing.Timing([1.0, 10.0, 2.0]), timing.Timing([3.0, 20.0])
        assert theirs.over(ours).rounds == [3.0, 2.0]

    def test_turns(self):
        order = []
        steps = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
        found = timing.alternately(steps, rounds=3, warmup=1, together=lambda: order.append("-"))
        assert "".join(order) == "-a-b" * 4
        assert {name: len(timed.rounds) for name, timed in found.items()} == {"a": 3, "b": 3}

    @pytest.mark.parametrize(
        ("name", "size", "tensors"),
        [("resnet50", 25_557_032, 161), ("bert-base", 108_891_648, 197), ("gpt2-medium", 354_823_168, 292)],
    )
    def test_published_sizes(self, name, size, tensors):
        found = shapes.SETS[name]()
        assert (shapes.parameters(found), len(found)) == (size, tensors)

    @pytest.mark.parametrize("name", shapes.SETS)
    def test_shrunk_shapes_keep_their_proportions(self, name):
        found = shapes.SETS[name]()
        for shape, small in zip(found.values(), shapes.shrunk(found).values(), strict=True):
            assert len(small) == len(shape)
            assert prod(shape) / 256 < prod(small) <= max(1, prod(shape) // 64)

    def test_available_memory(self, tmp_path):
        meminfo = tmp_path / "meminfo"
        meminfo.write_text("MemTotal: 4000 kB\nMemAvailable:    3000 kB\n")
        assert memory.available(meminfo, tmp_path) == 3000 * 1024
        (tmp_path / "memory.max").write_text("2048000\n")
        (tmp_path / "memory.current").write_text("1024000\n")
        assert memory.available(meminfo, tmp_path) == 1024000
        (tmp_path / "memory.max").write_text("max\n")
        assert memory.available(meminfo, tmp_path) == 3000 * 1024
        assert memory.available(tmp_path / "none", tmp_path) > 0

    def test_state_is_counted_once(self):
        a = np.zeros(10, np.float32)
        assert memory.bytes_in({"x": [a, (a, None)], "y": {"z": np.zeros(3), "step": 4, "name": "ab"}}) == 40 + 24

    def test_peak_of_a_step(self):
        kept = []

        def step():
            kept[:] = [torch.empty(1000)]  # the old one goes when the new one is there
            torch.empty(3000)

        assert memory.peak_on_cpu(step) == 12000


def test_ctrl_c_shows_what_there_is(tmp_path):
    out = tmp_path / "all.json"
    arguments = ("bench", "digits", "--rounds", "4000", "--no-peers", "--optimizer", "lars", "--json", str(out))
    seen, code = on_a_terminal(*arguments, interrupt_at=rb" [3-9]%", COLUMNS="200")
    assert code == 130
    assert "Interrupted: above is what was measured until then. No file is written." in seen
    assert re.search(r"layerwise.torch.Lars +0\.\d+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen))
    assert "Traceback" not in seen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
    assert not out.exists()
