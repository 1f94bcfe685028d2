"""The data: scikit-learn's bundled digits, and a text of this folder. No download.

Both are split in the same three parts on every machine: for training, for tuning, which the demo leaves alone, and for
the figures it shows.
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from demo.settings import Task

SYMBOLS = 128  # the text is ASCII, and a symbol is its code
LENGTH = 64  # of a sequence


class Split(NamedTuple):
    x: Tensor
    y: Tensor


class Data(NamedTuple):
    train: Split
    tuning: Split
    test: Split


@cache
def load(task: Task) -> Data:
    return digits(task.examples) if task.data == "digits" else text(task.examples)


def digits(train: int, test: int = 360) -> Data:
    """Return 1,797 images of 8×8 pixels, split by class, centred and divided by one number for all pixels."""
    from sklearn.datasets import load_digits  # here, because training on text should not wait for it
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x_rest, x_test, y_rest, y_test = train_test_split(x, y, test_size=test, stratify=y, random_state=0)
    x_train, x_tuning, y_train, y_tuning = train_test_split(
        x_rest, y_rest, train_size=train, stratify=y_rest, random_state=1
    )
    # Not each pixel by its own deviation: a corner that is black in all but three images would become enormous in them.
    mean, deviation = x_train.mean(axis=0), x_train.std()

    def split(x: Any, y: Any) -> Split:
        images = ((x - mean) / deviation).astype(np.float32).reshape(-1, 1, 8, 8)
        return Split(torch.from_numpy(images), torch.from_numpy(y))

    return Data(split(x_train, y_train), split(x_tuning, y_tuning), split(x_test, y_test))


def text(train: int) -> Data:
    """Return sequences drawn from the first 80 % of the text, and all of the rest, one after the other."""
    codes = torch.tensor(list(read_text()), dtype=torch.long)
    a, b = len(codes) * 8 // 10, len(codes) * 9 // 10
    starts = torch.randint(a - LENGTH, (train,), generator=torch.Generator().manual_seed(0))
    return Data(
        _sequences(codes[:a], starts),
        _sequences(codes[a:b], torch.arange(0, b - a - LENGTH, LENGTH)),
        _sequences(codes[b:], torch.arange(0, len(codes) - b - LENGTH, LENGTH)),
    )


def read_text() -> bytes:
    return gzip.decompress(Path(__file__).with_name("text.txt.gz").read_bytes())


def _sequences(codes: Tensor, starts: Tensor) -> Split:
    at = starts[:, None] + torch.arange(LENGTH)
    return Split(codes[at], codes[at + 1])
