"""Steps of one parameter at a time, as trainers take them in hooks of gradients: the weights are those of `step()`."""

import copy

import pytest

from layerwise.errors import ContradictionError, GradientError, ParameterError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch_front.test_backward import (  # noqa: E402
    LAMB,
    assert_equal,
    assert_same_state,
    backward,
    made,
    optimizers,
    train,
)

from layerwise.torch import Adafactor, Lamb, Mixed, param_groups  # noqa: E402


class Trainer:
    """A fused backward pass: in the last pass of each update a hook clips, steps and frees the gradient."""

    def __init__(self, optimizer, every=1, clip=None, scaler=None):
        self.optimizer, self.every, self.clip, self.scaler, self.passes = optimizer, every, clip, scaler, 0
        for group in optimizer.param_groups:
            for i, p in enumerate(group["params"]):
                if p.requires_grad:
                    p.register_post_accumulate_grad_hook(self.hook(group, i))

    def hook(self, group, i):
        def step(p):
            if (self.passes + 1) % self.every:
                return
            finite = self.scaler is None or self.scaler.unscaled(p)
            if self.clip is not None:
                nn.utils.clip_grad_norm_(p, self.clip)
            if finite:
                self.optimizer.step_parameter(p, group, i)
            p.grad = None

        return step

    def train(self, model, numbers, schedule=None):
        losses = []
        for number in numbers:
            losses.append(backward(model, number))
            self.passes += 1
            if self.passes % self.every == 0:
                if self.passes % (2 * self.every):  # some trainers call it all the same, when no gradient is left
                    self.optimizer.step()
                if schedule is not None:
                    schedule.step()
                self.optimizer.zero_grad(set_to_none=True)
        return losses


@pytest.mark.parametrize("every", [1, 3])
@optimizers
def test_is_the_ordinary_step(cls, options, every):
    (plain, ordinary), (model, optimizer) = made(cls, options), made(cls, options)
    found = Trainer(optimizer, every).train(model, range(6))
    assert found == pytest.approx(train(plain, ordinary, range(6), every), rel=1e-10)
    assert_equal(model, plain)
    assert_same_state(optimizer, ordinary)
    assert all(p.grad is None for p in model.parameters())


def test_steps_that_parameter_alone_and_leaves_its_gradient():
    model, optimizer = made()
    backward(model, 0)
    group = optimizer.param_groups[0]
    p, before, grad = group["params"][0], copy.deepcopy(model), group["params"][0].grad.clone()
    optimizer.step_parameter(p, group, 0)
    assert [int(optimizer.state[q]["step"]) for q in optimizer.state] == [1]
    assert torch.equal(p.grad, grad)
    moved = {name for name, q in model.named_parameters() if not torch.equal(q, before.get_parameter(name))}
    assert moved == {name for name, q in model.named_parameters() if q is p}


def test_a_schedule_is_followed_and_warns_of_nothing():
    (plain, ordinary), (model, optimizer) = made(), made()
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5) for opt in (ordinary, optimizer)]
    train(plain, ordinary, range(4), schedule=schedules[0])
    trainer = Trainer(optimizer)
    for number in range(4):
        backward(model, number)
        schedules[1].step()  # without a call of step() before it
    assert trainer.passes == 0
    assert optimizer.get_lr() == ordinary.get_lr() != 0.02
    assert_equal(model, plain)


def test_a_trainer_that_clips_each_gradient_is_max_grad_norm_per_tensor():
    (plain, ordinary), (model, optimizer) = made(Lamb, {**LAMB, "max_grad_norm_per_tensor": 0.02}), made()
    train(plain, ordinary, range(4))
    Trainer(optimizer, clip=0.02).train(model, range(4))
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)  # torch divides by the norm plus 1e-6


def test_beside_step_and_under_the_names_of_others():
    (plain, ordinary), (model, optimizer) = made(), made()
    train(plain, ordinary, range(3))
    for number in range(3):
        backward(model, number)
        for group in optimizer.param_groups:
            optimizer.step_param(group["params"][0], group)
            group["params"][0].grad = None
            optimizer.step_parameter(group["params"][1])
            group["params"][1].grad = None
        optimizer.step()
        optimizer.zero_grad()
    assert_equal(model, plain)
    assert_same_state(optimizer, ordinary)


def test_nothing_happens_without_a_gradient():
    model, optimizer = made()
    before = copy.deepcopy(model)
    optimizer.step_parameter(optimizer.param_groups[0]["params"][0], optimizer.param_groups[0], 0)
    assert_equal(model, before)
    assert not optimizer.state


def test_a_checkpoint_goes_on():
    (plain, ordinary), (model, optimizer) = made(), made()
    train(plain, ordinary, range(4))
    Trainer(optimizer).train(model, range(2))
    again, resumed = made(Lamb, {"lr": 0.5, "weight_decay": 0.3})
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    Trainer(resumed).train(again, range(2, 4))
    assert_equal(again, plain)
    assert_same_state(resumed, ordinary)


