"""The tables that kernels read: the names of their columns.

`step_params` are the step parameters, a row for each job, of int64: the addresses of the gradient and of the step's
count, if that is on the device, and the step where numbers are rounded at random. Behind them are the coefficients, of
float64: the gradient's, then those that the rule computes of settings and `now`.
`layers` are int64, a row for each layer. A layer is what has norms of its own: a tensor, or a block of it, which is a
stretch of its memory.
`pointers` are the addresses of a job's arrays: int64, a row for each job: P, S0 to S3, and STORAGE, where its row of
what formats need (formats.py) is, or 0.
`sides` are the sums and state by rows and by columns: int64, two rows for each job that has them.
`chunks` and `programs` are the parts that programs of a launch take: int32, a row for each program.
`spans` are the layers of one program: int64, the number of each.
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
    """Yield the numbers of so many columns, for names that stand in their order. The last name is that of their count,
    or of the first column of those that follow."""
    return map(number, range(index(first), index(first) + n))


# step_params
GRADIENT, COUNTER, STEP, NUMBERS = columns(4)

# coefficients: of gradients, and then a rule's own
G_SCALE, SIGN, GRAD_LOW, GRAD_HIGH, OWN_BOUND, MODEL_BOUND, OWN = columns(7)

# dtypes that numbers are stored in
FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = columns(4)

# layers: its elements, the first of them in the tensor, its chunks and the first of these, and the unsharded's
# elements; for each number of its state the address and the dtype
JOB, COUNT, BASE, CHUNKS, FIRST, ENTRIES, OLD0, OLD0_AS, OLD1, OLD1_AS, _matrices = columns(11)
# layers with state by rows and columns: their sizes, the address of the sides of their job, the first of its matrices
# here
MATRICES, ROWS, COLUMNS, SIDES, FIRST_MATRIX, LAYER = columns(6, _matrices)

# pointers; the gradient's address is among the step parameters
P, STORAGE, S0, S1, S2, S3, OPERANDS = columns(7)

# answers: what is reported, and then what arrays are computed with
REPORTED, ANSWERED, ANSWERS = (number(n) for n in (0, 8, 16))

# programs of a launch: the row of another table, and the part of it that the program takes
PROGRAM_ROW, PROGRAM_PART, PROGRAM = columns(3)

# the sides of a job
BY_ROWS, BY_COLUMNS, BOTH = columns(3)
# sides: sizes, of all layers, and the strips of each sum; SUMMED is how many numbers each mean is over, OF_MATRIX how
# many elements and FULL_ROWS how many rows matrices have, all unsharded
SIDE_JOB, SIDE_MATRICES, SIDE_ENTRIES, STRIPS, SUMMED, OF_MATRIX, FULL_ROWS, _dtypes = columns(8)
# sides: the dtypes of state, of strips and what elements are computed with, and of sums; then addresses
STORED_AS, STRIPS_AS, SUMS_AS, STORED, STRIPS_FIRST, MADE, SUMS, TOTALS, SIDE = columns(9, _dtypes)
