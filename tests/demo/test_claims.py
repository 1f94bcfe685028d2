"""What the demo says of its figures follows from them, whatever they are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from demo_results import result

from demo.claims import beware, cards, limits, paragraphs


def said(changed=None, **options):
    return " ".join(paragraphs(result(changed, **options)))


EVEN = "These seeds show no clear difference of"
EVERY = "with every one of 3 seeds"
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
    ((3,), {}, "LAMB keeps 12.00 bytes and ends at 2.210 ± 0.010, LAMB 24+8 keeps 5.25 bytes and ends at 2.220"),
    ((3,), {}, "and Adafactor bf16 keeps 2.15 bytes and ends at 2.510 ± 0.010."),
    ((3,), {}, "LAMB did better than AdamW with every one of 2 seeds. LAMB 24+8 did better than AdamW"),
    ((3,), {}, "Adafactor bf16 did worse than AdamW with every one of 2 seeds.$"),
    ((3,), {("Adafactor bf16", 8): [2.31, 2.45]}, "show no clear difference of Adafactor bf16 from AdamW.$"),
    ((3,), {("LAMB 24+8", 8): [2.21, 2.23]}, "show no clear difference of LAMB 24+8 from LAMB."),
    ((3,), {("LAMB 24+8", 8): [2.3, 2.4]}, "LAMB 24+8 did worse than LAMB with every one of 2 seeds."),
    ((3,), {("LAMB 24+8", 8): [2.0, 2.1]}, "than AdamW and LAMB with every one of 2 seeds. Adafactor"),
    ((3,), {("LAMB 24+8", 8): [2.0, 2.1]}, "That fewer bytes are better than float32 is probably chance.$"),
]  # fmt: skip


@pytest.mark.parametrize(("acts", "changed", "words"), VERDICTS, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_said_follows_from_the_figures(acts, changed, words):
    first, *_ = paragraphs(result(changed, acts=acts))
    ends = words.endswith("$")
    assert first.endswith(words[:-1]) if ends else words in said(changed, acts=acts)


class TestAlways:
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
        made = result(is_quick=True)
        (warning,) = beware(made)
        assert warning.startswith("This was a quick run, and no conclusion is drawn from it")
        assert (paragraphs(made), cards(made)) == ([limits(made)], [])

    def test_of_an_interrupted_run_only_what_is_whole_is_told(self):
        made = result({("LAMB", 128): None, ("SGD", 32): None})
        words = paragraphs(made)
        assert list(beware(made)) == ["This run was interrupted: what it did not finish is missing."]
        assert [text[:5] for text in words].count("Act 3") == 1
        assert not any(text.startswith(("Act 1", "Act 2")) for text in words)


class TestCards:
    def test_a_number_and_a_verdict_for_each(self):
        found = [(card.figure, card.verdict) for card in cards(result())]
        assert found == [
            (
                "+20.0 points",
                f"LARS did better than SGD {EVERY}. {EVEN} LARS from AdamW.",
            ),
            ("−0.19 nats", f"LAMB did better than AdamW {EVERY}."),
            ("5.2 bytes", f"{EVEN} LAMB 24+8 from LAMB."),
            ("2.1 bytes", "Adafactor bf16 did worse than AdamW with every one of 2 seeds."),
        ]
        texts = " ".join(card.text for card in cards(result()))
        for part in (
            "95.0 % with LARS, 75.0 % with SGD",
            "2.81 with LAMB, 3.00 with AdamW",
            "keeps 12.0. Loss 2.51, 2.35",
        ):
            assert part in texts

    @pytest.mark.parametrize("figures", [None, [math.inf] * 3, [2.8, math.inf, 2.8]])
    def test_none_of_what_is_missing_or_diverged(self, figures):
        found = cards(result({("LAMB re-tuned", 128): figures, ("AdamW", 8): None}))
        assert [card.about for card in found] == ["Act 1 · LARS at batch 1,024"]

    def test_worse(self):
        (card,) = cards(result({("LAMB re-tuned", 128): [3.2, 3.3, 3.4]}, acts=(2,)))
        assert (card.figure, card.verdict) == ("+0.30 nats", f"LAMB did worse than AdamW {EVERY}.")
