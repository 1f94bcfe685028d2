"""Learning rate, warm-up, betas and decay for a batch size, from two rules and from published runs.

>>> from layerwise.recipes import recommend
>>> found = recommend("Lamb", batch=4096, reference_batch=256, reference_lr=1e-3, total_samples=10_000_000)
>>> found.kwargs(), found.steps
({'lr': 0.004}, 2442)
>>> found.lines[0].why
'yours, 0.001 at batch 256, by the sqrt rule'
"""

from layerwise.recipes.advice import Line, Recommendation
from layerwise.recipes.answer import recommend
from layerwise.recipes.points import CURVES, Curve, Point

__all__ = ["CURVES", "Curve", "Line", "Point", "Recommendation", "recommend"]
