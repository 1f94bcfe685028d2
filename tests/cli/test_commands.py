"""What all commands have in common: what was typed wrongly, is missing, cannot be written or is interrupted is one line
that says the way out, and no traceback.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.program import COMMAND, PLAIN, here, run

from layerwise import cli
from layerwise.catalog.registry import ENTRIES
from layerwise.cli import app
from layerwise.errors import LayerwiseError
from layerwise.recipes import recommend

FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


def test_help_names_the_commands_and_is_what_there_is_without_arguments(capsys):
    out = here(capsys, "--help").out
    assert all(f" {name} " in out for name in ("bench", "info", "memory", "presets", "recommend"))
    assert here(capsys).out == out


@pytest.mark.parametrize("command", ["bench", "info", "memory", "presets", "recommend"])
def test_help_fits_a_screen(command, capsys):
    lines = here(capsys, command, "--help", COLUMNS="80").out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


MODEL = """
import torch
def make_model(): return torch.nn.Linear(2, 2)
def needs(n): return torch.nn.Linear(n, n)
def raises(): raise ValueError("no such\\nfile")
def exits(): raise SystemExit("usage: mymodel")
def number(): return 3
def empty(): return torch.nn.ReLU()
def lazy(): return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LazyLinear(2))
def on_meta(): return torch.nn.Linear(2, 2, device="meta")
value = 7
"""

MISTAKES = {
    "": [
        ("b\x1b[31mnech", "no such command 'b\\x1b[31mnech'"),
        ("bnech", "no such command 'bnech'. Did you mean 'bench'? See 'layerwise --help'."),
        ("--versoin", "no such option: --versoin. Did you mean --version? See 'layerwise --help'."),
    ],
    "info": [("--jsn", "no such option: --jsn. Did you mean --json? See 'layerwise info --help'.")],
    "presets": [
        ("one two", "invalid value for 'name': 'one' is not a known preset"),
        ("apex.fusedlam", "'apex.fusedlam' is not a known preset or optimizer. Did you mean apex.FusedLAMB?"),
        ("xyzzy", "Known are Adafactor, AdamMini, AdamW, Came, Fromage, Lamb and "),
        ("xyzzy", "'layerwise presets' lists all of them."),
        ("timm", "Did you mean timm.Lamb, timm.clamb, "),
    ],
    "recommend": [
        ("lamb", "missing argument 'batch'."),
        ("lamb many", "invalid value for 'batch'"),
        ("lamb -5", "no such option: -5."),
        ("lamb 1e4", "invalid value for 'batch': it must be an integer ≥ 1, but is 1e4."),
        ("lamb 0", "invalid value for 'batch': it must be an integer ≥ 1, but is 0"),
        ("signum 1024", "invalid value for 'optimizer': 'signum' is not a known optimizer"),
        ("lamb 4096 --total-samples 100", "--total-samples must be at least 40,960, 10 steps of batch"),
        ("lamb 1024 --reference-lr 0.1", "--reference-lr needs the batch that it was tuned at. Pass --reference-batch"),
        (
            "lamb 1024 --adamw-lr 0.1",
            "--adamw-lr needs the batch that it was tuned at. Pass --reference-batch, such as",
        ),
        ("lamb 1024 --reference-batch 9", "--reference-batch needs a rate that was tuned at that batch. Add --refere"),
        ("lamb 1024 --reference-lr -1 --reference-batch 9", "'--reference-lr': it must be a finite number > 0"),
        ("lamb 1024 --adamw-lr -1 --reference-batch 9", "'--adamw-lr': it must be a finite number > 0, but is -1."),
        ("lamb 1024 --reference-warmup 1", "'--reference-warmup': it must be a number in [0, 1), but is 1."),
        ("lamb 1024 --reference-warmup 0.1", "--reference-warmup belongs to a run of yours. Pass its --reference-b"),
        ("adafactor 1024", "no settings of Adafactor by batch size are published"),
        ("lamb 1024 --like bert", "invalid value for '--like': 'bert' is not a known published series"),
        ("lamb 1024 --like nus-resnet", "--like must be 'mlperf-bert' or 'nvidia-bert' or"),
    ],
    "memory": [
        ("qwen3-8", "no published model is named 'qwen3-8'. Did you mean qwen3-8b? Pass package.module:callable"),
        ("xyzzy", "Known are qwen3-1.7b, qwen3-8b, "),
        ("nonesuch:f", "nonesuch:f: no module 'nonesuch' is in this folder or installed. Pass package.module:callable"),
        ("mymodel:raises", "mymodel:raises failed: ValueError: no such file. Set LAYERWISE_TRACEBACK=1 to see where."),
        ("mymodel:number", "must return a torch.nn.Module, but returned an int."),
        ("mymodel:empty", "no parameter of the model requires grad"),
        ("mymodel:lazy", "1.weight has no shape yet."),
        ("mymodel:make_model --optimizer signum", "'signum' is not a known optimizer"),
        ("mymodel:make_model --state-dtype int4", "'int4' is not a known dtype of state."),
        ("mymodel:make_model --option bta=1", "'bta' is not a known option of Lamb. Did you mean betas?"),
        ("mymodel:make_model --option betas", "--option must be name=value, but is 'betas'."),
        ("mymodel:make_model --option betas=3", "`betas` must be two values, each a number in"),
        ("mymodel:make_model --devices 0", "it must be an integer ≥ 1, but is 0"),
    ],
    "bench": [
        ("--optimizer lamb", "missing argument 'model'."),
        (
            "mymodel:make_model --optimizer signum",
            f"'signum' is not a known optimizer. Known are {', '.join([*ENTRIES][:4])}",
        ),
        ("mymodel:make_model --dtype f32", "'f32' is not a known dtype. Did you mean float32?"),
        ("mymodel:make_model --rounds x", "invalid value for '--rounds': "),
        ("mymodel:make_model --rounds 2", "invalid value for '--rounds': "),
        ("mymodel:make_model --thread 2", "no such option: --thread. Did you mean --threads?"),
        ("mymodel:make_model --device cpux", "--device must be cpu or cuda, but is 'cpux'. Did you mean `cpu`?"),
        ("mymodel:make_model --device cuda:99", "--device 'cuda:99' is unavailable: "),
        ("mymodel:make_model --device gpu", "--device must be cpu or cuda, but is 'gpu'. Did you mean `cuda`?"),
        ("mymodel:make_model --device meta", "--device must be cpu or cuda, but is 'meta'"),
        ("mymodel", "'mymodel' contains no callable"),
        ("mymodel.py:make_model", "'mymodel.py:make_model' must name a module, not its file: mymodel:make_model."),
        ("no.package:f", "no.package:f: no module 'no.package' is in this folder or installed. Pass package.module"),
        ("broken:f", "broken:f failed: ModuleNotFoundError: No module named 'nonesuch'. Set LAYERWISE_TRACEBACK=1"),
        ("mymodel:mak_model", "module 'mymodel' has no 'mak_model'. Did you mean `mymodel:make_model`?"),
        ("mymodel:zzz", "module 'mymodel' has no 'zzz'. Pass package.module:callable"),
        ("mymodel:needs", "mymodel:needs: needs() must need no arguments. Give each a default."),
        ("mymodel:exits", "mymodel:exits failed: SystemExit: usage: mymodel. "),
        ("mymodel:value", "value must be a function that returns the model, but is an int."),
        ("mymodel:empty", "no parameter of the model requires grad"),
        ("mymodel:on_meta", "has parameters on the meta device"),
    ],
}


@pytest.fixture
def folder(tmp_path, monkeypatch, threads):
    """The current one, with a model in it and one that cannot be imported."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mymodel.py").write_text(MODEL)
    (tmp_path / "broken.py").write_text("import nonesuch\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("mymodel", "broken"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("command", "words", "why"), [(command, *each) for command, rows in MISTAKES.items() for each in rows]
)
def test_a_mistake_is_one_line_with_the_way_out(command, words, why, folder, capsys):
    before = {path.name for path in folder.iterdir()}
    done = here(capsys, *filter(None, [command]), *words.split(), code=2)
    assert done.out == ""
    assert re.fullmatch(rf"layerwise[^:]*: .*{re.escape(why)}.*\n", done.err, re.IGNORECASE), done.err
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == before


