"""The demo, run as its users run it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from cli.program import on_a_terminal, run

import layerwise
from layerwise.cli.demo import cells, data, network, report, settings, train
from layerwise.numpy import Adafactor, Lamb, Lars


class TestDemo:
    def test_in_a_pipe_it_is_plain(self, tmp_path):
        out = tmp_path / "report.json"
        done = run("demo", "--quick", "--out", str(out))
        assert "\x1b" not in done.stdout
        assert "\r" not in done.stdout
        assert done.stderr == ""
        assert "2102.06356" in done.stdout
        written = json.loads(out.read_text())
        assert written["versions"]["layerwise"] == layerwise.__version__
        for row in written["cells"]:
            (right,) = row["test_accuracy"]
            assert f"{row['optimizer']}, batch {row['batch']}: test accuracy {right:.1f}" in done.stdout
            assert right > 90 or row["batch"] > settings.QUICK.small
        assert list(tmp_path.iterdir()) == [out]

    def test_on_a_terminal_it_has_colours_unless_told_otherwise(self):
        seen, code = on_a_terminal("demo", "--quick")
        assert code == 0
        assert "\x1b[3" in seen
        seen, code = on_a_terminal("demo", "--quick", NO_COLOR="1")
        assert code == 0
        assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])[0-9;]*m", seen)

    def test_ctrl_c_leaves_the_cursor_visible(self, tmp_path):
        out = tmp_path / "report.json"
        seen, code = on_a_terminal("demo", "--out", str(out), interrupt_at=b"loss")
        assert code == 130
        assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
        assert "Traceback" not in seen
        assert not out.exists()

    @pytest.mark.heavy
    def test_every_optimizer_learns_the_digits(self):
        digits = data.load()
        for cell in cells.cells(settings.FULL):
            done = train.last(train.train(cell.contender, settings.FULL, cell.batch, cell.lr, digits.train, seed=0))
            cell.add(done, digits.test)
            assert cell.mean >= (95 if cell.batch == settings.FULL.small else 88), cell


class TestNetwork:
    def test_gradient_against_differences(self):
        rng = np.random.default_rng(0)
        w = {name: a.astype(np.float64) for name, a in network.new_weights(rng).items()}
        x, y = rng.standard_normal((7, network.INPUTS)), rng.integers(network.CLASSES, size=7)
        _, gradients = network.loss_and_gradients(w, x, y)
        for name, a in w.items():
            direction = rng.standard_normal(a.shape)
            ahead = network.mean_loss({**w, name: a + 1e-6 * direction}, x, y)
            behind = network.mean_loss({**w, name: a - 1e-6 * direction}, x, y)
            assert (gradients[name] * direction).sum() == pytest.approx((ahead - behind) / 2e-6, rel=1e-6)

    def test_number_of_parameters(self):
        assert sum(a.size for a in network.new_weights(np.random.default_rng(0)).values()) == network.PARAMETERS


class TestTraining:
    def test_schedule(self):
        lr = train.schedule(1.0, steps=10, warmup=2)
        assert [lr(step) for step in range(10)] == pytest.approx([1 / 2, *(k / 9 for k in range(9, 0, -1))])

    def test_the_split_has_no_image_twice(self):
        digits = data.load()
        rows = np.concatenate([split.x for split in digits])
        assert len(rows) == 1797
        assert len(digits.train.y) == data.TRAIN
        assert len(digits.test.y) == data.TEST

    @pytest.mark.parametrize(
        ("opt", "expected"),
        [
            (Lars(1e-3), 4 * network.PARAMETERS),
            (Lamb(1e-3), 8 * network.PARAMETERS),
            # Rows and columns of the matrices, all of the biases.
            (Adafactor(1e-3), 4 * (64 + 128 + 128 + 128 + 10 + 10)),
        ],
    )
    def test_state_bytes(self, opt, expected):
        weights = network.new_weights(np.random.default_rng(0))
        opt.step_all(weights, {name: np.ones_like(a) for name, a in weights.items()})
        assert train.state_bytes(opt, weights) == expected

    def test_a_run_that_diverges_is_reported_as_such(self, tmp_path):
        digits = data.load()
        cell = next(cells.cells(settings.QUICK))
        run = train.train(cell.contender, settings.QUICK, cell.batch, 1e30, digits.train, seed=0)
        cell.add(train.last(run), digits.test)
        assert cell.mean is None
        assert cell.diverged == 1
        others = [other for other in cells.cells(settings.QUICK) if other.contender != cell.contender]
        for other in others:
            other.accuracies, other.seconds = [90.0], [1.0]
        large = cells.Cell(cell.contender, 1024, 1.0, 10, accuracies=[90.0], seconds=[1.0])
        table = [cell, large, *others]
        assert "SGD, momentum: a run diverged" in report.paragraphs(settings.QUICK, table)[0]
        assert json.loads(report.as_json(settings.QUICK, range(1), table))["cells"][0]["test_accuracy"] == []
