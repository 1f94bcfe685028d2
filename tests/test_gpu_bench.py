"""`benchmarks/gpu.py` where there is no GPU: its parts on small tensors, and what it makes of what a GPU would tell."""

from __future__ import annotations

import contextlib
import csv
import importlib
import importlib.util
import subprocess
import sys
import time
from importlib import metadata
from io import StringIO
from math import inf, nan
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from scripts import HOME, load

import layerwise.torch
from layerwise.cli.bench import shapes
from layerwise.cli.bench.measure import Row, Table
from layerwise.cli.bench.timing import Timing
from layerwise.engines import Candidate
from layerwise.errors import EngineError
from layerwise.torch.step import _engines

load("rows")
load("on_gpu", "on_gpu/__init__.py", submodule_search_locations=[str(HOME / "on_gpu")])
script = load("gpu_script", "gpu.py")
from on_gpu import aims, check, compiled, graph, options, plan, profiled, rivals, tables, testing, traffic  # noqa: E402
from on_gpu import place as place_of  # noqa: E402

names = pytest.mark.parametrize("name", place_of.OPTIMIZERS)
Outcome, Variant = check.Outcome, options.Variant


@pytest.fixture
def place(monkeypatch):
    """The processor, with the engine that would be there without the one for GPUs."""
    monkeypatch.setattr(_engines, "ENGINES", _engines.ENGINES)  # put back in the end
    return place_of.Place(torch.device("cpu"), "cpu", interpreted=True)


def results(enough=bool):
    copy = traffic.Copy(8 * 10**9, Timing([2.0, 1.0, 4.0]))  # 4 GB/s
    return tables.Results(Console(file=StringIO(), width=200), copy, enough)


def timed(label, seconds, ratio=(), host=()):
    return Row(label, label.partition(".")[0], Timing(seconds), Timing(ratio), Timing(host))


def table(optimizer, name, *rows, sizes=None, dtype="float32"):
    found = sizes or {"a": (1000, 100)}
    return Table(optimizer, name, found, dtype, "cuda:0", 1, rows[0].label, {row.label: row for row in rows})


