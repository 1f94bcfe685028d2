"""The user's own model, made by a callable that is named by its Python path."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch

from layerwise.cli.bench.shapes import Shapes
from layerwise.cli.exits import TRACEBACK, Mistake

SHAPE = "Pass package.module:callable, such as mymodel:make_model for make_model() in ./mymodel.py."


def model_of(path: str) -> torch.nn.Module:
    """Return the model that the callable returns."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise Mistake(f"--model {path!r} has no callable in it. {SHAPE}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    module = _attempt(f"--model {path}: cannot import {module_name}", partial(importlib.import_module, module_name))
    make = _attribute(module, module_name, name.split("."))
    if not callable(make):
        raise Mistake(f"--model {path}: {name} is no callable but of type {type(make).__name__}. {SHAPE}")
    model = make if isinstance(make, torch.nn.Module) else _attempt(f"--model {path}: {name}() failed", make)
    return _checked(path, name, model)


def shapes_of(path: str) -> Shapes:
    """Return the shapes of the parameters that a step would move."""
    return {name: tuple(p.shape) for name, p in model_of(path).named_parameters() if p.requires_grad}


def _attempt(what: str, call: Callable[[], Any]) -> Any:
    """Return what the user's code returns. Report an error of it in one line."""
    try:
        return call()
    except (Exception, SystemExit) as problem:
        if os.environ.get(TRACEBACK):
            raise
        text = " ".join(str(problem).split())
        kind = type(problem).__name__
        raise Mistake(f"{what}: {kind}{': ' * bool(text)}{text}. {TRACEBACK}=1 shows where.") from None


def _attribute(module: Any, module_name: str, names: Sequence[str]) -> Any:
    found = module
    for name in names:
        if not hasattr(found, name):
            near = get_close_matches(name, [one for one in dir(found) if not one.startswith("_")], 1)
            hint = f"Did you mean {near[0]}?" if near else SHAPE
            raise Mistake(f"--model: {module_name} has no {'.'.join(names)}. {hint}")
        found = getattr(found, name)
    return found


def _checked(path: str, name: str, model: Any) -> torch.nn.Module:
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise Mistake(f"--model {path}: {name}() must return a torch.nn.Module, but returned a value of type {kind}.")
    params = [p for p in model.parameters() if p.requires_grad]
    if not any(p.numel() for p in params):
        raise Mistake(f"--model {path}: the model has no parameter that requires grad, so there is nothing to step.")
    if any(p.is_meta for p in params):
        raise Mistake(f"--model {path}: the model has parameters on the meta device, which hold no numbers.")
    return model
