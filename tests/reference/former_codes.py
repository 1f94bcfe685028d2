"""State in 8 bits as checkpoints had it before it was small floats."""

from __future__ import annotations

import numpy as np


def in_former_codes(x, signed):
    """Return codes and scales of a matrix: of |x| or √x the root, in 127 or 255 parts of the largest of a group."""
    grouped = np.pad(x, ((0, 0), (0, -x.shape[1] % 64))).reshape(len(x), -1, 64)
    root = abs(grouped) ** (0.5 if signed else 0.25)
    scale = root.max(2) / (127 if signed else 255)
    codes = (root / scale[:, :, None]).round() * (np.sign(grouped) if signed else 1)
    return codes.reshape(len(x), -1)[:, : x.shape[1]].astype("int8" if signed else "uint8"), scale.astype(np.float32)


def former_state(seed=0):
    """Return LAMB's state of a matrix of 70×65 in such codes, with the names of checkpoints, and its numbers."""
    draw = np.random.default_rng(seed)
    numbers = {"exp_avg": draw.normal(size=(70, 65)), "exp_avg_sq": draw.random((70, 65)) ** 8 + 1e-6}
    stored = {}
    for key, x in numbers.items():
        stored[key], stored[f"{key}_scale"] = in_former_codes(x, signed=key == "exp_avg")
    return stored, numbers


def check(found, numbers):
    """Check that a state has its numbers, but for their rounding."""
    m, v = numbers["exp_avg"], numbers["exp_avg_sq"]
    assert np.all(abs(np.asarray(found["exp_avg"]) - m) <= np.sqrt(abs(m) * abs(m).max()) / 60)
    assert np.all(abs(np.asarray(found["exp_avg_sq"]) - v) <= v**0.75 / 60)
