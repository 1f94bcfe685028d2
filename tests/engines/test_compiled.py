"""The compiled engine in a program: threads, instruction sets, forks, memory, and what it leaves to the rule."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from cases import KERNELED, case_of
from engines.worlds import (
    WORLDS,
    bits,
    copied,
    in_memory,
    make_job,
    mapped,
    needed,
    new_gradient,
    now_of,
    numbers,
    stored,
    worlds,
)

import layerwise
from layerwise import engines
from layerwise.engines import compiled
from layerwise.errors import EngineError, HyperparameterError
from layerwise.numpy import Lamb
from layerwise.rules import lamb

pytestmark = needed
cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
NUMPY = WORLDS[0]
_native = compiled._native
SETS = _native.instruction_sets() if _native is not None else []
# Several chunks each, several tensors of one chunk, one that is cut along its columns, one of rank four.
SHAPES = [(300, 390), (70_001,), (5,), (), (3, 100_000), (6, 5, 40, 50), (0, 4), (200, 7)]
assert sum(map(prod, SHAPES)) > 2**19, "fewer elements are stepped by one thread alone"


@pytest.fixture
def threads():
    before = layerwise.get_num_threads()
    yield layerwise.set_num_threads
    layerwise.set_num_threads(before)


@pytest.fixture
def instruction_set():
    before = _native.instruction_set()
    yield _native.use_instruction_set
    _native.use_instruction_set(before)


def busy(case, **options):
    """Settings under which every part of the state matters, with those of these options that the rule has."""
    return case.hyper(**{**case.busy, "lr": 0.1, **{k: x for k, x in options.items() if k in case.options}})


def many(case, h, dtype="float32", shapes=SHAPES):
    kinds = (dtype, dtype, "float64" if dtype == "float64" else "float32")
    return [make_job(case, h, shape, (), i, kinds) for i, shape in enumerate(shapes)]


def walk(engine, jobs, h, steps=3):
    for t in range(1, steps + 1):
        jobs = [replace(job, now=now_of(h, t), g=new_gradient(job.p, t, job.g.dtype.name)) for job in jobs]
        with np.errstate(all="ignore"):
            stats = engine.step(jobs)
    return [{key: np.asarray(value).tolist() for key, value in one.items()} for one in stats]


# ---- the same results, whoever computes them


@cases
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.5, "max_grad_norm_per_tensor": 0.3}], ids=["", "clipped"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_threads_do_not_change_a_bit(case, options, dtype, threads):
    h = busy(case, **options)
    found = []
    for n in (1, 2, 3, 7, 2):
        threads(n)
        jobs = many(case, h, dtype)
        found.append((walk(NUMPY.engine(), jobs, h), bits(jobs)))
    assert all(one == found[0] for one in found)


@cases
def test_company_does_not_change_a_bit(case):
    h = busy(case)
    together, alone = many(case, h), many(case, h)
    walk(NUMPY.engine(), together, h)
    for job in alone:
        walk(NUMPY.engine(), [job], h)
    assert bits(together) == bits(alone)


@cases
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_every_instruction_set_agrees(case, name, dtype, instruction_set):
    assert instruction_set(name)
    h = busy(case)
    ours, theirs = many(case, h, dtype), many(case, h, dtype)
    walk(NUMPY.engine(), ours, h)
    walk(NUMPY.rule, theirs, h)
    eps = {"float64": 1e-12, "float32": 4e-6, "float16": 2.0**-9, "bfloat16": 2.0**-6}[dtype]
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(stored(one), stored(other), strict=True):
            np.testing.assert_allclose(numbers(a), numbers(b), rtol=0, atol=eps * np.max(np.abs(numbers(b)), initial=0))


def test_unknown_instruction_set(instruction_set):
    before = _native.instruction_set()
    assert not instruction_set("mmx")
    assert _native.instruction_set() == before


@cases
@worlds
def test_all_sizes(case, world):
    """Every number of elements around the width of a vector, at every address, is stepped, and nothing beside it."""
    h = busy(case)
    for n in range(71):
        plain = make_job(case, h, (n,), (), n)
        for offset in (0, 4, 8, 2, 1):
            room = np.full(4 * n + 16, 0xA5, np.uint8)
            p = room[offset : offset + 4 * n].view(np.float32)
            p[...] = plain.p
            walk_both(world, [replace(copied(plain), p=p)], [copied(plain)], h)
            assert np.all(p != plain.p)
            assert np.all(np.delete(room, np.s_[offset : offset + 4 * n]) == 0xA5)


@pytest.mark.parametrize("case", [case_of("Lamb"), case_of("Adafactor")], ids=lambda case: case.name)
@pytest.mark.parametrize(
    "kinds", [("float32",) * 3, ("bfloat16", "bfloat16", "float32"), ("float32", "float32", "bfloat16")], ids=str
)
def test_both_sides_of_what_is_kept_between_the_passes(case, kinds):
    """Of a layer of more than 2^14 elements `apply` computes again what is kept of a smaller one."""
    for n in (2**14, 2**14 + 3):
        ours = make_job(case, busy(case), (n,), (), 1, kinds)
        theirs = copied(ours)
        both = (NUMPY.engine(), ours), (NUMPY.rule, theirs)
        (found,), (expected,) = (walk(engine, [job], busy(case), steps=2) for engine, job in both)
        for a, b in zip(stored(ours), stored(theirs), strict=True):
            eps = 1e-6 if a.dtype == np.float32 else 2.0**-7
            np.testing.assert_allclose(numbers(a), numbers(b), rtol=eps, atol=eps)
        assert found["trust_ratio"] == pytest.approx(expected["trust_ratio"], rel=1e-6)


def walk_both(world, ours, theirs, h):
    ours, theirs = ([mapped(job, world.array) for job in jobs] for jobs in (ours, theirs))
    with np.errstate(all="ignore"):
        world.engine().step(ours)
        world.rule.step(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(stored(one), stored(other), strict=True):
            np.testing.assert_allclose(numbers(a), numbers(b), rtol=1e-5, atol=1e-6)


@cases
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -1e-45])
@pytest.mark.parametrize("where", ["p", "g"])
def test_what_is_not_a_number_spreads_as_in_the_rule(case, value, where):
    for options in ({}, {"max_grad_norm": 0.5}, {"max_grad_norm_per_tensor": 0.5}, {"max_grad_value": 0.4}):
        h = busy(case, **options)
        ours = make_job(case, h, (20, 30), (), 1)
        getattr(ours, where)[3, 4] = value
        theirs = copied(ours)
        with np.errstate(all="ignore"):
            NUMPY.engine().step([ours])
            NUMPY.rule.step([theirs])
        if abs(value) < 1 or np.isnan(value):
            np.testing.assert_array_equal(np.isnan(ours.p), np.isnan(theirs.p), err_msg=f"{options}")
        assert np.isfinite(ours.p).any() == np.isfinite(theirs.p).any() or value == 1e38, options


# ---- threads, forks


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", None, True, float("nan")])
def test_bad_number_of_threads(n):
    with pytest.raises(HyperparameterError, match="`n` must be an integer"):
        layerwise.set_num_threads(n)


def test_number_of_threads(threads):
    threads(3)
    assert layerwise.get_num_threads() == _native.num_threads() == 3
    threads(10**9)
    assert layerwise.get_num_threads() == 1024


def in_new_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    return done.stdout.strip() + done.stderr.strip()[-400:]


def test_environment_says_how_many_threads():
    code = "import layerwise.numpy; from layerwise import _native as n; "
    code += "print(layerwise.get_num_threads(), n.num_threads())"
    assert in_new_process(code, LAYERWISE_NUM_THREADS="3") == "3 3"
    assert "LAYERWISE_NUM_THREADS must be an integer ≥ 1, but is 'many'" in in_new_process(
        code, LAYERWISE_NUM_THREADS="many", PYTHONIOENCODING="utf-8"
    )


def test_environment_says_which_instruction_set():
    code = "import layerwise.numpy; from layerwise import _native; print(_native.instruction_set())"
    assert in_new_process(code, LAYERWISE_ISA="baseline") == "baseline"
    assert "LAYERWISE_ISA must be one of" in in_new_process(code, LAYERWISE_ISA="mmx")


# In a process of its own, because libraries that others of these tests import do not bear being forked.
FORKING = """
import multiprocessing
import numpy as np
import layerwise
from layerwise.numpy import Lamb

