"""Numbers as people write them."""

from __future__ import annotations


def number(x: float, digits: int = 3) -> str:
    """Return a number with so many digits: 1,020 and not 1.02e+03, 2.9e-6 and not 2.9e-06."""
    x = float(f"{x:.{digits}g}")
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.{digits}g}".replace("e-0", "e-")


def percent(share: float) -> str:
    """Return a share in percent, of which less than a tenth is too little to be a figure."""
    return "less than 0.1 %" if 0 < share < 1e-3 else f"{number(100 * share)} %"
