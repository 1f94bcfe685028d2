"""The example trains, stops and goes on, and says what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sharding.ranks import ENVIRONMENT

from sharding import example

STEPS = 4


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["lamb", "adafactor"])
def test_resumed_is_uninterrupted(ranks, optimizer, tmp_path):
    chosen = "--optimizer", optimizer
    whole = ranks.run(2, example.said, *example.arguments(STEPS, *chosen))
    first = ranks.run(2, example.said, *example.arguments(STEPS // 2, *chosen, "--save", tmp_path / "there"))
    again = example.arguments(STEPS, *chosen, "--resume", tmp_path / "there")
    second = ranks.run(2, example.said, *again)
    assert whole[1] == first[1] == second[1] == ""
    wanted = example.losses(whole[0])
    assert len(wanted) == STEPS
    assert example.losses(first[0]) | example.losses(second[0]) == wanted
    assert whole[0].splitlines()[-1].startswith("it says: seven plus five is ")
    assert second[0].splitlines()[-1] == whole[0].splitlines()[-1]
    on_more = example.losses(ranks.run(4, example.said, *again)[0])
    assert on_more == pytest.approx({step: wanted[step] for step in on_more}, abs=1e-5)


@pytest.mark.slow
def test_the_command():
    """As its first lines say, and as it is without torchrun."""
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    found = []
    for started_by in (torchrun, ()):
        command = [sys.executable, *started_by, str(example.PATH), *example.arguments(2)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        found.append(example.losses(done.stdout))
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
def test_wrong_arguments(given, sentence, capsys):
    with pytest.raises(SystemExit) as problem:
        example.module().main(given)
    assert problem.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_checkpoint_of_another_run(ranks, tmp_path):
    ranks.run(1, example.said, *example.arguments(1, "--save", tmp_path))
    other = example.arguments(2, "--resume", tmp_path, "--optimizer", "lars")
    assert f"the checkpoint in {tmp_path} is of lamb" in ranks.run(1, example.said, *other)[0]
    no_more = example.arguments(1, "--resume", tmp_path)
    assert "--steps must be more than the 1 of the checkpoint" in ranks.run(1, example.said, *no_more)[0]
