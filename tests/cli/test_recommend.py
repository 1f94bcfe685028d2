"""`layerwise recommend` prints what `layerwise.recommend` finds, and code to paste that does it."""

from __future__ import annotations

import json
import re

import pytest
from cli.program import here

from layerwise.recipes import recommend
from layerwise.schedules import Polynomial

REFERENCE = ("--reference-batch", "256", "--reference-lr", "1e-3")

ARGUMENTS = ("recommend", "lamb", "32768", *REFERENCE)

FOUND = recommend("Lamb", 32768, reference_batch=256, reference_lr=1e-3)


def test_a_rate_of_adamw_gives_rates_to_try_in_ten_lines(capsys):
    asked = ("recommend", "lamb", "4096", "--reference-batch", "256", "--adamw-lr", "3e-4")
    said = here(capsys, *asked).out
    lines = said.split("\n\nfrom ")[0].splitlines()
    assert lines[0] == "Lamb at batch 4,096, coming from AdamW with lr 0.0003 at batch 256"
    assert lines[1].startswith("first: try AdamW with lr 0.0012, yours × 4. ")
    assert lines[2].startswith("learning rate: try 0.0036, 0.0072, 0.012, which are 3, 6, 10 times that. ")
    assert len([line for line in said.splitlines() if line]) <= 10
    assert executed(code_in(said), your_betas=(0.9, 0.999), your_weight_decay=0.1)["optimizer"].get_lr() == 0.0072
    assert json.loads(here(capsys, *asked, "--json").out)["lr"] == pytest.approx(0.0072)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("lars", "4096"), "--adamw-lr works for Lamb and Adafactor only: .*; the page of Lars suggests"),
        (("lamb", "4096", "--reference-lr", "1e-3"), "leave out --adamw-lr: --reference-lr is Lamb's own rate"),
    ],
)
def test_adamw_s_rate_is_refused_where_it_has_no_effect(capsys, more, why):
    done = here(capsys, "recommend", *more, "--reference-batch", "256", "--adamw-lr", "3e-4", code=2)
    assert re.match(f"layerwise: {why}", done.err)


def code_in(out):
    (code,) = re.findall(r"\n\n(from .*)", out, re.DOTALL)
    return code


def executed(code, **names):
    """The names after the code has run, for a model of one layer."""
    names["model"] = pytest.importorskip("torch").nn.Linear(3, 2)
    exec(code, names)  # noqa: S102
    return names


def test_it_is_one_line_each(capsys):
    done = here(capsys, *ARGUMENTS, COLUMNS="60")
    assert done.out.startswith(f"{FOUND}\n\nfrom layerwise.torch import Lamb, param_groups\n")
    assert done.err == ""


def test_every_option_arrives(capsys):
    options = {"reference-batch": 512, "reference-lr": 2.0, "reference-warmup": 0.01, "total-samples": 1e6}
    said = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = here(capsys, "recommend", "Lars", "2048", *said, "--like", "nus-resnet", "--rule", "linear")
    named = {name.replace("-", "_"): value for name, value in options.items()}
    assert done.out.startswith(f"{recommend('Lars', 2048, **named, like='nus-resnet', rule='linear')}\n")


@pytest.mark.parametrize("samples", [(), ("--total-samples", "3276800")], ids=["", "with a schedule"])
@pytest.mark.parametrize(
    ("optimizer", "yours"),
    [
        ("lamb", {"your_betas": (0.8, 0.95), "your_weight_decay": 0.3}),
        ("lars", {"your_momentum": 0.3, "your_weight_decay": 0.3}),
        ("adafactor", {"your_weight_decay": 0.3}),
    ],
)
def test_code_to_paste_makes_the_optimizer_and_its_schedule(optimizer, yours, samples, capsys):
    own = ("recommend", optimizer, "32768", *REFERENCE, "--reference-warmup", "0.01", *samples)
    code, found = code_in(here(capsys, *own).out), json.loads(here(capsys, *own, "--json").out)
    assert found["code"] == code.strip()
    assert set(re.findall(r"your_\w+", code)) == set(yours)
    names = executed(code, **yours)
    first, *_, group = names["optimizer"].param_groups  # of the matrix, and of the bias
    assert type(names["optimizer"]).__name__.lower() == optimizer
    assert all(first[name.removeprefix("your_")] == value for name, value in yours.items())
    if samples:
        names["optimizer"].step()
        names["schedule"].step()
        expected = Polynomial(found["lr"], found["steps"], found["warmup_steps"])(1)
        assert group["lr"] == pytest.approx(expected, rel=1e-5)
    else:
        assert {key: group[key] for key in found["kwargs"]} == pytest.approx(found["kwargs"], rel=1e-5)
        assert "# warm-up: " in code


def test_code_for_kept_norms_leaves_small_tensors_to_adamw(capsys):
    code = code_in(here(capsys, "recommend", "lamb", "1024", *REFERENCE, "--reference-decay", "0.1").out)
    names = executed(code, your_lr=1e-3, your_betas=(0.9, 0.99), your_weight_decay=0.1)
    matrix, bias = names["optimizer"].param_groups
    assert (matrix["rule"], matrix["keep_norm"], matrix["betas"]) == ("Lamb", True, (0.9, 0.99))
    assert (bias["rule"], bias["lr"], bias["betas"], bias["weight_decay"]) == ("AdamW", 1e-3, (0.9, 0.99), 0.0)
