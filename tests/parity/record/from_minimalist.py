"""SCALE, by its authors.

To run it, with a checkout of github.com/OptimAI-Lab/Minimalist_LLM_Pretraining:

    pip install torch==2.13.0 numpy
    python tests/parity/record/from_minimalist.py CHECKOUT/mem_eff_pt/pt_scale/scale_optimizer.py COMMIT
"""

import sys

import torch
from recording import GRADS, PARAMS, case, load, write

FLAT, WARM = [0.01] * 4, [0.002, 0.004, 0.016, 0.008]
ADAM = "tensors of one dimension are stepped by AdamW there"
CASES = [
    case({}, {}, FLAT, differs=ADAM),
    case({"wd": 0.1}, {"weight_decay": 0.1}, WARM, differs=ADAM),
    case({"last_layer": True}, {"momentum": 0.9}, FLAT, differs=ADAM),
    case({"last_layer": True, "momentum": 0.5, "wd": 0.1}, {"momentum": 0.5, "weight_decay": 0.1}, WARM, differs=ADAM),
    case({"embedding": True}, {"over": "rows"}, FLAT, differs=ADAM),
]


def steps(optimizer):
    """A function of a case: the parameters after each step.

    Those of more dimensions go there as matrices, as which its formula sees them.
    """

    def run_of(run):
        params = {
            name: torch.nn.Parameter(torch.tensor(p if p.ndim < 2 else p.reshape(len(p), -1)))
            for name, p in PARAMS.items()
        }
        theirs = dict(run["theirs"])
        matrices, others = ([p for p in params.values() if (p.ndim > 1) == of] for of in (True, False))
        names = {id(p): "embed_tokens" for p in matrices} if theirs.pop("embedding", False) else None
        momentum = theirs.pop("last_layer", False)
        stepper = optimizer(
            lr=run["lrs"][0],
            main_params=[] if momentum else matrices,
            secondary_params=matrices if momentum else [],
            oned_params=others,
            id_to_name=names or {id(p): "" for p in params.values()},
            **theirs,
        )
        for lr, grads in zip(run["lrs"], GRADS, strict=True):
            stepper.param_groups[0]["lr"] = lr
            for name, p in params.items():
                p.grad = torch.tensor(grads[name].reshape(p.shape))
            stepper.step()
            yield {name: p.detach().numpy().reshape(PARAMS[name].shape) for name, p in params.items()}

    return run_of


def main(path, commit):
    write(
        "mem_eff_pt",
        "SCALE",
        CASES,
        steps(load(path).SCALE),
        "float64",
        f"torch {torch.__version__.partition('+')[0]} CPU",
        version=commit,
        source=f"github.com/OptimAI-Lab/Minimalist_LLM_Pretraining, mem_eff_pt/pt_scale/scale_optimizer.py at {commit}",
        licence="none given; numbers alone are kept here",
        command="python tests/parity/record/from_minimalist.py mem_eff_pt/pt_scale/scale_optimizer.py COMMIT",
        notes="last_layer: matrices among secondary_params, which have momentum. embedding: matrices named "
        "embed_tokens, of which columns are measured. The cube goes there as a matrix of its first dimension by "
        "the others.",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
