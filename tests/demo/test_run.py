"""The demo from beginning to end, and every way in which it may end: what was finished is in a report."""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli.program import PLAIN, on_a_terminal
from demo_results import USUAL, outcome, result
from rich.console import Console

from demo import run as demo
from demo import terminal
from demo.pool import WorkerError, carry_out
from demo.settings import DIGITS, LARS, Case, Run

COMMAND = (sys.executable, "-m", "demo")
ROOT = Path(__file__).parents[2]
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
ONE = Run(Case(DIGITS, LARS, 32), 0)


def figures_in(path):
    return json.loads(re.search(r'id="figures">\n(.*)\n</script>', path.read_text()).group(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "runs"),
    [pytest.param(("--act", "1"), 6, id="one act"), pytest.param((), 10, id="all", marks=pytest.mark.repeats)],
)
def test_a_quick_run_in_a_pipe(asked, runs, tmp_path):
    words = (*COMMAND, "--quick", *asked, "--out", str(tmp_path), "--threads", "2")
    done = subprocess.run(words, capture_output=True, text=True, env=PLAIN, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search("[\x1b\r]", done.stdout)
    (report,) = tmp_path.iterdir()
    for act in figures_in(report)["acts"]:
        for case in act["cases"]:
            (trained,) = case["runs"]
            figure = f"{trained['accuracy']:.1f} %" if act["metric"] == "accuracy" else f"{trained['loss']:.3f}"
            assert f"{case['name']}, batch {case['batch']:,}, seed 0: {act['metric']} {figure}" in done.stdout
            assert len(trained["losses"]) == len(trained["ratios"]) >= min(case["steps"], 60)
            assert bool(trained["ratios"][-1][1]) != case["optimizer"].startswith("torch.")
            assert trained["loss"] < 4.8  # of guessing among all symbols
    acts = re.findall(rf"^ *\d+ of {runs}  act (\d)", done.stdout, re.MULTILINE)
    assert len(acts) == runs
    for part in ("no conclusion is drawn", "2102.06356"):
        assert part in done.stdout
    assert done.stdout.endswith(f"Report: {report}\n")


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_leaves_it_clean_and_a_partial_report(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ("--act", "1", "--out", str(tmp_path))
    seen, code = on_a_terminal(*words, program=COMMAND, interrupt_at=rb"all runs[^l]*all runs", NO_COLOR="1")
    assert code == 130
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")  # the cursor
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])[0-9;]*m", seen)
    assert "Traceback" not in seen
    assert "Interrupted." in ANSI.sub("", seen)
    assert [path.name for path in tmp_path.iterdir()] == ["layerwise-demo.html"]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_an_error_and_no_hang():
    events = carry_out([ONE, replace(ONE, seed=1)], 1)
    assert next(events)[0] == ONE
    multiprocessing.active_children()[0].kill()
    with pytest.raises(WorkerError, match=r"a process that trained has ended\..*--threads 1"):
        list(events)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--quik", "unrecognized arguments: --quik"),
        ("--act 4", "argument --act: invalid choice: 4"),
        ("--threads 0", "argument --threads: must be an integer from 1"),
        ("--threads x", "argument --threads: invalid integer value: 'x'"),
        (f"--seed {2**63 - 2}", f"argument --seed: must be an integer from 0 to {2**63 - 3}, but is"),
    ],
)
def test_a_mistake_is_named(words, why, capsys):
    with pytest.raises(SystemExit) as ended:
        demo.main(words.split())
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("package", ["matplotlib", "rich", "sklearn", "torch"])
def test_a_package_that_is_missing_is_named(package):
    program = f"""
import importlib.util, runpy
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "{package}" else find_spec(name)
runpy.run_module("demo", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=PLAIN, cwd=ROOT)
    said = f"The demo needs {package}: `make demo` installs it, and so does pip install '.[demo]'.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def raising(problem):
    def call(*_, **__):
        raise problem

    return call


class TestEnds:
    """The demo with its workers replaced by what they would say, and a report without pictures."""

    @pytest.fixture(autouse=True)
    def figures(self, monkeypatch):
        found = dict(USUAL)

        def said(wanted, workers):
            for one in wanted:
                value = found[one.case.name, one.case.batch]
                if value is None:
                    raise KeyboardInterrupt
                yield one, outcome(one, value[one.seed])

        monkeypatch.setattr(demo, "carry_out", said)
        monkeypatch.setattr("demo.figures.svg", lambda *_: "")
        return found

    @pytest.fixture
    def ended(self, tmp_path, capsys):
        """The exit code, what was printed and said, and the figures of the report."""

        def end(place=""):
            code = demo.main(["--act", "1", "--threads", "2", "--out", f"{tmp_path}/{place}"])
            reports = [path for path in tmp_path.rglob("*.html") if path.is_file()]
            return code, *capsys.readouterr(), [figures_in(path) for path in reports]

        return end

    def test_well(self, ended, tmp_path, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")  # makes no terminal of a pipe
        code, out, err, [written] = ended()
        assert (code, err, written["partial"]) == (0, "", False)
        assert "12 of 12  act 1  LARS, batch 1,024, seed 2: accuracy 96.0 %" in out
        assert out.endswith(f"Report: {tmp_path / 'layerwise-demo.html'}\n")
        assert "\x1b" not in out

    def test_by_an_interruption(self, figures, ended, tmp_path):
        figures["LARS", 1024] = None
        code, out, _, [written] = ended("mine.html")
        assert (code, written["partial"]) == (130, True)
        assert "Interrupted. What was finished is in" in out
        assert [len(case["runs"]) for case in written["acts"][0]["cases"]] == [1, 3, 1, 3, 1, 0]
        assert [path.name for path in tmp_path.iterdir()] == ["mine.html"]

    @pytest.mark.parametrize(
        ("place", "why"),
        [
            ("device/new", "device is not a folder"),
            ("device/report.html", "device is not a folder"),
            ("device", "it is no ordinary file"),
            ("full.html", "No space left"),
            ("a\0.html", "embedded null"),
        ],
    )
    def test_before_the_work_where_no_report_can_be(self, ended, tmp_path, monkeypatch, place, why):
        os.mkfifo(tmp_path / "device")
        if place == "full.html":
            monkeypatch.setattr(demo, "new_file_beside", raising(OSError(28, "No space left on device")))
        code, out, err, _ = ended(place)
        assert (code, out) == (2, "")
        assert re.fullmatch(rf"demo: cannot write .*{why}.*\n", err)
        assert [path.name for path in tmp_path.iterdir()] == ["device"]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_terminal_shows_everything_at_any_width(width):
    made = result({("LAMB", 128): None, ("SGD", 32): [97.0, math.inf, 98.0]})
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    terminal.show(console, made)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    words = " ".join(" ".join(lines).split())
    for part in ("1. Accuracy at batch 1,024: LARS 95.0 %", "8-bit Muon + AdamW 2.54 in 4.4", "2102.06356"):
        assert part in words
    assert "2. " not in words  # it is not whole
    if width >= 100:
        assert len([line for line in lines if line.strip()]) <= 10
