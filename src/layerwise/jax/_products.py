"""The dtypes that JAX's devices multiply matrices in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from layerwise.jax._dtypes import arithmetic

ON = {"gpu": "float16", "tpu": "bfloat16"}  # the dtype of 16 bits that each multiplies faster than float32


def quick(dtype: Any) -> str | None:
    """Return the dtype in which devices multiply faster what is computed in float32; None if there is none."""
    return ON.get(jax.default_backend()) if arithmetic(dtype) == jnp.float32 else None


def multiplies(x: Any, dtype: str) -> Any:
    """Return a dtype of 16 bits if devices have products of it."""
    there = jax.default_backend() in ON and (dtype, jax.default_backend()) != ("float16", "tpu")
    return jnp.dtype(dtype) if there and not jnp.iscomplexobj(x) else None


def product(x: Any, y: Any) -> Any:
    """Return the product of matrices as it is summed, at least in float32."""
    return jnp.matmul(x, y, preferred_element_type=arithmetic(x.dtype))
