"""`layerwise demo` from beginning to end, and every way in which it may end: what was finished is in a report."""

from __future__ import annotations

import json
import math
import multiprocessing
import re
from types import SimpleNamespace

import pytest
from cli.demo_results import USUAL, outcome
from cli.program import on_a_terminal, run

from layerwise.cli.demo import pool
from layerwise.cli.demo import run as demo
from layerwise.cli.demo.events import Finished, Moved, Started
from layerwise.cli.demo.pool import WorkerError, carry_out
from layerwise.cli.demo.settings import DIGITS, LARS, Case, Run

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def figures_in(path):
    return json.loads(re.search(r'id="figures">\n(.*)\n</script>', path.read_text()).group(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "runs"),
    [pytest.param(("--act", "1"), 9, id="one act"), pytest.param((), 17, id="all", marks=pytest.mark.repeats)],
)
def test_a_quick_run_in_a_pipe(asked, runs, tmp_path):
    done = run("demo", "--quick", *asked, "--out", str(tmp_path), "--threads", "2")
    assert done.stderr == ""
    assert not re.search("[\x1b\r]", done.stdout)
    (report,) = tmp_path.iterdir()
    for act in figures_in(report)["acts"]:
        for case in act["cases"]:
            (trained,) = case["runs"]
            figure = f"{trained['accuracy']:.1f} %" if act["metric"] == "accuracy" else f"{trained['loss']:.3f}"
            assert f"{case['name']}, batch {case['batch']:,}, seed 0: {act['metric']} {figure}" in done.stdout
            assert len(trained["losses"]) == len(trained["ratios"]) >= min(case["steps"], 60)
            assert bool(trained["ratios"][-1][1]) == case["optimizer"].startswith("layerwise")
            assert trained["loss"] < 4.8  # of guessing among all symbols
    acts = re.findall(rf"^ *\d+ of {runs}  act (\d)", done.stdout, re.MULTILINE)
    assert len(acts) == runs
    assert sorted(acts[:8]) == ["1"] * 8  # the last of an act may end beside the first of the next
    titles = ("Act 1: digits", "Act 2: text", "Act 3: text")
    for part in (*titles[: len(set(acts))], "no conclusion is drawn", "2102.06356"):
        assert part in done.stdout
    assert done.stdout.endswith(f"Report: {report}\n")


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_leaves_it_clean_and_a_partial_report(tmp_path):
    seen, code = on_a_terminal("demo", "--act", "1", "--out", str(tmp_path), interrupt_at=b"loss", NO_COLOR="1")
    assert code == 130
    assert seen.count("\x1b[?1049h") == seen.count("\x1b[?1049l") == 1  # the second screen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")  # the cursor
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])[0-9;]*m", seen)
    assert "Traceback" not in seen
    assert "Interrupted." in ANSI.sub("", seen)
    assert [path.name for path in tmp_path.iterdir()] == ["layerwise-demo.html"]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_an_error_and_no_hang():
    events = carry_out([Run(Case(DIGITS, LARS, 32), 0)], 1)
    assert isinstance(next(events), Started)
    assert isinstance(next(events), Moved)
    multiprocessing.active_children()[0].kill()
    with pytest.raises(WorkerError, match=r"LARS, batch 32, seed 0 was killed by signal 9\..*--threads 1"):
        list(events)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("code", "end"),
    [(None, "closed its pipe, but has not ended"), (0, "ended with exit code 0"), (-9, "was killed by signal 9")],
)
def test_how_a_worker_ended_is_said(code, end):
    process = SimpleNamespace(join=lambda seconds: None, exitcode=code)
    one = Run(Case(DIGITS, LARS, 32), 0)
    assert f"that trained {one} {end}. If" in str(pool._died(pool.Worker(process, None, one)))


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
                yield Started(one)
                value = found[one.case.name, one.case.batch]
                if value is None:
                    raise KeyboardInterrupt
                yield Finished(one, outcome(one, value[one.seed]))

        monkeypatch.setattr(demo, "carry_out", said)
        monkeypatch.setattr(demo, "check_packages", lambda: None)
        monkeypatch.setattr("layerwise.cli.demo.report._pictures_of", lambda result, act: [])
        return found

    @pytest.fixture
    def ended(self, tmp_path, capsys):
        """The exit code, what was printed and said, and the figures of the report."""

        def end(place=""):
            code = demo.main((1,), False, f"{tmp_path}/{place}" if place else tmp_path, 0, 2)
            reports = [path for path in tmp_path.rglob("*.html") if path.is_file()]
            return code, *capsys.readouterr(), [figures_in(path) for path in reports]

        return end

    def test_well(self, ended, tmp_path, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")  # makes no terminal of a pipe
        code, out, err, [written] = ended()
        assert (code, err, written["partial"]) == (0, "", False)
        assert "24 of 24  act 1  LARS re-tuned, batch 1,024, seed 2: accuracy 96.0 %" in out
        assert out.endswith(f"Report: {tmp_path / 'layerwise-demo.html'}\n")
        assert "\x1b[?1049h" not in out

    def test_sgd_may_diverge(self, figures, ended):
        figures["SGD", 1024] = [math.nan, math.inf, math.nan]
        code, out, err, _ = ended()
        assert (code, err) == (0, "")
        assert "SGD, batch 1,024, seed 0: diverged at step 30" in out

    def test_others_may_not(self, figures, ended):
        figures["LARS", 1024] = [math.nan, 94.0, 95.0]
        code, _, err, [written] = ended()
        assert (code, written["partial"]) == (1, True)
        assert err.startswith("layerwise: the loss of LARS, batch 1,024, seed 0 is not finite after step 30")

    def test_by_an_interruption(self, figures, ended, tmp_path):
        figures["LARS", 1024] = None
        code, out, _, [written] = ended("mine.html")
        assert (code, written["partial"]) == (130, True)
        assert "Interrupted. What was finished is in" in out
        assert [len(case["runs"]) for case in written["acts"][0]["cases"]] == [2, 3, 3, 2, 3, 3, 2, 0, 0]
        assert [path.name for path in tmp_path.iterdir()] == ["mine.html"]

    def test_by_an_interruption_nobody_trains_while_the_report_is_written(self, ended, monkeypatch):
        order, said = [], demo.carry_out

        def trained(wanted, workers):
            try:
                yield from said(wanted, workers)
            finally:
                order.append("workers ended")

        monkeypatch.setattr(demo, "carry_out", trained)
        monkeypatch.setattr(demo.Lines, "see", raising(KeyboardInterrupt))
        monkeypatch.setattr(demo, "_write", lambda result, path: order.append("report"))
        assert ended()[0] == 130
        assert order == ["workers ended", "report"]

    def test_by_workers_that_cannot_be_started(self, ended, monkeypatch):
        monkeypatch.setattr("multiprocessing.process.BaseProcess.start", raising(OSError(24, "Too many open files")))
        monkeypatch.setattr(demo, "carry_out", carry_out)
        code, _, err, [written] = ended()
        assert (code, written["partial"]) == (1, True)
        said = "layerwise: process 1 of 2 to train in could not be started: Too many open files. --threads 1 needs"
        assert err.startswith(said)

    def test_by_nobody_who_reads_any_more(self, ended, monkeypatch):
        forgotten = []
        monkeypatch.setattr(demo.Lines, "see", raising(BrokenPipeError(32, "Broken pipe")))
        monkeypatch.setattr(demo, "forget_output", lambda: forgotten.append(True))
        code, _, _, [written] = ended()
        assert (code, written["partial"], forgotten) == (1, True, [True])

    def test_by_a_report_that_cannot_be_written_any_more(self, ended, monkeypatch):
        monkeypatch.setattr(demo, "write_text", raising(demo.CannotWrite("report", "No space left on device")))
        code, _, err, reports = ended()
        assert (code, reports) == (2, [])
        assert "No space left on device" in err

    @pytest.mark.parametrize(
        ("place", "why"),
        [
            ("device/new", "device is not a folder"),
            ("device/report.html", "device is not a folder"),
            ("device", "it is no ordinary file"),
            ("full.html", "No space left"),
        ],
    )
    def test_before_the_work_where_no_report_can_be(self, ended, tmp_path, monkeypatch, place, why):
        (tmp_path / "device").symlink_to("/dev/null")
        if place == "full.html":
            monkeypatch.setattr("layerwise.cli.demo.place.beside", raising(OSError(28, "No space left on device")))
        code, out, err, _ = ended(place)
        assert (code, out) == (2, "")
        assert re.fullmatch(rf"layerwise: cannot write .*{why}.*\n", err)
        assert [path.name for path in tmp_path.iterdir()] == ["device"]

    @pytest.mark.parametrize(
        ("place", "report"),
        [("new/", "new/layerwise-demo.html"), ("a/b", "a/b/layerwise-demo.html"), ("v1.2/", "v1.2/layerwise-demo.html"),
         ("new/mine.html", "new/mine.html")],
    )  # fmt: skip
    def test_in_folders_that_are_made(self, ended, tmp_path, place, report):
        code, out, _, [written] = ended(place)
        assert (code, written["partial"]) == (0, False)
        assert out.endswith(f"Report: {tmp_path / report}\n")
