"""Weights and state in storage formats: steps of the GPU engine against those of the rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import case_of
from gpu.storing import (
    BF16,
    ENGINE,
    F32,
    FORMS,
    Form,
    arrays_of,
    bits_of,
    gradient_of,
    held,
    now_of,
    stored_job,
)
from gpu.world import DEVICE, proving

from layerwise import engines
from layerwise.engines.assignment import prepare
from layerwise.engines.gpu import operand_formats
from layerwise.engines.gpu.kernels import formats
from layerwise.engines.gpu.proof import NoOtherRanks
from layerwise.engines.gpu.specialization import why_declined
from layerwise.errors import EngineError
from layerwise.storage.index import Index, part_of

LAMB, ADAFACTOR = case_of("Lamb"), case_of("Adafactor")
DRAWN, SPLIT, SPLIT24 = FORMS[:3]
SHAPES = [(300,), (5, 128), (5, 70)]  # of several programs; groups of 8 bits do not take the last


def jobs_of(case, form, shapes=SHAPES):
    return [job for shape in shapes if not why_declined(job := stored_job(case, shape, form, name=str(shape)))]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_steps_of_each_form_are_the_rules(form):
    held(lambda: jobs_of(LAMB, form))


@pytest.mark.parametrize("factored", ["last", False])
def test_steps_of_adafactor_are_the_rules_whatever_is_factored(factored):
    shapes = [(2, 128), (3, 70), (2, 3, 3, 5)]
    made = [(shape, form) for form in (SPLIT24, DRAWN) for shape in shapes]
    cut = made[1:3]  # of groups of 8 bits
    held(lambda: [stored_job(ADAFACTOR, *each, factored=factored) for each in made if each not in cut])
    assert all("end inside groups" in why_declined(stored_job(ADAFACTOR, *each, factored=factored)) for each in cut)


def test_several_forms_share_a_step_and_a_bound_on_the_norm_of_all_gradients():
    bound = {"max_grad_norm": 0.5}
    forms = (SPLIT, DRAWN, SPLIT24)
    held(lambda: [stored_job(LAMB, (5, 128), form, name=str(i), **bound) for i, form in enumerate(forms)])


@pytest.mark.parametrize("form", [DRAWN, pytest.param(FORMS[3], marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    "index", [part_of((9, 20), {0: range(2, 8)}), Index((6, 20), (20, 1), (1 << 40) + 5)], ids=["rows", "far"]
)
def test_random_bits_belong_to_the_place_in_the_whole_tensor(form, index):
    held(lambda: [stored_job(LAMB, (6, 20), form, index=index)])


@pytest.mark.parametrize("form", [DRAWN, SPLIT24, FORMS[3]], ids=str)
def test_parts_have_the_bits_of_the_whole(form):
    shape, cuts = (4, 128), [slice(0, 1), slice(1, 4)]
    whole, index = stored_job(LAMB, shape, form, adapt=False), part_of(shape, {})
    indices = [index[cut] for cut in cuts]
    parts = [stored_job(LAMB, one.shape, form, adapt=False, index=one) for one in indices]
    for part, cut in zip(parts, cuts, strict=True):
        part.p.copy_(whole.p[cut])
    g = gradient_of(whole, 1)
    ENGINE.prepare([whole]).step([g], [now_of(whole, 1, 1)])
    ENGINE.prepare(parts).step([g[cut] for cut in cuts], [now_of(part, 1, 1) for part in parts])
    for (name, x), *others in zip(arrays_of(whole), *map(arrays_of, parts), strict=True):
        assert torch.equal(x, torch.cat([y for _, y in others])), name


def test_steps_of_blocks_are_the_rules():
    held(lambda: [stored_job(LAMB, (2, 3, 64), form, block_dims=(0,), row_dims=2) for form in (SPLIT, SPLIT24)])


@pytest.mark.parametrize(("case", "form"), [(LAMB, DRAWN), (LAMB, SPLIT24), (ADAFACTOR, SPLIT24)])
def test_other_ranks_without_parts_change_nothing(case, form):
    held(lambda: [stored_job(case, (3, 64), form)], others=NoOtherRanks())


@pytest.mark.parametrize(("case", "form"), [(LAMB, DRAWN), (LAMB, SPLIT), (ADAFACTOR, SPLIT)])
def test_a_skipped_step_leaves_everything(case, form):
    job = stored_job(case, (2, 128), form)
    count = torch.zeros((), dtype=torch.int64, device=DEVICE)
    prepared, g = ENGINE.prepare([job]), gradient_of(job, 1)
    skip = torch.zeros((), dtype=torch.bool, device=DEVICE)
    prepared.step([g], [now_of(job, engines.DeviceStepCount(count), 1)], skip)
    before = bits_of(job)
    prepared.step([g], [now_of(job, engines.DeviceStepCount(count), 2)], ~skip)
    assert bits_of(job) == before
    assert int(count) == 1


@pytest.mark.parametrize(
    ("case", "form", "start", "told"),
    [
        (LAMB, DRAWN, 2**32 + 1, engines.DeviceStepCount),
        (LAMB, FORMS[3], 2**32 + 1, engines.DeviceStepCount),
        pytest.param(LAMB, DRAWN, 0, engines.DeviceStepCount, marks=pytest.mark.slow),
        (case_of("Lars"), DRAWN, 0, lambda count: count + 1),  # whose coefficients do not depend on it
    ],
    ids=["counter", "counter, 24 bits", "small counter", "number"],
)
def test_a_step_number_on_the_device_draws_the_same_bits(case, form, start, told):
    options = {"betas": (0.9, 0.99)} if case is LAMB else {}
    ours, theirs = (stored_job(case, (4, 70), form, **options) for _ in range(2))
    count = torch.full((), start, dtype=torch.int64, device=DEVICE)
    given, usual = ENGINE.prepare([ours]), ENGINE.prepare([theirs])
    for t in (start + 1, start + 2):
        g = gradient_of(ours, t % 7)
        given.step([g], [now_of(ours, told(count), t)])
        usual.step([g], [now_of(theirs, t, t)])
        assert bits_of(ours) == bits_of(theirs)
        assert int(count) == t - (told is not engines.DeviceStepCount)
        count.fill_(t)


# ---- what is left to the rule


def test_formats_that_kernels_do_not_know_are_declined():
    places = {
        "transposed": {"like": torch.zeros(64, 6, device=DEVICE).mT},
        "columns": {"index": part_of((9, 90), {0: range(2, 8), 1: range(25, 89)})},
        "scattered": {"index": part_of((12, 64), {0: [0, 3, 4, 5, 8, 9]})},
    }
    for name, place in places.items():
        assert "are not in the row-major order" in why_declined(stored_job(LAMB, (6, 64), DRAWN, **place)), name
    without_random_bits = stored_job(LAMB, (6, 64), Form(BF16, "split", F32), index=places["columns"]["index"])
    assert why_declined(without_random_bits) == ""
    cut = stored_job(LAMB, (2, 48), SPLIT, block_dims=(0,), row_dims=0)
    assert "would split groups of 64" in why_declined(cut)
    alone = stored_job(LAMB, (1, 70), SPLIT)
    assert why_declined(alone) == ""
    assert "rows of (2, 70) end inside groups of 64" in why_declined(alone._replace(shape=(2, 70)))
    assert "rows of matrices of (2, 70, 32) end inside groups" in why_declined(
        stored_job(ADAFACTOR, (2, 70, 32), SPLIT, row_dims=1)
    )
    assert "kernels for torch.float32 in such a format" in why_declined(
        stored_job(LAMB, (5, 70), Form(F32, "drawn", F32))
    )
    job = stored_job(LAMB, (5, 64), SPLIT)
    beside = torch.zeros(64, 5, dtype=torch.int16, device=DEVICE).mT
    weights = job.storage.formats[0]._replace(beside=beside)
    storage = replace(job.storage, formats=(weights, *job.storage.formats[1:]))
    assert "a remainder has strides" in why_declined(job._replace(storage=storage))
    assert "no kernels for torch.int8" in why_declined(job._replace(storage=None))


# ---- the proof


def wrong_keys(rows):
    rows[:, formats.KEYS.value : formats.OFFSET.value] ^= 1


def others_scales(rows):
    rows[:, formats.BESIDE.value + 1 : formats.BESIDE.value + 3] = rows[
        :, [formats.BESIDE.value + 2, formats.BESIDE.value + 1]
    ]


@pytest.mark.parametrize(
    ("form", "breaks", "why"),
    [(DRAWN, wrong_keys, "other random bits"), (SPLIT, others_scales, "extra bits of exp_avg")],
    ids=["keys", "scales"],
)
def test_kernels_that_store_otherwise_fail_their_proof(form, breaks, why, monkeypatch):
    job, table_of = stored_job(LAMB, (5, 64), form), operand_formats.format_table
    broken = lambda *args: (breaks(rows := table_of(*args)), rows)[1]  # noqa: E731
    monkeypatch.setattr("layerwise.engines.gpu.tables.format_table", broken)
    with np.errstate(all="ignore"), pytest.raises(EngineError, match=f"in storage formats.*failed their proof.*{why}"):
        prepare([proving(warns=False)], [job]).step([gradient_of(job, 1)], [now_of(job, 1, 1)])


@pytest.mark.parametrize("case", [LAMB, ADAFACTOR], ids=lambda case: case.name)
def test_kernels_that_are_right_pass_their_proof(case):
    jobs = jobs_of(case, SPLIT, [(2, 128), (70,)])
    skip = torch.zeros((), dtype=torch.bool, device=DEVICE)
    engine = proving()
    engine.prepare(jobs).step([gradient_of(job, 1) for job in jobs], [now_of(job, 1, 1) for job in jobs], skip)
    assert set(engine.proof.known.values()) == {""}
