"""The mathematics: one module per optimizer, over any array namespace.

A rule module has three names: `State`, a named tuple of what it remembers; `shapes(h, shape)`, the shape of each;
and `step(xp, p, g, state, h, now)`, a generator that computes elementwise, *yields* the sums it needs over the whole
tensor, receives them, and goes on (`asks.py` says what may be asked). It never branches on a value and never asks
who answers, so the same text runs eager, jitted, differentiated, and sharded.
"""

from layerwise.rules import adafactor, lamb, lars

__all__ = ["adafactor", "lamb", "lars"]
