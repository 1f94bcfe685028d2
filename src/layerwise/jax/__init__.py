"""The optimizers as optax transformations: with optax's calls and numbers, and additional options.

>>> import jax.numpy as jnp, optax
>>> from layerwise.jax import lamb
>>> params = {"w": jnp.array([3.0, 4.0])}
>>> opt = lamb(0.1)
>>> updates, state = opt.update({"w": jnp.ones(2)}, opt.init(params), params)
>>> [round(float(x), 4) for x in optax.apply_updates(params, updates)["w"]]
[2.6464, 3.6464]
"""

# _make.py makes a transformation from its arguments (_options.py, _presets.py); _transform.py has its
# class. _plan.py and _drive.py take its steps, with functions of their own (_bits.py, _norms.py,
# _products.py, _dtypes.py), some computed twice (_recompute.py). _trees.py and _mesh.py know parameters
# and their shards; _storage.py, _state_conversion.py and _state.py have states, and _of_optax.py those of optax.

from typing import TYPE_CHECKING

from layerwise.jax import optimizers
from layerwise.jax._presets import like, preset
from layerwise.jax._storage import Grouped, MasterState
from layerwise.jax._transform import stats
from layerwise.jax.optimizers import *  # noqa: F403  # its `__all__` are the optimizers and their states
from layerwise.options.misspellings import lacking

__all__ = ["Grouped", "MasterState", "like", "preset", "stats"]
__all__ += optimizers.__all__


if not TYPE_CHECKING:  # a type checker would assume that every name exists

    def __getattr__(name):
        raise lacking(__name__, name, __all__)
