"""The tables that kernels read: the names of their columns.

`step_params`, int64, has a row for each job: the addresses of its gradient and of its step count, if that is on the
device, and the step, if numbers are rounded at random. The coefficients follow, as float64: the gradient's, then those
that the rule computes from settings and `now`.
`layers`, int64, has a row for each layer: a tensor, or a block of it that is a stretch of its memory.
`pointers`, int64, has a row for each job, with the addresses of its arrays: P, S0 to S3, and STORAGE, its row of what
formats need (formats.py), or 0.
`sides`, int64, has two rows for each job with sums and state by rows and by columns.
`chunks` and `programs`, int32, have a row for each program of a launch, with the part that it takes.
`spans`, int64, has the numbers of the layers that have the same program.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any

import triton.language as tl

# Triton's kernels may only use globals that are constexprs, which it treats as numbers.
number: Any = tl.constexpr

# Arguments that differ between lists of jobs: no kernel is compiled for their values.
VARYING = ("width", "n", "sums_stride")


def columns(n: int, first: Any = 0) -> Iterator[Any]:
    """Yield the numbers of this many columns, for names in the same order. The last name is for the number of columns,
    or for the first column of the next names."""
    return map(number, range(index(first), index(first) + n))


# step_params
GRADIENT, COUNTER, STEP, NUMBERS = columns(4)

# coefficients: of gradients, and then a rule's own
G_SCALE, SIGN, GRAD_LOW, GRAD_HIGH, OWN_BOUND, MODEL_BOUND, OWN = columns(7)

# dtypes that numbers are stored in
FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = columns(4)

# layers: the number of elements, the first of them in the tensor, the number of chunks, the first of these, and the
# number of elements of the unsharded layer; for each number of its state its address and dtype
JOB, COUNT, BASE, CHUNKS, FIRST, ENTRIES, OLD0, OLD0_AS, OLD1, OLD1_AS, _matrices = columns(11)
# layers with state by rows and columns: their sizes, the address of their job's sides, and their first matrix among
# the job's
MATRICES, ROWS, COLUMNS, SIDES, FIRST_MATRIX, LAYER = columns(6, _matrices)

# pointers; the gradient's address is among the step parameters
P, STORAGE, S0, S1, S2, S3, OPERANDS = columns(7)

# answers: the reported numbers, and then those that arrays are computed with
REPORTED, ANSWERED, ANSWERS = (number(n) for n in (0, 8, 16))

# programs of a launch: the row of another table that the program works on, and the part of it
PROGRAM_ROW, PROGRAM_PART, PROGRAM = columns(3)

# the sides of a job
BY_ROWS, BY_COLUMNS, BOTH = columns(3)
# sides: sizes of all layers, and the number of strips of each sum; SUMMED is the count of each mean, OF_MATRIX and
# FULL_ROWS are the elements and rows of a matrix, all of unsharded tensors
SIDE_JOB, SIDE_MATRICES, SIDE_ENTRIES, STRIPS, SUMMED, OF_MATRIX, FULL_ROWS, _dtypes = columns(8)
# sides: the dtypes of the state, of strips and the numbers made of them, and of sums; then addresses
STORED_AS, STRIPS_AS, SUMS_AS, STORED, STRIPS_FIRST, MADE, SUMS, TOTALS, SIDE = columns(9, _dtypes)
