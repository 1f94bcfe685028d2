"""Whatever goes wrong, nothing is lost and nothing is half stepped."""

from __future__ import annotations

import copy
import gc
import os
import signal
from weakref import ref

import pytest
import torch
from offload.device import Far, StandIn, far, near
from offload.training import RING, Run, both, named, replaced, same

import layerwise.torch as lw
from layerwise.errors import ContradictionError, EngineError, HyperparameterError, StateError
from layerwise.torch.offload import _ring
from layerwise.torch.offload._host import Host
from layerwise.torch.step import _measured_step
from layerwise.torch.step._stepper import stepper_of
from layerwise.torch.tools import _overlap

LAMB = named(lw.Lamb, weight_decay=0.1)


def pair(**options) -> tuple[Run, Run]:
    a, b = both(LAMB, **options)
    for run in (a, b.overlap()):
        run.step()
    return a, b


class ToHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.far = isinstance(x, Far)
        return near(x).clone()

    @staticmethod
    def backward(ctx, g):
        return far(g.clone()) if ctx.far else g


class Fails(torch.autograd.Function):
    now = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        if Fails.now:
            raise RuntimeError("in the backward pass")
        return g


class ToDevice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return far(x.clone())

    @staticmethod
    def backward(ctx, g):
        return near(g).clone()


class Through(torch.nn.Module):
    """Goes by the host, where the backward pass may fail: an error on the device would end the process."""

    def forward(self, x):
        y = Fails.apply(ToHost.apply(x))
        return ToDevice.apply(y) if isinstance(x, Far) else y


def test_an_error_in_the_backward_pass(schedule):
    def train(run):
        run.model.head = torch.nn.Sequential(Through(), run.model.head)
        for again in (False, True):
            with replaced(Fails, "now", True), pytest.raises(RuntimeError, match="in the backward pass"):
                run.backward()
            assert run.model.head[1].weight.grad is not None
            assert run.model.embed.weight.grad is None
            if not again:  # else what has arrived counts
                run.opt.zero_grad()
            run.step()

    a, b = pair()
    train(a), train(b)
    assert same(a, b)


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1}], ids=str)
def test_a_skipped_step(schedule, options):
    a, b = pair(skip_nonfinite=True, **options)
    for run in (a, b):
        before = run.numbers()
        run.backward(float("inf"))
        run.opt.step()
        assert all(torch.equal(x, y) for x, y in zip(before, run.numbers(), strict=True))
        run.opt.zero_grad()
        run.step()
    assert same(a, b)
    assert b.opt.skipped == 1


def test_a_checkpoint_in_the_middle_of_accumulation(schedule):
    a, b = pair()
    for run in (a, b):
        run.backward()
        saved = copy.deepcopy(run.opt.state_dict())
        run.backward()
        run.opt.step()
        run.opt.zero_grad()
        run.opt.load_state_dict(saved)
        run.step()
    assert same(a, b)


def test_a_second_backward_pass_before_the_step(schedule):
    a, b = pair()
    for run in (a, b):
        for passes in (2, 1, 3):
            for _ in range(passes):
                run.backward()
            run.opt.step()
            run.opt.zero_grad()
    assert same(a, b)


def test_a_module_that_is_frozen_between_steps_and_thawed(schedule):
    a, b = pair()
    for run in (a, b):
        for frozen in (True, True, False, False):
            run.model.layers[1].requires_grad_(not frozen)
            run.step()
    assert same(a, b)


def test_a_signal_while_copies_are_under_way_comes_after_the_step(late, interrupts):
    a, b = pair()

    def interrupted(ring, grads):
        for each in parts(ring, grads):
            signal.raise_signal(signal.SIGINT)
            yield each

    parts = _ring.Ring.each
    a.step()
    b.backward()
    with replaced(_ring.Ring, "each", interrupted), pytest.raises(KeyboardInterrupt):
        b.opt.step()
    b.opt.zero_grad()
    assert same(a, b)
    a.step(), b.step()
    assert same(a, b)


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1}], ids=str)
def test_a_signal_while_gradients_leave(late, interrupts, options):
    a, b = pair(**options)
    arrived = Host.arrived

    def interrupted(host, p):
        if p is b.model.layers[1][1].weight:
            signal.raise_signal(signal.SIGINT)
        return arrived(host, p)

    a.step()
    with replaced(Host, "arrived", interrupted), pytest.raises(KeyboardInterrupt):
        b.backward()
    b.opt.zero_grad()
    b.again()
    b.step()
    assert same(a, b)


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1}], ids=str)
def test_measuring_that_fails_in_the_backward_pass_is_done_again(late, options):
    def fails(steps, wait):
        raise MemoryError

    a, b = pair(**options)
    a.step()
    with replaced(_measured_step, "_measure", fails):
        b.backward()
    b.opt.step()
    b.opt.zero_grad()
    assert same(a, b)
    before = b.numbers()
    with replaced(_measured_step, "_measure", fails):
        b.backward()
        if options:
            with pytest.raises(MemoryError):
                b.opt.step()
            assert all(torch.equal(x, y) for x, y in zip(before, b.numbers(), strict=True))
    b.opt.step()
    a.step()
    assert same(a, b)