class TestScript:
    def test_without_a_gpu_it_says_so(self, monkeypatch, capsys):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert script.main([]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("gpu.py: this needs a GPU")
        assert err.count("\n") == 1

    @pytest.mark.slow
    def test_interpreted(self):
        """Half of the time goes into checks, however long an interpreter may take."""
        arguments = ("--interpret", "--only", "check,profile,sweep", "--time-limit", "8")
        done = subprocess.run([sys.executable, HOME / "gpu.py", *arguments], capture_output=True, text=True)
        assert "An interpreter takes the steps: times say nothing.\n" in done.stdout
        # An optimizer whose kernels are not written yet is wrong too, and so is nothing else.
        wrong = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
        assert all("there are no kernels for" in line for line in wrong), done.stdout
        assert done.returncode == bool(wrong), done.stdout + done.stderr
        assert "right: Lamb, float32: as usual: " in done.stdout
        assert "left out: profile, which needs a GPU\n" in done.stdout
        # What this machine has no time for is said, and nothing else is missing.
        assert ("Lamb: one tensor" in done.stdout) != ("sweep, Lamb, for which there was no time" in done.stdout)
        assert not (HOME / "results" / script.TABLE).exists()

    def test_arguments(self, capsys):
        usual, some = script.given([]), script.given(["--only", "sweep,check", "--models", "resnet50"])
        assert (usual.only, usual.models, usual.time_limit) == (script.PARTS, script.MODELS, 540)
        assert (some.only, some.models) == (["check", "sweep"], ["resnet50"])
        with pytest.raises(SystemExit):
            script.given(["--only", "check,speed"])
        assert "speed must be of check, profile, graph, table, tests, sweep" in capsys.readouterr().err
        assert tuple(plan.ROUNDS) == script.MODELS  # the script and its parts know the same models
        assert shapes.SETS.keys() >= set(script.MODELS)
        assert aims.LARGEST in script.MODELS

    def test_rows_have_the_same_columns_whatever_part_they_are_of(self, tmp_path):
        found, write = results(), script.writer({"gpu": "none"}, tmp_path)
        found.tables.append(("table", table("Lamb", "a", timed("ours", [1.0, 3.0], [1.0], [0.1]), timed("no", []))))
        write(found.new_rows())
        found.tables.append(("sweep", table("Lars", "b", timed("ours", [1.0]))))
        write(found.new_rows())
        write(found.new_rows())
        with (tmp_path / script.TABLE).open() as file:
            rows = list(csv.DictReader(file))
        assert [(row["part"], row["optimizer"], row["implementation"]) for row in rows] == [
            ("table", "Lamb", "ours"),
            ("sweep", "Lars", "ours"),
        ]
        assert (rows[0]["step_ms"], rows[0]["host_ms"], rows[0]["gpu"]) == ("2000.0", "100.0", "none")
        assert (rows[0]["counted_bytes_per_parameter"], rows[0]["copy_gb_per_s"]) == ("40.0", "4.0")


class TestPlace:
    @pytest.mark.parametrize("there", [True, False])
    def test_the_engine_that_is_interpreted(self, there, place, monkeypatch):
        """The one for GPUs if it is there, else the compiled one."""
        own = _engines.ENGINES[0].engine
        row = Candidate("gpu", own, insisting=own) if there else Candidate("gpu", None, "no reason")
        monkeypatch.setitem(sys.modules, "layerwise.engines.gpu", SimpleNamespace(candidate=lambda otherwise: row))
        found = place_of.find(interpret=True)
        assert found.engine == ("gpu, interpreted" if there else "compiled, in place of gpu: no reason")
        assert (_engines.ENGINES[0].engine is own) is there
        p = torch.nn.Parameter(torch.ones(3))
        p.grad = torch.ones(3)
        place_of.ours("Lamb", [p], {}).step()
        assert (p < 1).all()


class TestChecks:
    @names
    def test_the_steps_are_right(self, name, place, monkeypatch):
        drawn = {one: every[:2] for one, every in options.OTHERS.items()}
        for variant in (Variant(name), *options.variants(name, drawn)):
            outcome = check.against_rule(place, variant)
            assert not outcome.wrong, outcome
            assert outcome.error > 0

    @names
    @pytest.mark.parametrize("given", [{}, {"master_weights": True}], ids=str)
    def test_a_rate_that_is_a_little_wrong_is_found(self, name, given, place, monkeypatch):
        def wrong(name, params, options):
            less = 1 if options.get("fused") is False else 0.999
            return place_of.ours(name, params, {**options, "lr": less * options["lr"]})

        monkeypatch.setattr(check, "ours", wrong)
        dtype = torch.bfloat16 if given else torch.float32
        assert check.against_rule(place, Variant(name, given, dtype)).wrong

    @names
    def test_every_option_set_makes_an_optimizer(self, name):
        for variant in (Variant(name), *options.variants(name)):
            assert str(variant).startswith(f"{name}, ")
            named = [("stack", torch.nn.Parameter(torch.ones(2, 3)))]
            getattr(layerwise.torch, name)(named, **variant.options)

    @pytest.mark.parametrize(
        ("problem", "required", "wrong"),
        [(EngineError("no"), False, False), (EngineError("no"), True, True), (ValueError("no"), False, True)],
    )
    def test_what_may_be_left_to_the_rule(self, problem, required, wrong):
        def tried():
            raise problem

        outcome = check.attempt("a", tried, required=required)
        assert outcome.wrong is wrong
        assert wrong or str(outcome) == "left to the rule: a: EngineError: no"

    @pytest.mark.parametrize(
        ("error", "bound", "wrong"),
        [(0, 0, False), (1e-7, 1e-6, False), (1e-5, 1e-6, True), (nan, 1, True), (inf, inf, False), (-1.0, 1, True)],
    )
    def test_errors_beyond_their_bound_are_wrong(self, error, bound, wrong):
        outcome = Outcome("a", float(error), float(bound))
        assert outcome.wrong is wrong
        assert str(outcome).startswith("WRONG" if wrong else "right")

    def test_errors_are_relative_to_the_largest_number_and_the_worst_takes_most_of_its_bound(self):
        a = torch.tensor([3.0, 4.0, nan])
        assert check.relative(a, a) == 0
        assert check.relative(torch.tensor([3.0, 4.5, nan]), a) == pytest.approx(0.1)
        assert check.relative(torch.tensor([3.0, nan, nan]), a) != check.relative(a, a)
        assert check.relative(torch.tensor([0.5]), torch.tensor([0.0])) == 0.5
        assert check.bound(torch.bfloat16) < 2**-7 < 1e4 * check.bound(torch.float32)
        found = sorted([(0.1, 1.0), (1e-6, 1e-6), (nan, 1.0), (0.0, 0.0)], key=lambda one: check._share(*one))
        assert found[0] == (0.0, 0.0)
        assert found[-1][0] is nan

    @names
    def test_the_same_bits_again(self, name, place):
        assert not check.again("a", place, name).wrong
        opt, other = (check._stepped(place, name, steps) for steps in (1, 2))
        assert check.same(check.bits(opt), check.bits(opt))
        assert not check.same(check.bits(opt), check.bits(other))

    @names
    def test_a_skipped_step(self, name, place, monkeypatch):
        assert not check.skipped("a", place, name).wrong
        monkeypatch.setattr(check.torch, "ones", torch.zeros)  # nothing to skip it for
        assert check.skipped("a", place, name).wrong


def events(*names, on_gpu=(), mark=profiled.MARK):
    return [
        profiled.Event("cudaDeviceSynchronize", 0, 1),
        profiled.Event(mark, 10, 100),
        *(profiled.Event(name, 20 + i, 21 + i) for i, name in enumerate(names)),
        *(profiled.Event(name, 0, 1, True) for name in on_gpu),
        profiled.Event("cudaLaunchKernel", 99, 101),
    ]


class TestProfile:
    def test_launches_copies_fills_and_waits_are_counted(self):
        host = [
            "cudaLaunchKernel",
            "cuLaunchKernelEx",
            "cudaMemcpyAsync",
            "cudaMemsetAsync",
            "aten::add",
            "hipLaunchKernel",
        ]
        device = ("k", profiled.MARK, "Memcpy HtoD", "k")
        found = profiled.counted(events(*host, "cudaStreamSynchronize", on_gpu=device))
        assert found == (2, 3, 1, 1, 1)
        assert str(found) == "2 kernels, 3 launches, 1 copies, 1 fills, 1 waits"

    @pytest.mark.parametrize(
        ("few", "many", "problem"),
        [
            ((2, 2, 1, 0, 0), (2, 2, 1, 0, 0), ""),
            ((2, 2, 1, 0, 0), (2, 2, 3, 0, 0), ""),
            ((2, 2, 0, 0, 0), (4, 4, 0, 0, 0), "launches grow"),
            ((2, 2, 0, 0, 0), (2, 2, 0, 0, 1), "the host waits"),
            ((0, 0, 0, 0, 0), (0, 0, 0, 0, 0), "no kernel"),
        ],
    )
    def test_what_grows_with_tensors_waits_or_launches_nothing_is_wrong(self, few, many, problem):
        outcome = profiled.judged("a", profiled.Counts(*few), profiled.Counts(*many))
        assert outcome.wrong is bool(problem)
        assert outcome.problem.startswith(problem)

    @pytest.mark.parametrize("on_device", [False, True])
    def test_a_step_on_the_processor_launches_nothing(self, on_device, place):
        assert profiled.profiled(place, "Lamb", 3, on_device) == (0, 0, 0, 0, 0)


class TestGraph:
    @pytest.mark.parametrize(
        ("name", "follows"), [("Lamb", True), ("Lamb", False), pytest.param("Adafactor", True, marks=pytest.mark.slow)]
    )
    def test_a_replay_has_to_follow_the_rate(self, name, follows, place, monkeypatch):
        """With something that steps anew instead of a graph, which may keep the rate it was captured with."""

        def captured(step):
            group = step.__self__.param_groups[0]
            for _ in range(graph.WARMUP):
                step()
            kept = group["lr"].clone()

            def replay():
                if not follows:
                    group["lr"].copy_(kept)
                step()

            return SimpleNamespace(replay=replay)

        monkeypatch.setattr(graph, "captured", captured)
        assert graph.against_eager("a", place, name).wrong is not follows


class TestCompiled:
    @names
    def test_the_traced_rule_is_the_rule(self, name, place):
        work = place_of.Place(place.device, "cpu").work({"a": (6, 4), "b": (5,)}, torch.float64)
        twins = [torch.nn.Parameter(p.detach().clone()) for p in work.params]
        before = [p.detach().clone() for p in twins]
        for twin, p in zip(twins, work.params, strict=True):
            twin.grad = p.grad
        how = {"of": rivals.SCALED[name], "compile": compiled.as_traced, "seconds": lambda: 60}
        running = compiled.CompiledRule("a", f"layerwise.torch:{name}", how).start(work)
        running.step()
        other = rivals.by_the_rule(name).make(twins)
        for _ in range(2):
            other.step()
        for p, twin, old in zip(work.params, twins, before, strict=True):
            torch.testing.assert_close(p, twin, rtol=0, atol=1e-9 * float((twin.detach() - old).abs().max()))
        assert running.state_bytes > 0

    def test_what_takes_too_long_to_compile(self):
        with pytest.raises(TimeoutError, match=r"not compiled within 0 s"), compiled.within(0.02):
            time.sleep(5)

    def test_what_is_compiled_anew_at_each_step(self, monkeypatch):
        monkeypatch.setitem(compiled.counters, "stats", {"unique_graphs": 0})
        steps = []

        def step(until):
            steps.append(1)
            compiled.counters["stats"]["unique_graphs"] += len(steps) <= until

        compiled.settle(lambda: step(3))
        assert len(steps) == 5
        with pytest.raises(RuntimeError, match="compiled anew in each of 8 steps"):
            compiled.settle(lambda: step(inf))


class TestTables:
    @pytest.mark.parametrize(
        ("kind", "full", "half"),
        [("Lamb", 40, 32), ("Lars", 28, 18), ("Adafactor", 24, 12), ("AdamW", 28, 22), ("SGD", 20, 14)],
    )
    def test_bytes(self, kind, full, half):
        assert (traffic.bytes_each(kind, "float32"), traffic.bytes_each(kind, "bfloat16")) == (full, half)

    def test_bytes_of_formats(self):
        found = {peer.label.partition(", ")[2]: traffic.stored_as(peer.label) for peer in rivals.in_formats("Lamb")}
        assert [traffic.bytes_each("Lamb", "bfloat16", one) for one in found.values()] == [32, 38, 19.375]
        assert traffic.bytes_each("Lars", "bfloat16", found["split24 and 8 bits"]) == 3 * 3 + 2 * 2 + 2 * 1.0625
        assert traffic.stored_as("layerwise.torch.Lamb, two groups") == traffic.Stored()

    def test_shares_of_the_rate_of_copying(self):
        ours, adamw = timed("layerwise.torch.Lamb", [2e-3, 1e-3, 4e-3]), timed(rivals.ADAMW, [1e-3])
        found, copy = table("Lamb", "a", ours, adamw, timed("none", [])), results().copy
        assert copy.seconds(4e9) == 1
        assert str(copy).endswith(": 4 GB/s (3–5)")
        assert tables.cells(found, ours, copy) == {
            "bytes,\nB/param": "40",
            "at copy's\nrate, ms": "1.00",
            "share of\ncopy": "0.500",
        }
        assert tables.cells(found, adamw, copy)["share of\ncopy"] == "0.700"
        assert set(tables.cells(found, found.rows["none"], copy).values()) == {""}

    def test_a_peer_that_fails_is_a_line(self, place):
        found = results()
        broken = rivals.Peer("broken", "layerwise.torch:Lamb", {"nonesuch": 1})
        measured = found.measure("table", "Lamb", "a", place.work({"a": (4,)}), [rivals.ours("Lamb"), broken], 3)
        found.show(measured)
        shown = found.console.file.getvalue()
        assert "share of copy" in shown
        assert "left out: broken: UnknownOptionError: " in shown
        assert len(measured.rows["layerwise.torch.Lamb"].timing.rounds) == 3

    def test_two_groups_have_decays_of_their_own(self, place):
        work = place_of.Place(place.device, "cpu").work({"a": (4,), "b": (3,), "c": (2,)})
        groups = rivals.in_two_groups("Lamb").make(work.params).param_groups
        assert [(len(group["params"]), bool(group["weight_decay"])) for group in groups] == [(2, True), (1, False)]

    @names
    def test_everybody_that_is_taken_is_there(self, name):
        labels = [peer.label for peer in rivals.eager(name)]
        assert len(labels) == 2 + len(rivals.TAKEN[name])
        assert rivals.yardstick(name).label in labels


class TestPlan:
    def run(self, place, seconds=60):
        found = results()
        return plan.Run(found.console, place, found, plan.Deadline(seconds))

    def test_what_fails_does_not_take_the_rest_with_it(self, place):
        def failing(problem):
            def part():
                raise problem

            return part

        done, run = [], self.run(place)
        parts = {
            "a": failing(RuntimeError("broken")),
            "b": failing(torch.OutOfMemoryError("full")),
            "c": lambda: done.append("c"),
        }
        run.carry_out(plan.Part(*each) for each in parts.items())
        assert done == ["c"]
        assert run.wrong == 1
        assert run.left_out == ["b, for which there is too little memory"]
        assert "a failed: RuntimeError: broken\n" in run.console.file.getvalue()

    @pytest.mark.slow
    def test_every_timed_part(self, place, monkeypatch):
        monkeypatch.setattr(rivals, "TAKEN", {name: (rivals.YARDSTICK[name],) for name in rivals.TAKEN})  # is quick
        monkeypatch.setattr(rivals, "COMPILED", dict.fromkeys(rivals.COMPILED, ()))
        run = self.run(place)
        run.carry_out(part for part in run.parts(["graph", "table", "sweep"], ["tiny-1000"]))
        assert run.wrong == 0, run.console.file.getvalue()
        assert run.left_out == ["graph, which needs a GPU"]
        tables = [(part, table.optimizer, table.name, table.dtype) for part, table in run.results.tables]
        assert tables[:3] == [("graph", name, graph.NAME, "float32") for name in place_of.OPTIMIZERS]
        sets = [
            ("table", name, "tiny-1000", dtype) for dtype in ("float32", "bfloat16") for name in place_of.OPTIMIZERS
        ]
        assert tables[3:9] == sets
        assert [part for part, *_ in tables[9:]] == ["sweep"] * 9 + ["compiled"] * 3
        for _, found in run.results.tables:
            assert not found.left_out
            assert all(len(row.timing.rounds) >= plan.FEW for row in found.rows.values())
        assert set(run.results.tables[-1][1].rows) == {"layerwise.torch.Adafactor", rivals.rule_compiled("Adafactor")}

    def test_what_there_is_no_time_for_is_left_out_and_what_is_wrong_is_counted(self, place):
        outcomes = [Outcome("a", 0.0), Outcome("b", 1.0)]
        late, run = self.run(place, seconds=0), self.run(place)
        late.carry_out(iter([plan.Part("a", lambda: None)]))
        for one in (late, run):
            one.judge("check", lambda _: iter(outcomes), 0.5)
        assert late.left_out == ["a, for which there was no time", "check beyond 'a', for which there was no time"]
        assert (late.wrong, run.wrong) == (0, 1)
        assert run.console.file.getvalue().endswith("WRONG: b: 1.0e+00 of 0.0e+00 ()\n1 wrong\n\n")

    def test_the_order(self, place):
        there = place_of.Place(place.device, "gpu")
        run = self.run(there)
        parts = [part.name for part in run.parts(script.PARTS, ["gpt-1b", "resnet50"])]
        kinds = list(dict.fromkeys(name.partition(",")[0] for name in parts))
        assert kinds == ["check", "profile", "graph", "table", "tests", "sweep", "compiled"]
        assert parts.index("table, gpt-1b") < parts.index("table, resnet50") < parts.index("compiled, gpt-1b, Lamb")
        assert [part.name for part in run.parts(["profile"], [])] == ["profile"]


class TestFirstRun:
    """Where there is torch and triton, and nothing else but this checkout."""

    def test_caches_go_to_the_folder_of_the_report(self, tmp_path, monkeypatch):
        for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
        monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
        script.keep_within(tmp_path / "a" / "b")
        assert script.os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "a" / "b" / "cache" / "triton")
        assert script.os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "a" / "b" / "cache" / "torchinductor")

    def test_the_report_is_written_beside_being_shown(self, tmp_path, place, monkeypatch, capsys):
        asked = script.given(["--out", str(tmp_path), "--only", "profile"])
        assert script.run(asked, place) == 0
        shown = capsys.readouterr().out
        assert "left out: profile, which needs a GPU" in shown
        assert (tmp_path / "report.txt").read_text("utf-8") == shown
        assert not (tmp_path / script.TABLE).exists()  # an interpreter's times are no results

    def test_without_rich_the_table_has_plain_lines(self, monkeypatch):
        for name in ("rich", "rich.text", "rich.table", "rich.console"):
            monkeypatch.setitem(sys.modules, name, None)
        for name in ("layerwise.cli.bench.report", "layerwise.cli.bench.display"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        display = importlib.import_module("layerwise.cli.bench.display")
        report, file = importlib.import_module("layerwise.cli.bench.report"), StringIO()
        with contextlib.redirect_stdout(file):
            report.show(display.Console(), table("Lamb", "a", timed("ours", [0.5]), timed("another", [0.25])))
        lines = file.getvalue().splitlines()
        assert lines[0] == "Lamb on a: 100,000 parameters in 1 tensors, float32 on cuda:0, 1 thread"
        assert lines[1].split("  ")[0] == "implementation"
        assert [line.split()[:2] for line in lines[2:4]] == [["ours", "500"], ["another", "250"]]
        ends = zip(lines[1:4], ("step ms", "500", "250"), strict=True)
        assert len({line.index(cell) + len(cell) for line, cell in ends}) == 1

    def test_sources_that_were_never_installed_have_a_version(self, monkeypatch):
        def none(name):
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", none)
        spec = importlib.util.find_spec("layerwise")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.__version__ == "0+source"

    def test_what_tests_lack_is_said(self, tmp_path, place, monkeypatch):
        monkeypatch.setattr(testing, "find_spec", lambda name: None if name == "hypothesis" else 1)
        assert testing.missing() == "hypothesis"
        assert testing.missing(tmp_path) == "hypothesis, a checkout's folder tests"
        run = TestPlan().run(place)
        run.tests()
        run.log = tmp_path / "tests.txt"
        run.tests()
        assert run.left_out == ["tests, which need --out for what they print", "tests, which need hypothesis"]

    @pytest.mark.parametrize(
        ("body", "failed"), [pytest.param("pass", False, marks=pytest.mark.slow), ("assert False", True)]
    )
    def test_tests_that_fail_are_wrong(self, body, failed, tmp_path):
        (tmp_path / "test_one.py").write_text(f"def test_one(): {body}")
        found = testing.run(tmp_path / "log.txt", 120, str(tmp_path / "test_one.py"), "--noconftest")
        assert (found.failed, found.whole) == (failed, True)
        assert f"1 {'failed' if failed else 'passed'}" in found.line
        assert "1 " in (tmp_path / "log.txt").read_text()

    def test_tests_without_time_are_stopped(self, tmp_path):
        (tmp_path / "test_one.py").write_text("import time\ndef test_one(): time.sleep(60)")
        found = testing.run(tmp_path / "log.txt", 0.5, str(tmp_path / "test_one.py"), "--noconftest")
        assert (found.failed, found.whole) == (False, False)
        assert found.line.startswith("tests: stopped after ")


class TestAims:
    def test_nothing_is_said_of_what_was_not_timed(self):
        found = list(aims.aims(results(), script.MODELS))
        assert len(found) == 1 + 3 + 9 + 12
        assert all(aim.met is None and str(aim).startswith("not timed: ") for aim in found)

    def test_what_is_met_and_what_is_not(self):
        found = results()
        ours = timed("layerwise.torch.Lamb", [1.25e-3], [1.0], [250e-6])  # of 4 MB at 4 GB/s: a share of 0.8
        adamw = timed(rivals.ADAMW, [1e-3], [0.5, 0.8, 0.75])
        slow, fast = (
            timed(rivals.rule_compiled("Lamb"), [1.0], [4.0]),
            timed(rivals.rule_compiled("Lars"), [1.0], [0.5]),
        )
        found.tables += [("table", table("Lamb", "gpt-1b", ours, adamw)), ("graph", table("Lamb", graph.NAME, ours))]
        found.tables += [("compiled", table("Lamb", "gpt-1b", ours, slow)), ("compiled", table("Lars", "gpt-1b", fast))]
        said = [str(aim) for aim in aims.aims(found, ["gpt-1b"]) if aim.met is not None]
        assert said == [
            "met: LAMB beside torch.optim.AdamW, fused, on gpt-1b, times as long: 1.33, at most 1.5",
            "met: Lamb's share of the rate of copying, 40 bytes a parameter, on gpt-1b: 0.80, at least 0.8",
            "met: host time of 200 tensors, layerwise.torch.Lamb: 250 µs, at most 300 µs",
            "met: Lamb beside torch.compile of its rule, on gpt-1b, times as long: 0.25, at most 1",
            "NOT MET: Lars beside torch.compile of its rule, on gpt-1b, times as long: 2.00, at most 1",
        ]
