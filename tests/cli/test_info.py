"""`layerwise info`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cli.program import here, run

import layerwise
from layerwise.cli import info


def test_it_imports_no_framework_and_needs_none():
    program = (
        "import sys; sys.modules |= dict.fromkeys(['typer', 'rich']); sys.argv[1:] = ['info']\n"
        "import layerwise.cli\n"
        "try: layerwise.cli.main()\n"
        "finally: print(sorted({'torch', 'jax', 'optax', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith(f"layerwise {layerwise.__version__}, Python ")
    assert done.stdout.endswith("[]\n")
    assert done.stderr == ""


def test_json_says_what_the_lines_say():
    written = json.loads(run("info", "--json").stdout)
    assert written == info.facts()
    assert written["packages"].keys() == set(info.PACKAGES)
    said = run("info").stdout.splitlines()
    assert said == list(info.lines(written))
    assert max(map(len, said)) <= 120


def test_help_is_that_of_the_other_commands(capsys):
    out = here(capsys, "info", "--help").out
    assert "--devices" in out
    assert "--json" in out


class Jax:
    @staticmethod
    def devices():
        raise RuntimeError("no backend")


class Properties:
    total_memory = 80 * 2**30


class Torch:
    class version:  # noqa: N801
        hip = None

    class cuda:  # noqa: N801
        is_available = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 2)
        get_device_name = staticmethod(lambda i: f"Some GPU {i}")
        get_device_properties = staticmethod(lambda i: Properties)


def test_devices_never_fail(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", Jax)
    monkeypatch.setitem(sys.modules, "torch", Torch)
    found = info.facts(devices=True)
    assert found["devices"]["torch"] == ["CUDA 0 Some GPU 0, 80 GiB", "CUDA 1 Some GPU 1, 80 GiB"]
    assert found["devices"]["jax"] == "cannot say (RuntimeError: no backend)"
    assert "           jax: cannot say (RuntimeError: no backend)" in list(info.lines(found))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert info.facts(devices=True)["devices"]["torch"] == "not installed"


@pytest.mark.parametrize("variable", ["LAYERWISE_NUM_THREADS", "LAYERWISE_ISA"])
def test_a_wrong_variable_is_one_line(variable):
    done = run("info", code=2, **{variable: "many"})
    assert done.stderr.startswith(f"layerwise: {variable} must be ")
    assert done.stderr.count("\n") == 1
