"""Names for what Python's types do not tell apart."""

from __future__ import annotations

from typing import Any

Array = Any  # of JAX, traced or not, or of NumPy; where a step is planned, also a jax.ShapeDtypeStruct
Tree = Any  # of arrays, or of anything else by leaf, as jax.tree takes it
Dtype = Any  # of JAX or NumPy
