"""Forms in which other libraries keep a parameter's state, as numbers and the other way round."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import ceil
from typing import Any

import torch
from torch import Tensor

from layerwise.errors import StateError
from layerwise.keywords import nearest

Shape = tuple[int, ...]
MALFORMED = (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError)  # of what is no state of theirs


def check_name(name: Any, known: Collection[str], way: str) -> None:
    """Raise if this is the name of no optimizer that a converter knows."""
    if not isinstance(name, str) or name not in known:
        close = " or ".join(map(repr, nearest(name, known)))
        hint = f"Is {close} meant? " if close else ""
        listed = ", ".join(sorted(known))
        raise StateError(f"no checkpoint {way} {name!r} can be converted. {hint}Pass one of {listed}.")


def is_named(optimizer: Any, name: str) -> bool:
    """Return True if an optimizer, or a class that it is derived from, is one of those that a name is for.

    A package may have several of one name: with decoupled decay, with state of 8 bits or in the host's memory.
    """
    package, _, kind = name.partition(".")
    names = re.compile(rf"(Paged)?{kind}W?(\d+bit)?")
    return any(
        one.__module__.partition(".")[0] == package and names.fullmatch(one.__name__) for one in type(optimizer).__mro__
    )


# ---- bitsandbytes: codes of a table, in blocks that share the largest magnitude (arXiv 2110.02861)

WRAPPED = "__bnb_optimizer_quant_state__"  # where 0.50 puts them in a checkpoint
BLOCK, OLD_BLOCK = 256, 2048


def from_bitsandbytes(state: Mapping[str, Any], number: int) -> Tensor:
    """Return the first or the second state of a parameter as numbers."""
    state = {**state, **state.get(WRAPPED, {})}
    x: Tensor = state[f"state{number}"]
    if x.dtype is not torch.uint8:
        return x
    if f"absmax{number}" not in state:
        raise StateError(
            "the checkpoint has 8-bit state with one scale a tensor, of block_wise=False, which bitsandbytes has given "
            "up. Only block-wise state can be converted."
        )
    table, largest = state[f"qmap{number}"].float(), state[f"absmax{number}"].float()
    if table.numel() != 256:
        raise StateError(f"a table of 8 bits has 256 numbers, and that of the checkpoint {table.numel()}.")
    block = _block_of(x.numel(), largest.numel(), (BLOCK, OLD_BLOCK))
    each = largest.repeat_interleave(block)[: x.numel()]
    found: Tensor = (table[x.flatten().long()] * each).view(x.shape)
    return found


def to_bitsandbytes(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of these numbers, and the largest magnitude of each block."""
    largest = _in_blocks(x.abs().float(), BLOCK).amax(1)
    parts = _in_blocks(x.float(), BLOCK) / largest.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    codes = torch.bucketize(parts, ((table[1:] + table[:-1]) / 2).to(x.device))
    return codes.flatten()[: x.numel()].view(x.shape).to(torch.uint8), largest


# ---- FlashOptim: groups of 32 with a float16 scale; softsign of m, and the root of v

GROUP = 32


def from_flashoptim(state: Mapping[str, Any], key: str) -> Tensor:
    """Return a field as numbers: 8 bits, or what it was saved as without them."""
    if key in state:
        kept: Tensor = state[key]
        return kept
    codes, scales = state[f"{key}::quantized"], state[f"{key}::scales"]
    if codes.dtype not in (torch.int8, torch.uint8) or not scales.is_floating_point():
        raise StateError(f"{key!r} must have 8-bit codes and float16 scales, but has {codes.dtype} and {scales.dtype}.")
    # Beside bfloat16 parameters the bytes of float16 scales are saved as if they were bfloat16.
    scales = scales.view(torch.float16).float() if scales.element_size() == 2 else scales.float()
    block = _block_of(codes.numel(), scales.numel(), (GROUP,))
    signed = key != "exp_avg_sq"
    y = codes.flatten().float() / (127 if signed else 255)
    x = (y / (2 - y.abs()) if signed else y) * scales.repeat_interleave(block)[: codes.numel()]
    found: Tensor = (x if signed else x * x).view(codes.shape)
    return found


# ---- timm's Adafactor


def timm_dims(shape: Shape, smallest: int) -> tuple[int, int] | None:
    """Return rows and columns: the first two dimensions where both exceed a size, else the last two, else none."""
    if len(shape) > 2 and min(shape[:2]) > smallest:
        return 0, 1
    return (len(shape) - 2, len(shape) - 1) if len(shape) > 1 and min(shape[-2:]) > smallest else None


def timm_dims_of(row: Shape, col: Shape, smallest: int) -> tuple[int, int]:
    """Return the same of a tensor of which the shapes are known without columns and without rows."""
    last, first = (*row, *col[-1:]), (*row[:1], *col[:1], *row[1:])
    for shape in (first, last):
        found = timm_dims(shape, smallest)
        if found is not None and (_without(shape, found[1]), _without(shape, found[0])) == (row, col):
            return found
    raise StateError(
        f"means of the shapes {row} and {col} are of no tensor that timm's Adafactor factors from "
        f"min_dim_size_to_factor={smallest}."
    )


def _without(shape: Shape, d: int) -> Shape:
    return shape[:d] + shape[d + 1 :]


def _block_of(numel: int, blocks: int, sizes: tuple[int, ...]) -> int:
    found = next((size for size in sizes if ceil(numel / size) == blocks), None)
    if found is None:
        raise StateError(f"{numel} codes with {blocks} scales are no blocks of {' or '.join(map(str, sizes))}.")
    return found


def _in_blocks(x: Tensor, size: int) -> Tensor:
    flat = x.flatten()
    return torch.nn.functional.pad(flat, (0, -flat.numel() % size)).view(-1, size)