def test_a_wrong_setting_is_news_of_the_step_and_not_of_the_backward_pass(late):
    a, b = pair()
    before = b.numbers()
    b.opt.param_groups[0]["betas"] = (0.9, 2.0)
    b.backward()
    with pytest.raises(HyperparameterError, match="betas"):
        b.opt.step()
    assert all(torch.equal(x, y) for x, y in zip(before, b.numbers(), strict=True))
    b.opt.param_groups[0]["betas"] = (0.9, 0.999)
    b.opt.step()
    a.step()
    assert same(a, b)


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1}], ids=str)
def test_memory_that_was_exchanged_is_found_before_the_first_part_steps(late, options):
    a, b = pair(**options)
    before = b.numbers()
    for early in (False, True):
        moments = b.opt.state[b.model.head.bias]["exp_avg"]
        if early:
            b.backward()
        kept, moments.data = moments.data, torch.ones(2)
        if not early:
            b.backward()
        with pytest.raises(StateError, match="exp_avg"):
            b.opt.step()
        moments.data = kept
        assert all(torch.equal(x, y) for x, y in zip(before, b.numbers(), strict=True))
        b.again()
        b.opt.zero_grad()
    b.backward()
    b.opt.step()
    a.step()
    assert same(a, b)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_a_forked_process_measures(late):
    _, b = pair()
    b.backward()
    child = os.fork()
    if child == 0:
        os._exit(_measured_step._worker.submit(int, "3").result(20))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


@pytest.mark.parametrize("already", [0, 1])
def test_memory_that_cannot_be_pinned(late, already):
    a, b = both(LAMB)
    for _ in range(already):
        a.step(), b.step()
    before = b.numbers()
    b.backward()
    stepper_of(b.opt).host.forget()
    StandIn.most_pinned = StandIn.pinned_bytes + 100
    with pytest.raises(EngineError, match="cannot be pinned"):
        b.opt.step()
    assert all(torch.equal(x, y) for x, y in zip(before, b.numbers(), strict=True))
    StandIn.most_pinned = None
    b.opt.step()
    a.step(), b.opt.zero_grad()
    assert same(a, b)


@pytest.mark.parametrize(("key", "wrong"), [("exp_avg", torch.ones(1)), ("step", torch.ones(2))])
def test_errors_of_any_tensor_are_found_before_the_first_one_steps(late, key, wrong):
    a, b = pair()
    before = b.numbers()
    b.backward()
    p = b.model.embed.weight  # of the part that is stepped last
    kept = b.opt.state[p][key]
    b.opt.state[p][key] = wrong
    with pytest.raises(StateError, match="embed"):
        b.opt.step()
    b.opt.state[p][key] = kept
    assert all(torch.equal(x, y) for x, y in zip(before, b.numbers(), strict=True))
    b.opt.step()
    a.step()
    assert same(a, b)


def test_a_model_that_moves_to_the_host_goes_on_there(late):
    a, b = pair()
    StandIn.end()
    for p in b.model.parameters():
        p.grad = None
    for module in b.model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                host = torch.nn.Parameter(near(p.detach()).clone())
                group = b.opt.param_groups[0]
                i = next(i for i, own in enumerate(group["params"]) if own is p)
                group["params"][i], module._parameters[name] = host, host
                b.opt.state[host] = b.opt.state.pop(p)
    b.on_device = False
    a.step(), b.step()
    assert same(a, b)


def test_no_hook_keeps_the_optimizer_or_its_memory(late):
    b = Run(LAMB, True).overlap()
    b.step()
    b.backward()
    opt, host = ref(b.opt), ref(stepper_of(b.opt).host)
    gc.disable()
    try:
        del b.opt
        assert opt() is None
        assert host() is None
    finally:
        gc.enable()
    b.backward()


def test_overlap_can_be_taken_back(late):
    a, b = both(LAMB)
    hooks = lw.overlap(b.opt, b.model.layers, memory=RING)
    for run in (a, b):
        run.step()
        run.step()
    hooks.remove()
    hooks.remove()
    StandIn.copied_bytes = 0, 0
    b.backward()
    assert StandIn.copied_bytes == (0, 0)
    b.opt.step()
    assert not any(near(p).isnan().any() for p in b.model.parameters())
    b.opt.zero_grad()
    a.step()
    assert same(a, b)


@pytest.mark.parametrize("accumulate", ["device", "host"])
def test_gradients_that_other_processes_still_add_to_leave_in_the_step(late, accumulate):
    a, b = both(LAMB)
    lw.overlap(b.opt, b.model.layers, accumulate=accumulate, memory=RING)
    a.step(), b.step()
    StandIn.copied_bytes = 0, 0
    with replaced(_overlap, "several_processes", lambda: True):
        a.backward(), b.backward()
    assert StandIn.copied_bytes == (0, 0)
    with torch.no_grad():
        for run in (a, b):
            for p in run.model.parameters():
                p.grad.mul_(0.5)
            run.opt.step()
    assert same(a, b)


def test_overlap_is_not_taken_back_while_the_host_has_gradients(late):
    a, b = both(LAMB)
    hooks = lw.overlap(b.opt, accumulate="host")
    a.backward(), b.backward()
    with pytest.raises(ContradictionError, match="zero_grad"):
        hooks.remove()
    a.opt.step(), b.opt.step()
    b.opt.zero_grad(), a.opt.zero_grad()
    hooks.remove()
    a.step(), b.step()
    assert same(a, b)


def test_overlap_refuses_unsuitable_arguments(late):
    a, b = both(LAMB)
    with pytest.raises(ContradictionError, match="offload=True"):
        lw.overlap(a.opt)
    for options, what in (
        ({"modules": [b.model.layers]}, "modules with a forward method"),
        ({"modules": a.model}, "no module of `modules` holds a parameter of this optimizer. Pass the model"),
        ({"every": 0}, "every"),
        ({"memory": 0}, "memory"),
        ({"accumulate": "here"}, "accumulate"),
    ):
        with pytest.raises(HyperparameterError, match=what):
            lw.overlap(b.opt, **options)
    with pytest.raises(HyperparameterError, match=r"an optimizer of layerwise\.torch, but is an SGD of torch\."):
        lw.overlap(torch.optim.SGD(a.model.parameters()))
