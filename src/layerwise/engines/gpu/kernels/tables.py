"""The tables that kernels read, by the places of their columns.

`letter` is what the host says of a step: int64, a row for each of G … KIND + 3, and in it a column for each job.
`numbers` holds what a rule makes of its settings and of the letter: float64, a row for each job.
`layers` says where each layer lies: int64, a row for each. A layer is what has norms of its own, a tensor or a block.
`pointers` says where a job's arrays are: int64, a row for each job. All of its operands are P, G, S0 and S1.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

# Triton wants a global to be a constexpr, and takes it for a number wherever it is one.
number: Any = tl.constexpr

# letter: where the gradient lies; what `now` holds, or where that lies; and which of these it is.
GRADIENT = number(0)
HEARD = number(1)
KIND = number(5)
LETTER = number(9)
T, LR, LAM, G_SCALE = number(0), number(1), number(2), number(3)
NUMBER, FLOAT32, FLOAT64, INT64, COUNTER = number(0), number(1), number(2), number(3), number(4)

# numbers: those four first, and then what all rules have in common.
SIGN, MAX_VALUE, OWN, MODEL = number(4), number(5), number(6), number(7)
ADAPT, LOW, HIGH, ZERO_RATIO, EPS = number(8), number(9), number(10), number(11), number(12)
SPECIFIC = 13  # where a rule's own begin
NUMBERS = number(32)
NEVER, ALWAYS, DECAYED = number(0.0), number(1.0), number(2.0)

# layers
JOB, COUNT, FIRST, CHUNKS, LEADS, ENTRIES = number(0), number(1), number(2), number(3), number(4), number(5)
BASE, SIZE, STRIDE = number(6), number(10), number(14)
DIMS, OPERANDS = number(4), number(4)
LAYER = number(30)

# pointers; the gradient's place is in the letter
P, G, S0, S1 = number(0), number(1), number(2), number(3)

# answers: what was measured, and what an update is multiplied with
ANSWERS = number(4)
SCALE = number(3)
