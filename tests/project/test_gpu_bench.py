"""`benchmarks/gpu.py` does what `benchmarks/on_gpu/README.md` says, tried where there is no GPU: on a few small
tensors, with what a GPU would tell.
"""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from math import prod

import pytest
import torch
from scripts import HOME, load

from harness.measure import Row, Table
from harness.shapes import SETS
from harness.timing import Timing
from layerwise.torch.step import _engines

load("rows")
load("on_gpu", "on_gpu/__init__.py", submodule_search_locations=[str(HOME / "on_gpu")])
script = load("gpu_script", "gpu.py")
from on_gpu import aims, check, compiled, graph, options, plan, rivals, tables, traffic  # noqa: E402
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
    return Row(label, label.partition(".")[0], Timing(seconds), Timing([*ratio]), Timing([*host]))


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


@names
def test_the_same_bits_again_and_a_skipped_step(name, place, monkeypatch):
    assert not check.again("a", place, name).wrong
    opt, other = (check._stepped(place, name, steps) for steps in (1, 2))
    assert not check.same(check.bits(opt), check.bits(other))
    assert not check.skipped("a", place, name).wrong
    monkeypatch.setattr(check.torch, "ones", torch.zeros)  # nothing to skip it for
    assert check.skipped("a", place, name).wrong


# ---- what is timed


@pytest.mark.parametrize("name", SETS)
def test_shrunk_shapes_keep_their_proportions(name):
    found = SETS[name]()
    for shape, small in zip(found.values(), place_of.shrunk(found, 64).values(), strict=True):
        assert len(small) == len(shape)
        assert prod(shape) / 256 < prod(small) <= max(1, prod(shape) // 64)


@names
@pytest.mark.parametrize("whole", [compiled.WholeStep, compiled.StepOfLists])
def test_the_traced_rule_is_the_rule(name, place, whole):
    work = place_of.Place(place.device, "cpu").work({"a": (6, 4), "b": (5,)}, torch.float64)
    twins = [torch.nn.Parameter(p.detach().clone()) for p in work.params]
    before = [p.detach().clone() for p in twins]
    for twin, p in zip(twins, work.params, strict=True):
        twin.grad = p.grad
    how = {"of": rivals.SCALED[name], "whole": whole, "compile": compiled.as_traced, "seconds": lambda: 60}
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


# ---- the parts, and the end


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
