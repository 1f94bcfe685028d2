"""What an engine has laid out serves the next step while it holds, and never memory that is another's by then."""

from __future__ import annotations

import copy
import pickle
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import case_of
from engines.parts import Failing
from engines.worlds import WORLDS, bits, make_job, mapped, needed, now_of, numbers, worlds
from torch.nn import Parameter

from layerwise import engines
from layerwise import numpy as of_numpy
from layerwise import torch as of_torch
from layerwise.engines import addresses, compiled
from layerwise.errors import ParameterError
from layerwise.torch.step import _planner

pytestmark = needed

LAMB = case_of("Lamb")

SHAPES = {"a": (6, 4), "b": (5,), "c": (3, 2, 4)}


@pytest.fixture
def counted(monkeypatch):
    """How often a batch was laid out, and how often a parameter was planned."""
    found, native, plan_of = {"batches": 0, "plans": 0}, compiled._native, _planner.plan_of

    class Batch(native.Batch):
        def __init__(self, *given, **more):
            found["batches"] += 1
            super().__init__(*given, **more)

    class Extension:
        def __getattr__(self, name):
            return Batch if name == "Batch" else getattr(native, name)

    def planned(*given):
        found["plans"] += 1
        return plan_of(*given)

    monkeypatch.setattr(compiled, "_native", Extension())
    monkeypatch.setattr(_planner, "plan_of", planned)
    return found


def made(name, **options):
    torch.manual_seed(0)
    params = {key: Parameter(torch.randn(shape)) for key, shape in SHAPES.items()}
    return params, getattr(of_torch, name)(params.items(), **{**case_of(name).busy, "lr": 0.1, **options})


def give(params, seed):
    torch.manual_seed(seed)
    for p in params.values():
        p.grad = torch.randn(p.shape)


def bits_of(params, opt):
    state = [x for p in params.values() for x in opt.state[p].values()]
    return [x.detach().numpy().tobytes() for x in (*params.values(), *state)], repr(opt.stats())


NUMBERS = {  # two values that differ in nothing but numbers
    "Lamb": ({"betas": (0.8, 0.99)}, {"betas": (0.7, 0.98)}),
    "Lans": ({"betas": (0.8, 0.99)}, {"betas": (0.7, 0.98)}),
    "Lars": ({"momentum": 0.8}, {"momentum": 0.7}),
    "Adafactor": ({"clip_threshold": 0.5, "beta1": 0.8}, {"clip_threshold": 0.6, "beta1": 0.7}),
    "StableAdamW": ({"betas": (0.8, 0.9)}, {"betas": (0.7, 0.8)}),
}

MORE = [
    ("Lamb", {"adapt": False}),
    ("Lamb", {"max_grad_norm": 1.0}),
    ("Lamb", {"max_grad_norm_per_tensor": 0.1}),
    ("Lamb", {"eps_root": 1e-3, "bias_correction": False}),
    ("Lars", {"momentum": 0.0}),
    ("Lars", {"nesterov": True, "dampening": 0.0}),
    ("Adafactor", {"relative_step": False, "scale_parameter": True}),
    ("Adafactor", {"clip_threshold": None}),
]


@pytest.mark.parametrize("fused", [None, False], ids=["compiled", "rule"])
@pytest.mark.parametrize(("name", "values"), [*NUMBERS.items(), *((name, (one, {})) for name, one in MORE)], ids=str)
def test_changed_options_take_effect_and_numbers_keep_the_layout(counted, name, values, fused):
    """Heard as by an optimizer that forgets all its plans before every step."""
    blocks = {} if fused is False else {"blocks": {"c": 3}}
    (params, opt), (others, anew) = (made(name, fused=fused, **blocks) for _ in range(2))
    first = None
    for seed in range(4):
        for one in (opt, anew):
            one.param_groups[0].update({key: one.defaults[key] for key in values[0]} | values[seed % 2])
        give(params, seed), give(others, seed)
        opt.step()
        first, before = first or dict(counted), dict(counted)
        anew._stepper.forget()
        anew.step()
        counted.update(before)
        assert bits_of(params, opt) == bits_of(others, anew)
    assert not values[1] or counted == first


