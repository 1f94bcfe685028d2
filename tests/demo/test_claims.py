"""What the demo says of its figures follows from them, whatever they are."""

from __future__ import annotations

import math

import pytest
from demo_results import result

from demo.claims import beware, caveats, story, verdict

FIRST, SECOND = "Accuracy at batch 1,024", "Loss at batch 128"
EVERY, NONE = "With every seed,", "No difference is clear with every seed."
SAID = [
    # The act, what is changed of the usual figures, and what is said.
    (1, {}, f"{FIRST}: LARS 95.0 %, AdamW 94.0 %, SGD 75.0 %|{EVERY} LARS is better than SGD."),
    (1, {("LARS", 1024): [96.0, 97.0, 98.0]}, f"{EVERY} LARS is better than SGD and AdamW."),
    (1, {("LARS", 1024): [9.0, 8.0, 9.5]}, f"SGD 75.0 %, LARS 8.8 %|{EVERY} LARS is worse than SGD and AdamW."),
    (1, {("LARS", 1024): [81.0, 82.0, 83.0]}, f"{EVERY} LARS is better than SGD, worse than AdamW."),
    (1, {("LARS", 1024): [79.0, 94.0, 96.0]}, f"|{NONE}"),
    (1, {("SGD", 1024): [math.inf] * 3}, f"AdamW 94.0 %, SGD diverged|{EVERY} LARS is better than SGD."),
    (1, {("SGD", 1024): [math.inf] * 3, ("LARS", 1024): [math.inf, 90.0, 90.0]}, f"{EVERY} LARS is worse than AdamW."),
    (2, {}, f"{SECOND}: Muon + AdamW 2.52, LAMB 2.81, AdamW 3.00|{EVERY} LAMB is better than AdamW; Muon + AdamW is"),
    (2, {("LAMB", 128): [2.8, 2.95]}, f"|{EVERY} Muon + AdamW is better than AdamW."),
    (3, {}, f"{SECOND}: Muon + AdamW 2.52 in 8.8 bytes a parameter, 8-bit Muon + AdamW 2.54 in 4.4, AdamW 3.00 in 12|"),
    (3, {}, f"{EVERY} Muon + AdamW is better than AdamW; 8-bit Muon + AdamW is better than AdamW."),
    (3, {("8-bit Muon + AdamW", 128): [2.89, 2.93]}, f"|{EVERY} Muon + AdamW is better than AdamW."),
    (3, {("8-bit Muon + AdamW", 128): [3.11, 3.12]}, "; 8-bit Muon + AdamW is worse than AdamW."),
]  # fmt: skip


@pytest.mark.parametrize(("act", "changed", "words"), SAID, ids=lambda x: x if isinstance(x, str) else "")
def test_claims_follow_from_the_figures(act, changed, words):
    [(_, headline, clear)] = story(result(changed, acts=(act,)))
    assert words in f"{headline}|{clear}"


def test_one_seed_decides_nothing():
    made = result()
    at = {batch: made.rows(made.acts[0], batch) for batch in made.acts[0].batches}
    assert [any(verdict(row, rows) for row in rows) for rows in at.values()] == [False, True]
    assert all(row.case.once for row in at[32])


def test_what_does_not_follow_is_said_in_three_sentences():
    for options in ({}, {"is_quick": True}, {"acts": (3,)}):
        said = caveats(result(**options))
        assert len(said.replace("al. 2021", "al 2021").split(". ")) == 3
        assert "2102.06356" in said


def test_a_quick_run_draws_no_conclusion():
    made = result(is_quick=True)
    (warning,) = beware(made)
    assert warning.startswith("This was a quick run, and no conclusion is drawn from it")
    assert [*story(made)] == []


def test_an_interrupted_run_reports_only_whole_results():
    made = result({("LAMB", 128): None, ("SGD", 32): None})
    assert list(beware(made)) == ["This run was interrupted: what it did not finish is missing."]
    assert [act.number for act, _, _ in story(made)] == [1, 3]
