"""The example of Lightning's command line: its optimizer is the one that the YAML file names, and it trains."""

import runpy
import sys
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
pytest.importorskip("jsonargparse")
pytest.importorskip("lightning")

from layerwise.torch import Adafactor, Lamb, Lars  # noqa: E402

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FEW = ["fit", "--config", str(EXAMPLES / "lightning_cli.yaml")]


def ran(monkeypatch, tmp_path, *arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lightning_cli.py", *FEW, *arguments])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return runpy.run_path(str(EXAMPLES / "lightning_cli.py"))["main"]()


def test_the_file_as_it_is(monkeypatch, tmp_path):
    cli = ran(monkeypatch, tmp_path)
    [optimizer] = cli.trainer.optimizers
    assert type(optimizer) is Lamb
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.99)
    assert optimizer.get_lr() < 0.05 * 0.05  # at the end of the schedule
    assert float(cli.trainer.callback_metrics["loss"]) < 0.9


@pytest.mark.parametrize(
    ("front", "options"),
    [(Lars, {"lr": 5.0, "trust_clip": [None, 1.0]}), (Adafactor, {"lr": 0.02, "factored": "largest"})],
)
def test_another_optimizer_by_one_word(monkeypatch, tmp_path, front, options):
    given = [x for name, value in options.items() for x in (f"--optimizer.{name}", str(value).replace("None", "null"))]
    cli = ran(monkeypatch, tmp_path, "--optimizer", f"layerwise.torch.{front.__name__}", *given)
    [optimizer] = cli.trainer.optimizers
    assert type(optimizer) is front
    wanted = {**options, **({"trust_clip": (None, 1.0)} if front is Lars else {})}
    assert {name: optimizer.param_groups[0][name] for name in wanted if name != "lr"} == {
        name: value for name, value in wanted.items() if name != "lr"
    }
