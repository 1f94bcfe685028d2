"""`layerwise presets`."""

from __future__ import annotations

import pytest
from cli.program import here, on_a_terminal, run

import layerwise


def test_in_a_pipe_they_are_one_line_each():
    assert run("presets").stdout.splitlines() == [str(preset) for preset in layerwise.presets()]


def test_on_a_terminal():
    seen, code = on_a_terminal("presets", COLUMNS="200")
    assert code == 0
    for preset in layerwise.presets():
        assert preset.name in seen


def test_those_of_an_optimizer(capsys):
    assert here(capsys, "presets", "lars").out.splitlines() == [
        str(preset) for preset in layerwise.presets() if preset.optimizer == "Lars"
    ]


@pytest.mark.parametrize("preset", layerwise.presets(), ids=lambda preset: preset.name)
def test_one_of_them(preset, capsys):
    described, call = here(capsys, "presets", preset.name.upper()).out.splitlines()
    assert described == str(preset)
    assert call.startswith(f"{preset.optimizer}(")
    for name, value in preset.options.items():
        assert f"{name}={value!r}" in call
    assert ("lr=…" in call) == ("lr" not in preset.options)


def test_one_that_is_not_there(capsys):
    said = here(capsys, "presets", "apex.fusedlam", code=2).err
    assert "Did you mean apex.FusedLAMB?" in said
    assert said.count("\n") == 1