def test_gradients_that_lie_in_two_ways_in_turns_are_laid_out_once_each(counted):
    (params, opt), (others, rule) = made("Lamb"), made("Lamb", fused=False)
    for seed in range(6):
        give(params, seed), give(others, seed)
        if seed % 2:
            params["a"].grad = params["a"].grad.t().contiguous().t()
        opt.step(), rule.step()
        for name, p in params.items():
            torch.testing.assert_close(p, others[name], rtol=1e-5, atol=1e-6)
    assert counted == {"batches": 2, "plans": 6}
    assert opt.stats()["a"]["weight_norm"] == pytest.approx(rule.stats()["a"]["weight_norm"])


@pytest.mark.parametrize("change", ["skipped", "refused"])
def test_measurements_stay_if_the_next_step_is_not_taken(change):
    """Though the engine had looked at some of the tensors before it came to what is wrong."""
    params, opt = made("Lamb", skip_nonfinite=True)
    give(params, 0)
    opt.step()
    before = opt.stats()
    opt.param_groups[0]["betas"] = (0.5, 0.9)
    if change == "skipped":
        params["b"].grad[0] = float("nan")
        opt.step()
        assert opt.skipped == 1
    else:
        params["b"].data = params["b"].grad = torch.ones(7)
        with pytest.raises(ParameterError, match="had the shape"):
            opt.step()
    assert opt.stats() == before


@pytest.mark.parametrize("api", ["torch", "numpy"])
def test_sets_that_share_their_ends_share_no_measurements(api):
    arrays = {name: np.full((4, 4), x) for name, x in zip("ABCD", (1.0, 2.0, 30.0, 4.0), strict=True)}
    params = {name: Parameter(torch.from_numpy(x)) for name, x in arrays.items()}  # in the arrays' memory
    opt = of_numpy.Lamb(lr=0.01) if api == "numpy" else of_torch.Lamb(params.items(), lr=0.01)
    seen = {}
    for names in ("ABD", "ACD", "ABD", "ACD"):
        seen |= {name: np.linalg.norm(arrays[name]) for name in names}
        if api == "numpy":
            opt.step_all(arrays, {name: np.ones((4, 4)) for name in names})
        else:
            for name, p in params.items():
                p.grad = torch.ones_like(p) if name in names else None
            opt.step()
        assert {name: measured["weight_norm"] for name, measured in opt.stats().items()} == pytest.approx(seen)


