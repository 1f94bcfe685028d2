"""A network of two layers, its loss, and its gradient written out.

    z = x·W1 + b1,   h = max(z, 0),   s = h·W2 + b2
    loss = −mean(log softmax(s)[label])

Images are the rows of x.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]

INPUTS, HIDDEN, CLASSES = 64, 128, 10
PARAMETERS = (INPUTS + 1) * HIDDEN + (HIDDEN + 1) * CLASSES


def new_weights(rng: np.random.Generator) -> Weights:
    """Normal with variance 2/inputs for the matrices, 0 for the biases."""

    def matrix(rows: int, columns: int) -> Array:
        return rng.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32)

    return {
        "layer1.weight": matrix(INPUTS, HIDDEN),
        "layer1.bias": np.zeros(HIDDEN, np.float32),
        "layer2.weight": matrix(HIDDEN, CLASSES),
        "layer2.bias": np.zeros(CLASSES, np.float32),
    }


def scores(w: Weights, x: Array) -> Array:
    hidden = np.maximum(x @ w["layer1.weight"] + w["layer1.bias"], 0)
    return np.asarray(hidden @ w["layer2.weight"] + w["layer2.bias"])


def loss_and_gradients(w: Weights, x: Array, y: Array) -> tuple[float, Weights]:
    """The mean cross entropy of a batch, and its derivative by every weight."""
    z = x @ w["layer1.weight"] + w["layer1.bias"]
    h = np.maximum(z, 0)
    log_p = _log_softmax(h @ w["layer2.weight"] + w["layer2.bias"])
    rows = np.arange(len(y))
    loss = -float(log_p[rows, y].mean())

    ds = np.exp(log_p)
    ds[rows, y] -= 1
    ds /= len(y)
    dz = (ds @ w["layer2.weight"].T) * (z > 0)
    return loss, {
        "layer1.weight": x.T @ dz,
        "layer1.bias": dz.sum(axis=0),
        "layer2.weight": h.T @ ds,
        "layer2.bias": ds.sum(axis=0),
    }


def mean_loss(w: Weights, x: Array, y: Array) -> float:
    return -float(_log_softmax(scores(w, x))[np.arange(len(y)), y].mean())


def accuracy(w: Weights, x: Array, y: Array) -> float:
    """The share of right answers."""
    return float((scores(w, x).argmax(axis=1) == y).mean())


def _log_softmax(s: Array) -> Array:
    s = s - s.max(axis=1, keepdims=True)
    return np.asarray(s - np.log(np.exp(s).sum(axis=1, keepdims=True)))
