"""Random jobs for every engine, and the comparison of their steps with the rule's.

Both step the same numbers. They may differ by some roundings, and where that is not enough, by as much as the rule
differs from itself if the last digits of all that it reads are others.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from engines.parts import Cut
from engines.worlds import EPS, NAMES, Job, World, as_torch, in_memory, mapped, now_of, numbers

from layerwise.engines.programs import why_not_printed
from layerwise.errors import ContradictionError, EngineError, HyperparameterError
from layerwise.rules.states import is_of_layer, is_signed, is_statistic
from layerwise.storage import STATE, WEIGHTS, Format, JobFormats, quantized_groups
from layerwise.storage.bits import key_of
from layerwise.storage.formatted_arrays import as_numbers as read
from layerwise.storage.formatted_arrays import in_format
from layerwise.storage.index import index_of

STEPS = 3
SIZES = (1e-20, 1e-12, 1e-6, 1e-3, *(1.0,) * 6, 1e3, 1e6, 1e12)
RATES = (0.0, 1e-10, 1e-3, 0.1, 1.0, 1e3)
STARTS = (0, 0, 0, 2**33 + 5)  # steps before the first, of whose number random bits use all 64 bits
OFFSETS = (0, 2**32 - 40, 2**33 + 5)  # of the part in the whole tensor
WEIGHT_FORMS = ("drawn", "split", "split24", "split24 drawn")
STATE_FORMS = ("float32", "bfloat16", "bfloat16 drawn", "int8", "int8 drawn")
CLOSE, SENSITIVE, SHAKES = 128, 30, 3  # in roundings; how much more than the rule itself; of how many tries
LYING = re.compile("row-major|stored as matrices|not contiguous|lie in a row|end inside groups")  # of jobs
FEW, TURNED = 4, 0.02  # so many, and such a share, of what is rounded at random may come to the other neighbour
SMALLEST = 2.0**-24  # number of float16
LEAST = 1e-18  # squares of less are no normal numbers of float32


@dataclass(frozen=True)
class Limits:
    """What an engine is given."""

    most: int = 40_000  # elements of a tensor
    layouts: tuple[str, ...] = ("plain",)
    leading: bool = False  # blocks are of the first dimension


@dataclass(frozen=True)
class Drawn:
    """Jobs as NumPy arrays, and what they are given from step to step."""

    seed: str
    jobs: list[Job]
    layouts: list[str]
    hs: list[list[Any]]  # of each job, for each step
    g_scale: float
    start: int
    parts: int  # in how many the jobs are stepped, by the cuts; 0 is whole
    cuts: list[Cut]

    def at(self, jobs: list[Job], t: int, world: World) -> list[Job]:
        """The jobs as the next step takes them."""
        rng, found = random.Random(f"{self.seed} {t}"), []
        size = rng.choice(SIZES)
        for job, layout, hs in zip(jobs, self.layouts, self.hs, strict=True):
            dtype = str(job.g.dtype).removeprefix("torch.")
            g = _numbers(rng, tuple(job.p.shape), rng.choice((size, rng.choice(SIZES))), dtype, layout)
            now = now_of(hs[t], self.start + t + 1, self.g_scale)
            found.append(replace(job, h=hs[t], now=now, g=world.array(g)))
        return found


def drawn(case: Any, seed: int, limits: Limits) -> Drawn:
    """Jobs that kernels take."""
    for attempt in range(100):
        name = f"{case.name} {seed} {attempt}"
        try:
            found = _drawn(case, name, random.Random(name), limits)
        except (ContradictionError, HyperparameterError):
            continue  # options that contradict one another
        if not any(
            why_not_printed(replace(job, h=h)) for job, hs in zip(found.jobs, found.hs, strict=True) for h in hs
        ):
            return found
    raise AssertionError(f"{case.name} {seed}: no options for which there are kernels")


def _drawn(case: Any, name: str, rng: random.Random, limits: Limits) -> Drawn:
    options = case.drawn(rng.randrange(1 << 30))
    if rng.random() < 0.5:
        options |= {"lr": rng.choice(RATES), "weight_decay": rng.choice((0.0, 0.1, 3.0))}
    others = {k: x for k, x in case.drawn(rng.randrange(1 << 30)).items() if rng.random() < 0.3}
    h, last = case.hyper(**options), case.hyper(**{**options, **others})
    parts = rng.choice((0, 0, 0, 1, 2, 3))
    jobs, layouts, hs, cuts = [], [], [], []
    for i in range(rng.randint(1, 3)):
        if jobs and rng.random() < 0.2:  # alike, for engines that take such together
            shape, blocks = jobs[-1].p.shape, jobs[-1].block_dims
        else:
            shape = _shape(rng, limits.most)
            blocks = tuple(d for d in range(len(shape)) if rng.random() < 0.2)
            blocks = (0,) if limits.leading and blocks else blocks
        layout = rng.choice((*("plain",) * len(limits.layouts), *limits.layouts))
        job, layout = _job(case, h, shape, blocks, f"{name} {i}", rng, layout, bool(parts))
        jobs.append(job), layouts.append(layout)
        changed = last.fit(shape, blocks, EPS[jobs[-1].p.dtype.name])
        alike = case.rule.shapes(changed, shape) == case.rule.shapes(jobs[-1].h, shape)
        hs.append([jobs[-1].h] * (STEPS - 1) + [changed if alike else jobs[-1].h])
        dim = rng.choice([None, *range(len(shape))])
        cuts.append(Cut(dim, () if dim is None else tuple(sorted(rng.choices(range(shape[dim] + 1), k=parts - 1)))))
    return Drawn(name, jobs, layouts, hs, rng.choice((1.0, 1.0, 8.0, 1000.0)), rng.choice(STARTS), parts, cuts)


def _shape(rng: random.Random, most: int) -> tuple[int, ...]:
    """A vector, often about as long as a register; a tensor of up to four dimensions; or one of several chunks."""
    kind = rng.random()
    if kind < 0.3:
        return (rng.randint(0, 70),)
    shape = tuple(rng.choice((*range(1, 10), 0, 1, 2, 16, 33, 64, 70)) for _ in range(rng.randint(0, 4)))
    if kind > 0.9:
        shape = rng.choice(((70, 90), (2**14,), (2**14 + 3,), (2, 17_000), (130, 257), (3, 200, 9)))
    while prod(shape) > most:
        longest = max(shape)
        shape = tuple(-(-n // 2) if n == longest else n for n in shape)
    return shape


def _job(
    case: Any, h: Any, shape: Any, blocks: Any, name: str, rng: random.Random, layout: str, in_parts: bool
) -> tuple[Job, str]:
    dtype = rng.choice(("float32", "float32", *NAMES))
    low = dtype in ("bfloat16", "float16")
    weights = rng.choice(("plain", *WEIGHT_FORMS)) if low and not in_parts else "plain"
    plain = "float64" if dtype == "float64" else "float32"
    state = rng.choice(("float32", "float32", "bfloat16") if in_parts else STATE_FORMS)
    if dtype == "float64" or not prod(shape):
        state = plain
    if "int8" in state:  # groups lie in a row
        blocks, layout = (0,) if blocks and len(shape) > 1 else (), layout if layout == "odd" else "plain"
    fitted = h.fit(shape, blocks, EPS[dtype])
    shapes, arrays, formats = case.rule.shapes(fitted, shape), [], [_weights(weights, shape, name, layout)]
    dims = min(1, len(shape) - 1)
    for field, own in zip(shapes._fields, shapes, strict=True):
        kept, form = state.split()[0], None
        if own is None or is_statistic(case.rule, field) or is_of_layer(case.rule, field):
            kept = plain
        elif "int8" in state and shape:
            signed = is_signed(case.rule, field)
            scale = np.zeros((*shape[:dims], quantized_groups.num_groups(prod(shape[dims:]))), np.float32)
            key = key_of(3, name, STATE, lower=not signed) if "drawn" in state else None
            kept, form = (
                "int8" if signed else "uint8",
                Format(in_memory(scale, "float32", layout), key, quantized_groups.EIGHT),
            )
        elif "int8" in state:
            kept = "float32"
        elif "drawn" in state:
            form = Format(None, key_of(3, name, STATE, lower=not is_signed(case.rule, field)))
        arrays.append(None if own is None else in_memory(np.zeros(own), kept, layout))
        formats.append(form)
    p = _numbers(rng, shape, rng.choice(SIZES), dtype, layout)
    g = in_memory(np.zeros(shape), rng.choice((dtype, dtype, *NAMES)), layout)
    storage = None
    if any(formats):
        storage = JobFormats(tuple(formats), replace(index_of(shape), offset=rng.choice(OFFSETS)), dims)
    return Job(case.rule, fitted, None, p, g, type(shapes)(*arrays), blocks, storage=storage), layout


def _weights(form: str, shape: tuple[int, ...], name: str, layout: str) -> Format | None:
    key = key_of(3, name, WEIGHTS) if "drawn" in form else None
    if "split" not in form:
        return key and Format(None, key)
    return Format(in_memory(np.zeros(shape), "int8" if "24" in form else "int16", layout), key)


def _numbers(rng: random.Random, shape: tuple[int, ...], size: float, dtype: str, layout: str) -> np.ndarray:
    draw, kind = np.random.default_rng(rng.randrange(1 << 30)), rng.random()
    found = draw.normal(size=shape) * size
    if kind < 0.1:  # of very different sizes
        found = found * 10.0 ** draw.uniform(-6, 6, shape)
    elif kind < 0.2:
        found = found * (draw.random(shape) < 0.3)
    most = float(torch.finfo(getattr(torch, dtype)).max)
    found = np.clip(found, -most, most)
    if kind > 0.94 and found.size:
        found.reshape(-1)[draw.integers(found.size)] = rng.choice((np.inf, -np.inf, np.nan))
    return in_memory(np.asarray(found), dtype, layout)


# ---- the comparison


def held(one: Drawn, world: World, step: Callable[[list[Job]], Any]) -> bool:
    """Compare the steps, and return whether the engine takes the jobs as they lie in memory."""
    try:
        wrong = [*differences(one, world, step)]
    except EngineError as refused:
        if not LYING.search(str(refused)):
            raise
        return False
    assert not wrong
    return True


def differences(one: Drawn, world: World, step: Callable[[list[Job]], Any]) -> Iterator[str]:
    """Take the steps, each from where the engine stands, and describe where the rule comes to elsewhere."""
    jobs = [mapped(job, world.array) for job in one.jobs]
    for t in range(STEPS):
        jobs = one.at(jobs, t, world)
        start, theirs = ([mapped(job, world.copy) for job in jobs] for _ in range(2))
        before = _found(world, jobs, [{}] * len(jobs))
        with np.errstate(all="ignore"):
            stats, expected = step(jobs), world.rule.step(theirs)
        for job, old in zip(jobs, start, strict=True):
            assert np.array_equal(numbers(job.g), numbers(old.g), equal_nan=True), "a gradient was written to"
        wanted = _found(world, theirs, expected)
        eps = {i: _rounding(job, jobs) for i, job in enumerate(jobs)}
        off = _apart(_found(world, jobs, stats or expected), wanted, before, eps)
        if max(off.values(), default=0.0) <= CLOSE:
            continue
        around = dict.fromkeys(off, 0.0)
        for k in range(SHAKES):
            again = [_shaken(mapped(job, world.copy), k) for job in start]
            with np.errstate(all="ignore"):
                shaken = _found(world, again, world.rule.step(again))
            around = {key: max(x, around[key]) for key, x in _apart(shaken, wanted, before, eps, False).items()}
        for key, x in off.items():
            if not x <= CLOSE + SENSITIVE * around[key]:
                yield f"{one.seed}: step {t}, {key}: {x:.3g} roundings beside {around[key]:.2g}; {jobs[key[0]].h}"


def _rounding(job: Job, jobs: list[Job]) -> float:
    """The rounding of a job's arithmetic; a norm of all comes in part of the narrowest."""
    all_of = [str(one.p.dtype) for one in (jobs if job.h.needs_model_sum else [job])]
    return EPS["float64"] if all("float64" in name for name in all_of) else EPS["float32"]


