"""optimi's StableAdamW.

To run it:

    pip install torch==2.13.0 numpy && pip install --no-deps torch-optimi==0.3.3
    python tests/parity/record/from_optimi.py
"""

import importlib.metadata

import torch
from optimi import StableAdamW
from recording import case, torch_steps, write

FLAT, WARM = [0.01] * 4, [0.002, 0.004, 0.016, 0.008]
OURS = {"eps": 1e-6}
CASES = [
    case({}, {**OURS, "weight_decay": 0.01}, FLAT),
    case({"weight_decay": 0.0}, OURS, WARM),
    case(
        {"betas": [0.8, 0.95], "eps": 0.01, "weight_decay": 0.1},
        {"betas": [0.8, 0.95], "eps": 0.01, "weight_decay": 0.1},
        WARM,
    ),
    case({"betas": [0.0, 0.5], "weight_decay": 0.1}, {**OURS, "betas": [0.0, 0.5], "weight_decay": 0.1}, FLAT),
    # max_lr is 0.016, so that a decay of 0.008 by it is one of 0.5.
    case({"weight_decay": 0.008, "decouple_lr": True, "max_lr": 0.016}, {**OURS, "weight_decay": 0.5}, WARM),
]


def main():
    version = importlib.metadata.version("torch-optimi")
    write(
        "optimi",
        "StableAdamW",
        CASES,
        torch_steps(lambda params, lr, theirs: StableAdamW(params, lr=lr, triton=False, foreach=False, **theirs)),
        "float64",
        f"torch {torch.__version__.partition('+')[0]} CPU",
        version=version,
        source=f"PyPI torch-optimi {version}, optimi/stableadamw.py",
        licence="MIT",
        command="python tests/parity/record/from_optimi.py",
        notes="decouple_lr multiplies the decay by lr / max_lr, so ours is weight_decay / max_lr. Kahan summation, for "
        "16-bit weights alone, has no counterpart.",
    )


if __name__ == "__main__":
    main()
