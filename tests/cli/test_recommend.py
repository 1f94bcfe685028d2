"""`layerwise recommend`."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys

import pytest
from cli.program import here, on_a_terminal, run
from rich.console import Console

from layerwise.cli.recommend import show_recommendation
from layerwise.recipes import recommend
from layerwise.schedules import Polynomial


def names_of(code, *names):
    """Return which of these names the code uses."""
    return [name for name in names if re.search(rf"\b{name}\b", code)]


class TestRecommend:
    ARGUMENTS = ("recommend", "lamb", "32768", "--reference-batch", "256", "--reference-lr", "1e-3")
    FOUND = recommend("Lamb", 32768, reference_batch=256, reference_lr=1e-3)

    def test_in_a_pipe_it_is_one_line_each(self):
        done = run(*self.ARGUMENTS, COLUMNS="60")
        assert done.stdout.startswith(f"{self.FOUND}\n\nfrom layerwise.torch import Lamb, param_groups\n")
        assert done.stderr == ""

    def test_every_option_arrives(self, capsys):
        options = {"reference-batch": 512, "reference-lr": 2.0, "reference-warmup": 0.01, "total-samples": 1e6}
        said = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        done = here(capsys, "recommend", "Lars", "2048", *said, "--like", "nus-resnet", "--rule", "linear")
        named = {name.replace("-", "_"): value for name, value in options.items()}
        assert done.out.startswith(f"{recommend('Lars', 2048, **named, like='nus-resnet', rule='linear')}\n")

    @pytest.mark.parametrize("samples", [(), ("--total-samples", "3276800")])
    @pytest.mark.parametrize("optimizer", ["lamb", "lars", "adafactor"])
    def test_code_to_paste(self, optimizer, samples, capsys):
        own = ("recommend", optimizer, "32768", *self.ARGUMENTS[3:], "--reference-warmup", "0.01", *samples)
        (code,) = re.findall(r"\n\n(from .*)", here(capsys, *own).out, re.DOTALL)
        model = pytest.importorskip("torch").nn.Linear(3, 2)
        options = names_of(code, "your_betas", "your_momentum", "your_weight_decay")
        names = {"model": model} | {one: (0.8, 0.95) if one == "your_betas" else 0.3 for one in options}
        exec(code, names)  # noqa: S102
        found = json.loads(here(capsys, *own, "--json").out)
        (*_, group) = names["optimizer"].param_groups
        assert type(names["optimizer"]).__name__.lower() == optimizer
        kept = {"lamb": ["betas"], "lars": ["momentum"], "adafactor": []}[optimizer]
        assert options == [f"your_{one}" for one in (*kept, "weight_decay")]
        first = names["optimizer"].param_groups[0]  # of the matrix
        assert [first[one.removeprefix("your_")] for one in options] == [names[one] for one in options]
        if samples:
            names["optimizer"].step()
            names["schedule"].step()
            expected = Polynomial(found["lr"], found["steps"], found["warmup_steps"])(1)
            assert group["lr"] == pytest.approx(expected, rel=1e-5)
        else:
            assert {key: group[key] for key in found["kwargs"]} == pytest.approx(found["kwargs"], rel=1e-5)
            assert "# warm-up: " in code
        assert found["code"] == code.strip()

    def test_code_for_kept_norms_leaves_small_tensors_to_adamw(self, capsys):
        out = here(capsys, "recommend", "lamb", "1024", *self.ARGUMENTS[3:], "--reference-decay", "0.1").out
        (code,) = re.findall(r"\n\n(from .*)", out, re.DOTALL)
        yours = {"your_lr": 1e-3, "your_betas": (0.9, 0.99), "your_weight_decay": 0.1}
        names = {"model": pytest.importorskip("torch").nn.Linear(3, 2), **yours}
        exec(code, names)  # noqa: S102
        matrix, bias = names["optimizer"].param_groups
        assert (matrix["rule"], matrix["keep_norm"], matrix["betas"]) == ("Lamb", True, (0.9, 0.99))
        assert (bias["rule"], bias["lr"], bias["betas"], bias["weight_decay"]) == ("AdamW", 1e-3, (0.9, 0.99), 0.0)

    @pytest.mark.parametrize("more", [(), ("--total-samples", "1e7")])
    def test_a_published_run_is_no_code_to_paste(self, more, capsys):
        first, *rest = here(capsys, "recommend", "lamb", "4096", *more).out.splitlines()
        assert first.endswith("from mlperf-bert: BERT-Large to a masked-LM accuracy of 0.72, from a checkpoint")
        assert not any("import" in row or "param_groups" in row for row in rest)
        assert json.loads(here(capsys, "recommend", "lamb", "4096", *more, "--json").out)["code"] == ""

    def test_json(self, capsys):
        written = json.loads(here(capsys, *self.ARGUMENTS, "--json", "--total-samples", "3276800").out)
        assert written["kwargs"] == {"lr": self.FOUND.lr}
        assert (written["steps"], written["warmup_steps"], written["extrapolated"]) == (100, 14, True)
        assert len(written["lines"]) == len(self.FOUND.lines)

    @pytest.mark.parametrize("columns", [40, 60, 100])
    def test_on_a_terminal_it_is_as_wide_as_that(self, columns):
        console = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system="standard")
        show_recommendation(console, self.FOUND)
        seen = console.file.getvalue()
        assert "\x1b[33mextrapolated" in seen
        rows = re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()
        rows = rows[: rows.index("from layerwise.torch import Lamb, param_groups")]  # the code is not broken
        assert max(map(len, rows)) <= columns
        assert "…" not in "".join(rows)
        for line in self.FOUND.lines:
            assert any(line.setting in row and line.value in row for row in rows), line

    def test_no_color(self):
        seen, _ = on_a_terminal(*self.ARGUMENTS, NO_COLOR="1")
        assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])[0-9;]*m", seen)

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("signum", "1024"), "invalid value for 'optimizer': there is no optimizer 'signum'"),
            (("lamb", "4096", "--total-samples", "100"), "--total-samples must be at least 40,960, 10 steps of batch"),
            (("lamb", "0"), "invalid value for 'batch': it must be an integer ≥ 1, but is 0"),
            (("lamb", "1024", "--reference-lr", "0.1"), "--reference-batch must be given"),
            (("lamb", "1024", "--reference-lr", "-1", "--reference-batch", "9"), "--reference-lr must be a finite n"),
            (("lamb", "1024", "--reference-warmup", "0.1"), "--reference-warmup must be left out without a reference"),
            (("adafactor", "1024"), "--reference-lr must be given for Adafactor, but is missing"),
            (("lamb", "1024", "--like", "bert"), "invalid value for '--like': there is no published series 'bert'"),
            (("lamb", "1024", "--like", "nus-resnet"), "--like must be 'mlperf-bert' or 'nvidia-bert' or"),
        ],
    )
    def test_a_mistake_is_one_line_with_the_way_out(self, arguments, why, capsys):
        done = here(capsys, "recommend", *arguments, code=2)
        assert done.out == ""
        assert re.fullmatch(rf"layerwise.*: {re.escape(why)}.*[.?] .*\.\n", done.err)
        assert not re.search(r"`|None|[a-z]_[a-z]|nput should", done.err)

    def test_help_fits_a_screen(self, capsys):
        out = here(capsys, "recommend", "--help", COLUMNS="80").out
        assert len(out.splitlines()) <= 24
        assert max(map(len, out.splitlines())) <= 80

    def test_it_needs_no_framework(self):
        program = (
            "import sys; sys.modules |= dict.fromkeys(['torch', 'jax', 'optax', 'sklearn']); sys.argv[1:] = "
            "['recommend', 'lars', '8192']; import layerwise.cli; layerwise.cli.main()"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.stdout.startswith(f"{recommend('Lars', 8192)}\n")
