"""big_vision's Adafactor, a chain of optax's transformations.

To run it, with a checkout of github.com/google-research/big_vision:

    pip install jax==0.10.2 optax==0.2.8
    python tests/parity/record/from_big_vision.py CHECKOUT/big_vision/optax.py COMMIT
"""

import importlib.metadata
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from recording import GRADS, PARAMS, case, load, write

FLAT, WARM = [0.01] * 4, [0.002, 0.004, 0.016, 0.008]
OURS = {"factored": "largest", "beta1": 0.9, "beta2_cap": 0.999, "clip_threshold": None, "lr_in_momentum": False}
OURS |= {"scale_parameter": False, "min_dim_size_to_factor": 2}
THEIRS = {"min_dim_size_to_factor": 2, "dtype_momentum": "float32"}
ROUNDED = "optax multiplies a momentum in bfloat16 by its decay rate in bfloat16, ours in the dtype of the arithmetic"
CASES = [
    # Of large steps, beside which the weights do not count.
    case({}, {**OURS, "min_dim_size_to_factor": 32, "momentum_dtype": "bfloat16"}, [10.0] * 4, differs=ROUNDED),
    case(THEIRS, OURS, WARM),
    case({**THEIRS, "beta2_cap": 0.4}, {**OURS, "beta2_cap": 0.4}, FLAT),
    case({**THEIRS, "clipping_threshold": 0.5}, {**OURS, "clip_threshold": 0.5}, WARM),
    case(
        {"min_dim_size_to_factor": 2, "momentum": None, "decay_rate": 0.5},
        {**OURS, "beta1": None, "beta2_decay": -0.5},
        FLAT,
    ),
]


def steps(transformation):
    """A function of a case: the parameters after each step, as big_vision's trainer chains its transformations."""

    def run_of(run):
        params = {name: jnp.asarray(p, jnp.float32) for name, p in PARAMS.items()}
        tx = transformation(**run["theirs"])
        state = tx.init(params)
        for lr, grads in zip(run["lrs"], GRADS, strict=True):
            given = {name: jnp.asarray(g, jnp.float32) for name, g in grads.items()}
            updates, state = tx.update(given, state, params)
            params = optax.apply_updates(params, jax.tree.map(lambda u, by=lr: -jnp.float32(by) * u, updates))
            yield {name: np.asarray(p) for name, p in params.items()}

    return run_of


def main(path, commit):
    module = load(path, big_vision={}, big_vision__utils={})  # which its optimizer does not need
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "optax"))
    write(
        "big_vision",
        "scale_by_adafactor",
        CASES,
        steps(module.scale_by_adafactor),
        "float32",
        f"{versions} CPU",
        version=commit,
        source=f"github.com/google-research/big_vision, big_vision/optax.py at {commit}",
        licence="Apache-2.0",
        command="python tests/parity/record/from_big_vision.py big_vision/optax.py COMMIT",
        notes="Its trainer multiplies the update by config.lr and a schedule, adds config.wd times the parameter and "
        "multiplies that by the schedule; decay is left out here.",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
