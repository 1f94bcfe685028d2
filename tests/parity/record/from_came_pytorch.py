"""came_pytorch's CAME, of its paper's first author.

To run it:

    pip install torch==2.13.0 numpy came_pytorch==0.1.3
    python tests/parity/record/from_came_pytorch.py
"""

import importlib.metadata

import torch
from came_pytorch import CAME
from recording import case, torch_steps, write

FLAT, WARM = [0.01] * 4, [0.002, 0.004, 0.016, 0.008]
CASES = [
    case({}, {}, FLAT),
    case({"weight_decay": 0.1}, {"weight_decay": 0.1}, WARM),
    case(
        {"betas": [0.5, 0.9, 0.99], "eps": [1e-6, 1e-3], "clip_threshold": 0.5},
        {"betas": [0.5, 0.9], "beta3": 0.99, "eps": [1e-6, 1e-3], "clip_threshold": 0.5},
        WARM,
    ),
    case({"betas": [0.0, 0.999, 0.9999]}, {"betas": [0.0, 0.999]}, FLAT),
]


def main():
    version = importlib.metadata.version("came_pytorch")
    write(
        "came_pytorch",
        "CAME",
        CASES,
        torch_steps(lambda params, lr, theirs: CAME(params, lr=lr, **theirs)),
        "float64",
        f"torch {torch.__version__.partition('+')[0]} CPU",
        version=version,
        source=f"PyPI came_pytorch {version}, came_pytorch/CAME.py",
        licence="MIT",
        command="python tests/parity/record/from_came_pytorch.py",
        notes="The third of its betas is our beta3.",
    )


if __name__ == "__main__":
    main()
