"""The proof: before kernels take their first step on a device, they and the rule step small tensors like the present
ones.

The compiler, the driver or the device may differ from those that kernels were tested with, and wrong weights look like
any others. Small tensors have the same properties for which kernels are compiled, so hardly any kernel is compiled only
for the proof.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from math import inf, prod
from threading import RLock

import numpy as np
import torch
from torch import Tensor

from layerwise.drivers import OtherRanks, SharedRequest
from layerwise.engines import ArraysChanged, DeviceStepCount, Engine, Job, PreparedJobs
from layerwise.engines.gpu.installed import PROOF_VARIABLE, proof_wanted
from layerwise.engines.gpu.layout import states_of
from layerwise.engines.gpu.passes import LaunchInputs
from layerwise.engines.gpu.specialization import kind_of
from layerwise.rules.requests import Now
from layerwise.storage import Format
from layerwise.storage.index import index_of
from layerwise.storage.quantized_groups import GROUP, num_groups

STEPS = 2
# Two roundings of stored numbers, and the possible difference between two orders of a sum.
STORED = {torch.float64: 2.0**-51, torch.float32: 2.0**-22, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
COMPUTED = {torch.float64: 2.0**-42, torch.float32: 2.0**-15}
Given = tuple[Job, Tensor]  # a job and its gradient
FEW = 0.02  # of numbers rounded at random may be others, or on average of what a remainder may be: by other bits, 0.25
LARGEST = 1 << 18  # elements of a small tensor: several programs take it, by rows and by columns
ALIGNED = 16  # elements, of which vectors may be made


class Proof:
    """The results of an engine's proofs. Kernels are compared with the engine `rule`."""

    def __init__(self, rule: Engine, warns: bool) -> None:
        self._rule, self._warns, self._lock = rule, warns, RLock()
        self.known: dict[Hashable, str] = {}  # failures, by device and the properties for which kernels are compiled
        self._failed: dict[str, str] = {}  # by optimizer, dtypes and device, all of whose kernels are left alone then

    def why_failed(self, job: Job) -> str:
        """Return the reason why the kernels of such jobs are not used after a proof, or an empty string."""
        return self._failed.get(_named(job), "") if self._failed and proof_wanted() else ""

    def check(self, given: Sequence[Given], call: LaunchInputs, prepare: Callable[..., PreparedJobs]) -> None:
        """Raise `ArraysChanged` if kernels, which `prepare` small jobs, must not step these; they are then declined."""
        if not proof_wanted():
            return
        with self._lock, torch.no_grad():
            alike = _alike(given, call)
            for like, some in alike.items():
                if like not in self.known:
                    self.known[like] = _tried(self._rule, prepare, some, call)
                if self.known[like]:
                    self._note(_named(some[0][0]), self.known[like])
            if any(self.known[like] for like in alike):
                raise ArraysChanged

    def _note(self, named: str, why: str) -> None:
        if named not in self._failed:
            self._failed[named] = f"{named}: {why}; set {PROOF_VARIABLE}=0 to use them without a proof"
            if self._warns:
                failure = (
                    f"the GPU engine's {self._failed[named]}. The reference implementation is used instead, which is "
                    "slower."
                )
                warnings.warn(failure, RuntimeWarning, stacklevel=2)


def _named(job: Job) -> str:
    """Return the failure of a job's kernels in words; all kernels for such jobs share it."""
    dtypes = dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in (job.p, *states_of(job)))
    words = ", ".join([*dtypes, *["in storage formats"] * (job.storage is not None)])
    return f"kernels for {type(job.h).__name__} ({words}) failed their proof on {job.p.device}"


def _alike(given: Sequence[Given], call: LaunchInputs) -> dict[tuple[object, ...], list[Given]]:
    """Return the smallest and the largest job with the same kernels; every rank counts also jobs of which it has no
    part.
    """
    found: dict[tuple[object, ...], list[Given]] = {}
    for job, g in sorted(given, key=lambda each: each[0].p.numel()):
        if job.p.numel() or call.others is not None:
            like = job.p.device, type(job.h), kind_of(job, g, call.tables.sizes), call.variant
            found[like] = [*found.get(like, [])[:1], (job, g)]
    return found


def _tried(rule: Engine, prepare: Callable[..., PreparedJobs], some: Sequence[Given], call: LaunchInputs) -> str:
    """Return the problem with the kernels of these jobs, or an empty string."""
    try:
        return kernel_difference(rule, prepare, some, call)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as problem:
        first = (str(problem).strip() or "no reason given").splitlines()[0][:200]
        return f"they do not compile or run ({type(problem).__name__}: {first})"


def kernel_difference(
    rule: Engine, prepare: Callable[..., PreparedJobs], some: Sequence[Given], call: LaunchInputs
) -> str:
    """Return the difference between kernels and the rule on small jobs like these, or an empty string.

    Each step begins with the kernels' results; the last one is skipped if steps may be.
    """
    ours, grads = map(list, zip(*(small_job(job, g, call.tables.bounded) for job, g in some), strict=True))
    theirs = [job.mapped(torch.clone) for job in ours]
    kernels, by_rule = prepare(ours), rule.prepare(theirs)
    counts = [torch.zeros((), dtype=torch.int64, device=g.device) for g in grads]
    paces = [trial_learning_rate(rule, job, fill_random(g, 1)) for job, g in zip(ours, grads, strict=True)]
    for t in range(1, STEPS + 1 + call.skips):
        taken, old = t <= STEPS, [x.clone() for _, x, _ in _arrays_of(ours)]
        grads, scale = [fill_random(g, t) for g in grads], 2.0 if call.ready else 1.0
        nows = [Now(t, lr, 0.1, scale, beta2=job.h.beta2_of(t)) for job, lr in zip(ours, paces, strict=True)]
        counted = [now._replace(t=DeviceStepCount(n)) for now, n in zip(nows, counts, strict=True)]
        skip = torch.full((), not taken, device=grads[0].device) if call.skips else None
        kernels.step(grads, counted, skip, None if call.others is None else NoOtherRanks())
        if taken:
            by_rule.step(grads, nows)
        for (name, x, one), (_, y, _), before in zip(*map(_arrays_of, (ours, theirs)), old, strict=True):
            if differing := _difference(name, one, x, y, before):
                return differing if taken else f"they write in a step that must be skipped: {differing}"
            y.copy_(x)
        if any(int(n) != min(t, STEPS) for n in counts):
            return "they count a different step"
    return ""


