"""The dtypes of arithmetic, also if JAX may not promote dtypes implicitly (`jax_numpy_dtype_promotion="strict"`)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import jax
import jax.numpy as jnp

from layerwise.jax._types import Dtype


def common_dtype(*kinds: Dtype) -> Dtype:
    """Return the dtype that holds the numbers of all of these dtypes or arrays."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*kinds)


def real(dtype: Dtype) -> Dtype:
    """Return the real dtype of absolute values."""
    return jnp.finfo(dtype).dtype


def arithmetic_dtype(dtype: Dtype) -> Dtype:
    """Return the dtype of the arithmetic for parameters of this dtype: at least single precision."""
    return common_dtype(dtype, jnp.float32)


def mixing(arrays: Iterable[object]) -> AbstractContextManager[object]:
    """Return the context of steps of these parameters: complex and real numbers are combined, which must be allowed."""
    return jax.numpy_dtype_promotion("standard") if any(map(jnp.iscomplexobj, arrays)) else nullcontext()
