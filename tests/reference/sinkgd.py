"""SinkGD: Scetbon et al., "Gradient Multi-Normalization for Stateless and Scalable LLM Training", arXiv 2502.06742,
algorithms 3 and 4."""

from __future__ import annotations

from typing import Any

import numpy as np

from layerwise.rules import sinkgd as rule

from .case import Case
from .lines import OPTIONS, SHOWS_WITH, ByLines, leveled
from .paths import close, path


class SinkGD(ByLines):
    """x ← √n·x / ‖x of each row‖,  x ← √m·x / ‖x of each column‖,  again and again"""

    def __init__(
        self,
        lr=1e-3,
        weight_decay=0,
        iterations=5,
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
        self.iterations = iterations

    def divided(self, x):
        found = self.rows_and_columns(x.shape)
        if found is None:
            return leveled(x, None, self.eps)
        rows, columns = found
        for _ in range(self.iterations):
            x = leveled(leveled(x, columns, self.eps), rows, self.eps)
        return x


# ---- what else tests know of it


def _vectors(world: Any) -> None:
    """One iteration by hand: rows of 3, 4 and of 0, 5, then the columns of what that gives."""
    p, g = np.zeros((2, 2)), np.array([[3.0, 4.0], [0.0, 5.0]])
    [[after]] = path(world, rule.SinkGD(1.0, iterations=1), [p], [[g]])
    close([-after], [[[1.414213562373, 0.883452208599], [0.0, 1.104315260748]]], 1e-11)
    [[vector]] = path(world, rule.SinkGD(1.0), [p[0]], [[np.array([3.0, 4.0])]])
    close([-vector], [[0.848528137424, 1.131370849898]], 1e-11)


def _properties(world: Any) -> None:
    """It ends where rows and columns have the same size, wherever a gradient's rows and columns came from."""
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (3, 2, 4)):
        g = draw.normal(size=shape)
        scaled = g * draw.uniform(0.1, 10, size=shape[:1] + (1,) * (len(shape) - 1)) * draw.uniform(0.1, 10, shape[1:])
        settings = rule.SinkGD(0.5, iterations=300)
        [[one]], [[other]] = (path(world, settings, [np.zeros(shape)], [[x]]) for x in (g, scaled))
        np.testing.assert_allclose(np.mean(one.reshape(shape[0], -1) ** 2, axis=1), 0.25, rtol=1e-9)
        np.testing.assert_allclose(np.mean(one**2, axis=0), 0.25, rtol=1e-9)
        close([other], [one], 1e-6)


def _limits(world: Any) -> None:
    """A rank-one gradient comes to its signs at once."""
    draw = np.random.default_rng(3)
    g = np.outer(draw.normal(size=5), draw.normal(size=4))
    [[after]] = path(world, rule.SinkGD(0.1, iterations=1), [np.zeros((5, 4))], [[g]])
    close([after], [-0.1 * np.sign(g)], 1e-13)


CASE = Case(
    reference=SinkGD,
    options={**OPTIONS, "iterations": (5, 1, 2)},
    busy={"lr": 0.1, "weight_decay": 0.01, "momentum": 0.9},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    shows_with=SHOWS_WITH,
)
