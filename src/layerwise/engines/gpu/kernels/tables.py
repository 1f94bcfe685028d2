"""The tables that kernels read: the names of their columns.

`step_params` are the step parameters, which the host sends: int64, a row for each of GRADIENT … KIND + 4, and in it a
column for each job.
`coefficients` are the rule's coefficients, made of its settings and of the step parameters: float64, a row for each
job.
`layers` is the layout of each layer: int64, a row for each. A layer is what has norms of its own, a tensor or a block.
`pointers` are the addresses of a job's arrays: int64, a row for each job. All of its operands are P, G, S0 and S1.
`planes` is the layout of each layer whose second moment is factored: int64, a row for each. It has three axes, of one
or more dimensions each: matrices, lines and the entries of a line; either of the two last may be the rule's rows.
`sides` are the statistics along lines and along entries: int64, two rows for each plane.
`chunks`, `tiles` and `programs` are the parts that programs of a launch take: int32, a row for each program.
`piles` are the strips to be added up: int64, a row for each stretch of sums that has several.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

# Triton's kernels may only use globals that are constexprs, which it treats as numbers.
number: Any = tl.constexpr

# Arguments that differ between lists of jobs: no kernel is compiled for their values.
VARYING = ("jobs", "n", "sums_stride", "tiles_stride")

# step_params: the gradient's address; each field of `now`, a value or the address of one; and which of these it is
GRADIENT = number(0)
VALUE = number(1)
KIND = number(6)
STEP_PARAMS = number(11)
T, LR, LAM, G_SCALE, BETA2 = number(0), number(1), number(2), number(3), number(4)
NUMBER, FLOAT32, FLOAT64, INT64, COUNTER = number(0), number(1), number(2), number(3), number(4)
BFLOAT16, FLOAT16 = number(5), number(6)

# coefficients: T, LR, LAM and G_SCALE come first, and then what all rules have in common
SIGN, GRAD_LOW, GRAD_HIGH = number(4), number(5), number(6)
ADAPT, LOW, HIGH, ZERO_RATIO, EPS = number(7), number(8), number(9), number(10), number(11)
MIN_NORM, L2 = number(12), number(13)
SPECIFIC = 14  # the first column of a rule's own coefficients
COEFFICIENTS = number(32)
NEVER, ALWAYS, DECAYED = number(0.0), number(1.0), number(2.0)

# layers
JOB, COUNT, FIRST, CHUNKS, LEADS, ENTRIES = number(0), number(1), number(2), number(3), number(4), number(5)
BASE, SIZE, STRIDE = number(6), number(10), number(14)
DIMS, OPERANDS = number(4), number(4)
LAYER = number(30)

# pointers; the gradient's address is among the step parameters
P, G, S0, S1 = number(0), number(1), number(2), number(3)

# answers: two norms and the ratio, which are reported; then the factors of an update, of its average, and of p
OF_WEIGHTS, OF_UPDATE, RATIO = number(0), number(1), number(2)
SCALE, AFTER, SHRINK = number(3), number(4), number(5)
ANSWERS = number(6)

# an axis: how many dimensions, and of each, the innermost first, its size and the operands' strides
AXIS_DIMS, AXIS_SIZE, AXIS_STRIDE = number(0), number(1), number(2)
AXIS_DIM = number(5)
AXIS = number(21)

# programs of a launch: the row of another table, and the part of it that the program takes
PROGRAM_ROW, PROGRAM_PART = number(0), number(1)
PROGRAM = number(2)

# planes; TILES_FIRST is the place of the first tile's sums; LINE_SUMS … ENTRY_FACTORS are addresses
PLANE_LAYER, PLANE_JOB, TILES_FIRST, TILES = number(0), number(1), number(2), number(3)
MATRICES, LINES, ENTRIES_OF_LINE = number(4), number(5), number(6)
LINE_SUMS, ENTRY_SUMS, LINE_FACTORS, ENTRY_FACTORS = number(7), number(8), number(9), number(10)
PLANE_BASE = number(11)
MATRIX_AXIS, LINE_AXIS, ENTRY_AXIS = number(15), number(36), number(57)
PLANE = number(78)

# sides; SUMMED is how many entries each mean is over; ROWS and COLUMNS are of the unsharded matrix; TOTALS are of rows
SIDE_JOB, OF_ROWS, SIDE_MATRICES, SIDE_ENTRIES, WIDE = number(0), number(1), number(2), number(3), number(4)
STORED, STORED_AS, FACTORS, SUMS = number(5), number(6), number(7), number(8)
TOTALS, TOTAL_STRIPS, SUMMED, ROWS, COLUMNS = number(9), number(10), number(11), number(12), number(13)
SIDE_MATRIX_AXIS, SIDE_AXIS = number(14), number(35)
SIDE = number(56)

# piles: where the strips begin, how many there are, where their sum goes, and how long each is
STRIPS_FIRST, STRIPS, PILE_SUM, PILE_LENGTH = number(0), number(1), number(2), number(3)
PILE = number(4)
