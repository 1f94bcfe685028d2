"""lion-pytorch's Lion.

To run it:

    pip install torch==2.13.0 numpy && pip install --no-deps lion-pytorch==0.2.5
    python tests/parity/record/from_lion_pytorch.py
"""

import importlib.metadata

import torch
from lion_pytorch import Lion
from recording import case, torch_steps, write

FLAT, WARM = [0.01] * 4, [0.002, 0.004, 0.016, 0.008]
OURS = {"decay": "decoupled"}
CASES = [
    case({}, OURS, FLAT),
    case({"weight_decay": 0.5}, {**OURS, "weight_decay": 0.5}, WARM),
    case({"betas": [0.5, 0.8], "weight_decay": 0.1}, {**OURS, "betas": [0.5, 0.8], "weight_decay": 0.1}, WARM),
    case({"weight_decay": 0.001, "decoupled_weight_decay": True}, {**OURS, "weight_decay": 0.5}, WARM),
]


def main():
    version = importlib.metadata.version("lion-pytorch")
    write(
        "lion_pytorch",
        "Lion",
        CASES,
        torch_steps(lambda params, lr, theirs: Lion(params, lr=lr, **theirs)),
        "float64",
        f"torch {torch.__version__.partition('+')[0]} CPU",
        version=version,
        source=f"PyPI lion-pytorch {version}, lion_pytorch/lion_pytorch.py",
        licence="MIT",
        command="python tests/parity/record/from_lion_pytorch.py",
        notes="decoupled_weight_decay divides the decay by the first lr, so ours is weight_decay / 0.002.",
    )


if __name__ == "__main__":
    main()
