"""`layerwise presets`."""

from __future__ import annotations

import io
import re

import pytest
from cli.program import here, on_a_terminal, run
from rich.console import Console

import layerwise
import layerwise.numpy
from layerwise.cli import presets
from layerwise.registry import ENTRIES


def test_in_a_pipe_they_are_one_line_each():
    *listed, example = run("presets").stdout.splitlines()
    assert listed == [str(preset) for preset in layerwise.presets()]
    assert example.startswith("Use one as Lamb.like(")


def test_on_a_terminal():
    seen, code = on_a_terminal("presets", COLUMNS="200")
    assert code == 0
    for preset in layerwise.presets():
        assert preset.name in seen


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


def test_on_a_narrow_terminal_they_are_a_list():
    console = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    presets.show_presets(console, layerwise.presets())
    *lines, example = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert "…" not in "".join(lines)
    assert example.startswith("Use one as")
    words = " ".join(" ".join(lines).split())
    assert all(preset.differs in words for preset in layerwise.presets())


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xyzzy", "There are Adafactor, AdamMini, AdamW, Came, Lamb, Lans and "),
        ("timm", "Did you mean timm.Lamb, timm.clamb, "),
    ],
)
def test_what_is_like_no_name_says_where_names_are(name, words, capsys):
    said = here(capsys, "presets", name, code=2).err
    assert words in said
    assert "'layerwise presets' lists all of them." in said
