"""`layerwise presets`."""

from __future__ import annotations

import re

import pytest
from cli.program import here

import layerwise
import layerwise.numpy
from layerwise.catalog.registry import ENTRIES


def test_they_are_one_line_each(capsys):
    *listed, example = here(capsys, "presets").out.splitlines()
    assert listed == [str(preset) for preset in layerwise.presets()]
    assert example.startswith("Use one as Lamb.like(")


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
        assert last == f"{optimizer} has no presets: its defaults are those of its paper."


@pytest.mark.parametrize("preset", layerwise.presets(), ids=lambda preset: preset.name)
def test_one_of_them_is_described_with_its_options(preset, capsys):
    described, call = here(capsys, "presets", preset.name.upper()).out.splitlines()
    assert described == str(preset)
    assert call.startswith(f"{preset.optimizer}(")
    assert all(f"{name}={value!r}" in call for name, value in preset.options.items())
    assert ("lr=…" in call) == ("lr" not in preset.options)
