"""Kernels owe a proof before their first step on a device. Those that are broken on purpose fail it, and then the rule
steps, or who insists on kernels is refused.
"""

from __future__ import annotations

import random
import re
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import KERNELED, case_of
from engines.parts import Cut, check, in_parts, step_parts
from engines.worlds import EPS, make_job, mapped
from gpu.front import alike, fronts, give, had_by, parameters
from gpu.world import DEVICE, GPU, RULE, cases, given, jobs_of, prepared, proving, step
from torch_front.front import BUSY, FRONT_OF, bits

from layerwise import engines
from layerwise.catalog.registry import ENTRIES
from layerwise.cli import info
from layerwise.engines import Candidate, assignment
from layerwise.engines.gpu import proof
from layerwise.engines.gpu.installed import PROOF_VARIABLE
from layerwise.engines.gpu.kernels import common
from layerwise.engines.gpu.kernels.tables import ANSWERS
from layerwise.engines.gpu.passes import LaunchInputs
from layerwise.errors import EngineError
from layerwise.torch import SGD, Adafactor, Lamb, Lars
from layerwise.torch.step import _engines

KIND = type(common.root)
RUN = KIND.run
PASSES = ["passes.measure", "passes.answer", "passes.apply"]
KERNELS = {
    **{FRONT_OF[case.name]: PASSES if case.rounds else PASSES[-1:] for case in KERNELED},
    Adafactor: [
        *PASSES, "statistics.strips", "statistics.fold", "statistics.total", "statistics.renew",
    ],
}  # fmt: skip


def name_of(kernel):
    return f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"


def is_of(front, constants):
    """Whether a kernel is launched with the printed functions of an optimizer."""
    modules = [x.fn.__module__ for x in constants.given.values() if hasattr(x, "fn")]
    return any(name.endswith(f"printed.{front.__name__.lower()}") for name in modules)


@pytest.fixture
def proof_of(monkeypatch):
    """A new proof, for the engine that tensors on a GPU get."""
    engine = proving()
    table = Candidate("gpu", engine, required=proving(warns=False)), Candidate("rule", _engines.RULE)
    monkeypatch.setattr(_engines, "ENGINES", table)
    return engine.proof


@pytest.fixture
def broken(monkeypatch):
    """Break the kernel of that name, for one optimizer or all: it is not launched, or something else is done."""

    def breaks(name, instead=lambda *_: None, of=None):
        def run(self, *args, **kwargs):
            with np.errstate(all="ignore"):  # what is made of numbers that are not there
                is_broken = name_of(self) == name and (of is None or is_of(of, args[-1]))
                return instead(self, args, kwargs) if is_broken else RUN(self, *args, **kwargs)

        monkeypatch.setattr(KIND, "run", run)

    return breaks


def stepped(front, steps=2, shapes=((9, 34), (5,)), dtype=torch.float32, **options):
    params = parameters(dtype, shapes)
    opt = front(params, **had_by(front, {**BUSY[front], **options}))
    for seed in range(steps):
        give(params, seed)
        opt.step()
    return params, opt


