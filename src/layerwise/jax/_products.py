"""The dtypes in which JAX's devices multiply matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from layerwise.jax._dtypes import arithmetic_dtype
from layerwise.jax._types import Array, Dtype

ON = {"gpu": "float16", "tpu": "bfloat16"}  # the 16-bit dtype that each multiplies faster than float32


def fast_product_dtype(dtype: Dtype) -> str | None:
    """Return the dtype in which devices multiply faster than in float32, or None."""
    return ON.get(jax.default_backend()) if arithmetic_dtype(dtype) == jnp.float32 else None


def multiplies(x: Array, dtype: str) -> Dtype:
    """Return a 16-bit dtype if devices have products of it."""
    there = jax.default_backend() in ON and (dtype, jax.default_backend()) != ("float16", "tpu")
    return jnp.dtype(dtype) if there and not jnp.iscomplexobj(x) else None


def product(x: Array, y: Array) -> Array:
    """Return the product of matrices in the dtype of the sum, at least float32."""
    return jnp.matmul(x, y, preferred_element_type=arithmetic_dtype(x.dtype))
