"""What the demo says of its figures follows from them, whatever they are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from demo_results import result

from demo.claims import beware, conclusions, limits

EVEN = "These seeds show no clear difference of"
EVERY, BOTH = "with every one of 3 seeds.", "with every one of 2 seeds."
SMALL, SCALED, RETUNED = "Act 2, batch 8: ", "Act 2, batch 128, scaled: ", "Act 2, batch 128, re-tuned: "
VERDICTS = [
    # The act, what is changed of the usual figures, and what is said.
    (2, {}, f"{SMALL}LAMB did better than AdamW {BOTH}"),
    (2, {("LAMB", 8): [2.35, 2.36]}, f"{SMALL}{EVEN} LAMB from AdamW."),
    (2, {}, f"{SCALED}LAMB did better than AdamW {EVERY}"),
    (2, {("LAMB", 128): [3.4, 3.5, 3.6]}, f"{SCALED}LAMB did worse than AdamW {EVERY}"),
    (2, {("LAMB", 128): [3.0, 3.15, 3.0]}, f"{SCALED}{EVEN} LAMB from AdamW."),
    (2, {("AdamW re-tuned", 128): [2.80, 2.81, 2.82]}, f"{RETUNED}{EVEN} LAMB from AdamW."),
    (2, {("AdamW re-tuned", 128): [2.70, 2.71, 2.72]}, f"{RETUNED}LAMB did worse than AdamW {EVERY}"),
    (2, {("AdamW re-tuned", 128): [2.90, 2.91, 2.92]}, f"{RETUNED}LAMB did better than AdamW {EVERY}"),
    (1, {}, f"Act 1, batch 32: {EVEN} LARS from SGD and AdamW."),
    (1, {}, f"Act 1, batch 1,024, scaled: LARS did better than SGD and AdamW {EVERY}"),
    (1, {("LARS", 1024): [9.0, 8.0, 9.5]}, f"LARS did worse than SGD and AdamW {EVERY}"),
    (1, {("LARS", 1024): [91.0, 91.5, 91.0]}, f"LARS did better than SGD {EVERY} {EVEN} LARS from AdamW."),
    (1, {("SGD", 1024): [math.inf] * 3}, f"scaled: LARS did better than SGD and AdamW {EVERY}"),
    (1, {("SGD", 1024): [math.inf] * 3, ("LARS", 1024): [math.inf, 90.0, 90.0]}, f"{EVEN} LARS from SGD."),
    (3, {}, f"Act 3, batch 8: LAMB did better than AdamW {BOTH} LAMB 24+8 did better than AdamW {BOTH} {EVEN} LAMB"),
    (3, {}, f"{EVEN} LAMB 24+8 from LAMB. Adafactor bf16 did worse than AdamW {BOTH}"),
    (3, {("Adafactor bf16", 8): [2.31, 2.45]}, f"{EVEN} Adafactor bf16 from AdamW."),
    (3, {("LAMB 24+8", 8): [2.3, 2.4]}, f"LAMB 24+8 did worse than LAMB {BOTH}"),
    (3, {("LAMB 24+8", 8): [2.0, 2.1]}, f"LAMB 24+8 did better than AdamW and LAMB {BOTH}"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "changed", "words"), VERDICTS, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_said_follows_from_the_figures(act, changed, words):
    assert words in "\n".join(conclusions(result(changed, acts=(act,))))


def test_noise_is_measured_where_sequences_are_and_may_drown_the_signal():
    made = result()
    assert "about 42 sequences" in [*conclusions(made)][-1]
    assert not any("noise scale" in text for text in conclusions(result(acts=(1,))))
    run, _ = made.noise
    made.outcomes[run].noise = replace(made.outcomes[run].noise, scale=math.inf)
    assert "above what can be measured" in [*conclusions(made)][-1]


def test_what_does_not_follow_is_said():
    for options in ({}, {"is_quick": True}, {"acts": (3,)}):
        assert limits(result(**options)).startswith("What this does not show.")
    assert "2102.06356" in limits(result())


def test_a_quick_run_draws_no_conclusion():
    made = result(is_quick=True)
    (warning,) = beware(made)
    assert warning.startswith("This was a quick run, and no conclusion is drawn from it")
    assert [*conclusions(made)] == []


def test_of_an_interrupted_run_only_what_is_whole_is_told():
    made = result({("LAMB", 128): None, ("SGD", 32): None})
    assert list(beware(made)) == ["This run was interrupted: what it did not finish is missing."]
    told = [text.partition(":")[0] for text in conclusions(made) if text.startswith("Act")]
    first = ["Act 1, batch 1,024, scaled", "Act 1, batch 1,024, re-tuned"]
    assert told == [*first, "Act 2, batch 8", "Act 2, batch 128, re-tuned", "Act 3, batch 8"]
