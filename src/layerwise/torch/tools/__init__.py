"""Functions that users call beside an optimizer.

Before training: `_param_groups.py` and `_schedulers.py`. While training: `_in_backward.py` and `_overlap.py`, steps and
copies during the backward pass. For checkpoints: `_weights.py`, weights in full precision.
"""
