"""Parameters stepped by themselves, in the backward pass or in a trainer's hooks: the weights are those of `step()`.

A trainer's hook steps and frees the gradient of one parameter as soon as it is complete.
"""

from __future__ import annotations

import io
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn

from layerwise.errors import ContradictionError, GradientError, HyperparameterError, ParameterError
from layerwise.torch import Adafactor, Lamb, Lars, Mixed, param_groups, step_in_backward

LAMB = {"lr": 0.02, "weight_decay": 0.1}


def by_trainer(optimizer, every=1):
    passes = Counter()

    def hook(group, i):
        def step(p):
            passes[id(p)] += 1
            if passes[id(p)] % every == 0:
                optimizer.step_parameter(p, group, i)
                p.grad = None

        return step

    for group in optimizer.param_groups:
        for i, p in enumerate(group["params"]):
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(hook(group, i))


WAYS = {"in the backward pass": step_in_backward, "by a trainer": by_trainer}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


class Model(nn.Module):
    """Its embedding is shared with its head, one layer gets no gradient and one wants none; another may be left out."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())
        self.sometimes = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(8, 8).requires_grad_(False)

    def forward(self, words, all_of_it=True):
        x = self.frozen(self.body(self.embedding(words)))
        return self.head(x + self.sometimes(x) if all_of_it else x)


def made(cls=Lamb, options=LAMB, dtype=torch.float64):
    torch.manual_seed(0)
    model = Model().to(dtype)  # small tensors are stacked where they step together, which changes the last digits
    return model, cls(param_groups(model, no_decay=["bias", "norm"]), **options)


def mixed():
    model, _ = made()
    return model, Mixed(param_groups(model, rule="lamb", others={"rule": "adamw", "lr": 1e-3}, **LAMB))


def backward(model, number, **given):
    words = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(number))
    loss = nn.functional.cross_entropy(model(words[:, :-1], **given).flatten(0, 1), words[:, 1:].flatten())
    loss.backward()
    return float(loss.detach())


def train(model, optimizer, numbers, every=1, schedule=None):
    """The loop that people write, with a step after each `every` backward passes."""
    losses = []
    for i, number in enumerate(numbers, 1):
        losses.append(backward(model, number))
        if i % every == 0:
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()
    return losses


def assert_same(one, other):
    """The same weights and state of two models with their optimizers, up to the last digits."""
    (model, optimizer), (plain, ordinary) = one, other
    found, wanted = ([m.state_dict(), o.state_dict()["state"]] for m, o in (one, other))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-14)
    assert [*model.state_dict()] == [*plain.state_dict()]
    assert optimizer.get_lr() == ordinary.get_lr()


def is_moved(model, before):
    return not all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def weights_of(model):
    return {name: x.clone() for name, x in model.state_dict().items()}


@ways
@pytest.mark.parametrize(
    ("cls", "options", "every"),
    [
        (Lamb, LAMB, 1),
        (Lamb, LAMB, 3),
        (Lamb, {"lr": 0.02, "max_grad_value": 0.01, "max_grad_norm_per_tensor": 0.02, "max_grad_norm": 0}, 1),
        (Lars, {"lr": 1.0, "weight_decay": 0.1, "dampening": 0.1}, 2),
        (Adafactor, {"beta1": 0.9, "weight_decay": 0.1}, 1),
    ],
)
def test_the_steps_are_those_of_the_ordinary_loop(way, cls, options, every):
    (plain, ordinary), (model, optimizer) = made(cls, options), made(cls, options)
    way(optimizer, every)
    found, wanted = (train(*each, range(6), every) for each in ((model, optimizer), (plain, ordinary)))
    assert found == pytest.approx(wanted, rel=1e-10)
    assert_same((model, optimizer), (plain, ordinary))
    assert all(p.grad is None for p in model.parameters())
    if way is step_in_backward:
        found, wanted = optimizer.stats(), ordinary.stats()
        assert found.keys() == wanted.keys()
        assert all(found[name] == pytest.approx(wanted[name], rel=1e-10) for name in wanted)


@ways
def test_groups_step_by_rules_of_their_own(way):
    plain, one = mixed(), mixed()
    way(one[1])
    for each in (plain, one):
        train(*each, range(3))
    assert_same(one, plain)


@ways
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (Lamb, {"lr": 1e-3, "master_weights": True}),
        (Adafactor, {"lr": 1e-3, "master_weights": "split", "rounding": "stochastic"}),
    ],
)
def test_weights_of_low_precision_keep_their_digits(way, cls, options):
    plain, one = (made(cls, options, torch.bfloat16) for _ in range(2))
    way(one[1])
    for each in (plain, one):
        train(*each, range(3))
    torch.testing.assert_close(one[0].state_dict(), plain[0].state_dict(), rtol=0, atol=0)


@ways
def test_a_schedule_is_followed_without_a_call_of_its_step(way):
    """Schedulers of PyTorch warn where they are called before a step, which a trainer may never call."""
    plain, (model, optimizer) = made(), made()
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5) for opt in (plain[1], optimizer)]
    way(optimizer)
    train(*plain, range(4), schedule=schedules[0])
    for number in range(4):
        backward(model, number)
        if way is step_in_backward:
            optimizer.step()
        schedules[1].step()
    assert optimizer.get_lr() != 0.02
    assert_same((model, optimizer), plain)


@ways
@pytest.mark.parametrize("first", ["hooks", "checkpoint"])
def test_training_continues_from_a_checkpoint(way, first):
    """Loading makes new groups, so that a trainer sets its hooks after it."""
    plain, begun, resumed = made(), made(), made(Lamb, {"lr": 0.5, "weight_decay": 0.3})
    way(begun[1])
    train(*plain, range(5))
    train(*begun, range(3))
    file = io.BytesIO()
    torch.save([one.state_dict() for one in begun], file)
    file.seek(0)
    if first == "hooks" and way is step_in_backward:
        way(resumed[1])
    for one, state in zip(resumed, torch.load(file, weights_only=True), strict=True):
        one.load_state_dict(state)
    if first == "checkpoint" or way is by_trainer:
        way(resumed[1])
    train(*resumed, range(3, 5))
    assert_same(resumed, plain)


# ---- in the backward pass


def test_gradients_never_exist_all_at_once_and_shared_parameters_step_once():
    model, optimizer = made()
    alive = []
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(
                lambda _: alive.append(sum(q.grad is not None for q in model.parameters()))
            )
    step_in_backward(optimizer)
    backward(model, 0)
    assert set(alive) == {1}
    steps = {name: int(optimizer.state[p]["step"]) for name, p in model.named_parameters() if p in optimizer.state}
    assert set(steps.values()) == {1}
    assert len(steps) == 7
    assert not any(name.startswith(("unused", "frozen")) for name in steps)


@pytest.mark.parametrize(
    "pattern", [(True, True, False), (True, False, True), (False, False, True), (False, False, False)]
)
def test_a_layer_need_not_be_in_every_accumulated_pass(pattern):
    plain, one = made(), made()
    step_in_backward(one[1], every=3)
    for model, opt in (plain, one):
        for number in range(6):
            backward(model, number, all_of_it=pattern[number % 3])
            if number % 3 == 2:
                opt.step()
                opt.zero_grad()
    assert_same(one, plain)


@pytest.mark.parametrize("loaded", [False, True])
def test_zero_grad_forgets_the_passes_with_the_gradients(loaded):
    plain, one = made(), made()
    step_in_backward(one[1], every=2)
    for model, opt in (plain, one):
        if loaded:
            opt.load_state_dict(opt.state_dict())
        backward(model, 100)
        opt.zero_grad()
        train(model, opt, range(4), every=2)
    assert_same(one, plain)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("passes", [0, 1])
def test_removed_hooks_leave_the_steps_to_step(passes, loaded):
    """Between accumulated passes too; removing them twice changes nothing more."""
    plain, (model, optimizer) = made(), made()
    handle = step_in_backward(optimizer, every=3)
    if loaded:
        optimizer.load_state_dict(optimizer.state_dict())
    train(*plain, range(3), every=3)
    before = weights_of(model)
    for number in range(3):
        if number == passes:
            handle.remove()
            handle.remove()
        backward(model, number)
    assert not is_moved(model, before)
    optimizer.step()
    optimizer.zero_grad()
    assert_same((model, optimizer), plain)


@pytest.mark.parametrize("groups", [slice(None), slice(-1, None)], ids=["all groups", "one group"])
def test_a_bound_of_all_gradients_is_refused_when_hooks_are_set_and_later(groups):
    wanted = r"max_grad_norm.*all gradients at once.*max_grad_norm_per_tensor"
    model, optimizer = made()
    before = weights_of(model)
    for group in optimizer.param_groups[groups]:
        group["max_grad_norm"] = 1.0
    with pytest.raises(ContradictionError, match=wanted):
        step_in_backward(optimizer)
    backward(model, 0)  # no hook was left behind
    assert not is_moved(model, before)
    for group in optimizer.param_groups:
        group["max_grad_norm"] = None
    step_in_backward(optimizer)
    for group in optimizer.param_groups:
        group["max_grad_norm"] = 1.0
    with pytest.raises(ContradictionError, match=wanted):
        backward(model, 1)
    assert not is_moved(model, before)


@pytest.mark.parametrize("every", [0, -1, 1.5, None, True, "2"])
def test_every_is_a_number_of_passes(every):
    with pytest.raises(HyperparameterError, match="`every`"):
        step_in_backward(made()[1], every=every)


def test_a_backward_pass_without_its_dropped_optimizer_raises():
    model = nn.Linear(2, 2)
    handle = step_in_backward(Lamb(model.parameters()))
    with pytest.raises(ParameterError, match="Keep a reference to it"):
        model(torch.ones(1, 2)).sum().backward()
    handle.remove()
    model(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_grad_scaler_is_refused_at_its_first_step(dtype):
    model = nn.Linear(2, 2, dtype=dtype)
    opt = Lamb(model.parameters())
    handle, scaler = step_in_backward(opt), torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(torch.ones(1, 2, dtype=dtype)).sum()).backward()
    with pytest.raises(ContradictionError, match=r"before a GradScaler can unscale.*bfloat16, or call remove"):
        scaler.step(opt)
    handle.remove()
    before = model.weight.detach().clone()
    opt.step()  # the scaler has left nothing behind
    assert torch.equal(model.weight, before)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(torch.ones(1, 2, dtype=dtype)).sum()).backward()
    scaler.step(opt)
    assert not torch.equal(model.weight, before)


def test_one_optimizer_steps_in_the_backward_pass_once():
    opt = Lamb(nn.Linear(2, 2).parameters())
    handle = step_in_backward(opt)
    with pytest.raises(ContradictionError, match=r"already steps in the backward pass\. First call remove"):
        step_in_backward(opt)
    handle.remove()
    step_in_backward(opt).remove()


# ---- by a trainer


def test_one_parameter_steps_and_keeps_its_gradient():
    model, optimizer = made()
    backward(model, 0)
    group = optimizer.param_groups[0]
    p, before = group["params"][0], weights_of(model)
    grad = p.grad.clone()
    optimizer.step_parameter(p, group, 0)
    assert [int(optimizer.state[q]["step"]) for q in optimizer.state] == [1]
    assert torch.equal(p.grad, grad)
    moved = [q for name, q in model.named_parameters() if not torch.equal(q, before[name])]
    assert len(moved) == 1
    assert moved[0] is p


def test_group_and_place_may_be_left_out_and_other_parameters_left_to_step():
    plain, (model, optimizer) = made(), made()
    train(*plain, range(2))
    for number in range(2):
        backward(model, number)
        for group in optimizer.param_groups:
            optimizer.step_param(group["params"][0], group)
            group["params"][0].grad = None
            optimizer.step_parameter(group["params"][1])
            group["params"][1].grad = None
        optimizer.step()
        optimizer.zero_grad()
    assert_same((model, optimizer), plain)


def assert_refused(optimizer, error, match, *arguments):
    before = [p.detach().clone() for p in optimizer.parameters()]
    with pytest.raises(error, match=match):
        optimizer.step_parameter(*arguments)
    assert all(map(torch.equal, optimizer.parameters(), before))
    assert not optimizer.state


def test_arguments_that_do_not_belong_together_are_refused():
    model, optimizer = made()
    backward(model, 0)
    first, second = optimizer.param_groups
    p, stranger = first["params"][0], nn.Parameter(torch.ones(2))
    of_group, of_p = (
        r"`group` must be the entry of param_groups that contains '\S+', but is ",
        "`p` must be a parameter of",
    )
    for match, *arguments in (
        (of_group + r"param_groups\[1\]", p, second, 0),
        (of_group + "not in .*Loading a checkpoint", p, dict(first), 0),
        *((r"`i` must be the index of '\S+' in its group", p, first, i) for i in (1, -1, 99, True, "0")),
        (of_p + r" this optimizer, but is a tensor of shape \(2,\)", stranger, first),
        (of_p + " this optimizer, but is 'weight'", "weight", first),
    ):
        assert_refused(optimizer, ParameterError, match, *arguments)


def test_a_bound_of_all_gradients_and_a_bad_gradient_are_refused():
    model, optimizer = made(Lamb, {**LAMB, "max_grad_norm": 1.0})
    backward(model, 0)
    group = optimizer.param_groups[0]
    p = group["params"][0]
    wanted = r"max_grad_norm.*must be None.*1\.0.*all gradients at once.*max_grad_norm_per_tensor"
    assert_refused(optimizer, ContradictionError, wanted, p, group, 0)
    group["max_grad_norm"], p.grad = None, p.grad.to_sparse()
    assert_refused(optimizer, GradientError, "is sparse", p, group, 0)


def test_gradients_that_other_processes_have_to_complete_are_refused(process_group, monkeypatch):
    model = nn.Linear(3, 2)
    by_trainer(Lamb(model.parameters(), **LAMB))
    model(torch.ones(1, 3)).sum().backward()  # which no other process has a part in
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    optimizer = Lamb(wrapped.parameters(), **LAMB)
    wrapped(torch.ones(1, 3)).sum().backward()
    [group] = optimizer.param_groups
    wanted = "step_parameter would step before DistributedDataParallel has reduced the gradients"
    assert_refused(optimizer, ContradictionError, wanted, group["params"][0], group, 0)
    model.weight.grad = torch.ones(2, 3)
    optimizer = Lamb(model.parameters(), model_group=dist.group.WORLD, **LAMB)
    assert_refused(optimizer, ContradictionError, "`model_group` must be None", model.weight)
    optimizer = Lamb(model.parameters(), **LAMB)
    ranks = optimizer._stepper.ranks
    monkeypatch.setattr(ranks, "agreement", lambda: ranks.agreed)  # as where a mesh cuts a parameter
    assert_refused(optimizer, ContradictionError, "step_parameter.*a collective of its own", model.weight)
