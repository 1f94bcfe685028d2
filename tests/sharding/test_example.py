"""The example trains, stops and goes on, and says what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sharding.ranks import ENVIRONMENT

PATH = Path(__file__).parents[2] / "examples" / "train_fsdp.py"
STEPS = 4


def module() -> Any:
    spec = spec_from_file_location("train_fsdp", PATH)
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def _said(*given: str) -> str:
    """What it prints, wherever it does, where a process group is already there."""
    example, out = module(), StringIO()
    parser = example.Parser()
    with redirect_stdout(out), redirect_stderr(out), suppress(SystemExit):  # which would end the rank
        example.work(parser, example.arguments(parser, given))
    return out.getvalue()


def losses(said: str) -> dict[int, float]:
    """By step."""
    lines = [line.split() for line in said.splitlines() if line.startswith("step ")]
    return {int(step): float(loss) for _, step, _, loss in lines}


def arguments(steps: int, *more: Any) -> Sequence[str]:
    return ["--steps", str(steps), "--batch", "12", *map(str, more)]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["lamb", pytest.param("adafactor", marks=pytest.mark.repeats)])
def test_a_run_that_is_resumed_is_the_uninterrupted_one(ranks, optimizer, tmp_path):
    chosen = "--optimizer", optimizer
    whole = ranks.run(2, _said, *arguments(STEPS, *chosen))
    first = ranks.run(2, _said, *arguments(STEPS // 2, *chosen, "--save", tmp_path / "there"))
    again = arguments(STEPS, *chosen, "--resume", tmp_path / "there")
    second = ranks.run(2, _said, *again)
    assert whole[1] == first[1] == second[1] == ""
    wanted = losses(whole[0])
    assert len(wanted) == STEPS
    assert losses(first[0]) | losses(second[0]) == wanted
    assert whole[0].splitlines()[-1].startswith("it says: seven plus five is ")
    assert second[0].splitlines()[-1] == whole[0].splitlines()[-1]
    on_more = losses(ranks.run(4, _said, *again)[0])
    assert on_more == pytest.approx({step: wanted[step] for step in on_more}, abs=1e-5)


@pytest.mark.slow
def test_the_command_runs_as_its_first_lines_say():
    """And as it is without torchrun."""
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    found = []
    for started_by in (torchrun, ()):
        command = [sys.executable, *started_by, str(PATH), *arguments(2)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        found.append(losses(done.stdout))
    assert list(found[0]) == [1, 2]
    assert found[1] == pytest.approx(found[0], abs=1e-5)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--steps", "0"], "--steps must be at least 1, but is 0"),
        (["--batch", "0"], "--batch must be a multiple of the 1 processes, but is 0"),
        (["--optimizer", "adam"], "invalid choice: 'adam'"),
        (["--resume", "nowhere"], "--resume: there is no checkpoint in nowhere"),
        (["--save", __file__], "is not a folder"),
    ],
)
def test_wrong_arguments_are_named(given, sentence, capsys):
    with pytest.raises(SystemExit) as problem:
        module().main(given)
    assert problem.value.code == 2
    assert sentence in capsys.readouterr().err
