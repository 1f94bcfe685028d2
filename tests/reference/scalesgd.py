"""SCALE: Glentis et al., "A Minimalist Optimizer Design for LLM Pretraining", arXiv 2506.16659, algorithm 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from layerwise.rules import scalesgd as rule

from .case import Case
from .lines import OPTIONS, SHOWS_WITH, ByLines, leveled
from .paths import close, path


class ScaleSGD(ByLines):
    """x = m / RMS(m of each row)"""

    def __init__(
        self,
        lr=1e-3,
        weight_decay=0,
        over="columns",
        norm="rms",
        momentum=0.0,
        scale=1.0,
        eps=1e-8,
        dims="first",
        max_grad_norm=None,
        max_grad_norm_per_tensor=None,
        max_grad_value=None,
        maximize=False,
        blocks=None,
    ):
        super().__init__(
            lr,
            weight_decay,
            momentum,
            scale,
            eps,
            dims,
            max_grad_norm,
            max_grad_norm_per_tensor,
            max_grad_value,
            maximize,
            blocks,
        )
        self.over = over
        self.norm = norm

    def divided(self, x):
        found = self.rows_and_columns(x.shape)
        along = found and found[self.over == "columns"]
        return leveled(x, along, self.eps, self.norm == "l2")


# ---- what else tests know of it


def _vectors(world: Any) -> None:
    """Rows of 3, 4 and of 0, 5, and columns of 3, 0 and 4, 5, by hand."""
    p, g = np.zeros((2, 2)), np.array([[3.0, 4.0], [0.0, 5.0]])
    for options, expected in (
        ({"norm": "l2"}, [[0.6, 0.8], [0.0, 1.0]]),
        ({}, [[0.848528137424, 1.131370849898], [0.0, 1.414213562373]]),
        ({"norm": "l2", "over": "rows"}, [[1.0, 0.624695047554], [0.0, 0.780868809443]]),
        ({"norm": "l2", "dims": False}, [[0.424264068712, 0.565685424949], [0.0, 0.707106781187]]),
        ({"norm": "l2", "scale": 0.5}, [[0.3, 0.4], [0.0, 0.5]]),
    ):
        [[after]] = path(world, rule.ScaleSGD(1.0, **options), [p], [[g]])
        close([-after], [expected], 1e-11, options)
    # Of the momentum 0.5·g, and then 0.25·g − 0.125·g, which go one way.
    [_, [second]] = path(world, rule.ScaleSGD(1.0, momentum=0.5, norm="l2"), [p], [[g], [-0.25 * g]])
    close([-second], [[[1.2, 1.6], [0.0, 2.0]]], 1e-14)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        g = draw.normal(size=shape) * draw.uniform(1e-3, 1e3, size=shape[:1] + (1,) * (len(shape) - 1))
        [[after]] = path(world, rule.ScaleSGD(0.5), [np.zeros(shape)], [[g]])
        rows = after.reshape(shape[0], -1) if len(shape) > 1 else after
        np.testing.assert_allclose(np.sqrt(np.mean(rows**2, axis=-1)), 0.5, rtol=1e-12)


def _limits(world: Any) -> None:
    """A matrix of one row is a vector."""
    draw = np.random.default_rng(3)
    p, g = draw.normal(size=(1, 6)), draw.normal(size=(1, 6))
    settings = rule.ScaleSGD(0.1, 0.2, momentum=0.9)
    [[one], [two]] = path(world, settings, [p], [[g], [g**2]])
    [[flat], [flatter]] = path(world, settings, [p[0]], [[g[0]], [g[0] ** 2]])
    close([one[0], two[0]], [flat, flatter], 1e-14)


CASE = Case(
    reference=ScaleSGD,
    options={**OPTIONS, "over": ("columns", "rows"), "norm": ("rms", "l2")},
    busy={"lr": 0.1, "weight_decay": 0.01, "momentum": 0.9},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    shows_with=SHOWS_WITH,
)
