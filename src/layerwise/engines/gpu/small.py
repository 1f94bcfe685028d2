"""Small jobs for the proof, alike in all that kernels are compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, prod

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import Engine, Job
from layerwise.engines.gpu.stored import is_grouped
from layerwise.rules.asks import Now
from layerwise.storage.groups import GROUP, count
from layerwise.storage.index import index_of

LARGEST = 1 << 18  # elements of a small tensor: several programs take it, by rows and by columns
ALIGNED = 16  # elements, of which vectors may be made


def small(job: Job, g: Tensor, bounded: bool) -> tuple[Job, Tensor]:
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

    made = job.mapped(like)._replace(shape=None if job.shape is None else shape, parts=1, cut=None)
    if bounded:
        bound = getattr(job.h, "max_grad_norm_per_tensor", None) or 1.0
        made = made._replace(h=job.h.settled(max_grad_norm_per_tensor=bound))
    if made.storage is not None:
        index = replace(index_of(shape), offset=made.storage.index.offset)
        made = made._replace(storage=replace(made.storage, index=index))
    filled(made.p, 0)
    return made, like(g)


def smaller(shape: Sequence[int], period: int = ALIGNED) -> tuple[int, ...]:
    """Halve the longest side until the shape is small. Remainders by the period stay, for alignment and for groups."""
    sides = list(shape)
    while prod(sides) > LARGEST:
        d = max(range(len(sides)), key=sides.__getitem__)
        n = sides[d]
        sides[d] = n // (2 * period) * period + n % period if n > 2 * period else -(-n // 2)
    return tuple(sides)


def filled(x: Tensor, seed: int) -> Tensor:
    """Fill a tensor with random numbers without using any of the program's generators."""
    return x.copy_(torch.from_numpy(np.random.default_rng(seed).normal(size=tuple(x.shape))))


def pace(rule: Engine, job: Job, g: Tensor) -> float:
    """Return a learning rate with which a step moves weights by about a quarter of their size, from a trial with 1."""
    wide = job._replace(storage=None).mapped(lambda x: x.to(torch.float64, copy=True))
    rule.prepare([wide]).step([g.double()], [Now(1, 1.0, 0.0, beta2=job.h.beta2_of(1))])
    moved = float((wide.p - job.p).norm() / job.p.double().norm())
    return 0.25 / moved if 0 < moved < inf else 0.25
