"""The proof: before kernels take their first step on a device, they and the rule step small tensors like those at hand.

The compiler, the driver or the device may differ from those that kernels were tested with, and wrong weights look like
any others. Small tensors are alike in all that kernels are compiled for, so hardly any is compiled for the proof alone.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf, prod
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerwise.drive import Others, TensorRequest
from layerwise.engines import Counter, Engine, Job, Prepared
from layerwise.engines.gpu.call import Call
from layerwise.engines.gpu.installed import PROOF_VARIABLE
from layerwise.engines.gpu.layout import operands
from layerwise.engines.gpu.planes import tiling_of
from layerwise.engines.gpu.program import states_of
from layerwise.engines.gpu.stored import is_grouped, kind_of, walks
from layerwise.errors import EngineError, sentence
from layerwise.rules.asks import Now
from layerwise.storage import Format
from layerwise.storage.groups import GROUP, count
from layerwise.storage.index import Index, index_of

LONGEST, LARGEST = 528, 1 << 19  # a side and the elements of a small tensor: more than one program takes of either
ALIGNED = 16  # elements, of which vectors may be made
STEPS = 2
# Two roundings of stored numbers, and the difference that two ways to the same sum may make.
STORED = {torch.float64: 2.0**-51, torch.float32: 2.0**-22, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
COMPUTED = {torch.float64: 2.0**-42, torch.float32: 2.0**-15}
FEW = (
    0.02  # of numbers rounded at random may be others; on average, of what a remainder may be: by other bits, a fourth
)


class Proof:
    """The results of all proofs in this process. Kernels are compared with the engine `rule`."""

    def __init__(self, rule: Engine) -> None:
        self._rule, self._lock = rule, RLock()
        self.known: dict[Hashable, str] = {}  # what is wrong, by device and what kernels are compiled for

    def passed(
        self, jobs: Sequence[Job], grads: Sequence[Tensor], call: Call, prepare: Callable[..., Prepared], insists: bool
    ) -> bool:
        """Return True if kernels, which `prepare` small jobs, may step these; raise an error if no other engine may."""
        if not wanted():
            return True
        with self._lock, torch.no_grad():
            for like, some in _alike(jobs, grads, call).items():
                new = like not in self.known
                if new:
                    self.known[like] = _tried(self._rule, prepare, some, call)
                if self.known[like]:
                    break
            else:
                return True
        device, rule, kind, *_ = like
        dtypes = [str(dtype).removeprefix("torch.") for dtype in dict.fromkeys(kind.dtypes)]
        named = f"{rule.__name__} ({', '.join(dtypes + ['in storage formats'] * bool(kind.formats))})"
        failure = f"the GPU engine's kernels for {named} fail their proof on {device}: {self.known[like]}."
        way_out = f"{PROOF_VARIABLE}=0 uses them without a proof."
        if insists:
            raise EngineError(f"{failure} Leave the choice of engine, for the rule to step. {way_out}")
        if new:
            warnings.warn(f"{failure} The rule steps instead, which is slower. {way_out}", RuntimeWarning, stacklevel=2)
        return False


def wanted() -> bool:
    """Return True if the environment leaves the proof on."""
    value = os.environ.get(PROOF_VARIABLE) or "1"
    if value not in ("0", "1"):
        raise EngineError(sentence(PROOF_VARIABLE, "0 or 1", value, "0 uses the GPU engine's kernels without a proof."))
    return value == "1"


def _alike(jobs: Sequence[Job], grads: Sequence[Tensor], call: Call) -> dict[tuple[Any, ...], list[tuple[Job, Tensor]]]:
    """Return the smallest and the largest job with the same kernels; every rank counts those it has no part of."""
    found: dict[tuple[Any, ...], list[tuple[Job, Tensor]]] = {}
    for job, g in sorted(zip(jobs, grads, strict=True), key=lambda each: each[0].p.numel()):
        if job.p.numel() or call.others is not None:
            arrays = operands(job, g, states_of(job))
            kind = kind_of(job, arrays)
            tiling = tiling_of(job, arrays, call.tables.sizes) if kind.factored else None
            like = job.p.device, type(job.h), kind, tiling, call.variant, call.tables.sizes
            found[like] = [*found.get(like, [])[:1], (job, g)]
    return found


def _tried(rule: Engine, prepare: Callable[..., Prepared], some: Sequence[tuple[Job, Tensor]], call: Call) -> str:
    """Return what is wrong with the kernels of these jobs, or an empty string."""
    try:
        return compared(rule, prepare, some, call)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as problem:
        first = (str(problem).strip() or "no reason given").splitlines()[0][:200]
        return f"they do not compile or run ({type(problem).__name__}: {first})"


def compared(rule: Engine, prepare: Callable[..., Prepared], some: Sequence[tuple[Job, Tensor]], call: Call) -> str:
    """Return the difference between kernels and the rule on small jobs like these, or an empty string.

    Each step begins with the kernels' results; the last one is skipped if steps may be.
    """
    ours, grads = map(list, zip(*(_small(*each, call) for each in some), strict=True))
    theirs = [_mapped(job, torch.clone) for job in ours]
    kernels, by_rule = prepare(ours), rule.prepare(theirs)
    counts = [torch.zeros((), dtype=torch.int64, device=g.device) for g in grads]
    rates = [
        (_pace(rule, job, _filled(g, 1)), 0.1, 2.0 if call.ready else 1.0) for job, g in zip(ours, grads, strict=True)
    ]
    for t in range(1, STEPS + 1 + call.skips):
        taken, old = t <= STEPS, [x.clone() for job in ours for _, x, _ in _arrays_of(job)]
        grads = [_filled(g, t) for g in grads]
        nows = [Now(t, *own, beta2=job.h.beta2_of(t)) for job, own in zip(ours, rates, strict=True)]
        counted = [now._replace(t=Counter(n)) for now, n in zip(nows, counts, strict=True)]
        skip = torch.full((), not taken, device=grads[0].device) if call.skips else None
        kernels.step(grads, counted, skip, None if call.others is None else Alone())
        if taken:
            by_rule.step(grads, nows)
        pairs = zip(*(chain(*map(_arrays_of, jobs)) for jobs in (ours, theirs)), strict=True)
        for ((name, x, one), (_, y, _)), before in zip(pairs, old, strict=True):
            if differing := _difference(name, one, x, y, before):
                return differing if taken else f"they write in a step that is to be skipped: {differing}"
            y.copy_(x)
        if any(int(n) != min(t, STEPS) for n in counts):
            return "they count another step"
    return ""


class Alone(Others):
    """Other ranks, without any parts."""

    def announce(self, stepper: str, buckets: Sequence[Sequence[int]] = ()) -> None:
        pass

    def add_up(self, questions: Sequence[TensorRequest], sums: Tensor) -> Tensor:
        return sums


def _pace(rule: Engine, job: Job, g: Tensor) -> float:
    """Return a learning rate with which a step moves weights by about a quarter of their size, from a trial with 1."""
    wide = _mapped(job._replace(storage=None), lambda x: x.to(torch.float64, copy=True))
    rule.prepare([wide]).step([g.double()], [Now(1, 1.0, 0.0, beta2=job.h.beta2_of(1))])
    moved = float((wide.p - job.p).norm() / job.p.double().norm())
    return 0.25 / moved if 0 < moved < inf else 0.25


# ---- what is stored, and its differences


def _arrays_of(job: Job) -> Iterator[tuple[str, Tensor, Format | None]]:
    formats = (None,) * (1 + len(job.state)) if job.storage is None else job.storage.formats
    for name, x, one in zip(("the weights", *job.state._fields), (job.p, *job.state), formats, strict=True):
        if x is not None:
            yield name, x, one
        if one is not None and one.beside is not None:
            yield f"what is beside {name}", one.beside, None


def _difference(name: str, one: Format | None, x: Tensor, y: Tensor, old: Tensor) -> str:
    """Return the difference of what kernels stored from the rule's in words, or an empty string."""
    a, b = x.double(), y.double()
    apart, most, drawn = (a - b).abs(), b.abs().max() if b.numel() else 0, one is not None and one.key is not None
    if x.is_floating_point():
        room = STORED[x.dtype] * (old.double().abs() + b.abs()) + COMPUTED.get(x.dtype, COMPUTED[torch.float32]) * most
        wrong = ~((apart <= room) | (a == b) | (a.isnan() & b.isnan()))
    elif one is not None:  # codes
        wrong = apart > 1
    else:  # remainders are as far apart as weights are
        period = 1 << 8 * x.element_size()
        wrong = torch.minimum(apart, period - apart).mean() > FEW * period
    if bool(wrong.any()):
        return f"{name} of {tuple(x.shape)} differ from the rule's by {float(apart.max() / most):.1e} of the largest"
    drawn = drawn and bool((a != b).double().mean() > FEW)
    return f"{name} of {tuple(x.shape)} are rounded by other random bits than the rule's" if drawn else ""


