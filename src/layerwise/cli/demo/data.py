"""Scikit-learn's bundled digits: 1,797 images of 8×8 pixels, no download."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Array = np.ndarray[Any, Any]

TRAIN, TEST = 1024, 360


class Split(NamedTuple):
    """Images as rows of float32, labels as integers."""

    x: Array
    y: Array


class Digits(NamedTuple):
    train: Split
    validation: Split  # learning rates were tuned on it; the demo itself leaves it alone
    test: Split


def load() -> Digits:
    """The same split on every machine, stratified; pixels centred, and divided by one number for all of them."""
    x, y = load_digits(return_X_y=True)
    x_rest, x_test, y_rest, y_test = train_test_split(x, y, test_size=TEST, stratify=y, random_state=0)
    x_train, x_val, y_train, y_val = train_test_split(x_rest, y_rest, train_size=TRAIN, stratify=y_rest, random_state=1)
    # Not each pixel by its own deviation: a corner that is black in all but three images would become enormous in them.
    mean, deviation = x_train.mean(axis=0), x_train.std()
    pairs = ((x_train, y_train), (x_val, y_val), (x_test, y_test))
    return Digits(*(Split(((x - mean) / deviation).astype(np.float32), y) for x, y in pairs))
