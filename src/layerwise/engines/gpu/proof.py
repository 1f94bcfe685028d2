"""The proof: before kernels step a model on a device, they step small tensors and are compared with the rule.

The compiler, the driver or the device may differ from those that the kernels were tested with, and wrong weights look
like any others. So when kernels of some kind are first needed on a device, they and the rule step small tensors like
those at hand. The small tensors are alike in everything that kernels are compiled for, so hardly anything is compiled
for the proof alone.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf, prod
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.drive import Others, TensorRequest
from layerwise.engines import Counter, Engine, Job, Prepared
from layerwise.engines.gpu.call import Call
from layerwise.engines.gpu.differences import difference, stored
from layerwise.engines.gpu.installed import PROOF_VARIABLE
from layerwise.engines.gpu.layout import operands
from layerwise.engines.gpu.planes import tiling_of, traits_of
from layerwise.engines.gpu.program import states_of
from layerwise.engines.gpu.stored import formats_of, is_grouped, kind_of
from layerwise.errors import EngineError, sentence
from layerwise.rules.asks import Now
from layerwise.storage import Storage
from layerwise.storage.groups import GROUP, count
from layerwise.storage.index import Index

LONGEST, LARGEST = 528, 1 << 19  # a side and the elements of a small tensor: more than one program takes of either
ALIGNED = 16  # elements, of which vectors may be made
WEIGHT_DECAY = 0.1
STEPS = 2
Prepare = Callable[[Sequence[Job]], Prepared]


class Family(NamedTuple):
    """Kernels that are right or wrong together."""

    optimizer: str
    dtypes: tuple[torch.dtype, ...]  # of the parameter, the gradient, and the states of their shape
    formats: int  # in which they are stored

    def __str__(self) -> str:
        named = [str(dtype).removeprefix("torch.") for dtype in dict.fromkeys(self.dtypes)]
        return f"{self.optimizer} ({', '.join(named + ['in storage formats'] * bool(self.formats))})"


class Proof:
    """The results of all proofs in this process, by device. Kernels are compared with the engine `rule`."""

    def __init__(self, rule: Engine) -> None:
        self._rule = rule
        self._passed: set[Hashable] = set()
        self._failed: dict[tuple[torch.device, Family], str] = {}
        self._lock = RLock()

    def passed(self, jobs: Sequence[Job], grads: Sequence[Tensor], call: Call, kernels: Prepare, insists: bool) -> bool:
        """Return True if kernels may step these jobs; raise an error if no other engine may.

        `kernels` prepares small jobs for them.
        """
        if not wanted():
            return True
        device = jobs[0].p.device
        with self._lock, torch.no_grad():
            family, why, new = self._verdict(device, list(_kinds(jobs, grads, call)), call, kernels)
        if not why:
            return True
        failure = f"the GPU engine's kernels for {family} fail their proof on {device}: {why}."
        way_out = f"{PROOF_VARIABLE}=0 uses them without a proof."
        if insists:
            raise EngineError(f"{failure} Leave the choice of engine, for the rule to step. {way_out}")
        if new:
            warnings.warn(f"{failure} The rule steps instead, which is slower. {way_out}", RuntimeWarning, stacklevel=2)
        return False

    def _verdict(
        self, device: torch.device, kinds: Sequence[Kind], call: Call, kernels: Prepare
    ) -> tuple[Family | None, str, bool]:
        """Return the first family that fails, the reason, and whether the failure is new."""
        for kind in kinds:
            if why := self._failed.get((device, kind.family)):
                return kind.family, why, False
        for kind in kinds:
            key = device, kind.family, kind.like, call.variant, call.tables.sizes
            if key not in self._passed:
                if why := self._tried(kind, call, kernels):
                    self._failed[device, kind.family] = why
                    return kind.family, why, True
                self._passed.add(key)
        return None, "", False

    def _tried(self, kind: Kind, call: Call, kernels: Prepare) -> str:
        """Return the failure of kernels of this kind, or an empty string."""
        try:
            return compared(self._rule, kernels, kind, call)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as problem:
            first = (str(problem).strip() or "no reason given").splitlines()[0][:200]
            return f"they do not compile or run ({type(problem).__name__}: {first})"


class Kind(NamedTuple):
    """Jobs whose kernels are the same."""

    family: Family
    like: Hashable
    jobs: list[tuple[Job, Tensor]]  # the smallest and the largest, with their gradients


def wanted() -> bool:
    """Return True if the environment leaves the proof on."""
    value = os.environ.get(PROOF_VARIABLE) or "1"
    if value not in ("0", "1"):
        raise EngineError(sentence(PROOF_VARIABLE, "0 or 1", value, "0 uses the GPU engine's kernels without a proof."))
    return value == "1"


def _kinds(jobs: Sequence[Job], grads: Sequence[Tensor], call: Call) -> Iterator[Kind]:
    """Yield jobs by their kernels' constants; every rank counts all jobs, even those it has no part of."""
    found: dict[Hashable, list[tuple[Job, Tensor]]] = {}
    for job, g in zip(jobs, grads, strict=True):
        if job.p.numel() or call.others is not None:
            found.setdefault(_compiled_for(job, g, call), []).append((job, g))
    for like, some in found.items():
        some = sorted(some, key=lambda each: each[0].p.numel())
        job, g = some[-1]
        dtypes = tuple(a.dtype for a in operands(job, g, states_of(job)))
        family = Family(type(job.h).__name__, dtypes, formats_of(job))
        yield Kind(family, like, some if len(some) < 2 else [some[0], some[-1]])


