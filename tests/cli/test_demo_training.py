"""What the demo trains: its data, its settings, its workers, and every way in which a demo may end."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import multiprocessing
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cli.demo_results import USUAL, outcome

from layerwise.cli.demo import pool
from layerwise.cli.demo import run as demo
from layerwise.cli.demo.events import Finished, Moved, Started
from layerwise.cli.demo.pool import WorkerError, carry_out
from layerwise.cli.demo.settings import (
    ACTS,
    ADAFACTOR,
    ADAFACTOR_SMALL,
    ADAMW,
    DIGITS,
    LAMB,
    LAMB_SMALL,
    LARS,
    SGD,
    TEXT,
    WITH_MOMENTUM,
    Case,
    Run,
    quick,
    runs,
)

WITH_MOMENTUM_SMALL = WITH_MOMENTUM.stored("small", **LAMB_SMALL.options)


class TestSettings:
    def test_rates_are_scaled_by_the_square_root(self):
        for act in ACTS:
            for contender in act.contenders:
                case = Case(act.task, contender, act.task.large)
                assert case.lr == pytest.approx(contender.small.lr * math.sqrt(act.task.large / act.task.small))

    @pytest.mark.parametrize(("task", "small", "large"), [(DIGITS, 960, 30), (TEXT, 1024, 64)])
    def test_the_same_epochs_and_the_same_warm_up_at_every_batch(self, task, small, large):
        brief = replace(LAMB, small=replace(LAMB.small, warmup=7))
        for batch, steps in ((task.small, small), (task.large, large)):
            case = Case(task, brief, batch)
            assert (case.steps, case.recipe.steps, case.recipe.warmup_steps) == (steps, steps, 7)

    def test_options_tuned_at_a_batch_are_those_of_its_cases(self):
        hot = replace(LAMB, large=replace(LAMB.small, options={"weight_decay": 0.5}))
        assert Case(TEXT, hot, TEXT.large).options == LAMB.small.options
        assert Case(TEXT, hot, TEXT.large, retuned=True).options == {"weight_decay": 0.5}

    def test_every_optimizer_of_an_act_is_tuned_wherever_the_others_are(self):
        for act in ACTS:
            assert all((contender.large is not None) == act.grows for contender in act.contenders if act.grows)

    def test_what_two_acts_share_is_trained_once(self):
        both = demo.new_result((2, 3), False, 0, 1).runs()
        assert len(both) == len(set(both)) == 20
        assert [run.measures_noise for run in both].count(True) == 1

    def test_acts_are_trained_in_order_and_the_longest_runs_of_each_first(self):
        made = demo.new_result((), False, 0, 1)
        acts = [made.act_of(run).number for run in made.runs()]
        assert acts == sorted(acts)
        assert set(acts) == {1, 2, 3}
        for number in (1, 2, 3):
            costs = [run.cost for run in made.runs() if made.act_of(run).number == number]
            assert costs == sorted(costs, reverse=True)

    def test_retuned_at_the_large_batch(self):
        case = Case(TEXT, ADAMW, TEXT.large, retuned=True)
        assert case.lr == ADAMW.large.lr
        assert case.recipe.warmup_steps == ADAMW.large.warmup

    def test_quick_is_shorter_and_of_one_seed(self):
        for act in ACTS:
            fast = quick(act)
            assert fast.task.epochs < act.task.epochs
            for run in runs(fast, range(1)):
                assert 1 <= run.case.recipe.warmup_steps < run.case.steps


@pytest.fixture(scope="module")
def training():
    pytest.importorskip("torch")
    from layerwise.cli.demo import data, models, train

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
        assert all(batch.x.sort().values.equal(rows.x.sort().values) for batch in found)
        assert not found[0].x.equal(found[1].x)

    @pytest.mark.parametrize(
        ("contender", "weight", "state"),
        [
            (SGD, 4, 4),
            (LARS, 4, 4),
            (ADAMW, 4, 8),
            (LAMB, 4, 8),
            (ADAFACTOR, 4, 0),
            (WITH_MOMENTUM, 4, 4),
            (ADAFACTOR_SMALL, 2, 0),
        ],
    )
    def test_bytes(self, training, contender, weight, state):
        _, _, train = training
        model, opt = self.stepped(training, contender)
        tensors = list(model.parameters())
        statistics = (
            [sum(p.shape) if p.ndim == 2 else p.numel() for p in tensors] if contender.scaled_as == "Adafactor" else []
        )
        elements = sum(p.numel() for p in tensors)
        assert train.weight_bytes(model) == weight * elements
        assert train.state_bytes(opt) == state * elements + 4 * sum(statistics)

    @pytest.mark.parametrize(("contender", "fields"), [(LAMB_SMALL, 2), (WITH_MOMENTUM_SMALL, 1)])
    def test_bytes_of_24_and_8_bits(self, training, contender, fields):
        """One byte beside the weight; of large tensors a byte for each field, and a scale for 64 of them."""
        _, _, train = training
        model, opt = self.stepped(training, contender)
        tensors = list(model.parameters())
        small, large = (sum(p.numel() for p in tensors if (p.numel() < 4096) == few) for few in (True, False))
        factors = 4 * sum(sum(p.shape) if p.ndim == 2 else p.numel() for p in tensors)
        expected = small * (1 + 4 * fields) + large * (1 + fields * (1 + 4 / 64)) + factors * (fields == 1)
        assert train.weight_bytes(model) == 2 * (small + large)
        assert train.state_bytes(opt) == expected

    @staticmethod
    def stepped(training, contender):
        import torch

        _, models, train = training
        case = Case(TEXT, contender, 8)
        model = models.new_model(TEXT).to(getattr(torch, contender.dtype))
        opt = train.new_optimizer(case, model)
        train.loss_of(model, *torch.zeros(2, 1, 64, dtype=torch.long)).backward()
        opt.step()
        return model, opt

    def test_weights_in_bfloat16_are_computed_with_in_float32(self, training):
        import torch

        torch.manual_seed(0)
        _, models, train = training
        x, y = (part[:32] for part in training[0].load(DIGITS).train)
        stored = models.new_model(DIGITS).bfloat16()
        wide = copy.deepcopy(stored).float()
        for model in (stored, wide):
            train.loss_of(model, x, y).backward()
        for p, w in zip(stored.parameters(), wide.parameters(), strict=True):
            assert p.grad.equal(w.grad.bfloat16())

    def test_parts_of_a_batch_come_to_the_same_gradient(self, training):
        _, models, train = training
        import torch

        torch.manual_seed(0)
        model = models.new_model(DIGITS)
        x, y = (part[:32] for part in training[0].load(DIGITS).train)
        whole, grads = train._backward(model, x, y, None), [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        with train.NoiseScale(model) as noise:
            assert train._backward(model, x, y, noise) == pytest.approx(whole, rel=1e-5)
        for p, grad in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-7)

    def test_a_loss_that_is_not_finite_ends_the_run(self, training):
        _, _, train = training
        hot = replace(SGD, small=replace(SGD.small, lr=1e30))
        done = train.train(Run(Case(replace(DIGITS, epochs=1), hot, 32), 0))
        assert done.diverged
        assert done.accuracy is None
        assert done.losses[-1][0] < 32

    @pytest.mark.slow
    def test_figures_do_not_depend_on_who_works(self, training):
        short = replace(DIGITS, epochs=1)
        wanted = [Run(Case(short, contender, 32), seed) for contender in (LARS, SGD) for seed in (0,)]
        import torch

        here, threads = {}, torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            here = {run: training[2].train(run) for run in wanted}
        finally:
            torch.set_num_threads(threads)
        seen = list(carry_out(wanted, 2))
        there = {event.run: event.outcome for event in seen if isinstance(event, Finished)}
        assert {run: o.losses for run, o in here.items()} == {run: there[run].losses for run in wanted}
        assert {run: o.accuracy for run, o in here.items()} == {run: there[run].accuracy for run in wanted}
        assert [event.run for event in seen if isinstance(event, Started)] == wanted
        assert all(set(event.progress.ratios) == {"conv1", "conv2", "conv3", "hidden", "head"}
                   for event in seen if isinstance(event, Moved) and event.run.case.contender == LARS)  # fmt: skip
        assert multiprocessing.active_children() == []

    @pytest.mark.slow
    def test_a_worker_that_is_killed_is_an_error_and_no_hang(self, training):
        events = carry_out([Run(Case(DIGITS, LARS, 32), 0)], 1)
        assert isinstance(next(events), Started)
        assert isinstance(next(events), Moved)
        multiprocessing.active_children()[0].kill()
        with pytest.raises(WorkerError, match=r"LARS, batch 32, seed 0 was killed by signal 9\..*--threads 1"):
            list(events)
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("code", "end"),
    [(None, "closed its pipe, but has not ended"), (0, "ended with exit code 0"), (-9, "was killed by signal 9")],
)
def test_how_a_worker_ended(code, end):
    process = SimpleNamespace(join=lambda seconds: None, exitcode=code)
    run = Run(Case(DIGITS, LARS, 32), 0)
    assert f"that trained {run} {end}. If" in str(pool._died(pool.Worker(process, None, run)))


class TestEnds:
    """The demo with its workers replaced by what they would say."""

    @pytest.fixture
    def figures(self, monkeypatch):
        found = dict(USUAL)

        def said(wanted, workers):
            for run in wanted:
                yield Started(run)
                value = found[run.case.name, run.case.batch]
                if value is None:
                    raise KeyboardInterrupt
                yield Finished(run, outcome(run, value[run.seed]))

        monkeypatch.setattr(demo, "carry_out", said)
        monkeypatch.setattr(demo, "check_packages", lambda: None)
        return found

    def read(self, path):
        return json.loads(re.search(r'id="figures">\n(.*)\n</script>', path.read_text()).group(1))

    def test_well(self, figures, tmp_path, capsys):
        assert demo.main((1,), False, tmp_path, 0, 2) == 0
        seen = capsys.readouterr()
        assert seen.err == ""
        assert "24 of 24  act 1  LARS re-tuned, batch 1,024, seed 2: accuracy 96.0 %" in seen.out
        assert seen.out.endswith(f"Report: {tmp_path / 'layerwise-demo.html'}\n")
        assert not self.read(tmp_path / "layerwise-demo.html")["partial"]

    def test_sgd_may_diverge(self, figures, tmp_path, capsys):
        figures["SGD", 1024] = [math.nan, math.inf, math.nan]
        assert demo.main((1,), False, tmp_path, 0, 2) == 0
        seen = capsys.readouterr()
        assert "SGD, batch 1,024, seed 0: diverged at step 30" in seen.out
        assert seen.err == ""

    def test_others_may_not(self, figures, tmp_path, capsys):
        figures["LARS", 1024] = [math.nan, 94.0, 95.0]
        assert demo.main((1,), False, tmp_path, 0, 2) == 1
        seen = capsys.readouterr()
        assert seen.err.startswith("layerwise: the loss of LARS, batch 1,024, seed 0 is not finite after step 30")
        assert self.read(tmp_path / "layerwise-demo.html")["partial"]

    def test_interrupted(self, figures, tmp_path, capsys):
        figures["LARS", 1024] = None
        assert demo.main((1,), False, tmp_path / "mine.html", 0, 2) == 130
        assert "Interrupted. What was finished is in" in capsys.readouterr().out
        written = self.read(tmp_path / "mine.html")
        assert written["partial"]
        assert [len(case["runs"]) for case in written["acts"][0]["cases"]] == [2, 3, 3, 2, 3, 3, 2, 0, 0]
        assert [path.name for path in tmp_path.iterdir()] == ["mine.html"]

    def test_nobody_trains_while_the_report_is_written(self, figures, tmp_path, monkeypatch):
        order, said = [], demo.carry_out

        def trained(wanted, workers):
            try:
                yield from said(wanted, workers)
            finally:
                order.append("workers ended")

        def interrupted(lines, event):
            raise KeyboardInterrupt

        monkeypatch.setattr(demo, "carry_out", trained)
        monkeypatch.setattr(demo.Lines, "see", interrupted)
        monkeypatch.setattr(demo, "_write", lambda result, path: order.append("report"))
        assert demo.main((1,), False, tmp_path, 0, 2) == 130
        assert order == ["workers ended", "report"]

    def test_workers_that_cannot_be_started(self, figures, tmp_path, capsys, monkeypatch):
        def full(process):
            raise OSError(24, "Too many open files")

        monkeypatch.setattr("multiprocessing.process.BaseProcess.start", full)
        monkeypatch.setattr(demo, "carry_out", carry_out)
        assert demo.main((1,), False, tmp_path, 0, 2) == 1
        said = "layerwise: process 1 of 2 to train in could not be started: Too many open files. --threads 1 needs"
        assert capsys.readouterr().err.startswith(said)
        assert self.read(tmp_path / "layerwise-demo.html")["partial"]

    def test_a_pipe_is_no_terminal(self, figures, tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert demo.main((1,), False, tmp_path, 0, 2) == 0
        assert "\x1b[?1049h" not in capsys.readouterr().out

    def test_nobody_reads_any_more(self, figures, tmp_path, monkeypatch):
        forgotten = []
        monkeypatch.setattr(demo.Lines, "see", self.nobody)
        monkeypatch.setattr(demo, "forget_output", lambda: forgotten.append(True))
        assert demo.main((1,), False, tmp_path, 0, 2) == 1
        assert forgotten == [True]
        assert self.read(tmp_path / "layerwise-demo.html")["partial"]

    @staticmethod
    def nobody(lines, event):
        raise BrokenPipeError(32, "Broken pipe")

    def test_a_report_that_cannot_be_written_any_more(self, figures, tmp_path, capsys, monkeypatch):
        def full(path, text):
            raise demo.CannotWrite(path, "No space left on device")

        monkeypatch.setattr(demo, "write_text", full)
        assert demo.main((1,), False, tmp_path, 0, 2) == 2
        assert "No space left on device" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("place", "why"),
        [
            ("device/new", "device is not a folder"),
            ("device/report.html", "device is not a folder"),
            ("device", "it is no ordinary file"),
            ("full.html", "No space left"),
        ],
    )
    def test_places(self, figures, tmp_path, capsys, monkeypatch, place, why):
        (tmp_path / "device").symlink_to("/dev/null")
        if place == "full.html":
            monkeypatch.setattr("layerwise.cli.demo.place.beside", self.no_room)
        assert demo.main((1,), False, tmp_path / place, 0, 2) == 2
        seen = capsys.readouterr()
        assert seen.out == ""
        assert re.fullmatch(rf"layerwise: cannot write .*{why}.*\n", seen.err)
        assert [path.name for path in tmp_path.iterdir()] == ["device"]

    @pytest.mark.parametrize(
        ("place", "report"),
        [("new/", "new/layerwise-demo.html"), ("a/b", "a/b/layerwise-demo.html"), ("v1.2/", "v1.2/layerwise-demo.html"),
         ("new/mine.html", "new/mine.html")],
    )  # fmt: skip
    def test_folders_are_made(self, figures, tmp_path, capsys, place, report):
        assert demo.main((1,), False, f"{tmp_path}/{place}", 0, 2) == 0
        assert capsys.readouterr().out.endswith(f"Report: {tmp_path / report}\n")
        assert (tmp_path / report).stat().st_size > 10_000

    @staticmethod
    def no_room(path):
        raise OSError(28, "No space left on device")