def _found(world: World, jobs: list[Job], stats: Any) -> dict[Any, Any]:
    """Numbers, in full, with how coarsely they are stored; and what is stored in 8 bits as it is."""
    found = {}
    for i, (job, measured) in enumerate(zip(jobs, stats, strict=True)):
        for k, (name, array) in enumerate(zip(("p", *job.state._fields), (job.p, *job.state), strict=True)):
            if array is None:
                continue
            stored = in_format(world.engine_of_rule.arrays.bits, array, k, job.storage)
            form, dtype = job.storage and job.storage.formats[k], str(array.dtype).removeprefix("torch.")
            if dtype in ("int8", "uint8"):
                found[i, name] = numbers(array), None, form.key is not None
                found[i, f"{name} scale"] = numbers(form.beside), 0.0, False
                continue
            unit = EPS[dtype] if EPS.get(dtype, 0) > EPS["float32"] else 0.0
            if form and form.beside is not None:
                unit = 2.0**-16 if form.beside.dtype in (np.int8, torch.int8) else 0.0
            found[i, name] = numbers(read(stored)), unit, bool(form and form.key and form.beside is None)
        for name, x in measured.items():
            found[i, f"{name} of stats"] = np.ravel(numbers(x)), 0.0, False
    return found


def _apart(found: Any, wanted: Any, before: Any, eps: dict[int, float], turns: bool = True) -> dict[Any, float]:
    assert found.keys() == wanted.keys()
    return {
        key: _score(found[key][0], y, before.get(key, (np.zeros(0),))[0], unit, eps[key[0]], drawn and turns)
        for key, (y, unit, drawn) in wanted.items()
    }