# ---- small tensors


def _small(job: Job, g: Tensor, call: Call) -> tuple[Job, Tensor]:
    """Return a small job like this one, and a gradient, with numbers that are the same on every rank."""
    whole = tuple(job.p.shape) if job.p.numel() or job.shape is None else job.shape
    shape = smaller(whole, GROUP if is_grouped(job) else ALIGNED)

    def like(x: Tensor) -> Tensor:
        """Return zeros, of size 1 where x is, or a number for each group, that begin at such an address as x."""
        own = [1 if n == 1 else small for n, small in zip(x.shape, shape, strict=False)]
        if x.ndim != len(shape) or any(n not in (1, size) for n, size in zip(x.shape, job.p.shape, strict=True)):
            dims = 0 if job.storage is None else job.storage.row_dims
            own = [*shape[:dims], count(prod(shape[dims:]))]
        odd = int(x.data_ptr() % 16 != 0)
        return torch.zeros(prod(own) + odd, dtype=x.dtype, device=x.device)[odd:].view(own)

    made = _mapped(job, like)._replace(shape=None if job.shape is None else shape, parts=1, cut=None)
    if call.tables.bounded:
        bound = getattr(job.h, "max_grad_norm_per_tensor", None) or 1.0
        made = made._replace(h=job.h.settled(max_grad_norm_per_tensor=bound))
    if made.storage is not None:
        strides = tuple(stride * (1 + walks(job)) for stride in index_of(shape).strides)
        made = made._replace(storage=replace(made.storage, index=Index(shape, strides, made.storage.index.offset)))
    _filled(made.p, 0)
    return made, like(g)


