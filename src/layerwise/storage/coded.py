"""The formats that store state as codes: options, checks and checkpoints of every API follow this list."""

from __future__ import annotations

from layerwise.storage import CodedFormat, quantized_groups

CODED = {one.name: one for one in (quantized_groups.EIGHT,)}
FORMER = (quantized_groups.ROOTS,)  # in checkpoints: read as numbers, and never written
DTYPES = tuple(dtype for one in CODED.values() for dtype in one.dtypes)


def coded_of(dtype: str) -> CodedFormat | None:
    """Return the format whose codes have this dtype, or None for a dtype of numbers."""
    return next((one for one in CODED.values() if dtype in one.dtypes), None)