def stepped():
    draw, optimizer = np.random.default_rng(0), Lamb(0.1, weight_decay=0.1, engine="compiled")
    weights = {name: draw.normal(size=(450, 450)).astype(np.float32) for name in "abc"}
    for _ in range(3):
        optimizer.step_all(weights, {name: draw.normal(size=(450, 450)).astype(np.float32) for name in weights})
    return b"".join(w.tobytes() for w in weights.values())

layerwise.set_num_threads(3)
before = stepped()
context = multiprocessing.get_context("fork")
queue = context.Queue()
children = [context.Process(target=lambda: queue.put(stepped() == before)) for _ in range(3)]
for child in children:
    child.start()
assert [queue.get(timeout=60) for _ in children] == [True] * 3
for child in children:
    child.join(60)
assert stepped() == before
print("the same")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_has_threads_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "the same\n", done.stderr


def test_several_threads_step_at_once(threads):
    threads(2)
    expected = {}
    for case in KERNELED:
        h = busy(case)
        jobs = many(case, h)
        walk(NUMPY.engine(), jobs, h)
        expected[case.name] = bits(jobs)
    engine, wrong = NUMPY.engine(), []

    def storm(case):
        for _ in range(4):
            h = busy(case)
            jobs = many(case, h)
            walk(engine, jobs, h)
            if bits(jobs) != expected[case.name]:
                wrong.append(case.name)

    storming = [threading.Thread(target=storm, args=(case,)) for case in KERNELED * 3]
    for thread in storming:
        thread.start()
    for thread in storming:
        thread.join()
    assert wrong == []


