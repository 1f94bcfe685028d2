"""examples/train_gpt_muon.py runs as it says, and a run goes on from 4 processes to 3."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sharding.ranks import ENVIRONMENT

PATH = Path(__file__).parents[2] / "examples" / "train_gpt_muon.py"


def module() -> Any:
    spec = spec_from_file_location("train_gpt_muon", PATH)
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def _said(*given: str) -> str:
    """What it prints of a smaller model, where a process group is already there."""
    example, out = module(), StringIO()
    example.CONTEXT, example.WIDTH, example.LAYERS = 16, 32, 1
    with redirect_stdout(out):
        example.work(example.arguments(given))
    return out.getvalue()


def losses(said: str) -> dict[str, float]:
    """By step, and of the text that is held out."""
    return {words: float(loss) for words, loss in re.findall(r"(step +\d+|held out):? +loss ([\d.]+)", said)}


def test_a_run_goes_on_from_4_processes_to_3(ranks, tmp_path):
    folder, batch = str(tmp_path / "there"), ("--batch", "12")
    whole = ranks.run(4, _said, *batch, "--steps", "6")
    ranks.run(4, _said, *batch, "--steps", "3", "--save", folder)
    resumed = ranks.run(3, _said, *batch, "--steps", "6", "--resume", folder)
    assert whole[1] == resumed[1] == ""
    assert losses(resumed[0]) == pytest.approx(losses(whole[0]), abs=1e-5)
    assert [*losses(whole[0])] == ["step    6", "held out"]


@pytest.mark.slow
def test_the_command_runs_as_its_first_lines_say():
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    command = [sys.executable, *torchrun, str(PATH), "--steps", "50"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    found = losses(done.stdout)
    assert found["step   50"] < found["step   25"] < 4


def test_a_batch_that_processes_cannot_share_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        module().arguments(["--batch", "3"])
    assert "--batch must be a multiple of the 2 processes, but is 3" in capsys.readouterr().err
