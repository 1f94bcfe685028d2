"""What all commands have in common."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from cli.program import on_a_terminal, run

import layerwise


class TestCommands:
    def test_version(self):
        assert run("--version").stdout == f"{layerwise.__version__}\n"

    def test_help_names_the_commands(self):
        out = run("--help").stdout
        assert "demo" in out
        assert "presets" in out

    def test_presets_in_a_pipe_are_one_line_each(self):
        assert run("presets").stdout.splitlines() == [str(preset) for preset in layerwise.presets()]

    def test_presets_on_a_terminal(self):
        seen, code = on_a_terminal("presets", COLUMNS="200")
        assert code == 0
        for preset in layerwise.presets():
            assert preset.name in seen

    def test_a_wrong_option_is_no_traceback(self):
        done = run("demo", "--seed", "-1", code=2)
        assert "--seed" in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(("path", "why"), [("missing/report.json", "there is no folder"), (".", "it is a folder")])
    def test_a_file_that_cannot_be_written_is_one_line_before_the_work(self, tmp_path, path, why):
        done = run("demo", "--out", str(tmp_path / path), code=2)
        assert done.stdout == ""
        assert re.fullmatch(rf"layerwise: cannot write .*{why}.*\n", done.stderr)

    @pytest.mark.parametrize("package", ["typer", "rich", "sklearn"])
    def test_without_its_packages_it_says_what_to_install(self, package):
        program = f"import sys; sys.modules[{package!r}] = None; import layerwise.cli; layerwise.cli.main()"
        done = subprocess.run([sys.executable, "-c", program, "demo"], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == f"the command line needs {package}: pip install 'layerwise[demo]'\n"

    def test_other_missing_modules_are_not_hidden(self):
        program = "import sys; sys.modules['numpy'] = None; import layerwise.cli; layerwise.cli.main()"
        done = subprocess.run([sys.executable, "-c", program, "demo"], capture_output=True, text=True)
        assert "ModuleNotFoundError" in done.stderr
