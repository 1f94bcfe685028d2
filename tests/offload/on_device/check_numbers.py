"""Steps of an offloaded optimizer are those of the ordinary one, bit for bit, whenever copies end."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from offload.device import Far, StandIn, near
from offload.training import RING, both, named, replaced, same

import layerwise.torch as lw
from layerwise.catalog.registry import ENTRIES
from layerwise.errors import ContradictionError
from layerwise.torch.offload import _host
from layerwise.torch.offload._host import Host
from layerwise.torch.step import _measured_step
from layerwise.torch.step._stepper import stepper_of

LAMB = named(lw.Lamb, weight_decay=0.1)


def mixed(model, **options):
    matrices = {n: p for n, p in model.named_parameters() if p.ndim == 2}
    others = {n: p for n, p in model.named_parameters() if p.ndim != 2}
    groups = [
        {"params": matrices.items(), "rule": "adafactor", "lr": 0.01},
        {"params": others.items(), "rule": "adamw", "lr": 0.02},
    ]
    return lw.Mixed(groups, **options)


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES.values()])
def test_each_optimizer(late, name):
    a, b = both(named(getattr(lw, name)))
    for run in (a, b):
        for _ in range(3):
            run.step()
    assert same(a, b)
    assert len(stepper_of(b.opt).host._now.parts) > 4


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, torch.bfloat16),
        ({"master_weights": True}, torch.bfloat16),
        ({"master_weights": "split"}, torch.bfloat16),
        ({"master_weights": "split24", "state_dtype": "int8"}, torch.bfloat16),
        ({"rounding": "stochastic", "state_dtype": "bfloat16"}, torch.bfloat16),
        ({"skip_nonfinite": True}, torch.float32),
        ({"max_grad_norm": 0.01}, torch.float32),
        ({"max_grad_norm_per_tensor": 0.01}, torch.float32),
        ({"blocks": {"layers.*.1.weight": 4}}, torch.float32),
    ],
    ids=str,
)
def test_options_and_storage(late, options, dtype):
    a, b = both(LAMB, dtype, **options)
    for run in (a, b.overlap()):
        for _ in range(3):
            run.step()
    assert same(a, b)
    assert {k: str(x) for k, x in a.opt.stats().items()} == {k: str(x) for k, x in b.opt.stats().items()}
    assert a.opt.storage() == b.opt.storage()


def test_the_reference_implementation_which_computes_several_tensors_at_once(late):
    a, b = both(LAMB, fused=False)
    stepper_of(b.opt).host.most = 1 << 24
    for run in (a, b):
        for _ in range(3):
            run.step()
    assert same(a, b)


CLIPPED = {"max_grad_norm": 0.05, "skip_nonfinite": True}


@pytest.mark.parametrize(
    ("make", "options", "overlaps"),
    [
        (LAMB, {}, {}),
        (mixed, {}, {"every": 2}),
        (LAMB, {}, {"accumulate": "host"}),
        (LAMB, CLIPPED, {"every": 2}),
        (mixed, CLIPPED, {"accumulate": "host"}),
    ],
)
def test_a_training_script_with_accumulation_schedule_skips_and_resuming(schedule, make, options, overlaps):
    def train(run):
        if overlaps:
            run.overlap(**overlaps)
        schedules = torch.optim.lr_scheduler.StepLR(run.opt, 2, 0.5)
        losses = []
        for i in range(6):
            losses.append(run.backward())
            losses.append(run.backward(float("nan") if i == 3 and options else 1.0))
            run.opt.step()
            run.opt.zero_grad()
            schedules.step()
            if i == 2:
                file = io.BytesIO()
                torch.save([run.opt.state_dict(), schedules.state_dict()], file)
                file.seek(0)
                again = make(run.model, **options, offload=run.on_device)
                if run.on_device:
                    stepper_of(again).host.most = RING
                run.opt, saved = again, torch.load(file)
                schedules = torch.optim.lr_scheduler.StepLR(run.opt, 2, 0.5)
                run.opt.load_state_dict(saved[0])
                schedules.load_state_dict(saved[1])
                if overlaps:
                    if run.on_device:
                        run.hooks.remove()
                    run.overlap(**overlaps)
        return [near(loss).item() for loss in losses if not near(loss).isnan()]

    a, b = both(make, **options)
    assert train(a) == train(b)
    assert same(a, b)
    assert a.opt.skipped == b.opt.skipped == bool(options)


def test_weights_and_gradients_that_a_program_changes(schedule):
    def train(run):
        run.overlap()
        for i in range(5):
            run.backward()
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.01)  # after gradients have left
            run.opt.step()
            with torch.no_grad():
                run.model.head.weight.mul_(0.5)
                if i == 2:
                    run.model.head.bias.zero_()
                    run.model.load_state_dict({k: 0.9 * v for k, v in run.model.state_dict().items()})
            run.opt.zero_grad(set_to_none=i % 2 == 0)

    a, b = both(LAMB)
    train(a), train(b)
    assert same(a, b)


def test_gradients_that_are_put_there_by_hand_after_others_have_left(late):
    def train(run):
        run.overlap()
        for _ in range(3):
            run.backward()
            for p in run.model.parameters():
                p.grad = p.grad * 2
            run.opt.step()
            run.model.zero_grad()

    a, b = both(LAMB)
    train(a), train(b)
    assert same(a, b)


def test_steps_in_the_backward_pass(late):
    a, b = both(LAMB)
    plans = []
    ring = _host.Ring
    with replaced(_host, "Ring", lambda *given: plans.append(given) or ring(*given)):
        for run in (a, b):
            lw.step_in_backward(run.opt)
            for _ in range(3):
                run.step()
    assert same(a, b)
    params = list(b.model.parameters())
    assert len(plans) == len(params)
    assert StandIn.pinned_bytes < sum(p.numel() * 4 for p in params) + 64 * len(params) + 3 * 64 * 64 * 4


def test_one_parameter_alone(late):
    a, b = both(LAMB)
    for run in (a, b):
        for _ in range(2):
            run.backward()
            run.opt.step_parameter(run.model.head.weight)
            run.opt.zero_grad()
    assert same(a, b)


def test_a_rate_and_a_scale_on_the_device(late):
    a, b = both(LAMB)
    for run in (a, b):
        where = Far if run.on_device else (lambda x: x)
        run.opt.param_groups[0]["lr"] = where(torch.tensor(0.02, dtype=torch.float64))
        run.opt.grad_scale, run.opt.found_inf = where(torch.tensor(4.0)), where(torch.tensor(0.0))
        for _ in range(2):
            run.step()
        run.opt.found_inf = where(torch.tensor(1.0))
        run.step()
    assert same(a, b)
    assert a.opt.skipped == b.opt.skipped == 1


def test_copies_and_pickles_of_an_optimizer(late):
    a, b = both(LAMB)
    for run in (a, b):
        run.step()
        run.model, run.opt = copy.deepcopy((run.model, run.opt)) if not run.on_device else (run.model, run.opt)
        run.step()
    again = copy.deepcopy(b.opt.state_dict())
    b.opt.load_state_dict(again)
    a.step(), b.step()
    assert same(a, b)


def test_weights_in_full_precision(late):
    a, b = both(LAMB, torch.bfloat16, master_weights="split24")
    full = []
    for run in (a, b.overlap()):
        run.step()
        full.append(lw.full_precision_state_dict(run.model, run.opt))
        lw.load_full_precision_state_dict(run.model, run.opt, {k: near(v) * 1.01 for k, v in full[-1].items()})
        run.step()
    assert all(torch.equal(x, near(y)) for x, y in zip(full[0].values(), full[1].values(), strict=True))
    assert same(a, b)


def test_memory_is_that_of_weights_and_of_the_ring_and_each_number_is_copied_once(late):
    _, b = both(LAMB)
    b.overlap()
    weights = sum(p.numel() * 4 for p in b.model.parameters())
    largest = 64 * 64 * 4
    b.step()
    assert weights < StandIn.pinned_bytes <= weights + 64 * 20 + max(RING, 4 * largest)
    StandIn.copied_bytes = 0, 0
    b.step()
    assert StandIn.copied_bytes == (weights, weights)


def test_all_gradients_leave_in_the_backward_pass_where_there_is_room(late):
    _, b = both(LAMB, max_grad_norm=1.0)
    b.overlap()
    b.step()
    StandIn.copied_bytes = 0, 0
    b.backward()
    assert StandIn.copied_bytes[0] == sum(p.numel() * 4 for p in b.model.parameters())
    b.opt.step()
    assert StandIn.copied_bytes[0] == sum(p.numel() * 4 for p in b.model.parameters())


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.01}], ids=str)
def test_parts_are_measured_in_the_backward_pass_and_nothing_is_written(late, options):
    begun, taken = [], []

    def measure(steps, wait):
        begun.append(steps)
        return measured(steps, wait)

    def take(ahead):
        taken.append(ahead)
        written(ahead)

    measured, written = _measured_step._measure, _measured_step.MeasuredStep.take
    a, b = both(LAMB, **options)
    for run in (a, b.overlap()):
        run.step()
        run.step()
    before = b.numbers()
    with replaced(_measured_step, "_measure", measure), replaced(_measured_step.MeasuredStep, "take", take):
        b.backward()
        slots = stepper_of(b.opt).host._now.slots
        assert all(slot.ahead is not None and slot.ahead._measured.exception() is None for slot in slots)
        assert len(begun) == len(slots)
        assert all(torch.equal(x, y) for x, y in zip(before, b.numbers(), strict=True))
        b.opt.step()
        assert len(taken) == len(slots) == len(begun)
    a.step(), b.opt.zero_grad()
    assert same(a, b)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, torch.float32),
        ({"max_grad_norm": 0.01, "master_weights": "split24", "state_dtype": "int8"}, torch.bfloat16),
    ],
    ids=["large", "small"],
)
@pytest.mark.parametrize("what", ["a rate", "an option", "weights", "state", "nothing"])
def test_changes_after_a_measurement_are_measured_again(late, what, options, dtype):
    def train(run):
        run.overlap()
        for i in range(4):
            run.backward()
            with torch.no_grad():
                if what == "a rate":
                    run.opt.param_groups[0]["weight_decay"] = 0.1 * i
                if what == "an option":
                    run.opt.param_groups[0]["eps"] = 1e-4 * (1 + i)
                if what == "weights":
                    run.model.layers[0][1].weight.mul_(0.5)
                    run.model.layers[1][1].weight.zero_()
                if what == "state" and i:
                    run.opt.state[run.model.layers[0][1].weight]["exp_avg"].zero_()
            run.opt.step()
            run.opt.zero_grad()

    a, b = both(LAMB, dtype, **options)
    train(a), train(b)
    assert same(a, b)


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.01}], ids=str)
def test_several_engines(late, options):
    def several(model, **given):
        matrices = [("embed", model.embed.weight), ("head", model.head.weight)]
        others = [(n, p) for n, p in model.named_parameters() if p.ndim == 1]
        groups = [{"params": matrices, "rule": "came", "lr": 0.01}, {"params": others, "rule": "lamb", "lr": 0.02}]
        return lw.Mixed(groups, **given)

    a, b = both(several, **options)
    for run in (a, b.overlap()):
        for _ in range(3):
            run.step()
    assert same(a, b)


def test_with_max_grad_norm_weights_return_part_by_part(late):
    _, b = both(LAMB, max_grad_norm=0.01)
    b.step()
    parts = stepper_of(b.opt).host._now.parts
    assert len(parts) > 4
    sent = []
    send_back = Host.send_back
    with replaced(Host, "send_back", lambda host, params: sent.append(len(params)) or send_back(host, params)):
        b.step()
    assert sent == list(map(len, parts))


def test_gradients_leave_in_the_last_pass_of_each_step(late):
    _, b = both(LAMB, max_grad_norm=1.0)
    b.step()
    lw.overlap(b.opt, every=2)
    for _ in range(2):
        b.backward()
    b.opt.step()
    StandIn.copied_bytes = 0, 0
    b.backward()
    b.opt.zero_grad()  # which begins to count again
    b.backward()
    assert StandIn.copied_bytes == (0, 0)
    b.backward()
    assert StandIn.copied_bytes == (sum(p.numel() * 4 for p in b.model.parameters()), 0)


def test_modules_wait_for_their_own_weights_only(late):
    _, b = both(LAMB)
    lw.overlap(b.opt, [b.model.embed, *b.model.layers, b.model.head], memory=RING)
    b.step()
    first, last = b.model.layers[0][1].weight, b.model.layers[2][1].weight
    assert near(b.model.embed.weight).isnan().all()
    assert near(first).isnan().all()
    assert near(last).isnan().all()
    b.model.layers[0](Far(torch.zeros(1, 64)))
    assert not near(first).isnan().any()
    assert near(last).isnan().all()
    b.model.layers[2].state_dict()
    assert not near(last).isnan().any()


def test_gradients_that_are_added_up_on_the_host_leave_the_device(schedule):
    pinned = []
    for memory in (1000, 1 << 20):
        StandIn.begin(schedule)
        a, b = both(LAMB, torch.bfloat16, max_grad_norm=0.1)
        lw.overlap(b.opt, b.model.layers, accumulate="host", memory=memory)
        for run in (a, b):
            for passes in (1, 3, 2):
                for _ in range(passes):
                    run.backward()
                if run is b:
                    assert all(p.grad is None for p in run.model.parameters())
                run.opt.step()
                run.opt.step()  # with the same gradients once more
                run.opt.zero_grad()
                run.opt.step()  # with none
        assert same(a, b)
        pinned.append(StandIn.pinned_bytes)
    assert pinned[0] + 3 * 64 * 64 * 2 < pinned[1]


def test_autograd_learns_that_weights_have_changed(late):
    _, b = both(LAMB)
    b.step()
    p = b.model.head.bias
    before, product = p._version, p * p
    b.step()
    assert p._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize("option", ["capturable", "differentiable"])
def test_options_of_steps_on_the_device_are_refused(late, option):
    with pytest.raises(ContradictionError, match="offload"):
        both(LAMB, **{option: True})
