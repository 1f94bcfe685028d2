"""Levanter's AdamH, the part of it that steps linear layers.

To run it, with optax and the file lib/levanter/src/levanter/optim/adamh.py of marin-community/marin:

    python tests/parity/record/from_levanter.py adamh.py
"""

import importlib.metadata
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from recording import GRADS, PARAMS, case, load, write

jax.config.update("jax_enable_x64", True)

FLAT, WARM = [0.02] * 4, [0.002, 0.004, 0.016, 0.008]
OURS = {"eps": 1e-8, "keep_norm": True}
# Of more or fewer dimensions than two, each entry along the first is a layer to it.
BLOCKS = {"cube": 0, "vector": 0}
ZERO = "a tensor of zeros stays one, and ours moves"
CASES = [
    case({}, {**OURS, "betas": [0.9, 0.999]}, FLAT, blocks=BLOCKS, differs=ZERO),
    case({"b1": 0.9, "b2": 0.95}, {**OURS, "betas": [0.9, 0.95]}, WARM, blocks=BLOCKS, differs=ZERO),
    case({"b1": 0.5, "eps": 0.1}, {**OURS, "betas": [0.5, 0.999], "eps": 0.1}, WARM, blocks=BLOCKS, differs=ZERO),
]


def main(path):
    theirs = load(
        path,
        chex={"Array": object},
        haliax={},
        haliax__nn={"Linear": object},
        levanter__optim__config={"OptimizerConfig": Config},
        levanter__utils__jax_utils={"leaf_key_paths": None},
    )

    def steps(run):
        params, state = jax.tree.map(jnp.asarray, PARAMS), None
        for lr, grads in zip(run["lrs"], GRADS, strict=True):
            opt = theirs.scale_by_adamh(learning_rate=lr, **run["theirs"])
            state = opt.init(params) if state is None else state
            updates, state = opt.update(jax.tree.map(jnp.asarray, grads), state, params)
            params = optax.apply_updates(params, updates)
            yield {name: np.asarray(p) for name, p in params.items()}

    write(
        "levanter",
        "AdamH",
        CASES,
        steps,
        "float64",
        f"jax {jax.__version__} CPU, optax {importlib.metadata.version('optax')}",
        version="7cb2d65fdad8e407a964a9d267e8172a955d8520",
        source="github marin-community/marin: lib/levanter/src/levanter/optim/adamh.py",
        licence="Apache-2.0",
        command="python tests/parity/record/from_levanter.py adamh.py",
        notes="Global clipping, which its config puts before it, is not in the recorded function. blocks: the tensors "
        "that ours declares as blocks, with the dimension.",
    )


class Config:
    """Stands for the base of its configurations."""

    @staticmethod
    def register_subclass(name):
        return lambda cls: cls


if __name__ == "__main__":
    main(*sys.argv[1:])