def test_groups_with_rules_of_their_own():
    def build():
        model, _ = made()
        groups = param_groups(model, rule="lamb", others={"rule": "adamw", "lr": 1e-3}, **LAMB)
        return model, Mixed(groups)

    (plain, ordinary), (model, optimizer) = build(), build()
    train(plain, ordinary, range(4))
    Trainer(optimizer).train(model, range(4))
    assert_equal(model, plain)
    assert_same_state(optimizer, ordinary)


def test_master_weights_of_bfloat16():
    def build():
        torch.manual_seed(0)
        model = nn.Linear(6, 4).bfloat16()
        return model, Adafactor(model.parameters(), lr=1e-3, master_weights="split", rounding="stochastic")

    (plain, ordinary), (model, optimizer) = build(), build()
    Trainer(optimizer)
    for step in range(4):
        x = torch.randn(3, 6, generator=torch.Generator().manual_seed(step)).bfloat16()
        for each in (plain, model):
            each(x).square().mean().backward()
        ordinary.step()
        ordinary.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))


class Scaler(torch.amp.GradScaler):
    """A GradScaler that unscales the gradient of one parameter, and says whether it is finite."""

    def unscaled(self, p):
        inverse, found = self._scale.double().reciprocal().float(), torch.zeros(())
        single = torch.optim.SGD([p])
        found = self._unscale_grads_(single, inverse, found, False)
        return not sum(float(x) for x in found.values())


def test_gradients_that_were_scaled():
    (plain, ordinary), (model, optimizer) = made(), made()
    scaler = Scaler("cpu", init_scale=2.0**10)
    Trainer(optimizer, scaler=scaler)
    for number in range(4):
        words = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(number))
        for each in (plain, model):
            loss = nn.functional.cross_entropy(each(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            (loss if each is plain else scaler.scale(loss)).backward()
        ordinary.step()
        ordinary.zero_grad()
    before = copy.deepcopy(model)
    scaler.scale(model(words[:, :-1]).sum() * float("inf")).backward()
    assert_equal(model, before)
    assert_equal(model, plain)
    assert_same_state(optimizer, ordinary)


def assert_refused(optimizer, model, error, match, *arguments):
    before = copy.deepcopy(model)
    with pytest.raises(error, match=match):
        optimizer.step_parameter(*arguments)
    assert_equal(model, before)
    assert not optimizer.state


def test_the_norm_of_all_gradients_is_refused():
    model, optimizer = made(Lamb, {**LAMB, "max_grad_norm": 1.0})
    backward(model, 0)
    group = optimizer.param_groups[0]
    wanted = r"max_grad_norm.*must be None.*1\.0.*all gradients at once.*max_grad_norm_per_tensor"
    assert_refused(optimizer, model, ContradictionError, wanted, group["params"][0], group, 0)


def test_arguments_that_do_not_belong_together_are_refused():
    model, optimizer = made()
    backward(model, 0)
    first, second = optimizer.param_groups
    p = first["params"][0]
    wanted = r"`group` must be the entry of param_groups that has '\S+', but is "
    assert_refused(optimizer, model, ParameterError, wanted + r"param_groups\[1\]", p, second, 0)
    assert_refused(optimizer, model, ParameterError, wanted + "no entry.*loading a checkpoint", p, dict(first), 0)
    for i in (1, -1, 99, True, "0"):
        assert_refused(optimizer, model, ParameterError, r"`i` must be the place of '\S+' in its group", p, first, i)
    wanted = r"`p` must be a parameter of this optimizer, but is "
    assert_refused(optimizer, model, ParameterError, wanted + "a tensor of shape", nn.Parameter(torch.ones(2)), first)
    assert_refused(optimizer, model, ParameterError, wanted + "'weight'", "weight", first)


def test_a_bad_gradient_leaves_everything_as_it_was():
    model, optimizer = made()
    backward(model, 0)
    group = optimizer.param_groups[0]
    group["params"][0].grad = group["params"][0].grad.to_sparse()
    assert_refused(optimizer, model, GradientError, "is sparse", group["params"][0], group, 0)


@pytest.fixture
def process_group(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("torch was built without distributed")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_where_others_still_have_to_add_their_gradients(process_group):
    model, optimizer = nn.Linear(3, 2), None
    optimizer = Lamb(model.parameters(), **LAMB)
    Trainer(optimizer)
    model(torch.ones(1, 3)).sum().backward()
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    optimizer = Lamb(wrapped.parameters(), **LAMB)
    wrapped(torch.ones(1, 3)).sum().backward()
    group = optimizer.param_groups[0]
    wanted = "step_parameter steps before DistributedDataParallel has added up the gradients"
    assert_refused(optimizer, wrapped.module, ContradictionError, wanted, group["params"][0], group, 0)


def test_parameters_that_belong_to_several_processes(process_group, monkeypatch):
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    optimizer = Lamb(model.parameters(), model_group=torch.distributed.group.WORLD, **LAMB)
    assert_refused(optimizer, model, ContradictionError, "`model_group` must be None", model.weight)
    optimizer = Lamb(model.parameters(), **LAMB)
    monkeypatch.setattr(optimizer, "_agreement", lambda: optimizer._agreed)  # as where a mesh cuts a parameter
    assert_refused(optimizer, model, ContradictionError, "step_parameter.*a collective of its own", model.weight)
