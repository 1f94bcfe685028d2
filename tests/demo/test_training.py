"""What the demo trains: settings that are fair to every optimizer, data that are what they are said to be, and training
that keeps the bytes and the losses that it reports.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from dataclasses import replace

import pytest
import torch

from demo.pool import carry_out
from demo.settings import (
    ADAFACTOR,
    ADAFACTOR_SMALL,
    DIGITS,
    LAMB,
    LAMB_SMALL,
    LARS,
    MUON,
    MUON_SMALL,
    SGD,
    TEXT,
    WITH_MOMENTUM,
    Case,
    Run,
)

WITH_MOMENTUM_SMALL = WITH_MOMENTUM.stored("small", **LAMB_SMALL.options)


class TestSettings:
    @pytest.mark.parametrize(("task", "small", "large"), [(DIGITS, 960, 30), (TEXT, 1024, 64)])
    def test_the_same_epochs_and_the_same_warm_up_at_every_batch(self, task, small, large):
        brief = replace(LAMB, small=replace(LAMB.small, warmup=7))
        for batch, steps in ((task.small, small), (task.large, large)):
            case = Case(task, brief, batch)
            assert (case.steps, case.recipe.steps, case.recipe.warmup_steps) == (steps, steps, 7)


@pytest.fixture(scope="module")
def training():
    from demo import data, models, train

    return data, models, train


class TestTraining:
    def test_the_text_is_the_one_that_rates_were_tuned_on(self, training):
        text = training[0].read_text()
        found = hashlib.sha256(text).hexdigest()
        assert found == "7957716e7d919a281ce5cbe1f65e48999031a78f223b3497b33aa70c3ceb68db"
        assert max(text) < training[0].SYMBOLS

    def test_splits_have_nothing_in_common(self, training):
        data, _, _ = training
        digits = data.load(DIGITS)
        assert [len(split.y) for split in digits] == [DIGITS.examples, 413, 360]
        sequences, text = data.load(TEXT), data.read_text()
        trained = text[: len(text) * 8 // 10]
        assert all(bytes(row) in trained for row in sequences.train.x.tolist())
        for split, tenths in ((sequences.tuning, 8), (sequences.test, 9)):
            all_of_it = text[len(text) * tenths // 10 :]
            assert all_of_it.startswith(bytes(split.x.flatten().tolist()))
            assert len(split.x) == len(text) // 10 // data.LENGTH
        assert len(sequences.train.x) == TEXT.examples
        assert sequences.train.x[:, 1:].equal(sequences.train.y[:, :-1])

    def test_an_epoch_has_every_example_once(self, training):
        data, _, train = training
        rows = data.Split(*(training[0].load(DIGITS).train.y,) * 2)
        found = list(train.batches(rows, Run(Case(DIGITS, SGD, 1024), 3)))
        assert len(found) == 30
        again = train.batches(rows, Run(Case(DIGITS, LARS, 1024), 3))
        assert all(batch.x.equal(same.x) for batch, same in zip(found, again, strict=True))
        assert all(batch.x.sort().values.equal(rows.x.sort().values) for batch in found)
        assert not found[0].x.equal(found[1].x)

    @pytest.mark.parametrize(
        ("contender", "weight", "of_small", "of_large", "factors"),
        [
            # Bytes beside a weight: of tensors of fewer than 4,096 numbers, and of larger ones; and whether it factors.
            (LARS, 4, 4, 4, False),
            (LAMB, 4, 8, 8, False),
            (ADAFACTOR, 4, 0, 0, True),
            (WITH_MOMENTUM, 4, 4, 4, True),
            (ADAFACTOR_SMALL, 2, 0, 0, True),
            (LAMB_SMALL, 2, 1 + 4 * 2, 1 + 2 * (1 + 4 / 64), False),  # 24 bits, and 8 with a scale for 64 of them
            (WITH_MOMENTUM_SMALL, 2, 1 + 4, 1 + 1 * (1 + 4 / 64), True),
        ],
        ids=lambda x: getattr(x, "name", None),
    )
    def test_the_bytes_that_it_reports_are_kept(self, training, contender, weight, of_small, of_large, factors):
        _, models, train = training
        model = models.new_model(TEXT).to(getattr(torch, contender.dtype))
        opt = train.new_optimizer(Case(TEXT, contender, 8), model)
        train.loss_of(model, *torch.zeros(2, 1, 64, dtype=torch.long)).backward()
        opt.step()
        tensors = list(model.parameters())
        small, large = (sum(p.numel() for p in tensors if (p.numel() < 4096) == few) for few in (True, False))
        statistics = sum(sum(p.shape) if p.ndim == 2 else p.numel() for p in tensors) if factors else 0
        assert train.weight_bytes(model) == weight * (small + large)
        assert train.state_bytes(opt) == of_small * small + of_large * large + 4 * statistics

    @pytest.mark.parametrize(
        ("contender", "of_hidden", "of_others"), [(MUON, 8, 12), (MUON_SMALL, 3 + 17 / 16, 3 + 17 / 8)]
    )
    def test_muon_keeps_one_array_of_hidden_matrices_and_adamw_two_of_the_rest(
        self, training, contender, of_hidden, of_others
    ):
        _, models, train = training
        model = models.new_model(TEXT).to(getattr(torch, contender.dtype))
        opt = train.new_optimizer(Case(TEXT, contender, 8), model)
        train.loss_of(model, *torch.zeros(2, 1, 64, dtype=torch.long)).backward()
        opt.step()
        large = {name: p.numel() for name, p in model.named_parameters() if p.numel() >= 4096}
        hidden = sum(n for name, n in large.items() if name.startswith("blocks"))
        rest = sum(p.numel() for p in model.parameters()) - sum(large.values())
        small = 12 if contender is MUON else 3 + 8  # below 4,096 elements state stays float32
        expected = of_hidden * hidden + of_others * (sum(large.values()) - hidden) + small * rest
        assert train.weight_bytes(model) + train.state_bytes(opt) == expected

    @pytest.mark.slow
    def test_figures_do_not_depend_on_who_works(self, training):
        short = replace(DIGITS, epochs=1)
        wanted = [Run(Case(short, contender, 32), seed) for contender in (LARS, SGD) for seed in (0,)]
        here, threads = {}, torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            here = {run: training[2].train(run) for run in wanted}
        finally:
            torch.set_num_threads(threads)
        there = dict(carry_out(wanted, 2))
        assert {run: o.losses for run, o in here.items()} == {run: there[run].losses for run in wanted}
        assert {run: o.accuracy for run, o in here.items()} == {run: there[run].accuracy for run in wanted}
        assert {*there[wanted[0]].ratios[-1][1]} == {"conv1", "conv2", "conv3", "hidden", "head"}
        assert multiprocessing.active_children() == []
