"""The options that an engine knows."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from layerwise.engines import Job


def kind_of(h: Any, known: Collection[type]) -> type | None:
    """Return which of these classes of hyperparameters this is, or is derived from."""
    return next((cls for cls in type(h).__mro__ if cls in known), None)


def missing(job: Job, known: Mapping[type, Collection[str]]) -> str:
    """Return why kernels that know these options do not step a job, or an empty string."""
    kind = kind_of(job.h, known)
    if kind is None:
        return f"there are no kernels for {type(job.h).__name__}"
    if job.rule is not sys.modules[kind.__module__]:  # another formula with the same options
        return f"there are no kernels for {job.rule.__name__}"
    return unknown(job.h, known[kind])


def unknown(h: Any, known: Collection[str]) -> str:
    """Return which option is on that is not among the known ones, in a sentence, or an empty string."""
    for spec in fields(h):
        if spec.name not in known and (value := getattr(h, spec.name)) != spec.default:
            return f"its kernels do not know the option `{spec.name}` of {type(h).__name__}, which is {value!r}"
    return ""