@pytest.mark.thinned(2)
@pytest.mark.kinds("factored")
@fronts
@pytest.mark.parametrize("options", [{"max_grad_norm": 0.5}, {"skip_nonfinite": True, "capturable": True}], ids=str)
def test_kernels_that_are_right_pass_unnoticed(front, options, proof_of):
    """Without a warning; random numbers, defaults and modes are what they were."""
    theirs, _ = stepped(front, 1, fused=False, **options)
    params, opt = stepped(front, 0, **options)
    give(params, 0)
    torch.set_default_dtype(torch.float64)
    try:
        before = torch.get_rng_state(), random.getstate()
        with warnings.catch_warnings(), torch.device("meta"), torch.enable_grad():
            warnings.simplefilter("error")
            opt.step()
            assert torch.is_grad_enabled()
            assert torch.empty(0).is_meta
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
    finally:
        torch.set_default_dtype(torch.float32)
    alike(params, theirs)
    assert proof_of.known
    assert not any(proof_of.known.values())


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("front", "kernel", "options"),
    [
        *((front, name, {}) for front, names in KERNELS.items() for name in names),
        *((SGD, name, {"max_grad_norm": 0.5}) for name in PASSES),  # of whose passes norms of gradients need two
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_a_kernel_that_does_nothing_is_noticed(front, kernel, options, proof_of, broken):
    broken(kernel)
    with pytest.warns(
        RuntimeWarning, match=f"{front.__name__}.*failed their proof.*reference implementation is used instead"
    ) as warned:
        params, _ = stepped(front, **options)
    assert len(warned) == 1
    assert bits(params) == bits(stepped(front, fused=False, **options)[0])


def test_numbers_of_an_earlier_step_do_not_stand_in_for_a_kernels(proof_of, broken, monkeypatch):
    """Memory may come as an earlier proof left it, with what the kernel had to write."""
    left, compared, empty = {}, proof.kernel_difference, torch.empty

    def keeping(rule, prepare, *rest):
        made = []
        found = compared(rule, lambda jobs: made.append(prepare(jobs)) or made[0], *rest)
        left.update((tuple(x.shape), x.clone()) for x in made[0]._laid.tables.held)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(proof, "kernel_difference", keeping)
        stepped(Adafactor, 1)
    proof_of.known.clear()
    monkeypatch.setattr(torch, "empty", lambda *size, **like: left[size] if size in left else empty(*size, **like))
    broken("statistics.total")
    with pytest.warns(RuntimeWarning, match="Adafactor.*failed their proof"):
        stepped(Adafactor, 1)


@pytest.mark.slow
def test_every_kernel_is_broken_above(monkeypatch, proof_of):
    found = set()
    monkeypatch.setattr(KIND, "run", lambda self, *a, **k: (found.add(name_of(self)), RUN(self, *a, **k))[1])
    for front in KERNELS:
        stepped(front, max_grad_norm=0.5)
    assert found == {name for names in KERNELS.values() for name in names}


@pytest.mark.parametrize("front", [front for front, names in KERNELS.items() if "passes.answer" in names])
@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.float32, 1.1), (torch.bfloat16, 1.1), (torch.float32, np.nan)], ids=str
)
def test_a_step_that_is_a_little_too_long_or_nan_is_noticed(front, dtype, factor, proof_of, broken):
    def longer(kernel, args, kwargs):
        RUN(kernel, *args, **kwargs)
        numbers = [x for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()]
        next(x for x in numbers if x.shape[-1:] == (ANSWERS.value,)).mul_(factor)

    broken("passes.answer", longer)
    with pytest.warns(RuntimeWarning, match="the weights of .* differ from the rule's by"):
        stepped(front, dtype=dtype)


def test_a_kernel_that_does_not_compile_is_replaced_by_the_rule(proof_of, broken):
    def fails(*_):
        raise ValueError("no such instruction\nin line 7")

    broken("passes.apply", fails)
    with pytest.warns(RuntimeWarning, match=r"they do not compile or run \(.*no such instruction") as warned:
        ours, opt = stepped(Lamb, capturable=True, skip_nonfinite=True)
    assert "line 7" not in str(warned[0].message)
    alike(ours, stepped(Lamb, fused=False)[0])
    assert {int(opt.state[p]["step"]) for p in ours} == {2}
    assert all(measured["trust_ratio"] > 0 for measured in opt.stats().values())
    stepped(Lamb)  # and nothing more is said


def test_kernels_that_write_in_a_skipped_step_are_replaced_by_the_rule(proof_of, broken):
    def always(kernel, args, kwargs):
        taken = (torch.zeros_like(x) if isinstance(x, torch.Tensor) and x.dtype is torch.uint8 else x for x in args)
        RUN(kernel, *taken, **kwargs)

    broken("passes.apply", always)
    jobs = jobs_of(case_of("Lamb"), [(5,)])
    ready = prepared(jobs, proving(), RULE)
    with pytest.warns(RuntimeWarning, match="they write in a step that must be skipped"):
        step(ready, jobs, [job.now for job in jobs], torch.tensor(False, device=DEVICE))


