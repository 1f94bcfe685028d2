"""Formats of lists of tensors: read and written together, they have the bits of each by itself, in few calls."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from layerwise.storage import Format, JobFormats, quantized_groups
from layerwise.storage.bits import key_of
from layerwise.storage.formatted_arrays import FormattedArray
from layerwise.storage.index import index_of
from layerwise.torch.arrays import _list_formats
from layerwise.torch.arrays._library import BITS
from layerwise.torch.arrays._lists import TensorList

SHAPES = [(70, 90), (70, 90), (33,), (3, 4, 5), (), (1, 30), (128, 64), (0, 4)]
# The dtype, that of what stands beside it or "groups", and whether bits are drawn.
FORMS = {
    "bfloat16": (torch.bfloat16, None, True),
    "float16": (torch.float16, None, True),
    "split": (torch.bfloat16, torch.int16, False),
    "split24": (torch.bfloat16, torch.int8, True),
    "split24 of float16": (torch.float16, torch.int8, True),
    "split24 to nearest": (torch.bfloat16, torch.int8, False),
    "int8": (torch.int8, "groups", True),
    "uint8": (torch.uint8, "groups", True),
    "int8 to nearest": (torch.int8, "groups", False),
}
STEPS = {
    "of all": [5] * len(SHAPES),
    "of each": [2**33 + k for k in range(len(SHAPES))],
    "on the device": [torch.tensor(5.0)] * len(SHAPES),
    "of each on the device": [torch.tensor(5.0 + k) for k in range(len(SHAPES))],
}


def stored(k, x, form, layout):
    """An array in a format that holds nothing yet."""
    dtype, beside, drawn = FORMS[form]
    shape, row_dims = tuple(x.shape), int(x.ndim > 1)
    index = index_of(shape)
    if layout == "behind" and x.ndim:
        index = index_of((2 * shape[0], *shape[1:]))[shape[0] : 2 * shape[0]]
    if layout == "part" and x.ndim > 1:
        index = index_of((*shape[:-1], shape[-1] + 7))[(slice(None),) * (x.ndim - 1) + (slice(3, 3 + shape[-1]),)]
    key = key_of(3, f"p{k}", "state", lower=k % 2 == 0) if drawn else None
    if beside == "groups":
        length = x[0].numel() if row_dims and shape[0] else x.numel()
        scales = torch.zeros(
            (shape[0], quantized_groups.num_groups(length)) if row_dims else (quantized_groups.num_groups(length),)
        )
        return FormattedArray(
            torch.zeros_like(x, dtype=dtype), Format(scales, key, quantized_groups.EIGHT), index, row_dims, BITS
        )
    rest = None if beside is None else torch.zeros_like(x, dtype=beside)
    return FormattedArray(torch.zeros_like(x, dtype=dtype), Format(rest, key), index, row_dims, BITS)


def given(form, layout):
    """Numbers of several sizes, and where they are to be stored."""
    torch.manual_seed(0)
    xs = [torch.randn(shape) * 10.0 ** (k - 3) for k, shape in enumerate(SHAPES)]
    if layout == "transposed":
        xs = [torch.randn(x.shape[::-1]).T if x.ndim == 2 else x for x in xs]
    xs = [x * x if form == "uint8" else x for x in xs]
    places = [stored(k, x, form, layout) for k, x in enumerate(xs)]
    jobs = [
        SimpleNamespace(p=x, whole=tuple(x.shape), storage=JobFormats((one.format,), one.index, one.row_dims))
        for x, one in zip(xs, places, strict=True)
    ]
    return xs, places, _list_formats.StoredLists(jobs)


def write_each(places, xs, ts, skip):
    """Write each by itself, as the rule engine does."""
    for one, x, t in zip(places, xs, ts, strict=True):
        for old, new in zip((one.array, one.format.beside), one.encode(x, t), strict=True):
            if new is not None:
                old.copy_(new if skip is None else torch.where(skip, old, new))


def copied(places):
    return [
        replace(
            one,
            array=one.array.clone(),
            format=one.format._replace(beside=None if one.format.beside is None else one.format.beside.clone()),
        )
        for one in places
    ]


@pytest.mark.parametrize("layout", ["plain", "transposed", "part", "behind"])
@pytest.mark.parametrize("form", FORMS)
def test_lists_are_stored_and_read_to_the_bits_of_each_tensor(form, layout, monkeypatch):
    monkeypatch.setattr(_list_formats, "MOST", 64 * 7)
    monkeypatch.setattr(_list_formats.StoredLists, "by_extension", lambda *_: False)
    xs, places, lists = given(form, layout)
    skips = (None, torch.tensor(True), torch.tensor(False))
    for ts, skip in [*((ts, None) for ts in STEPS.values()), *((STEPS["of each"], skip) for skip in skips)]:
        xs, wanted = [1.37 * x for x in xs], copied(places)
        write_each(wanted, xs, ts, skip)
        lists.encode(places, TensorList(lists, lists.layout(tuple(tuple(x.shape) for x in xs)), xs), ts, skip)
        found = lists.read(places)
        for one, other, number in zip(places, wanted, found.each, strict=True):
            assert torch.equal(one.array, other.array)
            assert one.format.beside is None or torch.equal(one.format.beside, other.format.beside)
            assert torch.equal(number, other.decode())
        del found
        lists.give_back()


def test_what_the_extension_knows_it_stores_on_a_cpu():
    _, places, lists = given("int8", "plain")
    assert lists.by_extension(places) == (places[0].extension is not None)
