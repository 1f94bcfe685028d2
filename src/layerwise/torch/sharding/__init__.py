"""Tensors on several ranks: their cuts, the agreement of ranks, and sums over ranks. README.md explains how they work.

`_cuts.py` says how a tensor is divided, and which parts are here; `_dtensors.py` reads and makes DTensors. `_ranks.py`
knows the other ranks, and `_agreement.py` compares the step with theirs. `_sums.py` adds up partial sums; `_routes.py`
and `_whole_tensors.py` bring whole tensors together. `_wrapped_modules.py` looks for wrappers' traces in a model.
"""