def test_one_list_of_jobs_stepped_by_two_threads():
    """Whoever comes second while the first is at it does not wait for it, and does not share its memory."""
    h = busy(case_of("Lamb"))
    engine, lists = NUMPY.engine(), [many(case_of("Lamb"), h) for _ in range(2)]
    key_of_both = [[replace(job, p=job.p, now=now_of(h, 1)) for job in jobs] for jobs in lists]

    def often(jobs):
        for _ in range(20):
            engine.step(jobs)

    running = [threading.Thread(target=often, args=(jobs,)) for jobs in key_of_both]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert bits(lists[0]) == bits(lists[1])


# ---- what is remembered


@worlds
def test_layout_is_handed_on_while_it_holds(world, monkeypatch):
    made = []
    real = _native.Batch
    case, h = case_of("Lamb"), busy(case_of("Lamb"))
    engine = world.engine()
    jobs = [mapped(job, world.array) for job in many(case, h)]
    monkeypatch.setattr(compiled, "_native", Spy(made, real))
    engine.step(jobs)
    first = len(made)
    assert first
    for t in (2, 3):
        jobs = [replace(job, now=now_of(h, t), g=mapped(job, again).g) for job in jobs]
        engine.step(jobs)
    engine.step([replace(job, h=h.settled(eps=0.1)) for job in jobs])
    assert len(made) == first
    engine.step([replace(job, h=h.settled(adapt=False)) for job in jobs])
    assert len(made) > first


def again(array):
    return array.clone() if isinstance(array, torch.Tensor) else array.copy()


class Spy:
    """The extension, counting the batches it is asked for."""

    def __init__(self, made, real):
        self._made, self._real = made, real

    def __getattr__(self, name):
        return getattr(_native, name)

    def Batch(self, *args):  # noqa: N802
        self._made.append(args)
        return self._real(*args)


@worlds
def test_arrays_that_were_replaced_are_not_written_to(world):
    case, h = case_of("Lamb"), busy(case_of("Lamb"))
    engine = world.engine()
    [job] = [mapped(job, world.array) for job in many(case, h, shapes=[(40, 30)])]
    engine.step([job])
    old = numbers(job.p)
    moved = mapped(job, lambda a: a + 0)
    engine.step([replace(moved, now=now_of(h, 2))])
    np.testing.assert_array_equal(numbers(job.p), old)
    assert (numbers(moved.p) != old).any()
    if world.name == "torch":
        before, kept = job.p.clone(), job.p.data
        job.p.data = job.p.data.clone()  # the same tensor, elsewhere
        engine.step([replace(job, now=now_of(h, 2))])
        assert torch.equal(kept, before)
        assert not torch.equal(job.p, before)


