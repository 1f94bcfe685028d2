"""The tables that kernels read: the names of their columns.

`step_params` are the step parameters, which the host sends: int64, the gradient's address and each field of `now`, a
value or the address of one, and which of these it is; a row for each of these, and in it a column for each job.
`coefficients` are the rule's coefficients, made of its settings and of the step parameters: float64, a row for each
job.
`layers` are int64, a row for each layer. A layer is what has norms of its own: a tensor, or a block of it, which is a
stretch of its memory.
`pointers` are the addresses of a job's arrays: int64, a row for each job. All of its operands are P, G, S0 and S1.
`planes` are int64, a row for each layer whose second moment is factored: a stack of matrices.
`sides` are the statistics by rows and by columns: int64, two rows for each plane.
`chunks`, `tiles` and `programs` are the parts that programs of a launch take: int32, a row for each program.
`piles` are the strips to be added up: int64, a row for each stretch of sums that has several.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any

import triton.language as tl

# Triton's kernels may only use globals that are constexprs, which it treats as numbers.
number: Any = tl.constexpr

# Arguments that differ between lists of jobs: no kernel is compiled for their values.
VARYING = ("jobs", "n", "sums_stride", "tiles_stride")


def columns(n: int, first: Any = 0) -> Iterator[Any]:
    """Yield the numbers of so many columns, for names that stand in their order. The last name is that of their count,
    or of the first column of those that follow."""
    return map(number, range(index(first), index(first) + n))


# step_params
T, LR, LAM, G_SCALE, BETA2, FIELDS = columns(6)
GRADIENT, VALUE = columns(2)
KIND, STEP_PARAMS = (number(index(VALUE) + times * index(FIELDS)) for times in (1, 2))
NUMBER, FLOAT32, FLOAT64, INT64, COUNTER, BFLOAT16, FLOAT16 = columns(7)  # kinds of values, and of statistics

# coefficients: T, LR, LAM and G_SCALE come first, then what all rules have in common, then a rule's own
SIGN, GRAD_LOW, GRAD_HIGH, ADAPT, LOW, HIGH, ZERO_RATIO, EPS, MIN_NORM, L2, SPECIFIC = columns(11, BETA2)
COEFFICIENTS = number(32)
NEVER, ALWAYS, DECAYED = number(0.0), number(1.0), number(2.0)

# layers: its elements, the first of them in the tensor, its chunks and the first of these, and the unsharded's elements
JOB, COUNT, BASE, CHUNKS, FIRST, ENTRIES, LAYER = columns(7)

# pointers; the gradient's address is among the step parameters
P, G, S0, S1, OPERANDS = columns(5)

# answers: two norms and the ratio, which are reported; then the factors of an update, of its average, and of p
OF_WEIGHTS, OF_UPDATE, RATIO, SCALE, AFTER, SHRINK, ANSWERS = columns(7)

# programs of a launch: the row of another table, and the part of it that the program takes
PROGRAM_ROW, PROGRAM_PART, PROGRAM = columns(3)

# planes: TILES_FIRST is the place of the first tile's sums; then addresses
PLANE_LAYER, PLANE_JOB, PLANE_BASE, TILES_FIRST, TILES, MATRICES, ROWS, COLUMNS, _addresses = columns(9)
ROW_SUMS, COLUMN_SUMS, ROW_FACTORS, COLUMN_FACTORS, PLANE = columns(5, _addresses)

# sides: addresses come last; SUMMED is how many entries each mean is over; FULL_ROWS and FULL_COLUMNS are of the
# unsharded matrix
SIDE_JOB, OF_ROWS, SIDE_MATRICES, SIDE_ENTRIES, WIDE, STORED_AS, SUMMED, FULL_ROWS, FULL_COLUMNS, _addresses = columns(
    10
)
STORED, FACTORS, SUMS, TOTALS, TOTAL_STRIPS, SIDE = columns(6, _addresses)

# piles: where the strips begin, how many there are, where their sum goes, and how long each is
STRIPS_FIRST, STRIPS, PILE_SUM, PILE_LENGTH, PILE = columns(5)
