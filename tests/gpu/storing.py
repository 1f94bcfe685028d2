"""Jobs whose weights and state are stored in formats, for the engine and for the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu.world import DEVICE, ENGINE

from layerwise import engines
from layerwise.engines.gpu.specialization import why_declined
from layerwise.engines.rule import RuleEngine
from layerwise.rules.requests import Now
from layerwise.rules.states import is_signed
from layerwise.storage import STATE, WEIGHTS, Format, JobFormats, quantized_groups
from layerwise.storage.bits import key_of
from layerwise.storage.formatted_arrays import FormattedArray
from layerwise.storage.index import Index, index_of
from layerwise.torch.arrays._library import BITS, Tensors

RULE = RuleEngine(Tensors(), None, None)
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
            drawn = None if form.weights == "split" else key_of(3, name, STATE, lower=not signed)
            grouped = Format(torch.zeros(scales(shape, dims), device=DEVICE), drawn, quantized_groups.EIGHT)
            found = array(BF16 if form.state is BF16 else I8 if signed else torch.uint8)
            one = grouped if form.state is I8 else Format(None, key_of(3, name, STATE, lower=not signed))
        state.append(found)
        formats.append(one)
    storage = JobFormats(tuple(formats), index or index_of(shape), dims)
    return engines.Job(case.rule, h, p, type(shapes)(*state), block_dims, storage=storage)


def scales(shape: tuple[int, ...], row_dims: int) -> tuple[int, ...]:
    return *shape[:row_dims], quantized_groups.num_groups(prod(shape[row_dims:]))


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


# ---- the comparison with the rule


def agree(ours: engines.Job, theirs: engines.Job) -> None:
    """Compare two jobs: random bits are equal, and what is rounded differs where arithmetic does."""
    assert ours.storage is not None
    for (name, x), (_, y), form in zip(plain(ours), plain(theirs), ours.storage.formats, strict=True):
        if x is None:
            continue
        apart = (x.double() - y.double()).abs()
        if form is None:
            assert apart.max() <= 4e-6 * y.double().abs().max(), name
        elif x.dtype in (I8, torch.uint8):
            assert apart.max() <= 1, name
        else:
            assert (apart > 0).double().mean() <= 0.01, name
            room = (2.0**-16 if form.beside is not None and form.beside.dtype == I8 else 0) + 2e-6
            a, b = (full(job) if name == "p" else x.double() for job in (ours, theirs))
            assert form.beside is None or (a - b).abs().max() <= room * b.abs().max(), name


def plain(job: engines.Job) -> Iterator[tuple[str, Any]]:
    return zip(("p", *job.state._fields), (job.p, *job.state), strict=True)


def full(job: engines.Job) -> torch.Tensor:
    """The weights with all their digits."""
    assert job.storage is not None
    form = job.storage.formats[0]
    if form is None:
        return job.p.double()
    return FormattedArray(job.p, form, job.storage.index, job.storage.row_dims, BITS).decode().double()


def held(
    make: Callable[[], list[engines.Job]],
    steps: int = 2,
    check: Callable[[engines.Job, engines.Job], None] = agree,
    **given: Any,
) -> list[engines.Job]:
    """Step jobs that `make` returns by both engines, and compare them after each step."""
    ours, theirs = make(), make()
    assert not any(map(why_declined, ours))
    kernels, rule = ENGINE.prepare(ours), RULE.prepare(theirs)
    for t in range(1, steps + 1):
        grads, nows = [gradient_of(job, t) for job in ours], [now_of(job, t, t) for job in ours]
        kernels.step(grads, nows, **given)
        rule.step(grads, nows)
        for one, other in zip(ours, theirs, strict=True):
            check(one, other)
            for (_, x), (_, y) in zip(arrays_of(one), arrays_of(other), strict=True):
                y.copy_(x)
    return ours
