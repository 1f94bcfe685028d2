"""Exact sums of PyTorch's tensors, and functions that give an element the same bits wherever it lies."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, frexp, prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerwise.drive.digits import OF_SQUARES, PLAIN, WIDE, WIDTH, Exact, Window, carried, total_of
from layerwise.engines import compiled
from layerwise.torch.step._namespace import PURE, Tensors

BLOCK = 1 << 12  # so many digits of 2^40 can be added up exactly
AT_ONCE = 1 << 18  # elements that are widened at a time: what the caches hold
MOST = 2.0**1011  # from here on the first of the roundings would leave the dtype


def digits(terms: Tensor, dims: tuple[int, ...], squares: bool, model: bool) -> tuple[Tensor, Exact]:
    """Return the sum of the terms, or of their squares, over these dimensions as digits: along a new first dimension.

    Of the model's sum they are those of float64, whatever the dtype: tensors of several add to it.
    """
    wide = terms.dtype == torch.float64
    window = WIDE if wide else OF_SQUARES if squares else PLAIN
    shape = [1 if d in dims else n for d, n in enumerate(terms.shape)]
    kept = [d for d in range(terms.ndim) if d not in dims]
    count, length = (prod(terms.shape[d] for d in some) for some in (kept, dims))
    lines = terms.permute((*kept, *dims)).reshape(count, length)
    found = _of_lines(lines, squares, window).reshape(window.digits, *shape)
    if model and not wide:
        above = WIDE.low + WIDE.digits - window.low - window.digits
        ends = found.new_zeros(window.low - WIDE.low, *shape), found.new_zeros(above, *shape)
        found, window = torch.cat([ends[0], found, ends[1]]), WIDE
    return found, Exact(window, torch.float64 if squares else terms.dtype)


def _of_lines(lines: Tensor, squares: bool, window: Window) -> Tensor:
    """Return the digits of each line of a matrix."""
    count, length = lines.shape
    on_cpu = lines.device.type == "cpu"
    if on_cpu and (by_extension := compiled.digits(lines.contiguous().numpy(), squares, window)) is not None:
        return torch.from_numpy(by_extension).T
    wide = max(1, min(length, AT_ONCE))
    high = max(1, AT_ONCE // wide)
    found = lines.new_zeros(window.digits, count, dtype=torch.float64)
    for row in range(0, count, high):
        for column in range(0, length, wide):
            some = lines[row : row + high, column : column + wide].to(torch.float64, copy=True)
            if squares:
                some.mul_(some)
            found[:, row : row + high] += _folded(_of_blocks(_blocks(some), window, on_cpu))
        if length > wide:
            found[:, row : row + high] = carried(torch, found[:, row : row + high])
    return found


def _blocks(lines: Tensor) -> Tensor:
    """Return a matrix whose lines are cut into blocks, the last of which is filled up with zeros."""
    count, length = lines.shape
    if length <= BLOCK:
        return lines.view(count, 1, length)
    return torch.nn.functional.pad(lines, (0, -length % BLOCK)).view(count, -1, BLOCK)


def _folded(blocks: Tensor) -> Tensor:
    """Return the digits of lines, given those of at most so many blocks of each."""
    found: Tensor = carried(torch, carried(torch, blocks).sum(-1))
    return found


def _of_blocks(x: Tensor, window: Window, looks: bool) -> Tensor:
    """Return the digits of each block: integers of at most 2^52. The numbers are used up."""
    found = x.new_zeros(window.digits, *x.shape[:-1])
    for k in _places(x, found, window, looks):
        shift, half = 1.5 * 2.0 ** (WIDTH * k + 52), WIDTH * k // 2
        rounded = (x + shift) - shift
        x -= rounded
        found[k - window.low] += rounded.sum(-1) * 2.0**-half * 2.0 ** (half - WIDTH * k)
    return found


def _places(x: Tensor, found: Tensor, window: Window, looks: bool) -> Iterator[int]:
    """Yield the places of the digits to subtract, the highest first: all, or those that a look shows to be needed."""
    last = window.low + window.digits - 1
    if not (looks and _largest(x) < MOST):
        _set_aside(x, found, last)
    if not looks:  # on a device, which would have to be waited for
        yield from range(last, window.low - 1, -1)
        return
    while largest := _largest(x):
        yield min(floor((frexp(largest)[1] - 1) / WIDTH), last)


def _largest(x: Tensor) -> float:
    return x.abs().amax().item() if x.numel() else 0.0


def _set_aside(x: Tensor, found: Tensor, last: int) -> None:
    """Add nan, infinite and nearly infinite numbers to the last digit unchanged: they stay there."""
    fine = x.abs() < MOST
    found[-1] += torch.where(fine, 0.0, x).sum(-1) * 2.0 ** (-WIDTH * last)
    x.copy_(torch.where(fine, x, 0.0))


def total(digits: Tensor, exact: Exact) -> Tensor:
    """Return the number that the digits make."""
    if digits.device.type == "cpu":
        columns = digits.reshape(len(digits), -1).contiguous().numpy()
        if (found := compiled.totals(columns, exact.window)) is not None:
            return torch.from_numpy(found).reshape(digits.shape[1:]).to(exact.dtype)
    made: Tensor = total_of(torch, digits, exact)
    return made


def sqrt(x: Tensor) -> Tensor:
    """Return roots rounded to nearest; PyTorch's roots on CPUs are not always."""
    if x.device.type != "cpu":
        return torch.sqrt(x)
    found = torch.empty_like(x)
    with np.errstate(invalid="ignore"):
        np.sqrt(x.detach().numpy(), out=found.numpy())
    return found


def unsummed(x: Tensor, axis: Any, keepdims: bool = True) -> Tensor:
    """Return the terms as they are: the request that they go into names these dimensions too, and adds up exactly."""
    return x


def add_scaled(x: Any, a: Any, y: Tensor) -> Any:
    """Return x + a·y, rounded twice: a fused operation may round once in the body of a loop and twice at its end."""
    return y * a + x


def mixed(b: Any, x: Tensor, y: Tensor) -> Any:
    return x * b + y * (1 - b)


def mix(b: Any, x: Tensor, y: Tensor) -> Tensor:
    """Return the same, written over x."""
    return x.mul_(b).add_(y * (1 - b))


def move(x: Tensor, a: Any, y: Tensor) -> Tensor:
    return x.add_(y * a)


OWN = {
    "sqrt": sqrt,
    "sum": unsummed,
    "add_scaled": add_scaled,
    "mix": mixed,
    "digits": digits,
    "total": total,
    "round": torch.round,
}
EXACT = {key: x for key, x in PURE.items() if key not in ("squares", "as_number")} | OWN


class ReproducibleTensors(Tensors):
    """Tensors on which a step gives the same bits however they are cut.

    Sums are exact, each elementwise operation rounds by itself, and what is made of sums is computed in the dtype of
    the arithmetic, be it of one layer or of several.
    """

    pure: Any = SimpleNamespace(**EXACT)
    xp: Any = SimpleNamespace(**{**EXACT, "mix": mix, "move": move})