@worlds
def test_a_prepared_step_says_when_an_array_is_another(world):
    case, h = case_of("Lamb"), busy(case_of("Lamb"))
    [job] = [mapped(job, world.array) for job in many(case, h, shapes=[(40, 30)])]
    prepared = world.engine().prepare([job])
    prepared.step([job.g], [job.now])
    before = bits([job])
    with pytest.raises(engines.Changed):
        prepared.step([job.g[:20]], [job.now])
    with pytest.raises(engines.Changed):
        prepared.step([job.g], [job.now], torch.tensor(False))
    assert bits([job]) == before
    prepared.step([again(job.g)], [job.now])
    assert bits([job]) != before


@pytest.mark.parametrize("insisting", [True, False], ids=["compiled", "rule"])
@pytest.mark.parametrize("which", ["p", "exp_avg_sq"])
@pytest.mark.parametrize("change", ["moved", "negated", "shortened"])
def test_a_prepared_step_says_when_an_array_is_not_where_it_was(insisting, which, change):
    """At another address; or at the same one, but with the other sign, or with too little memory."""
    case = case_of("Lamb")
    job = mapped(make_job(case, busy(case), (40, 30), (), 0), lambda a: torch.from_numpy(a).clone())
    prepared = (WORLDS[1].engine() if insisting else WORLDS[1].rule).prepare([job])
    prepared.step([job.g], [job.now])
    array = job.p if which == "p" else job.state.exp_avg_sq
    kept, before, bytes_ = array.data, array.clone(), array.untyped_storage().nbytes()
    if change == "shortened":
        array.untyped_storage().resize_(bytes_ // 2)
    else:
        array.data = array.data.clone() if change == "moved" else torch._neg_view(array.data)
    with pytest.raises(engines.Changed):
        prepared.step([job.g], [job.now])
    kept.untyped_storage().resize_(bytes_)
    half = 600 if change == "shortened" else 1200
    assert torch.equal(kept.view(-1)[:half], before.view(-1)[:half])


@worlds
def test_another_shape_or_dtype_at_the_same_place(world):
    """What was laid out for one array is not used for another that begins at the same address."""
    case, h = case_of("Lamb"), busy(case_of("Lamb"))
    engine = world.engine()
    big = mapped(many(case, h, shapes=[(64, 8)])[0], world.array)
    engine.step([big])
    for cut in (lambda a: a[:32], lambda a: a.reshape(8, 64), lambda a: a[:, :4], lambda a: a.reshape(-1)):
        ours = mapped(big, cut)
        theirs = mapped(ours, again)
        engine.step([ours])
        world.rule.step([theirs])
        np.testing.assert_allclose(numbers(ours.p), numbers(theirs.p), rtol=1e-5, atol=1e-6)


@worlds
def test_nothing_is_kept_alive(world):
    case, h = case_of("Lamb"), busy(case_of("Lamb"))
    engine = world.engine()
    jobs = [mapped(job, world.array) for job in many(case, h, shapes=[(40, 30)])]
    engine.step(jobs)
    kept = [weakref.ref(array) for array in (*stored(jobs[0]), jobs[0].g)]
    del jobs
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)


def test_measurements_are_of_their_step():
    case, h = case_of("Lamb"), busy(case_of("Lamb"))
    jobs = many(case, h)
    engine = NUMPY.engine()
    measured = engine.step(jobs)[0]
    copy = pickle.loads(pickle.dumps(measured))
    assert copy == {key: np.asarray(value) for key, value in measured.items()}
    assert type(copy) is dict
    engine.step([replace(job, now=now_of(h, 2)) for job in jobs])
    assert copy["update_norm"] != measured["update_norm"]


# ---- what is left to the rule


def strange(case, h):
    """Jobs that the engine cannot take, each with a part of the reason."""
    job = mapped(make_job(case, h, (6, 4), (), 3), WORLDS[1].array)
    yield replace(job, skip=torch.tensor(False)), "on the device"
    yield replace(job, g=job.g.to("meta")), "the gradient is not"
    yield replace(job, now=job.now._replace(lr=torch.tensor(0.1, requires_grad=True))), "followed by autograd"
    yield replace(job, p=Odd(job.p)), "the parameter is not"


