"""`layerwise info` answers where packages, devices or settings are broken, and its report shows nothing private."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from cli.program import PLAIN

import layerwise
from layerwise import cli
from layerwise.cli import app, info


def test_it_imports_no_framework_and_needs_none():
    program = (
        "import sys; sys.modules |= dict.fromkeys(['typer', 'rich']); sys.argv[1:] = ['info']\n"
        "import layerwise.cli\n"
        "try: layerwise.cli.main()\n"
        "finally: print(sorted({'torch', 'jax', 'optax', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=PLAIN)
    assert done.stdout.startswith(f"layerwise {layerwise.__version__}, Python ")
    assert done.stdout.endswith("[]\n")
    assert done.stderr == ""


def test_json_says_what_the_lines_say(capsys):
    """With the command line's packages and without them."""
    for run in (cli._guarded, app.run):
        assert run(["info", "--json"]) == 0
        written = json.loads(capsys.readouterr().out)
        assert written == info.facts()
        assert written["packages"].keys() == set(info.PACKAGES)
        assert run(["info"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said == list(info.lines(written))
        assert max(map(len, said)) <= 120


def test_the_advice_is_for_this_machine():
    def said(packages=("torch",), concerns=False, compiled=True):
        engines = {"gpu": {"concerns": concerns}, "compiled": {"available": compiled}}
        return info.advice(
            {"packages": {name: "1" if name in packages else None for name in info.PACKAGES}, "engines": engines}
        )

    begins = ("only NumPy", "run `layerwise info --devices`", "install with a C++20 compiler", "nothing to set up")
    ways = said(packages=()), said(concerns=True, compiled=False), said(compiled=False), said(packages=("jax",))
    assert [way.startswith(begin) for way, begin in zip(ways, begins, strict=True)] == [True] * 4


def fake_torch(devices):
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: devices,
        get_device_name=lambda i: f"Some GPU {i}",
        get_device_properties=lambda i: SimpleNamespace(total_memory=80 * 2**30),
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None, cuda="12.8"))


class Jax:
    @staticmethod
    def devices():
        raise RuntimeError("no backend")


def test_devices_never_fail(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", Jax)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(2))
    found = info.facts(devices=True)
    assert found["devices"]["torch"] == ["CUDA 12.8: 0 Some GPU 0, 80 GiB", "CUDA 12.8: 1 Some GPU 1, 80 GiB"]
    assert found["devices"]["jax"] == "unknown (RuntimeError: no backend)"
    assert "            jax: unknown (RuntimeError: no backend)" in list(info.lines(found))
    monkeypatch.setattr(info, "_others", Jax.devices)  # of one argument
    assert info._said(info._torch_devices).startswith("unknown (TypeError: ")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert info.facts(devices=True)["devices"]["torch"] == "not installed"


@pytest.mark.parametrize("variable", ["LAYERWISE_NUM_THREADS", "LAYERWISE_ISA"])
def test_a_wrong_variable_is_one_line(variable):
    program = [sys.executable, "-m", "layerwise", "info"]
    done = subprocess.run(program, capture_output=True, text=True, env={**PLAIN, variable: "many"})
    assert done.returncode == 2
    assert done.stderr.replace("`", "").startswith(f"layerwise: {variable} must be ")
    assert done.stderr.count("\n") == 1


def test_a_report_is_a_block_of_the_same_lines_without_anything_private(monkeypatch, capsys):
    def failing():
        raise OSError("/home/ada/jax/x.so: no")

    monkeypatch.setattr(info, "_torch_devices", lambda: ["CUDA 12.8: 0 Some GPU, 80 GiB"])
    monkeypatch.setattr(info, "_jax_devices", failing)
    monkeypatch.setattr(info, "kernel_verdicts", dict)
    for name, value in {
        "HOME": "/home/ada",
        "USERPROFILE": "/home/ada",
        "LAYERWISE_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_dump_to=/home/ada/dump",
        "SECRET_TOKEN": "hidden",
        "CUDA_VISIBLE_DEVICES": "0\n``` forged\r\x1b[31m\u2028x",
    }.items():
        monkeypatch.setenv(name, value)
    info.show(report=True)
    first, *rows, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("```text", "```")
    assert rows[0] == next(info.lines(info.facts()))
    assert "            torch: CUDA 12.8: 0 Some GPU, 80 GiB" in rows
    assert "            jax: unknown (OSError: ~/jax/x.so: no)" in rows
    assert rows[-1].startswith("environment LAYERWISE_NUM_THREADS=1, ")
    assert "XLA_FLAGS=--xla_dump_to=~/dump" in rows[-1]
    assert all(row.isprintable() for row in rows)
    assert not any(word in row for row in rows for word in ("/ada", "hidden"))


def test_one_is_not_many_and_a_variable_has_its_value(monkeypatch):
    assert [info._many(n, "processor") for n in (1, 2)] == ["1 processor", "2 processors"]
    monkeypatch.setenv("LAYERWISE_NUM_THREADS", "2")
    assert any(line.endswith(", LAYERWISE_NUM_THREADS=2") for line in info.lines(info.facts())) or not info.extension()