def _compiled_for(job: Job, g: Tensor, call: Call) -> Hashable:
    """Return the constants of a job's kernels."""
    arrays, traits = operands(job, g, states_of(job)), traits_of(job)
    kind = kind_of(job, arrays, traits)
    return kind if not traits.factored else (kind, tiling_of(job, arrays, call.tables.sizes))


def compared(rule: Engine, kernels: Prepare, kind: Kind, call: Call) -> str:
    """Return the difference between the kernels and the rule on small tensors of this kind, or an empty string."""
    trial = Trial(rule, kernels, kind, call)
    for t in range(1, STEPS + 1):
        if differing := trial.step(t):
            return differing
    return trial.skipped() if call.skips else ""


class Trial:
    """The same small jobs twice, once for the kernels and once for the rule."""

    def __init__(self, rule: Engine, kernels: Prepare, kind: Kind, call: Call) -> None:
        pairs = [_small(*each, call) for each in kind.jobs]
        self._grads = [g for _, g in pairs]
        self._ours = [job for job, _ in pairs]
        self._theirs = [_copy(job) for job in self._ours]
        self._kernels = kernels(self._ours)
        self._rule = rule.prepare(self._theirs)
        self._counts = [torch.zeros((), dtype=torch.int64, device=g.device) for g in self._grads]
        scale = 2.0 if call.ready else 1.0
        self._rates = [
            (_pace(rule, job, _filled(g, 1)), WEIGHT_DECAY, scale)
            for job, g in zip(self._ours, self._grads, strict=True)
        ]
        self._skip = torch.zeros((), dtype=torch.bool, device=self._grads[0].device) if call.skips else None
        self._others = None if call.others is None else Alone()

    def step(self, t: int) -> str:
        """Return the differences after a step of both; the next step begins with the kernels' results."""
        before = [[x.clone() for x in stored(job)] for job in self._ours]
        for g in self._grads:
            _filled(g, t)
        self._by_kernels(t, self._skip)
        self._rule.step(self._grads, self._nows(t, [t] * len(self._ours)))
        for own, other, old in zip(self._ours, self._theirs, before, strict=True):
            if differing := difference(own, other, old):
                return differing
        for x, y in self._pairs():
            y.copy_(x)
        return "they count another step" if any(int(count) != t for count in self._counts) else ""

    def skipped(self) -> str:
        """Return the failure of a skipped step, or an empty string."""
        self._by_kernels(STEPS + 1, torch.ones((), dtype=torch.bool, device=self._grads[0].device))
        same = all(torch.equal(x, y) for x, y in self._pairs()) and all(int(n) == STEPS for n in self._counts)
        return "" if same else "they write in a step that is to be skipped"

    def _by_kernels(self, t: int, skip: Tensor | None) -> None:
        self._kernels.step(self._grads, self._nows(t, map(Counter, self._counts)), skip, self._others)

    def _nows(self, t: int, counted: Iterable[int | Counter]) -> list[Now]:
        each = zip(self._ours, counted, self._rates, strict=True)
        return [Now(n, *rates, beta2=job.h.beta2_of(t)) for job, n, rates in each]

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for own, other in zip(self._ours, self._theirs, strict=True):
            yield from zip(stored(own), stored(other), strict=True)