class Odd(torch.Tensor):
    """A tensor that may be anything."""


def test_insisting_says_why_not():
    for job, reason in strange(case_of("Lamb"), busy(case_of("Lamb"))):
        with pytest.raises(EngineError, match=f"compiled engine does not take.*{reason}"):
            WORLDS[1].engine().step([job])


@pytest.mark.parametrize("bound", [None, 0.5])
def test_a_strange_job_is_left_to_the_rule(bound):
    case = case_of("Lamb")
    h = busy(case, max_grad_norm=bound)
    jobs = [mapped(make_job(case, h, (6, 4), (), i), WORLDS[1].array) for i in range(3)]
    jobs[1] = replace(jobs[1], skip=torch.tensor(False))
    expected = [mapped(job, torch.clone) for job in jobs]
    measured = WORLDS[1].engine(insisting=False).step(jobs)
    WORLDS[1].rule.step(expected)
    for one, other in zip(jobs, expected, strict=True):
        torch.testing.assert_close(one.p, other.p)
    assert [set(one) for one in measured] == [{"weight_norm", "update_norm", "trust_ratio"}] * 3


def test_nothing_is_changed_where_one_is_refused():
    case, h = case_of("Lamb"), busy(case_of("Lamb"))
    jobs = [mapped(make_job(case, h, (6, 4), (), i), WORLDS[1].array) for i in range(3)]
    jobs[2] = replace(jobs[2], skip=torch.tensor(False))
    before = [numbers(a) for job in jobs for a in stored(job)]
    with pytest.raises(EngineError):
        WORLDS[1].engine().step(jobs)
    for a, b in zip((a for job in jobs for a in stored(job)), before, strict=True):
        np.testing.assert_array_equal(numbers(a), b)


def test_read_only_arrays_are_not_written_to():
    case, h = case_of("Lamb"), busy(case_of("Lamb"))
    job = make_job(case, h, (6, 4), (), 1)
    job.p.flags.writeable = False
    with pytest.raises(EngineError):
        NUMPY.engine().step([job])


def test_swapped_bytes_are_not_taken_for_numbers():
    case, h = case_of("Lamb"), busy(case_of("Lamb"))
    job = make_job(case, h, (6, 4), (), 1)
    swapped = replace(job, g=job.g.astype(">f4"))
    theirs = copied(job)
    NUMPY.engine(insisting=False).step([swapped])
    NUMPY.rule.step([theirs])
    np.testing.assert_allclose(job.p, theirs.p, rtol=1e-6)


def test_many_dimensions_that_do_not_lie_in_a_row():
    h = case_of("Adafactor").hyper(lr=0.1, factored=((0, 2, 4, 6, 8), (1, 3, 5, 7, 9)))
    job = make_job(case_of("Adafactor"), h, (2,) * 10, (), 1)
    with pytest.raises(EngineError, match="more dimensions"):
        NUMPY.engine().step([job])
    theirs = copied(job)
    NUMPY.engine(insisting=False).step([job])
    NUMPY.rule.step([theirs])
    np.testing.assert_array_equal(job.p, theirs.p)


def test_no_jobs():
    assert list(NUMPY.engine().step([])) == []


def test_the_front_takes_it():
    ours, theirs = Lamb(0.1), Lamb(0.1, engine="rule")
    w = in_memory(np.ones((50, 40)), "float32", "plain")
    v = w.copy()
    for opt, x in ((ours, w), (theirs, v)):
        opt.step("w", x, np.full_like(x, 0.5))
    np.testing.assert_allclose(w, v, rtol=1e-6)
    assert isinstance(ours._slots["w"].measured[0], compiled.Measured)
    assert not isinstance(theirs._slots["w"].measured[0], compiled.Measured)
    assert lamb is ours._rule


def test_an_infinite_gradient_spoils_its_own_entry_alone():
    """Where updates are not clipped, no sum takes it to the others."""
    for engine in ("compiled", "rule"):
        w = np.ones(3, np.float32)
        opt = layerwise.numpy.Adafactor(lr=0.1, clip_threshold=None, scale_parameter=False, engine=engine)
        opt.step("w", w, np.array([1, np.inf, 1], np.float32))
        assert np.isnan(w).tolist() == [False, True, False]
