"""Arrays in a storage format, as the rule engine reads, slices and writes them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import prod
from types import ModuleType

from layerwise.rules.requests import Array
from layerwise.storage import Format, JobFormats, quantized_groups
from layerwise.storage.bit_views import BitFunctions
from layerwise.storage.bits import WORD, bits_of_group, keys_at_step, random
from layerwise.storage.extension import extension
from layerwise.storage.index import Index
from layerwise.storage.sixteen_bits import KEPT, LOW


@dataclass(frozen=True)
class FormattedArray:
    """One array with its format."""

    array: Array
    format: Format
    index: Index
    row_dims: int
    b: BitFunctions

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> str:
        return str(self.b.dtype(self.array))

    @property
    def extension(self) -> ModuleType | None:
        """The compiled extension, if it knows this format and arrays of this library."""
        known = self.format.coded in (None, quantized_groups.EIGHT)
        return extension() if known and hasattr(self.b, "empty") else None

    def group_slice(self, place: tuple[slice, ...]) -> FormattedArray:
        """Return a slice of whole groups along the first dimension."""
        beside = self.format.beside
        if self.format.coded:
            cut = place[0]
            if self.row_dims == 0:
                each = prod(self.shape[1:])
                cut = slice(cut.start * each // quantized_groups.GROUP, quantized_groups.num_groups(cut.stop * each))
            beside = beside[cut]
        elif beside is not None:
            beside = beside[place]
        form = self.format._replace(beside=beside)
        return replace(self, array=self.array[place], index=self.index[place], format=form)

    def read(self) -> Array:
        """Return the numbers in float32."""
        if (extension := self.extension) is not None:
            found = self.b.empty(self.array)
            if extension.read_format(self.array, self.format.beside, found, self._rows()):
                return found
        return self.decode()

    def decode(self) -> Array:
        """Return the same, by the library's functions."""
        b, (beside, _, coded) = self.b, self.format
        found = b.as_floats(self.array)
        if coded:
            rows, length = self._matrix()
            scale = beside.reshape(rows, quantized_groups.num_groups(length))
            decoded = coded.decode(b, found.reshape(rows, length), scale, self.dtype == coded.dtypes[0])
            return decoded.reshape(self.shape)
        return found if beside is None else LOW[self.dtype].join(b, found, b.integers(beside), self._kept())

    def write(self, x: Array, t: Array) -> bool:
        """Store numbers in place at step t, if the extension supports it."""
        key, index, extension = self.format.key, self.index, self.extension
        if extension is None or not isinstance(t, int) or (key is not None and not index.is_row):
            return False
        done: bool = extension.write_format(self.array, self.format.beside, x, self._rows(), index.offset, key, t)
        if done:
            self.b.written([one for one in (self.array, self.format.beside) if one is not None])
        return done

    def encode(self, x: Array, t: Array) -> tuple[Array, Array]:
        """Return the numbers to store at step t, and the additional ones or None."""
        b, (beside, _, coded) = self.b, self.format
        x, drawn = b.as_floats(x), self._random(t)
        if coded:
            rows, length = self._matrix()
            drawn = None if drawn is None else quantized_groups.shares(b, drawn).reshape(rows, length)
            codes, scale = coded.encode(b, x.reshape(rows, length), self.dtype == coded.dtypes[0], drawn)
            return codes.reshape(self.shape), scale.reshape(beside.shape)
        if beside is not None:
            return LOW[self.dtype].split(b, x, self._kept(), drawn if self._kept() == 8 else None)
        return (x if drawn is None else LOW[self.dtype].rounded(b, x, drawn)), None

    def _rows(self) -> int:
        return self._matrix()[0] if self.format.coded else 1

    def _matrix(self) -> tuple[int, int]:
        return prod(self.shape[: self.row_dims]), prod(self.shape[self.row_dims :])

    def _kept(self) -> int:
        return KEPT[self.b.dtype(self.format.beside)]

    def _random(self, t: Array) -> Array:
        if self.format.key is None:
            return None
        low, high = self.b.indices(self.index, self.array)
        step = (t & WORD, t >> 32) if isinstance(t, int) else self.b.step(t)
        if self.format.coded:
            return bits_of_group(self.format.key, step[0], low, high, self.b.word)
        return random(keys_at_step(self.format.key, step, self.b.word), low, high, self.b.word)


def in_format(b: BitFunctions, array: Array, which: int, storage: JobFormats | None) -> Array:
    """Return an array with its format, or unchanged if it is plain. `which` is 0 for the weights, then counts the
    state.
    """
    one = None if storage is None or array is None else storage.formats[which]
    if one is None or storage is None:
        return array
    return FormattedArray(array, one, storage.index, storage.row_dims, b)


def has_format(stored: object) -> bool:
    """Return True for an array in a format, or a tuple of such."""
    return isinstance(stored[0] if isinstance(stored, tuple) else stored, FormattedArray)


def as_numbers(stored: object) -> Array:
    """Return an array as numbers."""
    return stored.read() if isinstance(stored, FormattedArray) else stored


def formats_key(b: BitFunctions, storage: JobFormats | None) -> Hashable:
    """Return the key that the formats of arrays must share to be stepped as one."""
    each = () if storage is None else storage.formats
    return tuple(one and (one.key is None, one.coded, one.beside is not None and b.dtype(one.beside)) for one in each)
