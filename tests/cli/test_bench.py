"""`layerwise bench`: what is measured and how it is told, never how fast anything is."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
import torch
from cli.program import on_a_terminal, run

import layerwise
from layerwise.cli import app
from layerwise.cli.bench.peers import PEERS
from layerwise.registry import ENTRIES
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
    @pytest.mark.slow
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
        ("front", "ours"),
        [
            ("numpy", "layerwise.numpy.Adafactor"),
            pytest.param("jax", "layerwise.jax.adafactor", marks=pytest.mark.slow),
        ],
    )
    def test_other_fronts(self, front, ours, bench):
        threads = ("--threads", str(available_processors())) if front == "numpy" else ()
        out = bench("digits", "--rounds", "3", *threads, "--front", front, "--optimizer", "adafactor").out
        (row,) = [line for line in out.splitlines() if line.startswith(f"{ours} ")]
        assert f"ratio: to {ours} in the same round" in out
        assert re.search(r"^optax.adafactor.* [\d.,–]+ *$", out, re.MULTILINE)
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
            (("--optimizer", "signum"), f"there is no optimizer 'signum'. There are {', '.join([*ENTRIES][:4])}"),
            (("--dtype", "f32"), "there is no dtype 'f32'. Did you mean float32?"),
            (("--rounds", "x"), "invalid value for '--rounds': "),
            (("--rounds", "2"), "invalid value for '--rounds': "),
            (("--thread", "2"), "no such option: --thread. Did you mean --threads?"),
            (("--csv", "mymodel.py/rows.csv"), "mymodel.py is not a folder"),
            (("--csv", "new/"), "cannot write new/: it is the name of a folder"),
            (("--json", "."), "cannot write .: it is a folder"),
            (("digits", "--model", "mymodel:make_model"), "give shapes or --model, not both"),
            (("--front", "jax", "--threads", "1"), "--threads does not reach JAX"),
            (("--front", "numpy", "--dtype", "bfloat16"), "--dtype must be float32, float64, float16"),
            (("--front", "jax", "--dtype", "float64"), "--dtype float64 does not reach JAX"),
            (("--csv", "x", "--json", "../{folder}/x"), "--csv and --json are the same file, x"),
            (("--front", "numpy", "--device", "cuda"), "--device must be cpu"),
            (("--device", "cpux"), "--device 'cpux' is unavailable: "),
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
        done = bench(*(one.format(folder=here.name) for one in arguments), code=2)
        assert done.out == ""
        assert re.fullmatch(rf"layerwise.*: .*{re.escape(why)}.*\n", done.err), done.err

    def test_the_traceback_is_there_for_who_wants_it(self, here, bench, monkeypatch):
        monkeypatch.setenv("LAYERWISE_TRACEBACK", "1")
        with pytest.raises(ValueError, match="no such"):
            bench("--model", "mymodel:raises")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
    def test_a_file_that_cannot_be_finished(self, bench):
        done = bench(*QUICK, "digits", "--no-peers", "--optimizer", "lars", "--csv", "/dev/full", code=2)
        assert done.err == "layerwise: cannot write /dev/full: No space left on device\n"
        assert Path("/dev/full").is_char_device()


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
