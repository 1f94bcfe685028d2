"""The proof: before kernels step anything of a model on a device, small tensors show that they do what the rule does.

The compiler, the driver or the device may differ from those that the kernels were tested with, and wrong weights look
like any others. So when kernels of some kind are first needed on a device, they and the rule step small tensors like
those at hand. The small tensors are alike in everything that kernels are compiled for, so hardly anything is compiled
for the proof alone.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable, Iterable, Iterator, Sequence
from math import prod
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.drive import TensorRequest
from layerwise.engines import Counter, Engine, Job
from layerwise.engines.gpu import PROOF_VARIABLE
from layerwise.engines.gpu.call import Call
from layerwise.engines.gpu.layout import operands
from layerwise.engines.gpu.planes import tiling_of, traits_of
from layerwise.engines.gpu.prepared import PreparedOnGpu
from layerwise.engines.gpu.program import states_of
from layerwise.engines.gpu.stored import formats_of, kind_of
from layerwise.errors import EngineError, sentence
from layerwise.rules.asks import Now

LONGEST, LARGEST = 528, 1 << 19  # a side and the elements of a small tensor: more than one program takes of either
WEIGHT_DECAY = 0.1
STEPS = 2
# Two roundings of stored numbers, and the difference that two ways to the same sum may make.
STORED = {torch.float64: 2.0**-51, torch.float32: 2.0**-22, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
COMPUTED = {torch.float64: 2.0**-42, torch.float32: 2.0**-15}


class Family(NamedTuple):
    """Kernels that are right or wrong together."""

    optimizer: str
    dtypes: tuple[torch.dtype, ...]  # of the parameter, the gradient, and the states of their shape

    def __str__(self) -> str:
        named = (str(dtype).removeprefix("torch.") for dtype in dict.fromkeys(self.dtypes))
        return f"{self.optimizer} ({', '.join(named)})"


class Proof:
    """The results of all proofs in this process, by device. `rule` is the engine that kernels are compared with."""

    def __init__(self, rule: Engine) -> None:
        self._rule = rule
        self._passed: set[Hashable] = set()
        self._failed: dict[tuple[torch.device, Family], str] = {}
        self._lock = RLock()

    def passed(self, jobs: Sequence[Job], grads: Sequence[Tensor], call: Call, insists: bool) -> bool:
        """Return whether kernels may step these jobs; raise an error where no other engine may."""
        if not wanted():
            return True
        device = jobs[0].p.device
        with self._lock, torch.no_grad():
            family, why, new = self._verdict(device, list(_kinds(jobs, grads, call)), call)
        if not why:
            return True
        failure = f"the GPU engine's kernels for {family} fail their proof on {device}: {why}."
        way_out = f"{PROOF_VARIABLE}=0 uses them without a proof."
        if insists:
            raise EngineError(f"{failure} Leave the choice of engine, for the rule to step. {way_out}")
        if new:
            warnings.warn(f"{failure} The rule steps instead, which is slower. {way_out}", RuntimeWarning, stacklevel=2)
        return False

    def _verdict(self, device: torch.device, kinds: Sequence[Kind], call: Call) -> tuple[Family | None, str, bool]:
        """Return the first family that fails, the reason, and whether the failure is new."""
        for kind in kinds:
            if why := self._failed.get((device, kind.family)):
                return kind.family, why, False
        for kind in kinds:
            key = device, kind.family, kind.like, call.variant, call.tables.sizes
            if key not in self._passed:
                if why := self._tried(kind, call):
                    self._failed[device, kind.family] = why
                    return kind.family, why, True
                self._passed.add(key)
        return None, "", False

    def _tried(self, kind: Kind, call: Call) -> str:
        """Return what is wrong with kernels of this kind, or an empty string."""
        try:
            return compared(self._rule, kind, call)
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
    """Return whether the environment leaves the proof on."""
    value = os.environ.get(PROOF_VARIABLE) or "1"
    if value not in ("0", "1"):
        raise EngineError(sentence(PROOF_VARIABLE, "0 or 1", value, "0 uses the GPU engine's kernels without a proof."))
    return value == "1"


def _kinds(jobs: Sequence[Job], grads: Sequence[Tensor], call: Call) -> Iterator[Kind]:
    """Yield jobs by what their kernels are compiled for; every rank counts all jobs, also those it has no part of."""
    found: dict[Hashable, list[tuple[Job, Tensor]]] = {}
    for job, g in zip(jobs, grads, strict=True):
        if job.p.numel() or call.others is not None:
            found.setdefault(_compiled_for(job, g, call), []).append((job, g))
    for like, some in found.items():
        some = sorted(some, key=lambda each: each[0].p.numel())
        job, g = some[-1]
        dtypes = tuple(a.dtype for a in operands(job, g, states_of(job)))
        yield Kind(Family(type(job.h).__name__, dtypes), like, some if len(some) < 2 else [some[0], some[-1]])


def _compiled_for(job: Job, g: Tensor, call: Call) -> Hashable:
    """Return what the kernels of a job are compiled for."""
    arrays, traits = operands(job, g, states_of(job)), traits_of(job)
    if not traits.factored:
        return kind_of(job, arrays, traits)
    return tuple(a.dtype for a in arrays), traits, tiling_of(job, arrays, call.tables.sizes), formats_of(job)


def compared(rule: Engine, kind: Kind, call: Call) -> str:
    """Return how the kernels and the rule differ on small tensors of this kind, or an empty string."""
    trial = Trial(rule, kind, call)
    for t in range(1, STEPS + 1):
        if differing := trial.step(t):
            return differing
    return trial.skipped() if call.skips else ""


class Trial:
    """The same small jobs twice, once for the kernels and once for the rule."""

    def __init__(self, rule: Engine, kind: Kind, call: Call) -> None:
        pairs = [_small(*each, call) for each in kind.jobs]
        self._grads = [g for _, g in pairs]
        self._ours = [job for job, _ in pairs]
        self._theirs = [_copy(job) for job in self._ours]
        self._kernels = PreparedOnGpu(self._ours, None, call.tables.sizes, None)
        self._rule = rule.prepare(self._theirs)
        self._counts = [torch.zeros((), dtype=torch.int64, device=g.device) for g in self._grads]
        self._rates = [_rates(job, call) for job in self._ours]
        self._skip = torch.zeros((), dtype=torch.bool, device=self._grads[0].device) if call.skips else None
        self._others = None if call.others is None else Alone()

    def step(self, t: int) -> str:
        """Return what differs after a step of both; the next step begins with the kernels' results."""
        before = [[x.clone() for x in _stored(job)] for job in self._ours]
        for g in self._grads:
            _filled(g, t)
        self._by_kernels(t, self._skip)
        self._rule.step(self._grads, self._nows(t, [t] * len(self._ours)))
        for own, other, old in zip(self._ours, self._theirs, before, strict=True):
            if differing := _difference(own, other, old):
                return differing
        for x, y in self._pairs():
            y.copy_(x)
        return "they count another step" if any(int(count) != t for count in self._counts) else ""

    def skipped(self) -> str:
        """Return what is wrong with a skipped step, or an empty string."""
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
            yield from zip(_stored(own), _stored(other), strict=True)


