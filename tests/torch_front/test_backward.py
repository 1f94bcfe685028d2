"""Stepping in the backward pass: the same weights as from the ordinary loop, without all gradients at once."""

import copy
import io

import pytest

from layerwise.errors import ContradictionError, HyperparameterError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from layerwise.torch import Adafactor, Lamb, Lars, param_groups, step_in_backward  # noqa: E402

OPTIONS = [
    pytest.param(Lamb, {"lr": 0.02, "weight_decay": 0.1}, id="Lamb"),
    pytest.param(Lamb, {"lr": 0.02, "max_grad_value": 0.01, "max_grad_norm_per_tensor": 0.02}, id="Lamb clipped"),
    pytest.param(Lars, {"lr": 1.0, "weight_decay": 0.1, "dampening": 0.1}, id="Lars"),
    pytest.param(Adafactor, {"beta1": 0.9, "weight_decay": 0.1}, id="Adafactor"),
]
optimizers = pytest.mark.parametrize(("cls", "options"), OPTIONS)
LAMB = {"lr": 0.02, "weight_decay": 0.1}


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


def made(cls=Lamb, options=LAMB):
    torch.manual_seed(0)
    model = Model().double()  # small tensors are stacked where they step together, which changes the last digits
    return model, cls(param_groups(model, no_decay=["bias", "norm"]), **options)


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


def assert_close(a, b, hint=""):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14, msg=lambda said: f"{hint}: {said}")


def assert_equal(a, b):
    for (name, p), q in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert_close(p, q, name)


def assert_same_state(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert a["state"].keys() == b["state"].keys()
    for key, one in a["state"].items():
        assert one.keys() == b["state"][key].keys()
        for name, x in one.items():
            assert_close(x, b["state"][key][name], (key, name))


@pytest.mark.parametrize("every", [1, 3])
@optimizers
def test_is_the_ordinary_loop(cls, options, every):
    (plain, ordinary), (model, optimizer) = made(cls, options), made(cls, options)
    step_in_backward(optimizer, every=every)
    wanted, found = train(plain, ordinary, range(9), every), train(model, optimizer, range(9), every)
    assert found == pytest.approx(wanted, rel=1e-10)
    assert_equal(model, plain)
    assert_same_state(optimizer, ordinary)
    measured, wanted = optimizer.stats(), ordinary.stats()
    assert measured.keys() == wanted.keys()
    assert all(measured[name] == pytest.approx(wanted[name], rel=1e-10) for name in wanted)


def test_with_a_schedule():
    (plain, ordinary), (model, optimizer) = made(), made()
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5) for opt in (ordinary, optimizer)]
    step_in_backward(optimizer)
    train(plain, ordinary, range(5), schedule=schedules[0])
    train(model, optimizer, range(5), schedule=schedules[1])
    assert optimizer.get_lr() == ordinary.get_lr() != 0.02
    assert_equal(model, plain)


def test_gradients_are_freed_one_by_one():
    model, optimizer = made()
    alive = []

    def count(p):
        alive.append(sum(q.grad is not None for q in model.parameters()))

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(count)
    step_in_backward(optimizer)
    backward(model, 0)
    assert set(alive) == {1}
    assert all(p.grad is None for p in model.parameters())


def test_shared_parameters_are_stepped_once_and_those_without_gradient_not():
    model, optimizer = made()
    step_in_backward(optimizer)
    backward(model, 0)
    steps = {name: int(optimizer.state[p]["step"]) for name, p in model.named_parameters() if p in optimizer.state}
    assert steps["embedding.weight"] == 1
    assert not any(name.startswith(("unused", "frozen")) for name in steps)
    assert len(steps) == 7


@pytest.mark.parametrize("when", [2, 3])
def test_a_checkpoint_in_the_middle(when):
    (plain, ordinary), (model, optimizer) = made(), made()
    step_in_backward(optimizer)
    train(plain, ordinary, range(5))
    train(model, optimizer, range(when))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    again, resumed = made(Lamb, {"lr": 0.5, "weight_decay": 0.3})
    again.load_state_dict(weights)
    resumed.load_state_dict(state)
    step_in_backward(resumed)
    train(again, resumed, range(when, 5))
    assert_equal(again, plain)
    assert_same_state(resumed, ordinary)


def test_a_checkpoint_loaded_after_the_hooks_were_made():
    (plain, ordinary), (model, optimizer) = made(), made(Lamb, {"lr": 0.5, "weight_decay": 0.3})
    step_in_backward(optimizer)
    train(plain, ordinary, range(2))
    model.load_state_dict(plain.state_dict())
    optimizer.load_state_dict(copy.deepcopy(ordinary.state_dict()))
    train(plain, ordinary, range(2, 4))
    train(model, optimizer, range(2, 4))
    assert_equal(model, plain)


def test_set_lr_after_a_checkpoint_is_heeded():
    (plain, ordinary), (model, optimizer) = made(), made()
    step_in_backward(optimizer)
    for opt in (ordinary, optimizer):
        opt.load_state_dict(opt.state_dict())
        opt.set_lr(0.3)
    train(plain, ordinary, range(2))
    train(model, optimizer, range(2))
    assert_equal(model, plain)