class NoOtherRanks(OtherRanks):
    """Other ranks, without any parts."""

    def announce(self, stepper: str, buckets: Sequence[Sequence[int]] = ()) -> None:
        pass

    def add_up(self, requests: Sequence[SharedRequest], sums: Tensor) -> Tensor:
        return sums


def _arrays_of(jobs: Sequence[Job]) -> Iterator[tuple[str, Tensor, Format | None]]:
    for job in jobs:
        formats = (None,) * (1 + len(job.state)) if job.storage is None else job.storage.formats
        for name, x, one in zip(("the weights", *job.rule.State._fields), (job.p, *job.state), formats, strict=True):
            if x is not None:
                yield name, x, one
            if one is not None and one.beside is not None:
                yield f"the extra bits of {name}", one.beside, None


def _difference(name: str, one: Format | None, x: Tensor, y: Tensor, old: Tensor) -> str:
    """Return the difference between the kernels' stored numbers and the rule's in words, or an empty string."""
    a, b = x.double(), y.double()
    apart, most = (a - b).abs(), b.abs().max() if b.numel() else 0
    if x.is_floating_point():
        room = STORED[x.dtype] * (old.double().abs() + b.abs()) + COMPUTED.get(x.dtype, COMPUTED[torch.float32]) * most
        wrong = ~((apart <= room) | (a == b) | (a.isnan() & b.isnan()))
    elif one is not None:  # codes
        wrong = apart > 1
    else:  # remainders may differ by as much as weights
        period = 1 << 8 * x.element_size()
        wrong = torch.minimum(apart, period - apart).mean() > FEW * period
    if bool(wrong.any()):
        return (
            f"{name} of {tuple(x.shape)} differ from the rule's by {float(apart.max() / most):.1e} of the largest value"
        )
    if one is not None and one.key is not None and bool((a != b).double().mean() > FEW):
        return f"{name} of {tuple(x.shape)} are rounded with other random bits than the rule's"
    return ""


# ---- small jobs with the same properties


def small_job(job: Job, g: Tensor, bounded: bool) -> tuple[Job, Tensor]:
    """Return a small job like this one, and a gradient, with numbers that are the same on every rank."""
    whole = tuple(job.p.shape) if job.p.numel() or job.shape is None else job.shape
    shape = shrunk_shape(whole, GROUP if job.grouped else ALIGNED)

    def like(x: Tensor) -> Tensor:
        """Return zeros, of size 1 where x has that, or one number per group, at an address aligned like x's."""
        own = [1 if n == 1 else small for n, small in zip(x.shape, shape, strict=False)]
        if x.ndim != len(shape) or any(n not in (1, size) for n, size in zip(x.shape, job.p.shape, strict=True)):
            dims = 0 if job.storage is None else job.storage.row_dims
            own = [*shape[:dims], num_groups(prod(shape[dims:]))]
        odd = int(x.data_ptr() % 16 != 0)
        return torch.zeros(prod(own) + odd, dtype=x.dtype, device=x.device)[odd:].view(own)

    made = job.mapped(like)._replace(shape=None if job.shape is None else shape, parts=1, cut=None)
    if bounded:
        bound = getattr(job.h, "max_grad_norm_per_tensor", None) or 1.0
        made = made._replace(h=job.h.settled(max_grad_norm_per_tensor=bound))
    if made.storage is not None:
        index = replace(index_of(shape), offset=made.storage.index.offset)
        made = made._replace(storage=replace(made.storage, index=index))
    fill_random(made.p, 0)
    return made, like(g)


def shrunk_shape(shape: Sequence[int], period: int = ALIGNED) -> tuple[int, ...]:
    """Halve the longest side until the shape is small. Remainders by the period stay, for alignment and for groups."""
    sides = list(shape)
    while prod(sides) > LARGEST:
        d = max(range(len(sides)), key=sides.__getitem__)
        n = sides[d]
        sides[d] = n // (2 * period) * period + n % period if n > 2 * period else -(-n // 2)
    return tuple(sides)


def fill_random(x: Tensor, seed: int) -> Tensor:
    """Fill a tensor with random numbers without using any of the program's generators."""
    return x.copy_(torch.from_numpy(np.random.default_rng(seed).normal(size=tuple(x.shape))))


def trial_learning_rate(rule: Engine, job: Job, g: Tensor) -> float:
    """Return a learning rate with which a step moves weights by about a quarter of their size, from a trial with 1."""
    wide = job._replace(storage=None).mapped(lambda x: x.to(torch.float64, copy=True))
    rule.prepare([wide]).step([g.double()], [Now(1, 1.0, 0.0, beta2=job.h.beta2_of(1))])
    moved = float((wide.p - job.p).norm() / job.p.double().norm())
    return 0.25 / moved if 0 < moved < inf else 0.25