def _rates(job: Job, call: Call) -> tuple[float, float, float]:
    return _pace(job.h), WEIGHT_DECAY, 2.0 if call.ready else 1.0


def _pace(h: Any) -> float:
    """Return a learning rate with which a step moves weights by about a quarter of their size."""
    if getattr(h, "adapt", True) is not False:
        return 0.25 / getattr(h, "trust_coefficient", 1.0) / _relative(h)
    return 0.25


def _relative(h: Any) -> float:
    """Return what a step that follows t multiplies the learning rate with."""
    if not getattr(h, "relative_step", False):
        return 1.0
    return 1e-6 if h.warmup_init else min(h.lr_cap, 1.0)


class Alone:
    """Others without any parts."""

    def announce(self, stepper: str) -> None:
        pass

    def add_up(self, questions: Sequence[TensorRequest], sums: Tensor) -> Tensor:
        return sums


# ---- small tensors


def _small(job: Job, g: Tensor, call: Call) -> tuple[Job, Tensor]:
    """Return a small job like this one, and a gradient, with numbers that are the same on every rank."""
    shape, h = smaller(tuple(job.p.shape) if job.p.numel() or job.shape is None else job.shape), job.h
    if call.tables.bounded:
        h = h.settled(max_grad_norm_per_tensor=getattr(h, "max_grad_norm_per_tensor", None) or 1.0)
    p = _filled(_lying_like(job.p, shape), 0)
    state = type(job.state)(*(None if s is None else _lying_like(s, _state_shape(s, job.p, shape)) for s in job.state))
    whole = None if job.shape is None else shape
    return Job(job.rule, h, p, state, job.block_dims, whole), _lying_like(g, shape)


def smaller(shape: Sequence[int]) -> tuple[int, ...]:
    """Cut long sides until the shape is small. Their remainders by sixteen stay, for the sake of alignment."""
    sides = [n if n < LONGEST + 16 else LONGEST + n % 16 for n in shape]
    while prod(sides) > LARGEST:
        d = max(range(len(sides)), key=sides.__getitem__)
        n = sides[d]
        sides[d] = n // 32 * 16 + n % 16 if n > 32 else -(-n // 2)
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
    return job._replace(p=job.p.clone(), state=type(job.state)(*(None if s is None else s.clone() for s in job.state)))


def _stored(job: Job) -> list[Tensor]:
    return [job.p, *(x for x in job.state if x is not None)]


def _difference(own: Job, other: Job, before: Sequence[Tensor]) -> str:
    """Return how the kernels' job differs from the rule's, or an empty string."""
    names = ["the weights", *(name for name, x in zip(own.state._fields, own.state, strict=True) if x is not None)]
    computed = COMPUTED[torch.float64 if own.p.dtype is torch.float64 else torch.float32]
    for name, x, y, old in zip(names, _stored(own), _stored(other), before, strict=True):
        a, b = x.double(), y.double()
        room = STORED[x.dtype] * (old.double().abs() + b.abs()) + computed * (b.abs().max() if b.numel() else 0)
        right = ((a - b).abs() <= room) | (a == b) | (a.isnan() & b.isnan())
        if not bool(right.all()):
            worst = ((a - b).abs() / b.abs().max())[~right].max()
            return f"{name} of {tuple(x.shape)} differ from the rule's by {float(worst):.1e} of the largest"
    return ""
