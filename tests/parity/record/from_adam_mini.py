"""adam-mini, whose blocks are chosen by names of parameters.

To run it:

    pip install torch adam-mini==1.1.1
    python tests/parity/record/from_adam_mini.py
"""

import contextlib
import importlib.metadata
import io

import torch
from adam_mini import Adam_mini
from recording import case, torch_steps, write

FLAT, WARM = [0.01] * 4, [0.002, 0.004, 0.016, 0.008]
# What it takes each tensor for: rows of a layer, elements of a bias, heads of a query, a norm as a whole.
NAMES = {"matrix": "mlp.weight", "vector": "mlp.bias", "cube": "wq.weight", "zeros": "norm.weight"}
BLOCKS = {"matrix": ["each", 0], "vector": ["each", 0], "cube": [2, 0]}
ROWS = {**NAMES, "matrix": "wk.weight", "vector": "norm.weight", "cube": "norm.weight"}  # heads of one row each
CASES = [
    case({"dim": 6, "n_heads": 3, "names": NAMES}, {}, FLAT, blocks=BLOCKS),
    case(
        {"dim": 6, "n_heads": 3, "names": NAMES, "weight_decay": 0.1, "betas": [0.8, 0.95], "eps": 0.01},
        {
            "weight_decay": 0.1,
            "betas": [0.8, 0.95],
            "eps": 0.01,
            "decay": {"vector": False, "zeros": False},
        },
        WARM,
        blocks=BLOCKS,
    ),
    case({"dim": 3, "n_heads": 3, "names": ROWS}, {}, WARM, blocks={"matrix": [5, 0]}),
]


def new(params, lr, theirs):
    theirs = dict(theirs)
    named = zip(theirs.pop("names").values(), params, strict=True)
    with contextlib.redirect_stdout(io.StringIO()):
        return Adam_mini(named, lr=lr, **theirs, verbose=False)


def main():
    version = importlib.metadata.version("adam-mini")
    write(
        "adam_mini",
        "Adam_mini",
        CASES,
        torch_steps(new),
        "float64",
        f"torch {torch.__version__.partition('+')[0]} CPU",
        version=version,
        source=f"PyPI adam-mini {version}, adam_mini/adam_mini.py",
        licence="MIT",
        command="python tests/parity/record/from_adam_mini.py",
        notes="names are those under which it was given the tensors; blocks are a split and an axis of ours.",
    )


if __name__ == "__main__":
    main()