def smaller(shape: Sequence[int], period: int = ALIGNED) -> tuple[int, ...]:
    """Cut long sides until the shape is small. Their remainders by the period stay, for alignment and for groups."""
    longest = LONGEST // period * period
    sides = [n if n < longest + period else longest + n % period for n in shape]
    while prod(sides) > LARGEST:
        d = max(range(len(sides)), key=sides.__getitem__)
        n = sides[d]
        sides[d] = n // (2 * period) * period + n % period if n > 2 * period else -(-n // 2)
    return tuple(sides)


def _mapped(job: Job, change: Callable[[Tensor], Tensor]) -> Job:
    """Return the job with all arrays changed."""
    p, *state = (x if x is None else change(x) for x in (job.p, *job.state))
    storage = job.storage
    if storage is not None:
        each = ((one, None if one is None or one.beside is None else change(one.beside)) for one in storage.formats)
        storage = replace(storage, formats=tuple(one and one._replace(beside=beside) for one, beside in each))
    return job._replace(p=p, state=type(job.state)(*state), storage=storage)


def _filled(x: Tensor, seed: int) -> Tensor:
    """Fill a tensor with random numbers without using any of the program's generators."""
    return x.copy_(torch.from_numpy(np.random.default_rng(seed).normal(size=tuple(x.shape))))
