"""Storage formats for the GPU engine: the constants that kernels are compiled for, and the tables that they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.kernels import formats as at
from layerwise.engines.gpu.layout import has_same_strides, layer_counts, states_of
from layerwise.engines.programs import program_for
from layerwise.storage import Format
from layerwise.storage.index import Index
from layerwise.storage.quantized_groups import EIGHT, GROUP

REMAINDERS = {torch.int16: at.SPLIT16.value, torch.int8: at.SPLIT8.value}
CODES = (torch.int8, torch.uint8)
LOW = (torch.bfloat16, torch.float16)


class FormattedOperand(NamedTuple):
    """An array of a job in its format, and its number among the operands with formats."""

    number: int
    array: Tensor
    format: Format

    @property
    def is_coded(self) -> bool:
        return self.format.coded is EIGHT and self.array.dtype in CODES and self.number > 0

    @property
    def form_bits(self) -> int:
        """The bits of its form."""
        rest = self.format.beside
        kind = at.CODES.value if self.is_coded else 0 if rest is None else REMAINDERS[rest.dtype]
        drawn = self.format.key is not None and kind != at.SPLIT16.value  # needs no extra bits
        return int(kind | (at.RANDOM.value if drawn else 0))


def formatted_operands(job: Job) -> Iterator[FormattedOperand]:
    """Yield the weights and the states of a job that have a format."""
    if job.storage is not None:
        names = program_for(job).states
        formats = dict(zip(("", *job.rule.State._fields), job.storage.formats, strict=True))
        arrays = [("", job.p), *zip(names, states_of(job), strict=False)]
        for i, (name, array) in enumerate(arrays):
            one = formats[name]
            if one is not None:
                yield FormattedOperand(i, array, one)


def operand_forms(job: Job) -> int:
    """Return the forms of a job's operands for the kernels: 0 if all are plain."""
    return sum(one.form_bits << one.number * at.BITS for one in formatted_operands(job))


def remainders(job: Job) -> list[Tensor]:
    """Return the companions of a job's arrays, element by element."""
    return [one.format.beside for one in formatted_operands(job) if not one.is_coded and one.format.beside is not None]


# ---- unsupported storage


def why_unstorable(job: Job) -> str:
    """Return the reason why kernels cannot take a job with its storage, or an empty string."""
    known = list(formatted_operands(job))
    if job.storage is not None and len(job.storage.given) != len(known):
        return "a state whose shape differs from the parameter's is stored in a format without kernels"
    for one in known:
        if not one.is_coded and not _is_known(one):
            return f"there are no kernels for {one.array.dtype} in such a format"
        rest = one.format.beside
        if one.is_coded and not (rest.is_contiguous() and one.array.is_contiguous()):
            return "a state in groups, or its scales, is not contiguous"
        if not one.is_coded and rest is not None and not has_same_strides(rest, job.p):
            return f"a remainder has strides {rest.stride()}, but the parameter has {job.p.stride()}"
    if job.storage is not None and job.draws and not _in_order(job.storage.index, job.p):
        return "its elements are not in the row-major order that determines their random bits"
    return _ungrouped(job) if job.grouped else ""


def _is_known(one: FormattedOperand) -> bool:
    rest = one.format.beside
    return one.array.dtype in LOW and (rest is None or (one.number == 0 and rest.dtype in REMAINDERS))


def _in_order(index: Index, p: Tensor) -> bool:
    """Return True if elements follow one another in the whole tensor as they do in memory."""
    each = zip(index.strides, p.stride(), p.shape, strict=True)
    return not index.scattered and all(n == 1 or whole == own for whole, own, n in each)


def _ungrouped(job: Job) -> str:
    """Return the reason why programs would split groups of a job, or an empty string."""
    shape, dims = job.whole, 1 if job.storage is None else job.storage.row_dims
    if prod(shape[:dims]) > 1 and prod(shape[dims:]) % GROUP:
        return f"rows of {shape} end inside groups of {GROUP} elements"
    layers, size = layer_counts(job)
    if layers > 1 and size % GROUP:
        return f"blocks along dimensions {job.block_dims} of {shape} would split groups of {GROUP} elements"
    return ""


# ---- the table


def format_table(jobs: Sequence[Job]) -> np.ndarray:
    """Return the table of the formats, a row for each job."""
    rows = np.zeros((len(jobs), at.JOB_STORAGE.value), np.int64)
    for row, job in zip(rows, jobs, strict=True):
        row[at.OFFSET] = 0 if job.storage is None else job.storage.index.offset
        for one in formatted_operands(job):
            rest, key = one.format.beside, one.format.key
            row[at.BESIDE.value + one.number] = 0 if rest is None else rest.data_ptr()
            if key is not None:
                row[at.KEYS.value + one.number] = np.uint64(key.second << 32 | key.first).astype(np.int64)
    return rows
