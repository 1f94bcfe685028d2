"""Layers that share one parameter, declared as its blocks along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from layerwise.errors import HyperparameterError, ParameterError, sentence
from layerwise.options.by_name import Name
from layerwise.options.checks import (
    Check,
    Checked,
    Contradiction,
    RefusedValue,
    as_int,
    integer,
    members_of_sequence,
    one_of,
    option,
)
from layerwise.rules.requests import Array

Shape = tuple[int, ...]


def _lengths(value: object) -> tuple[int, ...]:
    lengths = tuple(map(integer(1).convert, members_of_sequence(value)))
    if not lengths:
        raise RefusedValue
    return lengths


def _axes(value: object) -> int | tuple[int, ...]:
    try:
        return as_int(value)
    except RefusedValue:
        axes = tuple(map(as_int, members_of_sequence(value)))
        if not axes:
            raise
        return axes


SPLIT = integer(1) | one_of("each") | Check("a sequence of lengths", _lengths)
WAY_OUT = 'Pass a number of equal blocks, "each" for one block per index, or lengths such as (4096, 1024, 1024).'


@dataclass(frozen=True)
class Blocks(Checked):
    """Blocks of a tensor along an axis, each with its own norms and statistics, as if it were a separate tensor.

    Args:
        split: A number of equal blocks, "each" (every index along the axis is a tensor without that axis, as in a stack
            of experts or scanned layers), or the blocks' lengths (as in a fused q, k, v of unequal heads).
        axis: The axis along which the blocks lie; with "each" there may be several.

    >>> Blocks(3).parts("qkv", (6, 2))
    [BlockView(axis=0, count=3, drop=False, one=None, others=())]
    """

    split: int | Literal["each"] | tuple[int, ...] = option("each", SPLIT, WAY_OUT)
    axis: int | tuple[int, ...] = option(
        0,
        Check("an integer or several", _axes),
        'Pass the axis along which the blocks lie, such as 0 or -1; with "each" several axes are allowed: (0, 1).',
    )

    def contradictions(self) -> Iterator[Contradiction]:
        several = isinstance(self.axis, tuple) and self.split != "each"
        yield several, "axis", f"one integer with split={self.split!r}", 'Several axes are only allowed with "each".'

    def parts(self, name: Name, shape: Shape) -> list[BlockView]:
        """Return the pieces of a tensor that a rule steps. Equal blocks are one piece.

        Args:
            name: The tensor's name, for errors.
            shape: The tensor's shape.
        """
        axes = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        for axis in axes:
            if not -len(shape) <= axis < len(shape):
                raise ParameterError(
                    f"the blocks of {name!r} lie along axis {axis}, which its shape {shape} does not have. Pass "
                    "Blocks(…, axis=…) with an axis of that shape."
                )
        axis, *others = (axis % len(shape) for axis in axes)
        length = shape[axis]
        if self.split == "each":
            return [BlockView(axis, length, drop=True, others=tuple(others))]
        if isinstance(self.split, int):
            if length % self.split:
                raise ParameterError(
                    f"the blocks of {name!r} must divide axis {axis} of its shape {shape}, but are {self.split}. "
                    "Pass their lengths instead, such as Blocks((4096, 1024, 1024))."
                )
            return [BlockView(axis, self.split)]
        if sum(self.split) != length:
            raise ParameterError(
                f"the blocks of {name!r} must add up to axis {axis} of its shape {shape}, but are {self.split}. Pass "
                "lengths that add up to it, or a number of equal blocks."
            )
        ends = list(accumulate(self.split))
        cuts = zip(self.split, ends, strict=True)
        return [BlockView(axis, one=(i, end - n, end, length)) for i, (n, end) in enumerate(cuts)]


Split = Blocks | int | Literal["each"]
"""Blocks of a tensor: a number of equal ones along axis 0, "each" for one at every index of it, or `Blocks`."""
BlocksByName = Mapping[str, Split] | Callable[[str], Split | None]
"""Blocks by the parameter's name: a mapping, whose keys may be patterns, or a function of the name."""


def as_blocks(argument: str, value: object) -> Blocks:
    """Return Blocks unchanged, and a `split` as Blocks along axis 0."""
    return value if isinstance(value, Blocks) else Blocks(SPLIT(argument, value, WAY_OUT))


def in_plain_form(argument: str, value: object) -> int | str | tuple[int, ...] | None:
    """Return the blocks of a parameter group as plain Python objects, which any program can save, or raise.

    They apply to all of its parameters: None, a number of equal blocks, "each", or lengths, along axis 0.
    """
    if value is None:
        return None
    blocks = as_blocks(argument, value)
    if blocks.axis != 0:
        way_out = "Pass other axes by name, in the optimizer's `blocks`."
        raise HyperparameterError(sentence(argument, "blocks along axis 0 in a parameter group", value, way_out))
    return blocks.split


@dataclass(frozen=True)
class BlockView:
    """One piece of a tensor, with views of this piece in arrays of the tensor's or its statistics' shape.

    Either `count` equal blocks side by side, seen along a dimension of their own (with `drop` it is the axis itself,
    alone or with `others`), or `one` block of several: its number, start and end, and the tensor's length.
    """

    axis: int
    count: int = 1
    drop: bool = False
    one: tuple[int, int, int, int] | None = None
    others: Shape = ()  # with `drop`, further axes that count blocks

    def one_by_one(self, whole: Shape) -> list[BlockView]:
        """Return each of these blocks as its own piece, unless they already are or have no length."""
        if self.one is not None or self.drop:
            return [self]
        length = whole[self.axis]
        n = length // self.count
        return [BlockView(self.axis, one=(i, i * n, (i + 1) * n, length)) for i in range(self.count)]

    def dims(self) -> Shape:
        return () if self.one is not None else (self.axis, *self.others)

    def shape(self, whole: Shape) -> Shape:
        """Return the shape of the piece of a tensor of this shape."""
        before, after = whole[: self.axis], whole[self.axis + 1 :]
        if self.one is not None:
            _, start, end, _ = self.one
            return (*before, end - start, *after)
        return whole if self.drop else (*before, self.count, whole[self.axis] // self.count, *after)

    def view(self, array: Array) -> Array:
        """Return the piece of `array`, whose length along the axis is the tensor's, or one for each block."""
        if self.one is not None:
            number, start, end, length = self.one
            cut = slice(start, end) if array.shape[self.axis] == length else slice(number, number + 1)
            return array[(slice(None),) * self.axis + (cut,)]
        if self.drop:
            return array
        return array.reshape(self.shape(tuple(array.shape)))


def merged_shape(parts: Sequence[BlockView], shapes: Sequence[Shape]) -> Shape:
    """Return the shape that holds the pieces' statistics together: their blocks one after the other along the axis."""
    part, first = parts[0], shapes[0]
    before, after = first[: part.axis], first[part.axis + 1 :]
    if part.one is not None:
        return (*before, sum(shape[part.axis] for shape in shapes), *after)
    return first if part.drop else (*before, first[part.axis] * after[0], *after[1:])
