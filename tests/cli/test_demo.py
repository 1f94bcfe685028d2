"""`layerwise demo`, run as its users run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.program import COMMAND, PLAIN, on_a_terminal

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.mark.slow
def test_quick_in_a_pipe(tmp_path):
    arguments = ("demo", "--quick", "--out", str(tmp_path), "--threads", "2")
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=PLAIN)
    assert done.returncode == 0
    assert done.stderr == ""
    assert not re.search("[\x1b\r]", done.stdout)
    (report,) = tmp_path.iterdir()
    written = json.loads(re.search(r'id="figures">\n(.*)\n</script>', report.read_text()).group(1))
    for act in written["acts"]:
        for case in act["cases"]:
            (trained,) = case["runs"]
            figure = f"{trained['accuracy']:.1f} %" if act["metric"] == "accuracy" else f"{trained['loss']:.3f}"
            assert f"{case['name']}, batch {case['batch']:,}, seed 0: {act['metric']} {figure}" in done.stdout
            assert len(trained["losses"]) == len(trained["ratios"]) >= min(case["steps"], 60)
            assert bool(trained["ratios"][-1][1]) == case["optimizer"].startswith("layerwise")
            assert trained["loss"] < 4.8  # of guessing among all symbols
    acts = re.findall(r"^ *\d+ of 17  act (\d)", done.stdout, re.MULTILINE)
    assert len(acts) == 17
    assert sorted(acts[:8]) == ["1"] * 8  # the last of an act may end beside the first of the next
    for part in ("Act 1: digits", "Act 2: text", "Act 3: text", "no conclusion is drawn", "2102.06356"):
        assert part in done.stdout
    assert done.stdout.endswith(f"Report: {report}\n")


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_leaves_it_clean_and_a_partial_report(tmp_path):
    arguments = ("demo", "--act", "1", "--out", str(tmp_path))
    seen, code = on_a_terminal(*arguments, interrupt_at=b"loss", NO_COLOR="1")
    assert code == 130
    assert seen.count("\x1b[?1049h") == seen.count("\x1b[?1049l") == 1  # the second screen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")  # the cursor
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])[0-9;]*m", seen)
    assert "Traceback" not in seen
    assert "Interrupted." in ANSI.sub("", seen)
    assert [path.name for path in tmp_path.iterdir()] == ["layerwise-demo.html"]


def into(stdout, folder):
    return subprocess.run([*COMMAND, "demo"], stdout=stdout, stderr=subprocess.PIPE, text=True, env=PLAIN, cwd=folder)


def test_whoever_has_read_enough_may_leave(tmp_path):
    reads, writes = os.pipe()
    os.close(reads)
    done = into(writes, tmp_path)
    os.close(writes)
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
def test_a_disk_that_is_full(tmp_path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "demo"], stdout=full, stderr=subprocess.PIPE, text=True, env=PLAIN, cwd=tmp_path
        )
    assert done.returncode == 1
    assert done.stderr == "layerwise: cannot write to the output: No space left on device\n"


@pytest.mark.parametrize("package", ["matplotlib", "sklearn", "torch", "rich", "typer"])
def test_without_its_packages_it_says_what_to_install(package):
    program = f"import sys; sys.modules[{package!r}] = None; import layerwise.cli; layerwise.cli.main()"
    done = subprocess.run([sys.executable, "-c", program, "demo"], capture_output=True, text=True, env=PLAIN)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"layerwise demo needs {package}: pip install 'layerwise[demo]'\n"
