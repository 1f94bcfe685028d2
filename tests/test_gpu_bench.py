"""`benchmarks/gpu.py` does what `benchmarks/on_gpu/README.md` says, tried where there is no GPU: on a few small
tensors, with what a GPU would tell.
"""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from importlib import metadata
from io import StringIO
from math import prod

import pytest
import torch
from scripts import HOME, load

from layerwise.cli.bench.measure import Row, Table
from layerwise.cli.bench.shapes import SETS
from layerwise.cli.bench.timing import Timing
from layerwise.errors import EngineError
from layerwise.torch.step import _engines

load("rows")
load("on_gpu", "on_gpu/__init__.py", submodule_search_locations=[str(HOME / "on_gpu")])
script = load("gpu_script", "gpu.py")
from on_gpu import aims, check, compiled, graph, options, plan, profiled, rivals, tables, traffic  # noqa: E402
from on_gpu import place as place_of  # noqa: E402

names = pytest.mark.parametrize("name", place_of.OPTIMIZERS)
Outcome, Variant = check.Outcome, options.Variant


@pytest.fixture
def place(monkeypatch):
    """The processor, with the engine that would be there without the one for GPUs."""
    monkeypatch.setattr(_engines, "ENGINES", _engines.ENGINES)  # put back in the end
    return place_of.Place(torch.device("cpu"), "cpu", interpreted=True)


def results():
    copy = traffic.Copy(8 * 10**9, Timing([2.0, 1.0, 4.0]))  # 4 GB/s
    return tables.Results(StringIO(), copy, bool)


def timed(label, seconds, ratio=(), host=()):
    return Row(label, label.partition(".")[0], Timing(seconds), Timing(ratio), Timing(host))


def table(optimizer, name, *rows):
    found = {row.label: row for row in rows}
    return Table(optimizer, name, {"a": (1000, 100)}, "float32", "cuda:0", 1, rows[0].label, found)


def planned(place, seconds=60):
    found = results()
    return plan.Run(place, found, plan.Deadline(seconds))


# ---- the first run on a machine


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main([]) == 2
    assert capsys.readouterr().err.startswith("gpu.py: this needs a GPU")


@pytest.mark.slow
def test_it_can_be_tried_in_an_interpreter():
    """Half of the time goes into checks, however long an interpreter may take."""
    arguments = ("--interpret", "--only", "check,profile,sweep", "--time-limit", "8")
    done = subprocess.run([sys.executable, HOME / "gpu.py", *arguments], capture_output=True, text=True)
    # An optimizer whose kernels are not written yet is wrong too, and so is nothing else.
    wrong = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
    assert all("there are no kernels for" in line for line in wrong), done.stdout
    assert done.returncode == bool(wrong), done.stdout + done.stderr
    assert "right: Lamb, float32: as usual: " in done.stdout
    assert "left out: profile, which needs a GPU\n" in done.stdout
    # What this machine has no time for is said, and nothing else is missing.
    assert ("Lamb: one tensor" in done.stdout) != ("sweep, Lamb, for which there was no time" in done.stdout)


def test_all_that_is_written_is_in_the_folder_of_the_report(tmp_path, place, monkeypatch, capsys):
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    script.keep_within(tmp_path)
    assert script.os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "cache" / "triton")
    assert script.os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache" / "torchinductor")
    assert script.run(script.given(["--out", str(tmp_path), "--only", "profile"]), place) == 0
    shown = capsys.readouterr().out
    assert "left out: profile, which needs a GPU" in shown
    assert (tmp_path / "report.txt").read_text("utf-8") == shown
    assert not (tmp_path / script.TABLE).exists()  # an interpreter's times are no results


def test_each_implementation_timed_is_a_row_with_the_same_columns_whatever_part_it_is_of(tmp_path):
    found, write = results(), script.writer({"gpu": "none"}, tmp_path)
    for part, one in (
        ("table", table("Lamb", "a", timed("ours", [1.0, 3.0], [1.0], [0.1]), timed("no", []))),
        ("sweep", table("Lars", "b", timed("ours", [1.0]))),
    ):
        found.tables.append((part, one))
        write(found.new_rows())
    with (tmp_path / script.TABLE).open() as file:
        first, second = csv.DictReader(file)
    assert [second[key] for key in ("part", "optimizer", "implementation")] == ["sweep", "Lars", "ours"]
    assert [first[key] for key in ("step_ms", "host_ms", "gpu")] == ["2000.0", "100.0", "none"]
    assert [first[key] for key in ("counted_bytes_per_parameter", "copy_gb_per_s")] == ["40.0", "4.0"]


