"""What all commands have in common."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.program import COMMAND, PLAIN, here, run

import layerwise
from layerwise import files as beside
from layerwise.cli import app, files
from layerwise.cli.demo import place


def completing(words):
    """Return the variables with which a shell asks how the last of these words may go on."""
    return {"_LAYERWISE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}


class TestCommands:
    def test_version(self):
        assert run("--version").stdout == f"{layerwise.__version__}\n"

    def test_help_names_the_commands(self, capsys):
        out = here(capsys, "--help").out
        assert "demo" in out
        assert "presets" in out

    @pytest.mark.parametrize("seed", [-1, app.LARGEST_SEED + 1])
    def test_a_seed_that_torch_does_not_take_is_named(self, seed, capsys):
        assert "--seed" in here(capsys, "demo", "--seed", str(seed), code=2).err

    def test_a_file_that_cannot_be_written_is_one_line_before_the_work(self, tmp_path):
        (tmp_path / "file").touch()
        done = run("demo", "--out", str(tmp_path / "file" / "report.html"), code=2)
        assert done.stdout == ""
        assert re.fullmatch(r"layerwise: cannot write .*file is not a folder\n", done.stderr)

    @pytest.mark.parametrize(
        ("command", "package", "extra"),
        [
            ("bench", "typer", "cli,torch"),
            ("bench", "torch", "cli,torch"),
            ("recommend", "rich", "cli"),
            ("presets", "typer", "cli"),
        ],
    )
    def test_without_its_packages_it_says_what_to_install(self, command, package, extra):
        program = f"import sys; sys.modules[{package!r}] = None; import layerwise.cli; layerwise.cli.main()"
        done = subprocess.run([sys.executable, "-c", program, command], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == f"layerwise {command} needs {package}: pip install 'layerwise[{extra}]'\n"

    def test_other_missing_modules_are_not_hidden(self):
        program = "import sys; sys.modules['numpy'] = None; import layerwise.cli; layerwise.cli.main()"
        done = subprocess.run([sys.executable, "-c", program, "demo"], capture_output=True, text=True)
        assert "ModuleNotFoundError" in done.stderr

    @pytest.mark.parametrize("command", ["bench", "demo", "info", "presets", "recommend"])
    def test_help_fits_a_screen(self, command, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        assert app.run([command, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80

    def test_without_arguments_it_is_the_help(self, capsys):
        assert run().stdout == here(capsys, "--help").out

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("bnech",), "layerwise: no such command 'bnech'. Did you mean 'bench'?"),
            (("--versoin",), "layerwise: no such option: --versoin. Did you mean --version?"),
            (("demo", "--quik"), "no such option: --quik. Did you mean --quick?"),
            (("recommend", "lamb"), "missing argument 'batch'."),
            (("recommend", "lamb", "many"), "invalid value for 'batch'"),
            (("presets", "one", "two"), "invalid value for 'name': there is no preset"),
            (("info", "--jsn"), "no such option: --jsn. Did you mean --json?"),
            (
                ("demo", "--act", "4"),
                "invalid value for '--act': it must be an integer from 1 to 3, but ",
            ),
            (
                ("demo", "--act", "x"),
                "invalid value for '--act': it must be an integer from 1 to 3, but ",
            ),
            (
                ("demo", "--threads", "-1"),
                "invalid value for '--threads': it must be an integer ≥ 1, but",
            ),
            (
                ("bench", "--memory", "-1.5"),
                "invalid value for '--memory': it must be a finite number ≥",
            ),
            (
                ("recommend", "lamb", "-5"),
                "invalid value for 'batch': it must be an integer ≥ 1, but",
            ),
            (
                ("recommend", "lamb", "1e4"),
                "invalid value for 'batch': it must be an integer ≥ 1, but",
            ),
        ],
    )
    def test_what_was_typed_wrongly_is_one_line(self, arguments, said, capsys):
        assert app.run(arguments) == 2
        done = capsys.readouterr()
        assert done.out == ""
        assert done.err.lower().removeprefix(f"layerwise {arguments[0]}: ").startswith(said.lower())
        assert done.err.count("\n") == 1
        assert done.err.endswith("--help'.\n")

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("layerwise bench --optimizer la", {"lamb"}),
            ("layerwise bench ti", {"tiny-1000"}),
            ("layerwise presets apex.", {"apex.FusedLAMB", "apex.LARC"}),
            ("layerwise recommend lars 8192 --like nu", {"nus-resnet"}),
        ],
    )
    def test_completion(self, words, expected, capsys, monkeypatch):
        for name, value in completing(words).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            app.run([])
        assert set(capsys.readouterr().out.split()) & expected == expected

    def test_shells_ask_the_program(self):
        assert run(**completing("layerwise be")).stdout.split() == ["bench"]

    @pytest.mark.parametrize("arguments", [("recommend", "lars", "8192"), ("presets", "apex.FusedLAMB")])
    def test_characters_that_the_output_lacks_are_question_marks(self, arguments, capsys):
        usual = here(capsys, *arguments).out
        assert not usual.isascii()
        expected = usual.encode("ascii", "replace").decode()
        assert run(*arguments, PYTHONIOENCODING="ascii").stdout == expected

    def test_an_output_that_is_no_file_or_missing_is_let_be(self):
        program = (
            "import contextlib, io, sys; import layerwise.cli; sys.argv[1:] = ['--version']; sys.stderr = None\n"
            "with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
            "    layerwise.cli.main()\n"
            "print(out.getvalue(), end='')"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=PLAIN)
        assert done.stdout == f"{layerwise.__version__}\n"

    def test_a_closed_pipe_is_silent(self):
        with subprocess.Popen([*COMMAND, "presets"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=PLAIN) as done:
            done.stdout.close()
            assert done.stderr.read() == b""
        assert done.returncode == 1

    @pytest.mark.parametrize("command", ["presets", "info"])
    def test_a_full_disk_is_one_line(self, command):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([*COMMAND, command], stdout=full, stderr=subprocess.PIPE, text=True, env=PLAIN)
        assert done.returncode == 1
        assert done.stderr == "layerwise: cannot write the output: No space left on device\n"


def shown_in_docs():
    """Return the commands of docs/cli.md and what it says they print, where that depends on no machine."""
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    for block in re.findall(r"^```text\n(\$ .*?)^```", text, re.DOTALL | re.MULTILINE):
        for command, printed in re.findall(r"^\$ layerwise ([^\n]*)\n(.*?)(?=^\$|\Z)", block, re.DOTALL | re.MULTILINE):
            if not command.startswith("info"):
                yield pytest.param(command, printed, id=command)


@pytest.mark.parametrize(("command", "printed"), list(shown_in_docs()))
def test_the_page_shows_what_is_printed(command, printed, capsys):
    app.run(command.split())
    done = capsys.readouterr()
    assert (done.out + done.err).rstrip() == printed.rstrip()


class TestFiles:
    def test_a_file_is_whole_or_as_it_was(self, tmp_path, monkeypatch):
        path = tmp_path / "report"
        path.write_text("before")
        path.chmod(0o640)
        files.write_text(path, "after")
        assert (path.read_text(), path.stat().st_mode & 0o777) == ("after", 0o640)
        monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(files.CannotWrite, match="No space left"):
            files.write_text(path, "lost")
        assert path.read_text() == "after"
        assert list(tmp_path.iterdir()) == [path]

    def test_folders_are_made(self, tmp_path):
        path = tmp_path / "new" / "er" / "rows.csv"
        files.check_writable(path)
        assert not (tmp_path / "new").exists()
        files.write_text(path, "text")
        assert path.read_text() == "text"
        with pytest.raises(files.CannotWrite, match="it is the name of a folder"):
            files.as_file("new/")
        with pytest.raises(files.CannotWrite, match=r"rows\.csv is not a folder"):
            files.check_writable(path / "beside")

    @pytest.mark.parametrize(
        "name", ["a\0.html", "x" * 300 + ".html", "circle.html", "\x1b[31m\n/file/r.html"], ids=repr
    )
    def test_a_path_that_no_file_can_have_is_one_line(self, name, tmp_path):
        (tmp_path / "circle.html").symlink_to("circle.html")
        (tmp_path / "\x1b[31m\n").mkdir()
        (tmp_path / "\x1b[31m\n" / "file").touch()
        path = tmp_path / name
        for refused in (place.report_path, files.check_writable, lambda path: files.write_text(path, "text")):
            with pytest.raises(files.CannotWrite) as found:
                refused(path)
            assert str(found.value).isprintable()

    def test_the_longest_name_can_be_written(self, tmp_path):
        path = place.report_path(tmp_path / ("x" * 250 + ".html"))
        files.write_text(path, "text")
        assert path.read_text() == "text"

    def test_no_file_that_was_put_there_before_is_written_to(self, tmp_path, monkeypatch):
        """Not through links either, by whatever name: it need not be guessed."""
        monkeypatch.setattr(beside, "token_hex", lambda n: "known")
        (tmp_path / "precious").write_text("as it was")
        (tmp_path / ".layerwise-known").symlink_to("precious")
        for write in (place.report_path, lambda path: files.write_text(path, "text")):
            with pytest.raises(files.CannotWrite, match="File exists"):
                write(tmp_path / "report.html")
        assert (tmp_path / "precious").read_text() == "as it was"
        assert {path.name for path in tmp_path.iterdir()} == {"precious", ".layerwise-known"}

    def test_a_file_is_closed_before_it_is_moved(self, tmp_path, monkeypatch):
        """As Windows wants it; and permissions that cannot be copied lose no text."""
        opened, moved = [], []
        make, move = Path.open, Path.replace
        monkeypatch.setattr(Path, "open", lambda *args, **more: opened.append(make(*args, **more)) or opened[-1])
        monkeypatch.setattr(Path, "replace", lambda *args: moved.append(opened[-1].closed) or move(*args))
        monkeypatch.setattr(beside.shutil, "copymode", lambda *_: (_ for _ in ()).throw(PermissionError))
        beside.replace_text(tmp_path / "report", "text")
        assert moved == [True]
        assert (tmp_path / "report").read_bytes() == b"text"

    def test_a_link_stays_one(self, tmp_path):
        (tmp_path / "link").symlink_to(tmp_path / "report")
        files.write_text(tmp_path / "link", "text")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "report").read_text() == "text"