@np.errstate(all="ignore")
def _score(x: Any, y: Any, old: Any, unit: float | None, eps: float, drawn: bool) -> float:
    """How far numbers are from others, in roundings. What is stored in less may be a unit off: if drawn, seldom."""
    if x.shape != y.shape:  # measurements of blocks, and one that is the same of all
        x, y = np.broadcast_arrays(x, y)
    finite = np.isfinite(y)
    if not np.array_equal(finite, np.isfinite(x)):
        return float("inf")
    size = max(np.abs(y).max(initial=0, where=finite), np.abs(old).max(initial=0, where=np.isfinite(old)))
    if unit is None and np.abs(x - y).max(initial=0) > 1:
        return 1e9
    if size < LEAST:
        return 0.0
    off = np.where(finite, np.abs(x - y), 0.0) / size / eps
    turned = np.count_nonzero(off > CLOSE) - FEW if drawn else 0
    stored = 0.0 if unit is None else off - np.where(finite, unit * np.abs(y) + SMALLEST * (unit > 0), 0.0) / size / eps
    return float(max(np.max(stored, initial=0.0), CLOSE * turned / (TURNED * max(1, x.size))))


def _shaken(job: Job, k: int) -> Job:
    """A job with other last digits. Numbers rounded to 16 bits would not show them, and are kept in float32."""
    kept = (
        [None if form is None or form.beside is None else form for form in job.storage.formats] if job.storage else []
    )

    def shaken(array: Any) -> Any:
        name = str(array.dtype).removeprefix("torch.")
        if name not in EPS:
            return array
        wide = "float64" if name == "float64" else "float32"
        factor = 1 + 2 * EPS[wide] * (np.random.default_rng(k).integers(0, 3, tuple(array.shape)) - 1)
        factor = np.asarray(factor, wide)
        if isinstance(array, torch.Tensor):
            return array.to(getattr(torch, wide)) * as_torch(factor).to(array.device)
        return np.asarray(array.astype(wide) * factor)

    split = [i for i, form in enumerate(kept) if form is not None]  # with remainders, which belong to their bits
    found = mapped(replace(job, storage=None), shaken)
    if 0 in split:
        found = replace(found, p=job.p)
    state = [old if i in split else new for i, (old, new) in enumerate(zip(job.state, found.state, strict=True), 1)]
    storage = replace(job.storage, formats=tuple(kept)) if split else None
    return replace(found, state=type(job.state)(*state), storage=storage)
