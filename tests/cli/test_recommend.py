"""`layerwise recommend`."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from cli.program import here, on_a_terminal, run

from layerwise.recipes import recommend
from layerwise.registry import ENTRIES


class TestRecommend:
    ARGUMENTS = ("recommend", "lamb", "32768", "--reference-batch", "256", "--reference-lr", "1e-3")
    FOUND = recommend("Lamb", 32768, reference_batch=256, reference_lr=1e-3)

    def test_in_a_pipe_it_is_one_line_each(self):
        done = run(*self.ARGUMENTS, COLUMNS="60")
        assert done.stdout == f"{self.FOUND}\n"
        assert done.stderr == ""

    def test_every_option_arrives(self, capsys):
        options = {"reference-batch": 512, "reference-lr": 2.0, "reference-warmup": 0.01, "total-samples": 1e6}
        said = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        done = here(capsys, "recommend", "Lars", "2048", *said, "--like", "nus-resnet", "--rule", "linear")
        named = {name.replace("-", "_"): value for name, value in options.items()}
        assert done.out == f"{recommend('Lars', 2048, **named, like='nus-resnet', rule='linear')}\n"

    def test_json(self, capsys):
        written = json.loads(here(capsys, *self.ARGUMENTS, "--json", "--total-samples", "3276800").out)
        assert written["kwargs"] == {"lr": self.FOUND.lr}
        assert (written["steps"], written["warmup_steps"], written["extrapolated"]) == (100, 14, True)
        assert len(written["lines"]) == len(self.FOUND.lines)

    @pytest.mark.parametrize("columns", [60, 100])
    def test_on_a_terminal_it_is_a_table_as_wide_as_that(self, columns):
        seen, code = on_a_terminal(*self.ARGUMENTS, COLUMNS=str(columns))
        assert code == 0
        assert "\x1b[33mextrapolated" in seen
        rows = re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()
        assert max(map(len, rows)) <= columns
        for line in self.FOUND.lines:
            assert any(line.setting in row and line.value in row for row in rows), line

    def test_no_color(self):
        seen, _ = on_a_terminal(*self.ARGUMENTS, NO_COLOR="1")
        assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])[0-9;]*m", seen)

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("signum", "1024"), f"`optimizer` must be one of {', '.join(ENTRIES)}, but is 'signum'"),
            (("lamb", "0"), "`batch` must be an integer ≥ 1, but is 0"),
            (("lamb", "1024", "--reference-lr", "0.1"), "`reference_batch` must be given"),
            (("adafactor", "1024"), "`reference_lr` must be given for Adafactor"),
            (("lamb", "1024", "--like", "bert"), "`like` must be one of 'mlperf-bert'"),
        ],
    )
    def test_a_mistake_is_one_line_with_the_way_out(self, arguments, why, capsys):
        done = here(capsys, "recommend", *arguments, code=2)
        assert done.out == ""
        assert re.fullmatch(rf"layerwise: {re.escape(why)}.*\. .*\.\n", done.err)

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
        assert done.stdout == f"{recommend('Lars', 8192)}\n"
