"""Models for commands: the user's own, and shapes of published models."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import nn

from layerwise.cli.exit_codes import TRACEBACK
from layerwise.errors import LayerwiseError, with_article
from layerwise.options.misspellings import did_you_mean, nearest

SHAPE = "Pass package.module:callable, such as mymodel:make_model for make_model() in ./mymodel.py."


def model_of(path: str) -> nn.Module:
    """Return the model that the callable returns. An error in the user's code becomes one line."""
    found, name = _found(path), path.partition(":")[2]
    if not isinstance(found, nn.Module):
        _check_call(f"{path}: {name}", found)
        with _in_one_line(path):
            found = found()
    if not isinstance(found, nn.Module):
        wrong = f"{name}() must return a torch.nn.Module, but returned {with_article(type(found).__name__)}."
    elif not any(p.numel() for p in found.parameters() if p.requires_grad):
        wrong = "no parameter of the model requires grad, so there is nothing to step."
    else:
        return found
    raise LayerwiseError(f"{path}: {wrong}")


def _found(path: str) -> Any:
    """Return what is named in a module."""
    module, _, name = path.partition(":")
    if not (module and name):
        raise LayerwiseError(f"{path!r} contains no callable. {SHAPE}")
    if module.endswith(".py"):
        plain = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise LayerwiseError(f"{path!r} must name a module, not its file: {plain}:{name}.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    with _in_one_line(path):
        found = importlib.import_module(module) if _exists(module) else None
    if found is None:
        raise LayerwiseError(f"{path}: no module {module!r} is in this folder or installed. {SHAPE}")
    try:
        return reduce(getattr, name.split("."), found)
    except AttributeError:
        hint = did_you_mean(f"{module}:{one}" for one in nearest(name, vars(found), 1)) or SHAPE
        raise LayerwiseError(f"{path}: module {module!r} has no {name!r}. {hint}") from None


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that would contain it
        return False


def _check_call(said: str, found: object) -> None:
    """Raise unless this can be called without arguments."""
    if not callable(found):
        raise LayerwiseError(
            f"{said} must be a function that returns the model, but is {with_article(type(found).__name__)}."
        )
    try:
        inspect.signature(found).bind()
    except TypeError:
        raise LayerwiseError(f"{said}() must need no arguments. Give each a default.") from None
    except ValueError:  # some callables have no signature
        return


@contextmanager
def _in_one_line(path: str) -> Iterator[None]:
    """Turn an error of the user's own code into one line."""
    try:
        yield
    except (Exception, SystemExit) as problem:
        if os.environ.get(TRACEBACK):
            raise
        text = " ".join(str(problem).split()).rstrip(".")
        raise LayerwiseError(
            f"{path} failed: {type(problem).__name__}: {text}. Set {TRACEBACK}=1 to see where."
        ) from None


class Decoder(NamedTuple):
    """The sizes of a language model like Llama 3 or Qwen3, from its published configuration."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    intermediate: int
    of_head: int = 128
    norms_heads: bool = False  # queries and keys have norms of their own
    tied: bool = False  # the output head is the embedding

    def model(self) -> nn.Module:
        """Return its parameters in modules of the right kinds, which compute nothing."""
        made = nn.ModuleDict({"embed": nn.Embedding(self.vocabulary, self.hidden)})
        made["layers"] = nn.ModuleList(nn.ModuleDict(self._layer()) for _ in range(self.layers))
        made["norm"] = nn.RMSNorm(self.hidden)
        if not self.tied:
            made["head"] = nn.Linear(self.hidden, self.vocabulary, bias=False)
        return made

    def _layer(self) -> dict[str, nn.Module]:
        hidden, values = self.hidden, self.heads * self.of_head
        sizes = {
            "q": (hidden, values),
            **dict.fromkeys(("k", "v"), (hidden, self.key_heads * self.of_head)),
            "o": (values, hidden),
            **dict.fromkeys(("gate", "up"), (hidden, self.intermediate)),
            "down": (self.intermediate, hidden),
        }
        norms = {"input_norm": hidden, "after_norm": hidden}
        norms |= dict.fromkeys(("q_norm", "k_norm"), self.of_head) if self.norms_heads else {}
        linear = {name: nn.Linear(*size, bias=False) for name, size in sizes.items()}
        return {**linear, **{name: nn.RMSNorm(size) for name, size in norms.items()}}


PUBLISHED: Mapping[str, Decoder] = {
    "qwen3-1.7b": Decoder(151936, 2048, 28, 16, 8, 6144, norms_heads=True, tied=True),
    "qwen3-8b": Decoder(151936, 4096, 36, 32, 8, 12288, norms_heads=True),
    "qwen3-32b": Decoder(151936, 5120, 64, 64, 8, 25600, norms_heads=True),
    "llama-3-70b": Decoder(128256, 8192, 80, 64, 8, 28672),
}


def on_meta(path: str) -> nn.Module:
    """Return a published or a user's model without values, so that any size fits."""
    with torch.device("meta"):
        if (found := PUBLISHED.get(path.lower())) is not None:
            return found.model()
        if ":" in path:
            return model_of(path)
    near = nearest(path, [*PUBLISHED], 1)
    hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(PUBLISHED)}."
    raise LayerwiseError(f"no published model is named {path!r}. {hint} {SHAPE}")
