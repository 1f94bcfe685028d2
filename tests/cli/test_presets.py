"""`layerwise presets`."""

from __future__ import annotations

import io
import re

import pytest
from cli.program import here, on_a_terminal
from rich.console import Console

import layerwise
import layerwise.numpy
from layerwise.cli import presets
from layerwise.registry import ENTRIES


def test_they_are_one_line_each_in_a_pipe_and_a_table_on_a_terminal(capsys):
    *listed, example = here(capsys, "presets").out.splitlines()
    assert listed == [str(preset) for preset in layerwise.presets()]
    assert example.startswith("Use one as Lamb.like(")
    seen, code = on_a_terminal("presets", COLUMNS="200")
    assert code == 0
    assert all(preset.name in seen for preset in layerwise.presets())


@pytest.mark.parametrize("optimizer", ENTRIES)
def test_those_of_an_optimizer_end_with_an_example_that_runs(optimizer, capsys):
    own = [str(preset) for preset in layerwise.presets() if preset.optimizer == optimizer]
    *listed, last = here(capsys, "presets", optimizer.lower()).out.splitlines()
    assert listed == own
    if own:
        (call,) = re.findall(rf"^Use one as {optimizer}\.(like\(.*, model\.parameters\(\).*\))\.$", last)
        front = getattr(layerwise.numpy, optimizer)
        made = eval(f"front.{call.replace(', model.parameters()', '')}", {"front": front})  # noqa: S307
        assert type(made) is front
    else:
        assert last == f"There are no presets of {optimizer}: its defaults are those of its paper."


@pytest.mark.parametrize("width", [40, 200])
def test_all_that_is_said_fits_any_terminal(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    presets.show_presets(console, layerwise.presets())
    *lines, example = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert example.startswith("Use one as")
    words = " ".join(" ".join(lines).split())
    assert width > 40 or all(preset.differs in words for preset in layerwise.presets())


@pytest.mark.parametrize("preset", layerwise.presets(), ids=lambda preset: preset.name)
def test_one_of_them_is_described_with_its_options(preset, capsys):
    described, call = here(capsys, "presets", preset.name.upper()).out.splitlines()
    assert described == str(preset)
    assert call.startswith(f"{preset.optimizer}(")
    assert all(f"{name}={value!r}" in call for name, value in preset.options.items())
    assert ("lr=…" in call) == ("lr" not in preset.options)
