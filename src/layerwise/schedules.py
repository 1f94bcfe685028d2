"""Learning rates by step: a warm-up, then a polynomial or a cosine, and runs of several stages.

A schedule is a callable of the number of steps taken so far, as the NumPy and JAX APIs accept for lr; the step may be
traced. `layerwise.torch.scheduler` turns one into a PyTorch scheduler. Lengths are in steps; `samples` and `epochs`
convert to steps.

>>> lr = Polynomial(peak=6e-3, total=epochs(90, dataset_size=1_281_167, batch=32_768), warmup=782)
>>> lr.total, lr(0), lr(391), lr(782), lr(lr.total)
(3519, 0.0, 0.003, 0.006, 0.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, fields
from fractions import Fraction
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from layerwise.errors import HyperparameterError, sentence
from layerwise.options.checks import Check, Checked, Contradiction, integer, number, option
from layerwise.options.misspellings import check_keywords
from layerwise.options.values import Scalar

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Cosine", "Polynomial", "Schedule", "Stages", "epochs", "samples"]

COUNT = integer(1)
RATE = number(0)


class Schedule:
    """Base class of all schedules.

    Attributes:
        peak: The highest learning rate.
        total: The length in steps.
    """

    peak: float
    total: int

    def _at(self, xp: ModuleType, step: Scalar) -> Scalar:
        raise NotImplementedError

    def __call__(self, step: Scalar) -> Scalar:
        """Return the learning rate after `step` steps: a float, or for an array (traced or not) one of its library.

        Args:
            step: The number of steps taken.
        """
        namespace: Callable[[], ModuleType] | None = getattr(step, "__array_namespace__", None)
        return float(self._at(np, step)) if namespace is None else self._at(namespace(), step)


@dataclass(frozen=True)
class _Decay(Checked, Schedule):
    """A warm-up from `start` to `peak` in `warmup` steps, then a decay to `end` at `total`, and constant afterwards."""

    peak: float = option(None, number(0, above=True), "Pass the highest learning rate, such as 1e-3.")
    total: int = option(None, COUNT, "Pass a number of steps, or samples(…) or epochs(…) for one.")
    warmup: int = option(0, integer(0), "Pass a number of steps, or samples(…) or epochs(…) for one; 0 is none.")
    _: KW_ONLY
    start: float = option(0.0, RATE, "Pass the learning rate of the first step, such as 0.")
    end: float = option(0.0, RATE, "Pass the learning rate to end with, such as 0.")

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        known = [spec.name for spec in fields(cls)]
        check_keywords(cls.__name__, [name for name in kwargs if name not in known], known)
        return super().__new__(cls)

    def contradictions(self) -> Iterator[Contradiction]:
        way_out = "Shorten the warm-up; total includes it."
        yield self.warmup >= self.total, "warmup", f"an integer < total={self.total}", way_out
        for name in ("start", "end"):
            allowed = f"a number ≤ peak={self.peak:g}"
            yield getattr(self, name) > self.peak, name, allowed, "It is a learning rate, like peak."

    def _at(self, xp: ModuleType, step: Scalar) -> Scalar:
        risen = xp.clip(step / max(self.warmup, 1), 0.0, 1.0)
        fallen = xp.clip((step - self.warmup) / (self.total - self.warmup), 0.0, 1.0)
        rising = self.start + (self.peak - self.start) * risen
        return xp.where(step < self.warmup, rising, self.end + (self.peak - self.end) * self._left(xp, fallen))

    def _left(self, xp: ModuleType, fallen: Scalar) -> Scalar:
        """Return the remaining fraction of the way from `peak` to `end`, at this fraction of the decay."""
        raise NotImplementedError


@dataclass(frozen=True)
class Polynomial(_Decay):
    """A line from `start` to `peak`, then `end + (peak − end)·(1 − x)^power`, x from 0 to 1 at `total`.

    Args:
        peak: The highest learning rate.
        total: The length in steps, warm-up included.
        warmup: The number of steps from `start` to `peak`.
        start: The learning rate of the first step.
        end: The learning rate at `total`, and after it.
        power: The power; 1 is a line.
    """

    _: KW_ONLY
    power: float = option(1.0, number(0, above=True), "Pass a number such as 1 for a linear decay, or 2.")

    def _left(self, xp: ModuleType, fallen: Scalar) -> Scalar:
        return (1.0 - fallen) ** self.power


@dataclass(frozen=True)
class Cosine(_Decay):
    """A line from `start` to `peak`, then half a cosine to `end` at `total`.

    Args:
        peak: The highest learning rate.
        total: The length in steps, warm-up included.
        warmup: The number of steps from `start` to `peak`.
        start: The learning rate of the first step.
        end: The learning rate at `total`, and after it.
    """

    def _left(self, xp: ModuleType, fallen: Scalar) -> Scalar:
        return 0.5 * (1.0 + xp.cos(math.pi * fallen))


@dataclass(frozen=True, init=False)
class Stages(Schedule):
    """One schedule after another, for training in stages of different batch size or sequence length, as LAMB's of BERT.

    Each part counts from its own first step, so the second may have a warm-up.

    Args:
        *parts: The schedules.
    """

    parts: tuple[Schedule, ...]

    def __init__(self, *parts: Schedule) -> None:
        if not parts or not all(isinstance(part, Schedule) for part in parts):
            way_out = "Pass each as Polynomial(peak, total) or Cosine(peak, total), whose lengths are known."
            raise HyperparameterError(sentence("parts", "schedules of layerwise, at least one", parts, way_out))
        object.__setattr__(self, "parts", parts)

    @property
    def peak(self) -> float:  # type: ignore[override]
        """The highest learning rate of all stages."""
        return max(part.peak for part in self.parts)

    @property
    def total(self) -> int:  # type: ignore[override]
        """The length of all stages together."""
        return sum(part.total for part in self.parts)

    def _at(self, xp: ModuleType, step: Scalar) -> Scalar:
        begin, rate = 0, self.parts[0]._at(xp, step)
        for before, part in zip(self.parts, self.parts[1:], strict=False):
            begin += before.total
            rate = xp.where(step < begin, rate, part._at(xp, step - begin))
        return rate


def samples(count: float, *, batch: int) -> int:
    """Return the number of steps that process this many samples. The last batch may be incomplete.

    Args:
        count: The number of samples.
        batch: The batch size.
    """
    return _steps("count", count, 1, batch)


def epochs(count: float, *, dataset_size: int, batch: int) -> int:
    """Return the number of steps that process this many epochs, if a batch may cross the end of an epoch.

    If your epochs end with a smaller batch, or drop it, pass count·len(loader) instead.

    Args:
        count: The number of epochs; it may be a fraction.
        dataset_size: The number of samples of an epoch.
        batch: The batch size.
    """
    size = COUNT("dataset_size", dataset_size, "Pass the number of samples per epoch.")
    return _steps("count", count, size, batch)


def _steps(argument: str, count: float, size: int, batch: int) -> int:
    check: Check = number(0, above=True)
    # From the decimals: the float nearest to 0.1 is a little larger, and would add a step.
    wanted = Fraction(repr(check(argument, count, "Pass the number of samples or epochs."))) * size
    held: int = COUNT("batch", batch, "Pass the number of samples per step, over all devices.")
    return math.ceil(wanted / held)