def test_memory_that_runs_out_says_nothing_about_kernels(proof_of, broken):
    def fails(*_):
        raise torch.cuda.OutOfMemoryError

    broken("passes.apply", fails)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        stepped(Lamb)
    assert not proof_of.known


@pytest.mark.thinned(2)
@fronts
def test_a_required_engine_that_declines_raises_and_nothing_is_stepped(front, proof_of, broken):
    broken("passes.apply")
    params, opt = stepped(front, 0, shapes=[(5,)], fused=True)
    before = bits(params)
    give(params, 0)
    for _ in range(2):
        with pytest.raises(EngineError, match=rf"{front.__name__} .*failed .* on {DEVICE}.*{PROOF_VARIABLE}=0"):
            opt.step()
    assert bits(params) == before


def test_where_the_rule_steps_other_kernels_are_used_and_skipped_steps_are_not_counted(proof_of, broken):
    """Steps that kernels would have counted are counted where the rule takes them."""
    broken("passes.apply", of=Lamb)
    params = parameters(shapes=[(5,), (3, 4)])
    opt = Lamb(params, capturable=True, skip_nonfinite=True)
    give(params, 0)
    with pytest.warns(RuntimeWarning, match="Lamb"):
        opt.step()
    before = bits(params)
    for skipped, counted in ((True, 1), (False, 2)):
        give(params, 1)
        params[0].grad[0] = torch.nan if skipped else 1
        opt.step()
        assert [int(opt.state[p]["step"]) for p in params] == [counted] * 2
        assert (bits(params) == before) == skipped
    stepped(Lars, fused=True)


def test_only_failed_kernels_are_declined_from_then_on(broken, monkeypatch):
    broken("passes.apply", of=Lamb)
    engine, lamb = proving(), case_of("Lamb")
    high, low = (jobs_of(lamb, [(5,)], (dtype, dtype, "float32")) for dtype in ("float32", "bfloat16"))
    with pytest.warns(RuntimeWarning, match=r"Lamb \(float32\)") as warned:
        step(prepared(high, engine, RULE), high)
    assert len(warned) == 1
    assert re.search("Lamb .*failed their proof", engine.reasons_to_decline([given(high[0])])[0])
    assert engine.reasons_to_decline([given(job) for job in (*low, *jobs_of(case_of("Lars"), [(5,)]))]) == ["", ""]
    monkeypatch.setenv(PROOF_VARIABLE, "0")
    assert engine.reasons_to_decline([given(high[0])]) == [""]


def test_an_environment_variable_skips_the_proof(proof_of, broken, monkeypatch):
    broken("passes.apply", of=Lamb)
    monkeypatch.setenv(PROOF_VARIABLE, "0")
    params, _ = stepped(Lamb, fused=True)
    assert bits(params) == bits(stepped(Lamb, 0)[0])  # stepped by the broken kernel
    monkeypatch.setenv(PROOF_VARIABLE, "perhaps")
    with pytest.raises(EngineError, match=f"`{PROOF_VARIABLE}` must be 0 or 1, but is 'perhaps'"):
        stepped(Lamb)


def test_each_device_owes_its_own(monkeypatch):
    tried, engine = [], proving()
    monkeypatch.setattr(
        proof, "kernel_difference", lambda rule, prepare, some, call: tried.append(some[0][0].p.device.type) or ""
    )
    case = case_of("Lamb")
    job = mapped(make_job(case, case.hyper(), (5,), (), 0), GPU.array)
    ready = engine.prepare([engines.Job(job.rule, job.h, job.p, job.state)])
    ready.step([job.g], [job.now])
    [call] = [laid.variants for laid in ready._layouts.values()]
    assert len(call) == 1
    there = mapped(job, lambda a: a.to("meta"))
    made = LaunchInputs(ready._laid.tables, None, False, None)
    for _ in range(2):
        engine.proof.check([(engines.Job(there.rule, there.h, there.p, there.state), there.g)], made, None)
    assert tried == [DEVICE, "meta"]


