"""The example, run where a process group is already there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "examples" / "train_fsdp.py"


def module() -> Any:
    spec = spec_from_file_location("train_fsdp", PATH)
    assert spec is not None
    assert spec.loader is not None
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def said(*given: str) -> str:
    """What it prints, wherever it does."""
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