def test_without_rich_the_table_has_plain_lines(monkeypatch):
    """The modules that measure and show need no package but PyTorch and NumPy."""
    program = "import sys; sys.modules |= dict.fromkeys(['rich', 'typer']); import gpu; from on_gpu import plan"
    subprocess.run([sys.executable, "-c", program], cwd=HOME, check=True)
    found = results()
    found.show(table("Lamb", "a", timed("ours", [0.5]), timed("another", [0.25])))
    lines = found.out.getvalue().splitlines()
    assert lines[0] == "Lamb on a: 100,000 parameters in 1 tensors, float32 on cuda:0, 1 thread"
    assert lines[1].split("  ")[0] == "implementation"
    assert [line.split()[:2] for line in lines[2:4]] == [["ours", "500"], ["another", "250"]]
    ends = zip(lines[1:4], ("step ms", "500", "250"), strict=True)
    assert len({line.index(cell) + len(cell) for line, cell in ends}) == 1


def test_sources_that_were_never_installed_have_a_version(monkeypatch):
    def none(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", none)
    spec = importlib.util.find_spec("layerwise._version")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.__version__ == "0+source"


# ---- what is right and what is wrong


@names
def test_steps_are_right_and_one_that_is_a_little_wrong_is_found(name, place, monkeypatch):
    drawn = {one: every[:1] for one, every in options.OTHERS.items()}
    for variant in (Variant(name), *options.variants(name, drawn)):
        outcome = check.against_rule(place, variant)
        assert not outcome.wrong, outcome
        assert outcome.error > 0

    def wrong(name, params, options):
        less = 1 if options.get("fused") is False else 0.999
        return place_of.ours(name, params, {**options, "lr": less * options["lr"]})

    monkeypatch.setattr(check, "ours", wrong)
    for variant in (Variant(name), Variant(name, {"master_weights": True}, torch.bfloat16)):
        assert check.against_rule(place, variant).wrong


@pytest.mark.parametrize(
    ("problem", "required", "wrong"),
    [(EngineError("no"), False, False), (EngineError("no"), True, True), (ValueError("no"), False, True)],
)
def test_rare_options_may_be_left_to_the_rule(problem, required, wrong):
    def tried():
        raise problem

    outcome = check.attempt("a", tried, required=required)
    assert outcome.wrong is wrong
    assert wrong or str(outcome) == "left to the rule: a: EngineError: no"


@names
def test_the_same_bits_again_and_a_skipped_step(name, place, monkeypatch):
    assert not check.again("a", place, name).wrong
    opt, other = (check._stepped(place, name, steps) for steps in (1, 2))
    assert not check.same(check.bits(opt), check.bits(other))
    assert not check.skipped("a", place, name).wrong
    monkeypatch.setattr(check.torch, "ones", torch.zeros)  # nothing to skip it for
    assert check.skipped("a", place, name).wrong


@pytest.mark.parametrize(
    ("few", "many", "problem"),
    [
        ((2, 2, 1, 0, 0), (2, 2, 3, 0, 0), ""),
        ((2, 2, 0, 0, 0), (4, 4, 0, 0, 0), "launches grow"),
        ((2, 2, 0, 0, 0), (2, 2, 0, 0, 1), "the host waits"),
        ((0, 0, 0, 0, 0), (0, 0, 0, 0, 0), "no kernel"),
    ],
)
def test_launches_that_grow_with_tensors_and_waits_are_wrong(few, many, problem):
    outcome = profiled.judged("a", profiled.Counts(*few), profiled.Counts(*many))
    assert outcome.wrong is bool(problem)
    assert outcome.problem.startswith(problem)


# ---- what is timed


@pytest.mark.parametrize("name", SETS)
def test_shrunk_shapes_keep_their_proportions(name):
    found = SETS[name]()
    for shape, small in zip(found.values(), place_of.shrunk(found, 64).values(), strict=True):
        assert len(small) == len(shape)
        assert prod(shape) / 256 < prod(small) <= max(1, prod(shape) // 64)


@names
def test_the_traced_rule_is_the_rule(name, place):
    work = place_of.Place(place.device, "cpu").work({"a": (6, 4), "b": (5,)}, torch.float64)
    twins = [torch.nn.Parameter(p.detach().clone()) for p in work.params]
    before = [p.detach().clone() for p in twins]
    for twin, p in zip(twins, work.params, strict=True):
        twin.grad = p.grad
    how = {"of": rivals.SCALED[name], "compile": compiled.as_traced, "seconds": lambda: 60}
    compiled.CompiledRule("a", f"layerwise.torch:{name}", how).start(work).step()
    other = rivals.by_the_rule(name).make(twins)
    for _ in range(2):
        other.step()
    for p, twin, old in zip(work.params, twins, before, strict=True):
        torch.testing.assert_close(p, twin, rtol=0, atol=1e-9 * float((twin.detach() - old).abs().max()))


@pytest.mark.parametrize(
    ("kind", "full", "half"),
    [("Lamb", 40, 32), ("Lars", 28, 18), ("Adafactor", 24, 12), ("AdamW", 28, 22), ("SGD", 20, 14)],
)
def test_bytes_that_a_method_must_read_and_write(kind, full, half):
    assert (traffic.bytes_each(kind, "float32"), traffic.bytes_each(kind, "bfloat16")) == (full, half)


def test_shares_of_the_rate_of_copying():
    ours, adamw = timed("layerwise.torch.Lamb", [2e-3, 1e-3, 4e-3]), timed(rivals.ADAMW, [1e-3])
    found, copy = table("Lamb", "a", ours, adamw, timed("none", [])), results().copy
    assert str(copy).endswith(": 4 GB/s (3–5)")
    assert [*tables.cells(found, ours, copy).values()] == ["40", "1.00", "0.500"]
    assert tables.cells(found, adamw, copy)["share of\ncopy"] == "0.700"
    assert set(tables.cells(found, found.rows["none"], copy).values()) == {""}


def test_a_peer_that_fails_is_a_line(place):
    found, broken = results(), rivals.Peer("broken", "layerwise.torch:Lamb", {"nonesuch": 1})
    measured = found.measure("table", "Lamb", "a", place.work({"a": (4,)}), [rivals.ours("Lamb"), broken], 3)
    found.show(measured)
    assert "left out: broken: UnknownOptionError: " in found.out.getvalue()
    assert len(measured.rows["layerwise.torch.Lamb"].timing.rounds) == 3


# ---- the parts, and the end


def test_a_part_that_fails_becomes_a_line_and_the_others_continue(place):
    def failing(problem):
        raise problem

    done, run = [], planned(place)
    parts = {
        "a": lambda: failing(RuntimeError("broken")),
        "b": lambda: failing(torch.OutOfMemoryError("full")),
        "c": lambda: done.append("c"),
    }
    run.carry_out(plan.Part(*each) for each in parts.items())
    assert (done, run.wrong, run.left_out) == (["c"], 1, ["b, for which there is too little memory"])
    assert "a failed: RuntimeError: broken\n" in run.results.out.getvalue()


@pytest.mark.slow
def test_every_timed_part(place, monkeypatch):
    monkeypatch.setattr(rivals, "TAKEN", {name: (rivals.YARDSTICK[name],) for name in rivals.TAKEN})  # is quick
    monkeypatch.setattr(rivals, "COMPILED", dict.fromkeys(rivals.COMPILED, ()))
    run = planned(place)
    run.carry_out(part for part in run.parts(["graph", "table", "sweep"], ["tiny-1000"]))
    assert run.wrong == 0, run.results.out.getvalue()
    found = [part for part, _ in run.results.tables]
    assert found == ["graph"] * 3 + ["table"] * 6 + ["sweep"] * 9 + ["compiled"] * 3
    for _, one in run.results.tables:
        assert not one.left_out
        assert all(len(row.timing.rounds) >= plan.FEW for row in one.rows.values())


def test_what_there_is_no_time_for_is_left_out_and_what_is_wrong_is_counted(place):
    outcomes = [Outcome("a", 0.0), Outcome("b", 1.0)]
    late, run = planned(place, seconds=0), planned(place)
    late.carry_out(iter([plan.Part("a", lambda: None)]))
    for one in (late, run):
        one.judge("check", lambda _: iter(outcomes), 0.5)
    assert late.left_out == ["a, for which there was no time", "check beyond 'a', for which there was no time"]
    assert (late.wrong, run.wrong) == (0, 1)


def test_parts_come_in_the_order_of_importance(place):
    run = planned(place_of.Place(place.device, "gpu"))
    parts = [part.name for part in run.parts(script.given([]).only, ["gpt-1b", "resnet50"])]
    kinds = list(dict.fromkeys(name.partition(",")[0] for name in parts))
    assert kinds == ["check", "profile", "graph", "table", "sweep", "compiled"]
    assert script.given(["--only", "sweep,check"]).only == ["check", "sweep"]


def test_aims_are_met_or_not_or_were_not_timed():
    found = results()
    assert {str(aim).partition(":")[0] for aim in aims.aims(found, script.MODELS)} == {"not timed"}
    ours = timed("layerwise.torch.Lamb", [1.25e-3], [1.0], [250e-6])  # of 4 MB at 4 GB/s: a share of 0.8
    adamw = timed(rivals.ADAMW, [1e-3], [0.5, 0.8, 0.75])
    fast = timed(rivals.rule_compiled("Lars"), [1.0], [0.5])
    found.tables += [("table", table("Lamb", "gpt-1b", ours, adamw)), ("graph", table("Lamb", graph.NAME, ours))]
    found.tables += [("compiled", table("Lars", "gpt-1b", fast))]
    assert [str(aim) for aim in aims.aims(found, ["gpt-1b"]) if aim.met is not None] == [
        "met: LAMB beside torch.optim.AdamW, fused, on gpt-1b, times as long: 1.33, at most 1.5",
        "met: Lamb's share of the rate of copying, 40 bytes a parameter, on gpt-1b: 0.80, at least 0.8",
        "met: host time of 200 tensors, layerwise.torch.Lamb: 250 µs, at most 300 µs",
        "NOT MET: Lars beside torch.compile of its rule, on gpt-1b, times as long: 2.00, at most 1",
    ]
