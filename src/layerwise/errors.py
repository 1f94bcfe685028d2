"""Errors. Each message names the value found, the values allowed, and the way out."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

# Frames of these packages are skipped when a warning looks for the user's line.
INNER = ("layerwise", "torch", "paddle", "keras", "tensorflow", "jax", "optax", "mlx")
LINE = 120  # characters of a value in a message
VOWELS = tuple("aeioAEIO")  # what begins with u is spoken as in unit
SPELLED = tuple("AEFHILMNORSX")  # letters that are spoken with a vowel first, as in SGD


class LayerwiseError(Exception):
    """Base of every error raised on purpose in this library."""


class HyperparameterError(LayerwiseError, ValueError):
    """An option is outside its range or of the wrong kind."""


class UnknownOptionError(HyperparameterError, TypeError):
    """An option has an unknown name."""


class ContradictionError(HyperparameterError):
    """Options that are valid alone contradict each other."""


class ScheduledError(ContradictionError, RuntimeError):
    """A learning rate was set that a scheduler controls."""


class ParameterError(LayerwiseError, ValueError):
    """A parameter cannot be updated: its dtype is wrong, it is read-only, or its shape has changed."""


class ArgumentError(ParameterError, TypeError):
    """Parameters are missing, or another object was passed instead."""


class GradientError(LayerwiseError, ValueError):
    """A gradient is missing, belongs to no parameter, or does not fit its parameter."""


class StateError(LayerwiseError, ValueError):
    """A saved state does not fit: unknown or missing keys, wrong shapes, another optimizer."""


class PresetError(LayerwiseError, ValueError):
    """The preset does not exist, or belongs to another optimizer."""


class EngineError(LayerwiseError, RuntimeError):
    """The requested engine does not exist or cannot take this step."""


class SynchronizationError(LayerwiseError, RuntimeError):
    """Processes that hold parts of one model disagree about the step; none of them has taken it."""


class MissingPackageError(LayerwiseError, ImportError):
    """An optional part of the library needs a package that is not installed."""


def sentence(argument: str, allowed: str, value: object, way_out: str) -> str:
    """Return a message in the common form, so that every API reports a mistake in the same words."""
    return f"`{argument}` must be {allowed}, but is {shown(value)}. {way_out}"


def shown(value: object) -> str:
    """Return a value in one short line, as messages show it: a large array by its dtype and shape, and an object that
    describes itself in several lines, such as a module or an optimizer, by its class.
    """
    said = repr(value)
    line = " ".join(said.split())
    shape = _shape_of(value)
    if len(line) <= LINE and ("\n" not in said or shape is not None):
        return line
    if shape is not None:
        return f"an array of dtype {value.dtype} and shape {shape}"  # type: ignore[attr-defined]
    return class_in_words(value) if "\n" in said else f"{line[:LINE]}… ({with_article(type(value).__name__)})"


def _shape_of(value: Any) -> tuple[int, ...] | None:
    try:
        return tuple(value.shape) if value.dtype is not None and isinstance(value.shape, Sequence) else None
    except Exception:  # an object may raise anything, as nested tensors do
        return None


def class_in_words(value: object) -> str:
    """Return the class of a value with the package that it is of: "an AdamW of torch", "a list"."""
    package = type(value).__module__.partition(".")[0]
    return with_article(type(value).__name__) + f" of {package}" * (package not in ("builtins", "__main__"))


def with_article(noun: str) -> str:
    """Return a noun, such as a class's name, with its article."""
    return f"{'an' if noun.startswith(SPELLED if noun.isupper() else VOWELS) else 'a'} {noun}"


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line that called the package, however deep the warning is raised."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in INNER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
