"""axolotl's SinkGD, the step of its matrices.

To run it, with a checkout of github.com/axolotl-ai-cloud/axolotl:

    pip install torch==2.13.0 numpy
    python tests/parity/record/from_axolotl.py CHECKOUT/src/axolotl/utils/optimizers/sinkgd.py COMMIT

What it imports of axolotl and torchao is for other tensors, and for a GPU.
"""

import sys

import numpy as np
import torch
from recording import GRADS, PARAMS, case, load, write

FLAT, WARM = [0.1] * 4, [0.02, 0.04, 0.16, 0.08]
ADAM = "tensors of one dimension are stepped by AdamW there, and by SGD in this recording"
OURS = {"scale": 0.05, "dims": "last"}
CASES = [
    case({}, OURS, FLAT, differs=ADAM),
    case({"sinkhorn_iters": 1}, {**OURS, "iterations": 1}, WARM, differs=ADAM),
    case({"sinkhorn_iters": 2, "sinkgd_lr_scale": 0.5}, {**OURS, "iterations": 2, "scale": 0.5}, WARM, differs=ADAM),
    # Its decay is by lr·scale, and ours by lr.
    case({"weight_decay": 0.5}, {**OURS, "weight_decay": 0.025}, FLAT, differs=ADAM),
]


def steps(step):
    """A function of a case: the parameters after each step of matrices, as its `_sinkgd_update` takes it."""

    def run_of(run):
        params = {name: torch.tensor(p.astype(np.float32)) for name, p in PARAMS.items()}
        given = {"sinkhorn_iters": 5, "sinkgd_lr_scale": 0.05, "weight_decay": 0.0, "sinkgd_eps": 1e-8, **run["theirs"]}
        for lr, grads in zip(run["lrs"], GRADS, strict=True):
            rate = torch.tensor(lr, dtype=torch.float32) * given["sinkgd_lr_scale"]
            for name, p in params.items():
                g = torch.tensor(grads[name].astype(np.float32))
                if p.ndim < 2:
                    p -= lr * g
                else:
                    step(p, g, rate, given["weight_decay"], given["sinkhorn_iters"], given["sinkgd_eps"], False)
            yield {name: p.numpy() for name, p in params.items()}

    return run_of


STUBS = {
    "torchao": {},
    "torchao__optim": {},
    "torchao__optim__adam": {"_AdamBase": object, "single_param_adam": None},
    "torchao__optim__quant_utils": {"_fp32_to_bf16_sr": None},
    "torchao__optim__subclass_8bit": {"OptimState8bit": None},
    "axolotl": {},
    "axolotl__integrations": {},
    "axolotl__integrations__base": {"BaseOptimizerFactory": object},
    "axolotl__utils": {},
    "axolotl__utils__optimizers": {},
    "axolotl__utils__optimizers__sinkgd_triton": {"fused_available": None, "fused_sinkgd_step": None},
}


def main(path, commit):
    module = load(path, **STUBS)
    write(
        "axolotl",
        "SinkGD",
        CASES,
        steps(module.single_param_sinkgd),
        "float32",
        f"torch {torch.__version__.partition('+')[0]} CPU",
        version=commit,
        source=f"github.com/axolotl-ai-cloud/axolotl, src/axolotl/utils/optimizers/sinkgd.py at {commit}",
        licence="Apache-2.0",
        command="python tests/parity/record/from_axolotl.py src/axolotl/utils/optimizers/sinkgd.py COMMIT",
        notes="Its last two dimensions are rows and columns, with which our dims agree. The least norm of a line is "
        "1e-8 there, and the least root mean square here.",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
