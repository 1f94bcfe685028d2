"""The numbers that change from step to step, made once for all tensors that share them."""

from __future__ import annotations

from layerwise.hyper import Hyper
from layerwise.rules.asks import Now, Scalar


class Nows:
    """The numbers of one step. An engine computes coefficients once for each object that it is given."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Now] = {}  # by the settings, which live as long as a step, and numbers
        self._made: dict[Now, Now] = {}
        self._beta2: dict[tuple[int, int], Scalar | None] = {}  # a user's function is asked once for each step

    def of(self, h: Hyper, t: int, lr: Scalar, weight_decay: Scalar, g_scale: Scalar = 1.0) -> Now:
        """Return the numbers of a tensor that takes its step `t`."""
        key = id(h), t, lr, weight_decay, g_scale
        found = self._found.get(key)
        if found is None:
            if (id(h), t) not in self._beta2:
                self._beta2[id(h), t] = h.beta2_of(t)
            made = Now(t, lr, weight_decay, g_scale, self._beta2[id(h), t])
            found = self._found[key] = self._made.setdefault(made, made)
        return found
