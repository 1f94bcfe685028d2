"""The user's own model, made by a callable that is named by its Python path."""

from __future__ import annotations

import importlib
import os
import sys
from operator import attrgetter

import torch

from layerwise.cli.exits import TRACEBACK, Mistake

SHAPE = "Pass package.module:callable, such as mymodel:make_model for make_model() in ./mymodel.py."


def model_of(path: str) -> torch.nn.Module:
    """Return the model that the callable returns. An error in the user's code is one line."""
    module, _, name = path.partition(":")
    if not (module and name):
        raise Mistake(f"--model {path!r} has no callable in it. {SHAPE}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        made = attrgetter(name)(importlib.import_module(module))
        model = made if isinstance(made, torch.nn.Module) else made()
    except (Exception, SystemExit) as problem:
        if os.environ.get(TRACEBACK):
            raise
        text = " ".join(str(problem).split())
        raise Mistake(f"--model {path}: {type(problem).__name__}: {text}. {SHAPE} {TRACEBACK}=1 shows where.") from None
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise Mistake(f"--model {path}: {name}() must return a torch.nn.Module, but returned a value of type {kind}.")
    params = [p for p in model.parameters() if p.requires_grad]
    if not any(p.numel() for p in params):
        raise Mistake(f"--model {path}: the model has no parameter that requires grad, so there is nothing to step.")
    if any(p.is_meta for p in params):
        raise Mistake(f"--model {path}: the model has parameters on the meta device, which hold no numbers.")
    return model
