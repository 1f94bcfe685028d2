"""Whether the processor multiplies matrices of 16 bits faster than of 32."""

from __future__ import annotations

from functools import cache
from pathlib import Path

UNITS = {"amx_bf16", "avx512_bf16"}  # as Linux names them


@cache
def processor_multiplies(flags: str = "/proc/cpuinfo") -> str | None:
    """Return "bfloat16" if the processor has units for it, as far as the system says; else None."""
    try:
        lines = Path(flags).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    found = next((line for line in lines if line.startswith("flags")), "")
    return "bfloat16" if UNITS & set(found.split()) else None