class TestTheWorldAround:
    """What is no mistake of who typed the command."""

    @pytest.mark.parametrize(
        ("problem", "code", "said"),
        [
            (KeyboardInterrupt(), 130, ""),
            (LayerwiseError("no"), 2, "layerwise: no\n"),
            (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, ""),
            (OSError(errno.ENOSPC, "No space left"), 1, "layerwise: cannot write the output: No space left\n"),
            (OSError(errno.EIO, "Input/output error"), 1, "layerwise: cannot write the output: Input/output error\n"),
            (OSError(errno.ENOSPC, "No space left", "a file of its own"), None, ""),
            (OSError(errno.EMFILE, "Too many open files"), None, ""),
        ],
        ids=repr,
    )
    def test_ends_the_program_without_a_traceback_where_it_is_no_error_of_ours(
        self, problem, code, said, capsys, monkeypatch
    ):
        def run(arguments):
            raise problem

        forgotten = []
        monkeypatch.setattr(cli, "_run", run)
        monkeypatch.setattr(cli, "forget_output", lambda: forgotten.append(True))
        if code is None:
            with pytest.raises(OSError, match=problem.strerror):
                cli._guarded([])
        else:
            assert cli._guarded([]) == code
        assert capsys.readouterr().err == said
        assert bool(forgotten) == (code == 1)  # or Python would try again at its exit

    @needs_full
    def test_a_full_disk_is_one_line(self):
        with FULL.open("w") as full:
            done = subprocess.run([*COMMAND, "info"], stdout=full, stderr=subprocess.PIPE, text=True, env=PLAIN)
        assert done.returncode == 1
        assert done.stderr == "layerwise: cannot write the output: No space left on device\n"

    def test_a_closed_pipe_is_no_error(self):
        reads, writes = os.pipe()
        os.close(reads)
        done = subprocess.run([*COMMAND, "presets"], stdout=writes, stderr=subprocess.PIPE, text=True, env=PLAIN)
        os.close(writes)
        assert (done.returncode, done.stderr) == (1, "")

    def test_characters_that_the_output_lacks_are_question_marks(self, capsys):
        asked = ("recommend", "lars", "8192", "--reference-batch", "512", "--reference-lr", "2")
        usual = here(capsys, *asked).out
        assert not usual.isascii()
        expected = usual.encode("ascii", "replace").decode()
        assert run(*asked, PYTHONIOENCODING="ascii").stdout == expected