@pytest.mark.parametrize(
    "pattern", [(True, True, False), (True, False, True), (False, False, True), (False, False, False)]
)
def test_a_layer_that_is_not_in_every_accumulated_pass(pattern):
    (plain, ordinary), (model, optimizer) = made(), made()
    step_in_backward(optimizer, every=3)
    for number in range(6):
        for each, opt in ((plain, ordinary), (model, optimizer)):
            backward(each, number, all_of_it=pattern[number % 3])
            if number % 3 == 2:
                opt.step()
                opt.zero_grad()
    assert_equal(model, plain)
    assert_same_state(optimizer, ordinary)


def test_a_pass_that_is_given_up():
    """zero_grad throws away what was accumulated, and the passes with it."""
    (plain, ordinary), (model, optimizer) = made(), made()
    step_in_backward(optimizer, every=2)
    for each, opt in ((plain, ordinary), (model, optimizer)):
        backward(each, 100)
        opt.zero_grad()
        train(each, opt, range(4), every=2)
    assert_equal(model, plain)


def test_removed():
    (plain, ordinary), (model, optimizer) = made(), made()
    handle = step_in_backward(optimizer)
    train(plain, ordinary, range(4))
    train(model, optimizer, range(2))
    handle.remove()
    before = copy.deepcopy(model)
    backward(model, 2)
    assert_equal(model, before)
    optimizer.step()
    optimizer.zero_grad()
    train(model, optimizer, [3])
    assert_equal(model, plain)


def test_removed_between_accumulated_passes():
    (plain, ordinary), (model, optimizer) = made(), made()
    handle = step_in_backward(optimizer, every=3)
    train(plain, ordinary, range(3), every=3)
    backward(model, 0)
    handle.remove()
    backward(model, 1)
    backward(model, 2)
    optimizer.step()
    assert_equal(model, plain)


def test_a_group_added_later_is_stepped_by_step():
    torch.manual_seed(0)
    first, second = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = Lamb(first.parameters(), lr=0.1)
    step_in_backward(optimizer)
    optimizer.add_param_group({"params": second.parameters()})
    before = second.weight.detach().clone()
    second(first(torch.ones(2, 3))).square().sum().backward()
    assert first.weight.grad is None
    optimizer.step()
    assert not torch.equal(second.weight, before)


def test_no_step_is_taken_where_there_is_no_backward_pass():
    model, optimizer = made()
    step_in_backward(optimizer)
    before = copy.deepcopy(model)
    optimizer.step()
    assert_equal(model, before)
    assert not optimizer.state


@pytest.mark.parametrize("max_grad_norm", [0, None])
def test_clipping_that_is_off(max_grad_norm):
    model, optimizer = made(Lamb, {**LAMB, "max_grad_norm": max_grad_norm})
    step_in_backward(optimizer)
    losses = train(model, optimizer, [0] * 6)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("everywhere", [True, False])
def test_the_global_norm_is_refused(everywhere):
    model, optimizer = made(Lamb, {**LAMB, "max_grad_norm": 1.0 if everywhere else None})
    optimizer.param_groups[-1]["max_grad_norm"] = 1.0
    with pytest.raises(ContradictionError, match=r"max_grad_norm.*all gradients at once.*max_grad_norm_per_tensor"):
        step_in_backward(optimizer)
    before = copy.deepcopy(model)
    backward(model, 0)  # no hook was left behind
    assert_equal(model, before)


def test_the_global_norm_set_later_is_refused_in_the_backward_pass():
    model, optimizer = made()
    step_in_backward(optimizer)
    backward(model, 0)
    for group in optimizer.param_groups:
        group["max_grad_norm"] = 1.0
    before = copy.deepcopy(model)
    with pytest.raises(ContradictionError, match="max_grad_norm"):
        backward(model, 1)
    assert_equal(model, before)


@pytest.mark.parametrize("every", [0, -1, 1.5, None, True, "2"])
def test_every_is_a_number_of_passes(every):
    with pytest.raises(HyperparameterError, match="every"):
        step_in_backward(made()[1], every=every)


def test_master_weights_and_low_precision():
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
        return model, Lamb(model.parameters(), lr=1e-3, master_weights=True)

    (plain, ordinary), (model, optimizer) = build(), build()
    step_in_backward(optimizer)
    for step in range(5):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step)).bfloat16()
        for each, opt in ((plain, ordinary), (model, optimizer)):
            each(x).square().mean().backward()
            opt.step()
            opt.zero_grad()
    assert_equal(model, plain)
    assert_same_state(optimizer, ordinary)


@pytest.mark.parametrize("loaded", [False, True])
def test_removed_twice(loaded):
    model = nn.Linear(4, 1)
    opt = Lamb(model.named_parameters(), **LAMB)
    handle = step_in_backward(opt)
    if loaded:
        opt.load_state_dict(opt.state_dict())
    handle.remove()
    handle.remove()
    before = copy.deepcopy(model.state_dict())
    model(torch.ones(2, 4)).sum().backward()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    opt.step()
    assert not torch.equal(model.weight, before["weight"])


def test_passes_are_forgotten_with_the_gradients_after_loading_too():
    model = nn.Linear(4, 1)
    opt = Lamb(model.named_parameters(), **LAMB)
    step_in_backward(opt, every=2)
    opt.load_state_dict(opt.state_dict())
    model(torch.ones(2, 4)).sum().backward()
    opt.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    assert not opt.state