def test_info_says_what_became_of_it(proof_of, broken, monkeypatch):
    broken("passes.apply", of=Lars)
    monkeypatch.setattr(info, "ENTRIES", {name: ENTRIES[name] for name in ("SGD", "Lars", "Came")})
    [(device, found)] = info.kernel_verdicts([DEVICE]).items()
    assert device == DEVICE
    assert found.keys() == {f"{name}, {dtype}" for name in ("SGD", "Lars") for dtype in ("float32", "bfloat16")}
    assert {what for what, verdict in found.items() if verdict == "proven"} == {"SGD, float32", "SGD, bfloat16"}
    assert "the weights of" in found["Lars, float32"]
    with monkeypatch.context() as patched:
        patched.setattr(info, "kernel_verdicts", lambda: {DEVICE: found})
        assert f"            {DEVICE}: SGD, bfloat16: proven" in info.lines(info.facts(devices=True))
    assert any("before its first step on a device" in line for line in info.lines(info.facts()))
    monkeypatch.setenv(PROOF_VARIABLE, "0")
    assert set(info.kernel_verdicts([DEVICE])[DEVICE].values()) == {"used without a proof"}


LAYOUTS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim > 1 else x,
    "odd": lambda x: torch.empty(x.numel() + 1, dtype=x.dtype, device=DEVICE)[1:].view(x.shape).copy_(x),
    "spread": lambda x: torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=DEVICE)[..., ::2].copy_(x),
    "expanded": lambda x: x[..., :1].expand_as(x),
}


@pytest.mark.thinned(2)
@pytest.mark.kinds("factored")
@fronts
@pytest.mark.parametrize(
    ("layout", "options"),
    [("plain", {}), *((layout, {"max_grad_norm": 0.5, "skip_nonfinite": True}) for layout in LAYOUTS)],
)
def test_it_launches_what_the_step_launches(front, layout, options, monkeypatch):
    """Nothing is compiled for the proof alone, and nothing is used that it has not seen. No kernel runs for that."""
    launched, inside = (set(), set()), []

    def noted(self, *args, **kwargs):
        flags = tuple((key, str(x)) for key, x in sorted(args[-1].given.items()))
        launched[not inside].add((name_of(self), flags))

    compared = proof.kernel_difference
    monkeypatch.setattr(proof, "kernel_difference", lambda *a: (inside.append(1), compared(*a), inside.clear(), "")[3])
    monkeypatch.setattr(KIND, "run", noted)
    monkeypatch.setattr(proof, "LARGEST", 600)  # several times what a program takes, as with usual sizes
    monkeypatch.setattr(_engines, "ENGINES", (Candidate("gpu", proving()),))
    params = parameters(shapes=[(20, 24), (120, 7), (3, 5, 3, 3), (200,), (5,)])
    opt = front(params, fused=True, **had_by(front, {**BUSY[front], **options}))
    give(params, 0)
    for p in params:
        p.grad = LAYOUTS[layout](p.grad)
    opt.step()
    assert launched[0] == launched[1] != set()


# ---- where others hold parts


@pytest.mark.thinned(2)
@pytest.mark.kinds("factored")
@cases
@pytest.mark.parametrize("right", [True, False])
def test_ranks_pass_or_fall_back_together_even_one_that_holds_nothing(case, right, broken):
    """All know what is wrong with kernels of which only some have something to step."""
    job, cut = make_job(case, case.hyper(), (4, 3, 2), (), 0), Cut(0, (4,))
    seats = [[part] for part in in_parts(job, cut, 2)]
    assert 0 in seats[1][0].p.shape
    GPU.rule.step([alone := mapped(job, GPU.array)])
    table = [proving(), RULE]
    one_of_all = SimpleNamespace(prepare=lambda jobs: assignment.prepare(table, jobs))
    if not right:
        broken("passes.apply")
    with nullcontext() if right else pytest.warns(RuntimeWarning, match="failed their proof"):
        step_parts(one_of_all, seats, [job.p.shape], [cut], GPU.array)
    check(alone, [part for seat in seats for part in seat], 8 * EPS["float32"])