def _pace(rule: Engine, job: Job, g: Tensor) -> float:
    """Return a learning rate with which a step moves weights by about a quarter of their size, from a trial with 1."""
    state = type(job.state)(*(None if s is None else _wide(s) for s in job.state))
    p, wide = _wide(job.p), job._replace(p=_wide(job.p), state=state, storage=None)
    rule.prepare([wide]).step([_wide(g)], [Now(1, 1.0, 0.0, beta2=job.h.beta2_of(1))])
    moved = float((wide.p - p).norm() / p.norm())
    return 0.25 / moved if 0 < moved < inf else 0.25


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float64, copy=True)  # also of what is float64 already: the rule writes to it


class Alone(Others):
    """Other ranks, without any parts."""

    def announce(self, stepper: str, buckets: Sequence[Sequence[int]] = ()) -> None:
        pass

    def add_up(self, questions: Sequence[TensorRequest], sums: Tensor) -> Tensor:
        return sums


# ---- small tensors


def _small(job: Job, g: Tensor, call: Call) -> tuple[Job, Tensor]:
    """Return a small job like this one, and a gradient, with numbers that are the same on every rank."""
    h, period = job.h, GROUP if is_grouped(job) else ALIGNED
    shape = smaller(tuple(job.p.shape) if job.p.numel() or job.shape is None else job.shape, period)
    if call.tables.bounded:
        h = h.settled(max_grad_norm_per_tensor=getattr(h, "max_grad_norm_per_tensor", None) or 1.0)
    p = _filled(_lying_like(job.p, shape), 0)
    state = type(job.state)(*(None if s is None else _lying_like(s, _state_shape(s, job.p, shape)) for s in job.state))
    whole = None if job.shape is None else shape
    storage = None if job.storage is None else _small_storage(job.storage, shape)
    return Job(job.rule, h, p, state, job.block_dims, whole, storage=storage), _lying_like(g, shape)


def _small_storage(storage: Storage, shape: tuple[int, ...]) -> Storage:
    dims = storage.row_dims
    groups = *shape[:dims], count(prod(shape[dims:]))

    def beside(x: Any) -> Any:
        return x if x is None else _lying_like(x, groups if x.is_floating_point() else shape)

    formats = (one and one._replace(beside=beside(one.beside)) for one in storage.formats)
    return Storage(tuple(formats), _small_index(storage.index, shape), dims)


def _small_index(index: Index, shape: tuple[int, ...]) -> Index:
    """Return an index whose dimensions follow one another wherever they did."""
    strides, ours, own = [], 1, 1
    for n, size, stride in zip(shape[::-1], index.shape[::-1], index.strides[::-1], strict=True):
        strides.append(ours := ours if stride == own else 2 * ours)
        ours, own = ours * n, stride * size
    return Index(shape, tuple(strides[::-1]), index.offset)


def smaller(shape: Sequence[int], period: int = ALIGNED) -> tuple[int, ...]:
    """Cut long sides until the shape is small. Their remainders by the period stay, for alignment and for groups."""
    longest = LONGEST // period * period
    sides = [n if n < longest + period else longest + n % period for n in shape]
    while prod(sides) > LARGEST:
        d = max(range(len(sides)), key=sides.__getitem__)
        n = sides[d]
        sides[d] = n // (2 * period) * period + n % period if n > 2 * period else -(-n // 2)
    return tuple(sides)


def _state_shape(state: Tensor, p: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a state's shape for a parameter of this one: it has size 1 where the parameter was summed."""
    return tuple(
        n if state_size == size else 1 for n, state_size, size in zip(shape, state.shape, p.shape, strict=True)
    )


def _lying_like(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return zeros with x's layout: the order of its dimensions, and its alignment."""
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: (x.stride(d), -d)):
        strides[d], step = step, step * max(1, shape[d])
    odd = int(x.data_ptr() % 16 != 0)
    return torch.zeros(step + odd, dtype=x.dtype, device=x.device).as_strided(tuple(shape), strides, odd)


def _filled(x: Tensor, seed: int) -> Tensor:
    """Fill a tensor with random numbers without using any of the program's generators."""
    return x.copy_(torch.from_numpy(np.random.default_rng(seed).normal(size=tuple(x.shape))))


def _copy(job: Job) -> Job:
    state = type(job.state)(*(None if s is None else s.clone() for s in job.state))
    storage = job.storage
    if storage is not None:
        formats = (
            one and one._replace(beside=None if one.beside is None else one.beside.clone()) for one in storage.formats
        )
        storage = replace(storage, formats=tuple(formats))
    return job._replace(p=job.p.clone(), state=state, storage=storage)
