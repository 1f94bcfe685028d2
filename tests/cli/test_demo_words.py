"""What the demo says of its figures follows from them, whatever they are."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from cli.demo_results import result
from rich.console import Console

from layerwise.cli.demo import table
from layerwise.cli.demo.cards import cards
from layerwise.cli.demo.words import paragraphs


def said(changed=None, **options):
    return " ".join(paragraphs(result(changed, **options)))


def printed(made, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    table.show(console, made)
    return console.file.getvalue()


VERDICTS = [
    # The acts, what is changed of the usual figures, and what is said.
    ((2,), {}, "Test loss at batch 8, where each was tuned: AdamW 2.350 ± 0.050 and LAMB 2.210 ± 0.010."),
    ((2,), {}, "scaled by the square-root rule: AdamW 3.200 ± 0.082 and LAMB 2.960 ± 0.008."),
    ((2,), {}, "Tuned at batch 128 itself, with the same budget for each: AdamW 3.000 ± 0.082 and LAMB 2.810"),
    ((2,), {}, "Compared with the small batch, AdamW lost 0.850 nats and LAMB lost 0.750 nats."),
    ((1,), {("LARS", 1024): [99.0] * 3}, "and LARS lost 0.0 points."),
    ((2,), {("LAMB", 128): [2.95, 2.96, 2.97]}, "LAMB did better than AdamW with every one of 3 seeds. Compared"),
    ((2,), {("LAMB", 128): [3.4, 3.5, 3.6]}, "LAMB did worse than AdamW with every one of 3 seeds. Compared"),
    ((2,), {("LAMB", 128): [3.0, 3.15, 3.0]}, "no clear difference of LAMB from AdamW. Compared"),
    ((2,), {("LAMB", 8): [2.35, 2.36]}, "no clear difference of LAMB from AdamW. At batch 128, in the same"),
    ((2,), {("LAMB", 8): [2.1, 2.11]}, "LAMB did better than AdamW with every one of 2 seeds. At batch 128, in the"),
    ((2,), {("AdamW re-tuned", 128): [2.80, 2.81, 2.82]}, "These seeds show no clear difference of LAMB from AdamW.$"),
    ((2,), {("AdamW re-tuned", 128): [2.70, 2.71, 2.72]}, "LAMB did worse than AdamW with every one of 3 seeds.$"),
    ((2,), {("AdamW re-tuned", 128): [2.90, 2.91, 2.92]}, "LAMB did better than AdamW with every one of 3 seeds.$"),
    ((1,), {}, "LARS did better than SGD and AdamW with every one of 3 seeds"),
    ((1,), {("LARS", 1024): [9.0, 8.0, 9.5]}, "LARS did worse than SGD and AdamW with every one of 3 seeds"),
    ((1,), {("LARS", 1024): [91.0, 91.5, 91.0]},
     "LARS did better than SGD with every one of 3 seeds. These seeds show no clear difference of LARS from AdamW"),
    ((1,), {("SGD", 1024): [math.inf] * 3}, "rule: SGD diverged, AdamW 91.0"),
    ((1,), {("SGD", 1024): [math.inf] * 3}, "LARS did better than SGD"),
    ((3,), {}, "AdamW keeps 12.00 bytes"),
    ((3,), {}, "LAMB in float32 keeps 12.00 bytes and ends at 2.210 ± 0.010, lower than AdamW's"),
    ((3,), {}, "rounded stochastically, keeps 2.15 bytes and ends at 2.510 ± 0.010, higher than AdamW's"),
    ((3,), {("Adafactor bf16", 8): [2.31, 2.45]}, "with no clear difference from AdamW"),
    ((3,), {}, "LAMB with 24-bit weights and 8-bit state keeps 5.25 bytes"),
    ((3,), {("LAMB 24+8", 8): [2.21, 2.23]}, "no clear difference between LAMB in fewer bytes and in float32"),
    ((3,), {("LAMB 24+8", 8): [2.3, 2.4]}, "LAMB ended higher in fewer bytes"),
    ((3,), {("LAMB 24+8", 8): [2.0, 2.1]}, "LAMB ended lower in fewer bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("acts", "changed", "words"), VERDICTS, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_said_follows_from_the_figures(acts, changed, words):
    first, *_ = paragraphs(result(changed, acts=acts))
    ends = words.endswith("$")
    assert first.endswith(words[:-1]) if ends else words in said(changed, acts=acts)


class TestAlways:
    def test_what_diverged_says_so_in_the_table(self):
        made = result({("SGD", 1024): [math.inf] * 3}, acts=(1,))
        assert "diverged" in printed(made, 100)
        assert "div." in printed(made, 40)
        assert "1 of 3 diverged" in printed(result({("SGD", 1024): [math.inf, 90.0, 90.0]}, acts=(1,)), 100)

    def test_noise_is_measured_where_sequences_are_and_may_drown_the_signal(self):
        assert "about 42 sequences" in said()
        assert "noise scale" not in said(acts=(1,))
        made = result()
        run, _ = made.noise
        made.outcomes[run].noise = replace(made.outcomes[run].noise, scale=math.inf)
        assert "above what can be measured" in " ".join(paragraphs(made))

    def test_what_does_not_follow_is_said_and_never_claimed(self):
        for options in ({}, {"is_quick": True}, {"acts": (3,)}):
            assert paragraphs(result(**options))[-1].startswith("What this does not show.")
        assert "2102.06356" in said()
        assert "better than Adam " not in said()
        assert "same quality" not in said()

    def test_a_quick_run_draws_no_conclusion(self):
        beware, limits = paragraphs(result(is_quick=True))
        assert beware.startswith("This was a quick run, and no conclusion is drawn from it")
        assert limits.startswith("What this does not show.")
        assert cards(result(is_quick=True)) == []

    def test_of_an_interrupted_run_only_what_is_whole_is_told(self):
        words = paragraphs(result({("LAMB", 128): None, ("SGD", 32): None}))
        assert words[0] == "This run was interrupted: what it did not finish is missing."
        assert [text[:5] for text in words].count("Act 3") == 1
        assert not any(text.startswith(("Act 1", "Act 2")) for text in words)


class TestCards:
    def test_a_number_and_a_verdict_for_each(self):
        found = [(card.figure, card.verdict) for card in cards(result())]
        assert found == [
            ("+20.0 points", "Better than SGD with every seed; no clear difference from AdamW."),
            ("−0.19 nats", "Better than AdamW with every seed."),
            ("5.2 bytes", "Its loss shows no clear difference."),
            ("2.1 bytes", "Its loss is 0.16 nats higher."),
        ]

    @pytest.mark.parametrize("figures", [None, [math.inf] * 3])
    def test_none_of_what_is_missing_or_diverged(self, figures):
        found = cards(result({("LAMB re-tuned", 128): figures, ("AdamW", 8): None}))
        assert [card.about for card in found] == ["Act 1 · LARS at batch 1,024"]

    def test_worse(self):
        (card,) = cards(result({("LAMB re-tuned", 128): [3.2, 3.3, 3.4]}, acts=(2,)))
        assert (card.figure, card.verdict) == ("+0.30 nats", "Worse than AdamW with every seed.")


class TestTable:
    @pytest.mark.parametrize("width", [40, 60, 80, 200])
    def test_it_fits(self, width):
        made = result()
        found = [line.plain for line in table.lines(made, wide=width >= table.WIDE)]
        assert len(found) <= 20
        assert max(map(len, found)) <= width
        act = [line.split()[1][0] for line in found if line.startswith("Act")]
        assert act == ["1", "2", "3"]
        figures = "2.960 ± 0.008" if width >= table.WIDE else "2.960"
        assert any(line.startswith("LAMB ") and figures in line and line.endswith("12.00") for line in found)
        assert any(line.startswith("Adafactor bf16") and line.endswith("2.15") for line in found)
        assert max(map(len, printed(made, width).splitlines())) <= width

    def test_what_was_not_finished_is_a_dash(self):
        line = next(x.plain for x in table.lines(result({("LARS", 1024): None})) if x.plain.startswith("LARS"))
        assert line.split()[4] == "–"
