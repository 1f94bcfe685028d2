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


class TestLargeBatch:
    def test_every_figure_is_named(self):
        words = said(acts=(2,))
        assert "Test loss at batch 8, where each was tuned: AdamW 2.350 ± 0.050 and LAMB 2.210 ± 0.010." in words
        assert "scaled by the square-root rule: AdamW 3.200 ± 0.082 and LAMB 2.960 ± 0.008." in words
        assert "Tuned at batch 128 itself, with the same budget for each: AdamW 3.000 ± 0.082 and LAMB 2.810" in words
        assert "Compared with the small batch, AdamW lost 0.850 nats and LAMB lost 0.750 nats." in words

    @pytest.mark.parametrize(
        ("row", "figures", "words"),
        [
            (("LAMB", 128), [2.95, 2.96, 2.97], "LAMB did better than AdamW with every one of 3 seeds. Compared"),
            (("LAMB", 128), [3.4, 3.5, 3.6], "LAMB did worse than AdamW with every one of 3 seeds. Compared"),
            (("LAMB", 128), [3.0, 3.15, 3.0], "no clear difference of LAMB from AdamW. Compared"),
            (("LAMB", 8), [2.35, 2.36], "no clear difference of LAMB from AdamW. At batch 128, in the same"),
            (("LAMB", 8), [2.1, 2.11], "LAMB did better than AdamW with every one of 2 seeds. At batch 128, in the"),
        ],
    )
    def test_verdicts(self, row, figures, words):
        assert words in said({row: figures}, acts=(2,))

    @pytest.mark.parametrize(
        ("retuned", "words"),
        [
            ([2.80, 2.81, 2.82], "These seeds show no clear difference of LAMB from AdamW."),
            ([2.70, 2.71, 2.72], "LAMB did worse than AdamW with every one of 3 seeds."),
            ([2.90, 2.91, 2.92], "LAMB did better than AdamW with every one of 3 seeds."),
        ],
    )
    def test_retuned(self, retuned, words):
        assert paragraphs(result({("AdamW re-tuned", 128): retuned}, acts=(2,)))[0].endswith(words)

    def test_nothing_lost(self):
        assert "and LARS lost 0.0 points." in said({("LARS", 1024): [99.0, 99.0, 99.0]}, acts=(1,))

    def test_accuracy_is_better_when_it_is_higher(self):
        assert "LARS did better than SGD and AdamW with every one of 3 seeds" in said(acts=(1,))
        words = said({("LARS", 1024): [9.0, 8.0, 9.5]}, acts=(1,))
        assert "LARS did worse than SGD and AdamW with every one of 3 seeds" in words

    def test_a_verdict_for_each_of_the_others(self):
        words = said({("LARS", 1024): [91.0, 91.5, 91.0]}, acts=(1,))
        assert "LARS did better than SGD with every one of 3 seeds. These seeds show no clear difference" in words
        assert "no clear difference of LARS from AdamW" in words

    def test_diverged(self):
        made = result({("SGD", 1024): [math.inf] * 3}, acts=(1,))
        assert "rule: SGD diverged, AdamW 91.0" in paragraphs(made)[0]
        assert "LARS did better than SGD" in paragraphs(made)[0]
        assert "diverged" in printed(made, 100)
        assert "div." in printed(made, 40)
        one = result({("SGD", 1024): [math.inf, 90.0, 90.0]}, acts=(1,))
        assert "1 of 3 diverged" in printed(one, 100)


class TestFewerBytes:
    def test_every_figure_is_named(self):
        words = said(acts=(3,))
        assert "AdamW keeps 12.00 bytes" in words
        assert "LAMB in float32 keeps 12.00 bytes and ends at 2.210 ± 0.010, lower than AdamW's" in words
        assert "rounded stochastically, keeps 2.15 bytes and ends at 2.510 ± 0.010, higher than AdamW's" in words

    def test_when_nothing_is_to_be_seen(self):
        words = said({("Adafactor bf16", 8): [2.31, 2.45]}, acts=(3,))
        assert "with no clear difference from AdamW" in words

    @pytest.mark.parametrize(
        ("losses", "words"),
        [
            ([2.21, 2.23], "no clear difference between LAMB in fewer bytes and in float32"),
            ([2.3, 2.4], "LAMB ended higher in fewer bytes"),
            ([2.0, 2.1], "LAMB ended lower in fewer bytes"),
        ],
    )
    def test_what_fewer_bytes_did_to_lamb(self, losses, words):
        said_of_it = said({("LAMB 24+8", 8): losses}, acts=(3,))
        assert "LAMB with 24-bit weights and 8-bit state keeps 5.25 bytes" in said_of_it
        assert words in said_of_it


class TestAlways:
    def test_noise(self):
        assert "about 42 sequences" in said()
        assert "noise scale" not in said(acts=(1,))

    def test_noise_that_drowns_the_signal(self):
        made = result()
        run, _ = made.noise
        made.outcomes[run].noise = replace(made.outcomes[run].noise, scale=math.inf)
        assert "above what can be measured" in " ".join(paragraphs(made))

    def test_what_does_not_follow(self):
        for options in ({}, {"is_quick": True}, {"acts": (3,)}):
            assert paragraphs(result(**options))[-1].startswith("What this does not show.")
        assert "2102.06356" in said()

    def test_a_quick_run_draws_no_conclusion(self):
        beware, limits = paragraphs(result(is_quick=True))
        assert beware.startswith("This was a quick run, and no conclusion is drawn from it")
        assert limits.startswith("What this does not show.")
        assert cards(result(is_quick=True)) == []

    def test_interrupted(self):
        words = paragraphs(result({("LAMB", 128): None, ("SGD", 32): None}))
        assert words[0] == "This run was interrupted: what it did not finish is missing."
        assert [text[:5] for text in words].count("Act 3") == 1
        assert not any(text.startswith(("Act 1", "Act 2")) for text in words)

    def test_claims_that_must_not_be_made(self):
        assert "better than Adam " not in said()
        assert "same quality" not in said()


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