MISSING = """
import contextlib, io, json, sys
import layerwise, numpy
for command, package in json.loads(sys.argv[1]):
    kept = dict(sys.modules)
    sys.modules[package] = None
    sys.argv[1:] = command.split()
    import layerwise.cli
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            layerwise.cli.main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, shown.getvalue(), said.getvalue()]))
    sys.modules.clear()
    sys.modules.update(kept)
"""


def test_without_its_packages_a_command_says_what_to_install():
    """One program tries them all, because it takes long to start."""
    tried = [("bench m:f", "typer"), ("bench m:f", "torch"), ("recommend", "typer"), ("presets", "typer")]
    done = subprocess.run(
        [sys.executable, "-c", MISSING, json.dumps(tried)], capture_output=True, text=True, env=PLAIN, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for (command, package), (code, out, err) in zip(tried, found, strict=True):
        said = f"layerwise {command.split()[0]} needs {package}: pip install {package}\n"
        assert (code, out, err) == (1, "", said)


def test_another_module_that_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "layerwise.cli.app", None)
    assert cli._guarded(["presets"]) == 1
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"layerwise: cannot import layerwise\.cli\.app: .*\. Set LAYERWISE_TRACEBACK=1 to see where\.\n", said
    )
    monkeypatch.setenv("LAYERWISE_TRACEBACK", "1")
    with pytest.raises(ModuleNotFoundError, match=r"layerwise\.cli\.app"):
        cli._guarded(["presets"])


WHILE_IMPORTING = """
import signal, sys
command, module, what = sys.argv[1:]
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module and what == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        elif name == module:
            raise ImportError("DLL load failed while\\nimporting it", name=name)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv[1:] = [command]
import layerwise.cli
layerwise.cli.main()
"""


@pytest.mark.parametrize(("command", "module"), [("info", "numpy"), ("presets", "typer")])
def test_errors_while_a_command_is_imported_are_one_line(command, module):
    program = [sys.executable, "-c", WHILE_IMPORTING, command, module]
    done = subprocess.run([*program, "Ctrl-C"], capture_output=True, text=True, env=PLAIN)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    done = subprocess.run([*program, "broken"], capture_output=True, text=True, env=PLAIN)
    why = "DLL load failed while importing it. Set LAYERWISE_TRACEBACK=1 to see where."
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"layerwise: cannot import {module}: {why}\n")


def test_what_needs_no_framework_runs_without_one():
    program = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'jax', 'optax', 'sklearn']); "
        "sys.argv[1:] = ['recommend', 'lars', '8192']; import layerwise.cli; layerwise.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=PLAIN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{recommend('Lars', 8192)}\n")


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
