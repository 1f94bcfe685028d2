"""Jobs whose weights and state are stored in formats, for the engine and for the rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu.world import DEVICE, SMALL

from layerwise import engines
from layerwise.engines.rule import RuleEngine
from layerwise.rules.asks import Now
from layerwise.storage import WEIGHTS, Format, Storage, groups
from layerwise.storage.bits import key_of
from layerwise.storage.index import Index, index_of
from layerwise.storage.options import is_signed
from layerwise.torch.step._namespace import Tensors

RULE = RuleEngine(Tensors(), None, None)
SIZES = replace(SMALL, wide=(1, 2, 64))  # tiles of whole groups
MOMENTUM = {"Adafactor": {"beta1": 0.9}, "Lars": {"momentum": 0.9}}
REMAINDERS = {"split": torch.int16, "split24": torch.int8, "split24 drawn": torch.int8}


class Form(NamedTuple):
    """The dtype and the form of weights, and the dtype of the state of their shape."""

    dtype: torch.dtype
    weights: str
    state: torch.dtype

    def __str__(self) -> str:
        return "-".join(str(x).removeprefix("torch.").replace(" ", "-") for x in self)


BF16, F16, F32, I8 = torch.bfloat16, torch.float16, torch.float32, torch.int8
FORMS = [
    Form(BF16, "drawn", BF16),
    Form(BF16, "split", I8),
    Form(BF16, "split24", I8),
    Form(BF16, "split24 drawn", BF16),
    Form(F16, "drawn", I8),
    Form(F16, "split", F32),
    Form(F16, "split24 drawn", F32),
    Form(F32, "plain", I8),
]


def stored_job(
    case: Any,
    shape: tuple[int, ...],
    form: Form,
    *,
    index: Index | None = None,
    block_dims: tuple[int, ...] = (),
    row_dims: int | None = None,
    like: torch.Tensor | None = None,
    name: str = "w",
    **options: Any,
) -> engines.Job:
    """A job on the engine's device; memory is laid out as that of `like`."""
    h = case.hyper(**{**MOMENTUM.get(case.name, {}), **options}).fit(shape, block_dims, 2.0**-7)
    like = torch.zeros(shape, device=DEVICE) if like is None else like

    def array(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros_like(like, dtype=dtype, memory_format=torch.preserve_format)

    p = array(form.dtype).copy_(numbers(shape, 0))
    rest = array(REMAINDERS[form.weights]) if form.weights in REMAINDERS else None
    key = key_of(3, name, WEIGHTS) if "drawn" in form.weights else None
    formats = [None if rest is None and key is None else Format(rest, key)]
    dims = min(1, len(shape) - 1) if row_dims is None else row_dims
    shapes, state = case.rule.shapes(h, shape), []
    for field, own in zip(shapes._fields, shapes, strict=True):
        found, one = None if own is None else torch.zeros(own, device=DEVICE), None
        if own is not None and tuple(own) == shape and form.state is not F32:
            signed = is_signed(case.rule, field)
            drawn = None if form.weights == "split" else key_of(3, name, field)
            grouped = Format(torch.zeros(scales(shape, dims), device=DEVICE), drawn, groups.EIGHT)
            found = array(BF16 if form.state is BF16 else I8 if signed else torch.uint8)
            one = grouped if form.state is I8 else Format(None, key_of(3, name, field))
        state.append(found)
        formats.append(one)
    storage = Storage(tuple(formats), index or index_of(shape), dims)
    return engines.Job(case.rule, h, p, type(shapes)(*state), block_dims, storage=storage)


def scales(shape: tuple[int, ...], row_dims: int) -> tuple[int, ...]:
    return *shape[:row_dims], groups.count(prod(shape[row_dims:]))


def numbers(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    draw = np.random.default_rng(seed)
    return torch.as_tensor(draw.normal(size=shape) * 10.0 ** draw.uniform(-2, 1, shape)).to(DEVICE)


def gradient_of(job: engines.Job, t: int) -> torch.Tensor:
    return torch.zeros_like(job.p, memory_format=torch.preserve_format).copy_(numbers(tuple(job.p.shape), t))


def now_of(job: engines.Job, t: Any, count: int) -> Now:
    return Now(t, 0.05, 0.1, 1.0, job.h.beta2_of(count))


def arrays_of(job: engines.Job) -> Iterator[tuple[str, torch.Tensor]]:
    """All that is stored of a job, with names."""
    assert job.storage is not None
    for field, array, form in zip(("p", *job.state._fields), (job.p, *job.state), job.storage.formats, strict=True):
        if array is not None:
            yield field, array
        if form is not None and form.beside is not None:
            yield f"{field} beside", form.beside


def bits_of(job: engines.Job) -> list[bytes]:
    return [x.cpu().contiguous().view(torch.uint8).numpy().tobytes() for _, x in arrays_of(job)]