def test_neither_optimizers_of_the_same_array_nor_copies_of_one_share_measurements():
    w = np.ones((4, 4))
    opt, other = of_numpy.Lamb(lr=0.01), of_numpy.Lamb(lr=0.01)
    opt.step("w", w, np.ones((4, 4)))
    for one in (other, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        one.step("w", np.full((4, 4), 2.0), np.ones((4, 4)))
        assert (opt.stats()["w"]["weight_norm"], one.stats()["w"]["weight_norm"]) == (4.0, 8.0)
    params, opt = made("Lamb")
    give(params, 0)
    opt.step()
    before, twin = opt.stats(), copy.deepcopy(opt)
    for p in twin.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    twin.step()
    assert opt.stats() == before


def jobs_of(world, shapes=((40, 30), (7,)), **options):
    h = LAMB.hyper(**{**LAMB.busy, **options})
    return [mapped(make_job(LAMB, h, shape, (), i), world.array) for i, shape in enumerate(shapes)]


def again(array):
    return array.clone() if isinstance(array, torch.Tensor) else array.copy()


@worlds
def test_a_layout_is_handed_on_while_it_holds(world, counted):
    jobs, engine = jobs_of(world), world.engine()
    for t in (1, 2, 3):
        engine.step([replace(job, now=now_of(job.h, t), g=again(job.g)) for job in jobs])
    engine.step([replace(job, h=job.h.settled(eps=0.1)) for job in jobs])
    first = counted["batches"]
    assert first <= 2  # declined or not is asked once by laying out
    engine.step([replace(job, h=job.h.settled(adapt=False)) for job in jobs])
    assert counted["batches"] > first


@worlds
def test_an_error_in_the_numbers_of_a_step_lays_nothing_out_again(world, counted):
    jobs, batches = jobs_of(world), []
    ready = compiled.CompiledEngine().prepare([engines.Job(job.rule, job.h, job.p, job.state) for job in jobs])
    for t in (1, 0, 1):
        with nullcontext() if t else pytest.raises(ZeroDivisionError):
            ready.step([job.g for job in jobs], [now_of(job.h, t) for job in jobs])
        batches.append(counted["batches"])
    assert batches[0] == batches[-1] > 0


class Stepping(Failing):
    """Others who take a step of the same jobs themselves before they answer for the first time."""

    def __init__(self, step):
        super().__init__(99)
        self.step = step

    def add_up(self, questions, sums):
        step, self.step = self.step, None
        if step is not None:
            step()
        return super().add_up(questions, sums)


def test_a_batch_amid_a_step_serves_no_other(counted):
    jobs = jobs_of(WORLDS[0])
    ready = compiled.CompiledEngine().prepare([engines.Job(job.rule, job.h, job.p, job.state) for job in jobs])
    given = [job.g for job in jobs], [job.now for job in jobs], None
    ready.step(*given, Failing(9))
    before = counted["batches"]
    ready.step(*given, Stepping(lambda: ready.step(*given, Failing(9))))
    assert counted["batches"] == before + 1


@worlds
@pytest.mark.parametrize(
    "change",
    [
        lambda jobs: [replace(job, block_dims=(0,)) for job in jobs],
        lambda jobs: [jobs[0], replace(jobs[1], now=now_of(jobs[1].h, 5))],
    ],
    ids=["blocks", "the step of one of two"],
)
def test_changes_besides_settings_are_noticed(world, change):
    jobs = jobs_of(world, [(40, 30)] * 2)
    jobs = [replace(job, h=jobs[0].h) for job in jobs]
    engine = world.engine()
    engine.step(jobs)
    ours = change(jobs)
    theirs = [mapped(job, again) for job in ours]
    engine.step(ours), world.rule.step(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(numbers(one.p), numbers(other.p), rtol=1e-5, atol=1e-6)


@worlds
def test_gradients_of_another_dtype_of_the_same_size_are_read_as_theirs(world):
    h = LAMB.hyper()
    jobs = [make_job(LAMB, h, (40, 30), (), 0, ("float32", name, "float32")) for name in ("bfloat16", "float16")]
    first, other = (mapped(job, world.array) for job in jobs)
    engine = world.engine()
    engine.step([first])
    ours = replace(first, g=other.g)
    theirs = mapped(ours, again)
    engine.step([ours]), world.rule.step([theirs])
    np.testing.assert_allclose(numbers(ours.p), numbers(theirs.p), rtol=1e-5, atol=1e-6)


@worlds
def test_arrays_that_were_replaced_are_not_written_to(world):
    [job], engine = jobs_of(world, [(40, 30)]), world.engine()
    engine.step([job])
    old = numbers(job.p)
    moved = mapped(job, again)
    engine.step([replace(moved, now=now_of(job.h, 2))])
    assert np.array_equal(numbers(job.p), old)
    assert (numbers(moved.p) != old).any()
    if world.name == "torch":
        kept, job.p.data = job.p.data, job.p.data.clone()  # the same tensor, elsewhere
        engine.step([replace(job, now=now_of(job.h, 2))])
        assert np.array_equal(numbers(kept), old)
        assert (numbers(job.p) != old).any()


@worlds
def test_a_layout_is_not_used_for_another_array_at_the_same_address(world):
    [big], engine = jobs_of(world, [(64, 8)]), world.engine()
    engine.step([big])
    for cut in (lambda a: a[:32], lambda a: a.reshape(8, 64), lambda a: a[:, :4], lambda a: a.reshape(-1)):
        ours = mapped(big, cut)
        theirs = mapped(ours, again)
        engine.step([ours])
        world.rule.step([theirs])
        np.testing.assert_allclose(numbers(ours.p), numbers(theirs.p), rtol=1e-5, atol=1e-6)


@worlds
def test_a_prepared_step_refuses_other_gradients_and_a_skip_and_goes_on(world):
    [job] = jobs_of(world, [(40, 30)])
    ready = world.engine().prepare([job])
    ready.step([job.g], [job.now])
    before = bits([job])
    for given in ([job.g[:20]], [job.now]), ([job.g], [job.now], torch.tensor(False)):
        with pytest.raises(engines.ArraysChanged):
            ready.step(*given)
        assert bits([job]) == before
    ready.step([again(job.g)], [job.now])
    assert bits([job]) != before


@pytest.mark.parametrize("required", [True, False], ids=["compiled", "rule"])
@pytest.mark.parametrize("which", ["p", "exp_avg_sq"])
@pytest.mark.parametrize("change", ["moved", "negated", "shortened"])
def test_a_prepared_step_says_that_an_array_is_not_where_it_was(required, which, change):
    """At another address; or at the same one, but with the other sign, or with too little memory."""
    job = mapped(jobs_of(WORLDS[0], [(40, 30)])[0], lambda a: torch.from_numpy(a).clone())
    ready = (WORLDS[1].engine() if required else WORLDS[1].rule).prepare([job])
    ready.step([job.g], [job.now])
    array = job.p if which == "p" else job.state.exp_avg_sq
    kept, before, size = array.data, array.clone(), array.untyped_storage().nbytes()
    if change == "shortened":
        array.untyped_storage().resize_(size // 2)
    else:
        array.data = array.data.clone() if change == "moved" else torch._neg_view(array.data)
    with pytest.raises(engines.ArraysChanged):
        ready.step([job.g], [job.now])
    kept.untyped_storage().resize_(size)
    left = 600 if change == "shortened" else 1200
    assert torch.equal(kept.view(-1)[:left], before.view(-1)[:left])


def test_tensors_alike_are_planned_once(counted):
    params = {f"{shape} {i}": Parameter(torch.ones(shape)) for i in range(3) for shape in SHAPES.values()}
    opt = of_torch.Lamb(params.items(), lr=0.1)
    give(params, 1)
    opt.step()
    assert counted == {"batches": 1, "plans": len(SHAPES)}


def test_tensors_alike_in_two_groups_have_settings_of_their_own():
    params = {key: Parameter(torch.ones(4)) for key in "ab"}
    groups = [{"params": [params["a"]], "betas": (0.9, 0.9)}, {"params": [params["b"]], "betas": (0.5, 0.9)}]
    opt = of_torch.Lamb(groups, lr=0.1)
    for p in params.values():
        p.grad = torch.ones(4)
    opt.step()
    kept = [opt.state[p]["exp_avg"] for p in params.values()]
    torch.testing.assert_close(kept, [torch.full((4,), 0.1), torch.full((4,), 0.5)])


def _calls_of_first_step(tensors):
    """How many calls of Python the first step of so many tensors takes."""
    params, calls = {str(i): Parameter(torch.ones(4)) for i in range(tensors)}, []
    opt = of_torch.Lamb(params.items(), lr=0.1)
    give(params, 1)
    sys.setprofile(lambda frame, event, what: calls.append(frame) if event == "call" else None)
    try:
        opt.step()
    finally:
        sys.setprofile(None)
    return len(calls)


def test_a_first_step_takes_few_calls_for_each_tensor():
    _calls_of_first_step(2)
    assert _calls_of_first_step(52) - _calls_of_first_step(2) < 50 * 75


def test_arrays_of_an_unknown_library_are_told_apart_by_their_objects():
    one, other = (SimpleNamespace(shape=(3,), dtype="float32") for _ in range(2))
    marks = addresses.PythonArraysRecord([one])
    assert marks.same([one])
    assert not marks.same([other])
    one.shape = (4,)
    assert not marks.same([one])
