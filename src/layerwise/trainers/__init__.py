"""The optimizers by name, in packages that build optimizers from configurations.

`_timm.py`, `_transformers.py` and `torchtitan.py` register them, each with its package; `_split.py` lets a trainer
that makes one group use a rule for hidden matrices.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from layerwise.catalog.registry import BY_LOWER
from layerwise.errors import HyperparameterError, MissingPackageError, sentence, warn

PACKAGES = ("timm", "transformers")
VARIABLE = "LAYERWISE_REGISTER"
PREFIX = "layerwise_"


def register(*packages: str) -> dict[str, list[str]]:
    """Register the PyTorch optimizers by name, and return the names by package. A second call changes nothing.

    Every optimizer is registered as "layerwise_" plus its name in lower case, such as "layerwise_lamb". Packages that
    build optimizers from a dotted path, such as Lightning and torchtune, do not need this: use layerwise.torch.Lamb.

    Args:
        *packages: The packages, "timm" and "transformers"; without any, those that are installed.
    """
    for package in packages:
        if package not in PACKAGES:
            way_out = "In other packages, pass the class itself, or its dotted path."
            raise HyperparameterError(sentence("packages", f"among {', '.join(PACKAGES)}", package, way_out))
        if find_spec(package) is None:
            raise MissingPackageError(f"`{package}` is not installed, so nothing can be registered there. Install it.")
    if packages:
        return {package: _register_with(package) for package in packages}
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        if find_spec(package) is not None and find_spec("torch") is not None:
            try:
                found[package] = _register_with(package)
            except ImportError as problem:
                warn(f"nothing was registered with {package}: {problem}")
    return found


def _register_with(package: str) -> list[str]:
    names: list[str] = import_module(f"layerwise.trainers._{package}").register()
    return names


def classes() -> dict[str, type[Any]]:
    """Return the PyTorch optimizers by the names under which they are registered."""
    torch = import_module("layerwise.torch")  # imported here, because `layerwise` itself imports no framework
    return {f"{PREFIX}{lower}": getattr(torch, name) for lower, name in BY_LOWER.items()}


def register_as_asked() -> None:
    """Register with the packages in the environment variable: "1" means all that are installed, "timm,transformers"
    these.

    A wrong name only warns: every program in this environment reads the variable, even if it registers nothing.
    """
    asked = [one.strip() for one in os.environ.get(VARIABLE, "").split(",") if one.strip()]
    if asked == ["1"]:
        register()
    for package in asked if asked not in (["0"], ["1"]) else ():
        try:
            register(package)
        except (HyperparameterError, MissingPackageError) as problem:
            warn(f"{VARIABLE}={os.environ[VARIABLE]}: {problem}")
