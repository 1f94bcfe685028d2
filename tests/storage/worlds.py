"""The array libraries in which storage formats are computed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from layerwise.numpy._arrays import BITS

TABLE = json.loads((Path(__file__).parent / "vectors.json").read_text())


def _numpy():
    def stored(x, dtype):
        return np.asarray(x).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    return SimpleNamespace(b=BITS, array=np.asarray, host=np.asarray, stored=stored, wide=True, jit=lambda f: f)


def _torch():
    torch = pytest.importorskip("torch")
    from layerwise.torch.arrays._library import BITS

    def array(x):
        return torch.asarray(np.array(x))

    def host(x):
        return x.view(torch.int16).numpy() if x.dtype == torch.bfloat16 else x.numpy()

    def stored(x, dtype):
        return x.to(getattr(torch, dtype))

    return SimpleNamespace(b=BITS, array=array, host=host, stored=stored, wide=True, jit=lambda f: f)


def _jax(jitted):
    jax = pytest.importorskip("jax")
    from layerwise.jax._bits import BITS, Words, rounded

    def array(x):
        x = np.asarray(x)
        return Words(jax.numpy.asarray(x.astype(np.uint32))) if x.dtype == np.int64 else jax.numpy.asarray(x)

    def host(x):
        return np.asarray(x.array if isinstance(x, Words) else x)

    return SimpleNamespace(b=BITS, array=array, host=host, stored=rounded, wide=False, jit=jitted(jax, Words))


def _eager(jax, words):
    return lambda f: f


def _compiled(jax, words):
    """Return what compiles a function of arrays and `Words`."""

    def jit(f):
        def opened(x):
            return x.array if isinstance(x, words) else x

        def closed(kinds, *given):
            out = f(*(words(x) if kind else x for kind, x in zip(kinds, given, strict=True)))
            return jax.tree.map(opened, out, is_leaf=lambda x: isinstance(x, words))

        program = jax.jit(closed, static_argnums=0)
        return lambda *given: program(tuple(isinstance(x, words) for x in given), *map(opened, given))

    return jit


MAKERS = {"numpy": _numpy, "torch": _torch, "jax": lambda: _jax(_eager), "jax-jit": lambda: _jax(_compiled)}


def floats(bits):
    return np.asarray(bits, np.uint32).view(np.float32)


def half(x):
    """Return the bits of numbers in 16 bits."""
    return np.asarray(x).view(np.uint16)


def wanted(halves):
    """Return wanted bits of 16, and where there are any: nan has many."""
    known = np.array([one is not None for one in halves])
    return np.array([one or 0 for one in halves], np.uint16), known
