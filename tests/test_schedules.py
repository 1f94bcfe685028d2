"""Schedules: numbers worked by hand, ends and joints, and the schedules of optax and PyTorch where they coincide."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.numpy import Lamb
from layerwise.schedules import Cosine, Polynomial, Stages, epochs, samples

KINDS = [
    Polynomial(0.8, total=12, warmup=4),
    Polynomial(0.8, total=12, warmup=4, power=2, start=0.1, end=0.2),
    Polynomial(0.8, total=12, power=0.5),
    Cosine(0.8, total=12, warmup=4),
    Cosine(0.8, total=12, warmup=4, start=0.1, end=0.2),
    Cosine(0.8, total=12),
]
each_kind = pytest.mark.parametrize("schedule", KINDS, ids=repr)
STAGES = Stages(Polynomial(0.6, total=6, warmup=2), Polynomial(0.4, total=5, warmup=4))


class TestNumbers:
    def test_line(self):
        lr = Polynomial(1.0, total=6, warmup=2)
        assert [lr(step) for step in range(8)] == [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0]

    def test_power_start_and_end(self):
        lr = Polynomial(9.0, total=6, warmup=2, power=2, start=3.0, end=1.0)
        assert [lr(step) for step in range(8)] == [3, 6, 9, 5.5, 3, 1.5, 1, 1]

    def test_cosine(self):
        lr = Cosine(2.0, total=8, warmup=2, end=1.0)
        sixth = (1 + math.cos(math.pi / 6)) / 2
        assert [lr(step) for step in range(4)] == pytest.approx([0, 1, 2, 1 + sixth], rel=1e-15)
        assert [lr(step) for step in (4, 5, 6, 8, 100)] == pytest.approx([1.75, 1.5, 1.25, 1, 1], rel=1e-15)

    def test_stages_warm_up_anew(self):
        rates = [0, 0.3, 0.6, 0.45, 0.3, 0.15, 0, 0.1, 0.2, 0.3, 0.4, 0, 0]
        assert [STAGES(step) for step in range(13)] == pytest.approx(rates, abs=1e-15)
        assert (STAGES.peak, STAGES.total) == (0.6, 11)

    def test_stages_of_three(self):
        flat = Polynomial(1.0, total=2)
        assert [Stages(flat, flat, flat)(step) for step in range(7)] == [1, 0.5, 1, 0.5, 1, 0.5, 0]

    @each_kind
    def test_ends_and_joint(self, schedule):
        assert schedule(0) == (schedule.start if schedule.warmup else schedule.peak)
        assert schedule(schedule.warmup) == schedule.peak
        assert schedule(schedule.total) == schedule(10 * schedule.total) == pytest.approx(schedule.end, abs=1e-16)

    @each_kind
    def test_no_jump_and_no_turn_but_one(self, schedule):
        rates = schedule(np.linspace(0, schedule.total, 12 * 64 + 1))
        assert np.all(np.diff(rates[: 64 * schedule.warmup + 1]) > 0)
        assert np.all(np.diff(rates[64 * schedule.warmup :]) < 0)
        assert (
            np.abs(np.diff(rates)).max() < 0.03
        )  # what √x falls in its last part; the least jump there could be is 0.1


class TestLengths:
    def test_samples_and_epochs(self):
        assert samples(1000, batch=100) == 10
        assert samples(1001, batch=100) == 11
        assert epochs(3, dataset_size=50, batch=20) == 8
        assert epochs(0.1, dataset_size=1000, batch=10) == 10

    def test_of_a_published_run(self):
        """fastalgo/imagenet_resnet50_lamb: 782 of 3,519 steps are 20 of 90 epochs of ImageNet at batch 32,768."""
        imagenet = {"dataset_size": 1_281_167, "batch": 32_768}
        assert (epochs(20, **imagenet), epochs(90, **imagenet)) == (782, 3519)


BAD = {
    "peak": lambda: Polynomial(0.0, 10),
    "total": lambda: Cosine(1.0, 10.5),
    "warmup": lambda: Polynomial(1.0, 10, warmup=-1),
    "start": lambda: Polynomial(1.0, 10, start=2.0),
    "end": lambda: Cosine(1.0, 10, end=1.5),
    "power": lambda: Polynomial(1.0, 10, power=0),
    "parts": lambda: Stages(Polynomial(1.0, 10), lambda step: 1.0),
    "count": lambda: samples(math.inf, batch=1),
    "batch": lambda: epochs(1, dataset_size=10, batch=0),
    "dataset_size": lambda: epochs(1, dataset_size=1e6, batch=10),
}


@pytest.mark.parametrize("argument", BAD)
def test_bad_arguments_are_named(argument):
    with pytest.raises(HyperparameterError, match=rf"^`{argument}` must be .*, but is .*\. .*\.$"):
        BAD[argument]()


def test_a_warmup_longer_than_the_run():
    with pytest.raises(ContradictionError, match="`warmup` must be an integer < total=10, but is 10"):
        Polynomial(1.0, total=10, warmup=10)


class TestNumpy:
    def test_the_front_takes_them(self):
        w = {"w": np.array([3.0, 4.0])}
        opt = Lamb(lr=Polynomial(0.1, total=4, warmup=1))
        opt.step_all(w, {"w": np.ones(2)})
        assert w["w"].tolist() == [3.0, 4.0]  # the warm-up begins at 0
        opt.step_all(w, {"w": np.ones(2)})
        assert np.linalg.norm(w["w"] - [3.0, 4.0]) == pytest.approx(0.1 * 5)


class TestJax:
    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("optax")

    @pytest.mark.parametrize("schedule", [*KINDS, STAGES], ids=repr)
    def test_a_traced_step_gives_the_same(self, schedule):
        import jax

        steps = np.arange(schedule.total + 3)
        traced = jax.jit(jax.vmap(schedule))(steps)
        assert isinstance(traced, jax.Array)
        np.testing.assert_allclose(traced, [schedule(int(step)) for step in steps], rtol=1e-6, atol=1e-7)

    def test_equal_to_optax(self):
        import optax

        warm, peak, end, total, start = 5, 0.3, 0.01, 40, 0.02
        pairs = [
            (
                Cosine(peak, total, warm, start=start, end=end),
                optax.warmup_cosine_decay_schedule(start, peak, warm, total, end),
            ),
            (
                Polynomial(peak, total, warm, power=2, end=end),
                optax.join_schedules(
                    [optax.linear_schedule(0, peak, warm), optax.polynomial_schedule(peak, end, 2, total - warm)],
                    [warm],
                ),
            ),
        ]
        for ours, theirs in pairs:
            steps = range(total + 5)
            np.testing.assert_allclose([ours(s) for s in steps], [theirs(s) for s in steps], rtol=2e-6, atol=1e-8)

    def test_the_front_takes_them_under_jit(self):
        import jax
        import jax.numpy as jnp

        from layerwise.jax import lamb

        p = jnp.array([3.0, 4.0])
        opt = lamb(STAGES)
        state, update = opt.init(p), jax.jit(opt.update)
        for step in range(9):
            moved, state = update(jnp.ones(2), state, p)
            assert jnp.linalg.norm(moved) == pytest.approx(5 * STAGES(step), rel=1e-5)


class TestTorch:
    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("torch")

    @staticmethod
    def made(schedule, **options):
        import torch

        from layerwise.torch import Lamb, scheduler

        w, head = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
        opt = Lamb([{"params": [w]}, {"params": [head], "lr": 0.4}], **{"lr": 0.8, **options})
        return opt, scheduler(opt, schedule)

    @staticmethod
    def rates(opt, sched, steps):
        seen = []
        for _ in range(steps):
            seen.append([float(group["lr"]) for group in opt.param_groups])
            opt.step()
            sched.step()
        return seen

    @pytest.mark.parametrize("schedule", [*KINDS, Stages(KINDS[1], KINDS[3])], ids=repr)
    def test_groups_keep_their_proportion(self, schedule):
        seen = self.rates(*self.made(schedule), steps=schedule.total + 2)
        expected = [[schedule(step), schedule(step) / 2] for step in range(schedule.total + 2)]
        np.testing.assert_allclose(seen, expected, rtol=1e-15)

    def test_lr_tensors_are_filled(self):
        import torch

        schedule = KINDS[1]
        lr = torch.tensor(0.8)
        opt, sched = self.made(schedule, lr=lr)
        held = opt.param_groups[0]["lr"]
        seen = self.rates(opt, sched, steps=6)
        assert opt.param_groups[0]["lr"] is held
        np.testing.assert_allclose([one for one, _ in seen], [schedule(step) for step in range(6)], rtol=1e-6)

    def test_a_resumed_run_goes_on_where_it_was(self):
        schedule = KINDS[1]
        whole = self.rates(*self.made(schedule), steps=10)
        opt, sched = self.made(schedule)
        self.rates(opt, sched, steps=4)
        saved = copy.deepcopy((opt.state_dict(), sched.state_dict()))
        opt, sched = self.made(schedule)
        opt.load_state_dict(saved[0])
        sched.load_state_dict(saved[1])
        assert self.rates(opt, sched, steps=6) == whole[4:]

    def test_a_checkpoint_does_not_bring_its_schedule(self):
        _, old = self.made(KINDS[0])
        longer = Polynomial(0.8, total=100, warmup=4)
        opt, sched = self.made(longer)
        sched.load_state_dict(old.state_dict())
        seen = self.rates(opt, sched, steps=20)
        np.testing.assert_allclose([one for one, _ in seen], [longer(step) for step in range(20)], rtol=1e-15)

    def test_equal_to_pytorch(self):
        import torch
        from torch.optim import lr_scheduler

        for ours, theirs in [
            (Polynomial(0.8, total=9, power=3), lambda opt: lr_scheduler.PolynomialLR(opt, total_iters=9, power=3)),
            (Cosine(0.8, total=9, end=0.1), lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=9, eta_min=0.1)),
            (Polynomial(0.8, total=99, warmup=9, start=0.2), lambda opt: lr_scheduler.LinearLR(opt, 0.25, 1, 9)),
        ]:
            sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.8)
            opt, sched = self.made(ours)
            np.testing.assert_allclose(
                [one for one, _ in self.rates(opt, sched, steps=10)],
                [one for (one,) in self.rates(sgd, theirs(sgd), steps=10)],
                rtol=1e-12,
                atol=1e-16,
            )

    def test_a_peak_that_no_group_has(self):
        with pytest.raises(ContradictionError, match=r"`schedule.peak` must be the lr of a group, which is 0.8 or 0.4"):
            self.made(Polynomial(0.1, total=10))

    def test_a_relative_step_is_scaled(self):
        import torch

        from layerwise.torch import Adafactor, scheduler

        opt = Adafactor([torch.nn.Parameter(torch.ones(2))])
        with pytest.raises(ContradictionError, match=r"which is 1, but is 0\.1"):
            scheduler(opt, Polynomial(0.1, total=10))
        with pytest.raises(HyperparameterError, match=r"The optimizer goes first: scheduler\(optimizer, schedule\)"):
            scheduler(Polynomial(1.0, total=10), opt)
        sched = scheduler(opt, Polynomial(1.0, total=10))
        opt.step()
        sched.step()
        assert opt.get_lr() == 0.9

    def test_a_callable_of_another_kind(self):
        with pytest.raises(HyperparameterError, match="`schedule` must be a schedule of layerwise"):
            self.made(lambda step: 1.0)
