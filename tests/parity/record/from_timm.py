"""timm's Lamb, Lars, Adafactor, AdafactorBigVision, NvNovoGrad and Lion.

To run it:

    pip install torch==2.13.0 numpy && pip install --no-deps timm==1.0.31
    python tests/parity/record/from_timm.py

timm itself needs torchvision; its optimizers do not, and are imported here without the rest of the package.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
import types
from functools import partial

import torch
from recording import case, torch_steps, write

# Empty packages in place of timm and timm.optim, whose own __init__ would import everything.
[HOME] = importlib.util.find_spec("timm").submodule_search_locations
for name, folder in {"timm": HOME, "timm.optim": f"{HOME}/optim"}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]

FLAT, WARM = [0.01] * 4, [0.002, 0.004, 0.016, 0.008]
CLIP = {"adapt": "decayed", "max_grad_norm": 1.0}
LAMB = [
    case({}, {**CLIP, "weight_decay": 0.01}, [0.001] * 4),
    case({"weight_decay": 0.0}, CLIP, FLAT),
    case({"weight_decay": 0.0, "always_adapt": True}, {"max_grad_norm": 1.0}, FLAT),
    case({"weight_decay": 0.1, "max_grad_norm": None}, {"adapt": "decayed", "weight_decay": 0.1}, WARM),
    case({"max_grad_norm": 0.1}, {**CLIP, "weight_decay": 0.01, "max_grad_norm": 0.1}, FLAT),
    case({"weight_decay": 0.1, "trust_clip": True}, {**CLIP, "weight_decay": 0.1, "trust_clip": [None, 1.0]}, FLAT),
    case(
        {"weight_decay": 0.0, "trust_clip": True, "always_adapt": True},
        {"max_grad_norm": 1.0, "trust_clip": [None, 1.0]},
        FLAT,
    ),
    case(
        {"weight_decay": 0.1, "decoupled_decay": True},
        {**CLIP, "weight_decay": 0.1, "decay": "decoupled"},
        WARM,
    ),
    case({"caution": True}, {**CLIP, "weight_decay": 0.01, "caution": True}, FLAT),
    case(
        {"weight_decay": 0.1, "decoupled_decay": True, "caution": True},
        {**CLIP, "weight_decay": 0.1, "decay": "decoupled", "caution": True},
        WARM,
    ),
    case(
        {"weight_decay": 0.1, "decoupled_decay": True, "corrected_weight_decay": True},
        {**CLIP, "weight_decay": 0.1, "decay": "decoupled", "peak_lr": WARM[0]},
        WARM,
    ),
    case({"bias_correction": False}, {**CLIP, "weight_decay": 0.01, "bias_correction": False}, FLAT),
    case({"grad_averaging": False}, {**CLIP, "weight_decay": 0.01, "grad_averaging": False}, FLAT),
    case(
        {"betas": [0.8, 0.95], "eps": 0.01, "weight_decay": 0.1},
        {**CLIP, "betas": [0.8, 0.95], "eps": 0.01, "weight_decay": 0.1},
        WARM,
    ),
]

HALF, MOVING = [0.5] * 4, [0.25, 0.5, 1.0, 0.75]
OUTSIDE = {"lr_in_momentum": False, "eps": 1e-8}
GATED = {**OUTSIDE, "adapt": "decayed"}
CLIPPED_ONE = (
    "timm divides the ratio 1 of a zero norm by lr before it clips it, so with lr > 1 such a tensor moves at the "
    "rate 1 where ours moves at lr: zeros at step 1, matrix at step 3, and what follows from these"
)
LARS = [
    case({}, {**GATED, "momentum": 0.0}, [1.0] * 4),
    case({"weight_decay": 0.01}, {**GATED, "momentum": 0.0, "weight_decay": 0.01}, MOVING),
    case({"momentum": 0.9, "weight_decay": 0.01}, {**GATED, "weight_decay": 0.01}, MOVING),
    case({"momentum": 0.9, "always_adapt": True}, OUTSIDE, MOVING),
    case(
        {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
        {**GATED, "weight_decay": 0.01, "nesterov": True},
        MOVING,
    ),
    case(
        {"momentum": 0.9, "weight_decay": 0.01, "dampening": 0.25},
        {**GATED, "weight_decay": 0.01, "dampening": 0.25},
        MOVING,
    ),
    case(
        {"momentum": 0.9, "weight_decay": 0.01, "trust_clip": True, "trust_coeff": 0.02},
        {**GATED, "weight_decay": 0.01, "trust_clip": [None, 1.0], "trust_coefficient": 0.02},
        MOVING,
    ),
    case(
        {"momentum": 0.9, "weight_decay": 0.01, "trust_clip": True, "trust_coeff": 0.02},
        {**GATED, "weight_decay": 0.01, "trust_clip": [None, 1.0], "trust_coefficient": 0.02},
        [2.0] * 4,
        differs=CLIPPED_ONE,
    ),
    case(
        {"momentum": 0.9, "weight_decay": 0.1, "eps": 0.01, "trust_coeff": 0.02},
        {**GATED, "weight_decay": 0.1, "eps": 0.01, "trust_coefficient": 0.02},
        HALF,
    ),
]

NONE = [None] * 4
ADAFACTOR = [
    case({}, {"min_dim_size_to_factor": 17}, NONE),
    case({"min_dim_size_to_factor": 2}, {"min_dim_size_to_factor": 3}, NONE),
    case({"min_dim_size_to_factor": 1}, {"factored": [0, 1], "min_dim_size_to_factor": 2}, NONE),
    case(
        {"min_dim_size_to_factor": 2, "weight_decay": 0.1, "betas": [0.9, 0.999]},
        {"min_dim_size_to_factor": 3, "weight_decay": 0.1, "decay_scale": "step", "beta1": 0.9},
        WARM,
    ),
    case(
        {"min_dim_size_to_factor": 2, "weight_decay": 0.1, "betas": [0.9, 0.999]},
        {"min_dim_size_to_factor": 3, "weight_decay": 0.1, "decay_scale": "step", "beta1": 0.9},
        NONE,
    ),
    case(
        {"min_dim_size_to_factor": 2, "weight_decay": 0.1, "betas": [0.9, 0.999], "caution": True},
        {"min_dim_size_to_factor": 3, "weight_decay": 0.1, "decay_scale": "step", "beta1": 0.9, "caution": True},
        WARM,
    ),
    case(
        {"min_dim_size_to_factor": 2, "betas": [0.9, 0.999], "caution": True},
        {"min_dim_size_to_factor": 3, "beta1": 0.9, "caution": True},
        NONE,
    ),
    case(
        {"min_dim_size_to_factor": 2, "warmup_init": True},
        {"min_dim_size_to_factor": 3, "warmup_init": True},
        NONE,
    ),
    case(
        {"min_dim_size_to_factor": 2, "scale_parameter": False, "clip_threshold": 0.5, "decay_rate": -0.5},
        {"min_dim_size_to_factor": 3, "scale_parameter": False, "clip_threshold": 0.5, "beta2_decay": -0.5},
        NONE,
    ),
    case(
        {"min_dim_size_to_factor": 2, "eps": 0.001, "eps_scale": 0.1},
        {"min_dim_size_to_factor": 3, "eps": [0.001, 0.1]},
        NONE,
    ),
]


# With rates that rise, so that its decay of the rate's own size would show.
NOVOGRAD = [
    case({}, {"v_start": "nonzero"}, FLAT),
    case({"weight_decay": 0.1}, {"v_start": "nonzero", "weight_decay": 0.1}, WARM),
    case(
        {"betas": [0.9, 0.25], "eps": 0.01, "weight_decay": 0.1, "grad_averaging": True},
        {"v_start": "nonzero", "betas": [0.9, 0.25], "eps": 0.01, "weight_decay": 0.1, "grad_averaging": True},
        WARM,
    ),
    case(
        {"weight_decay": 0.1, "decoupled_decay": True},
        {"v_start": "nonzero", "weight_decay": 0.1, "decay": "decoupled"},
        WARM,
    ),
]

LION = [
    case({}, {"decay": "decoupled"}, FLAT),
    case({"weight_decay": 0.5}, {"decay": "decoupled", "weight_decay": 0.5}, WARM),
    case({"betas": [0.5, 0.8], "caution": True}, {"decay": "decoupled", "betas": [0.5, 0.8], "caution": True}, WARM),
]

BIG_VISION = {"factored": "largest", "beta1": 0.9, "beta2_cap": 0.999, "clip_threshold": None, "lr_in_momentum": False}
BIG_VISION |= {"scale_parameter": False, "min_dim_size_to_factor": 16}
SMALL = {**BIG_VISION, "min_dim_size_to_factor": 2}
ROUNDED = "timm rounds the update and the momentum to bfloat16 before it uses them, ours what it stores alone"
WIDE = {"min_dim_size_to_factor": 2, "momentum_dtype": "float64"}
ADAFACTOR_BIG_VISION = [
    case({}, {**BIG_VISION, "momentum_dtype": "bfloat16"}, FLAT, differs=ROUNDED),
    case({"momentum": None}, {**BIG_VISION, "beta1": None}, FLAT),
    case({"min_dim_size_to_factor": 2, "momentum": None}, {**SMALL, "beta1": None}, WARM),
    case({**WIDE}, SMALL, WARM),
    case({**WIDE, "weight_decay": 0.1, "beta2_cap": 0.4}, {**SMALL, "weight_decay": 0.1, "beta2_cap": 0.4}, WARM),
    case(
        {**WIDE, "weight_decay": 0.1, "unscaled_wd": True},
        {**SMALL, "weight_decay": 0.1, "decay_scale": "none"},
        FLAT,
    ),
    case(
        {**WIDE, "clipping_threshold": 0.5, "decay_rate": 0.5, "eps": 1e-6, "momentum": 0.5},
        {**SMALL, "clip_threshold": 0.5, "beta2_decay": -0.5, "eps": [1e-6, 1e-3], "beta1": 0.5},
        FLAT,
    ),
    case({**WIDE, "caution": True, "weight_decay": 0.1}, {**SMALL, "caution": True, "weight_decay": 0.1}, WARM),
    case({**WIDE, "decay_offset": 2, "momentum": None}, {**SMALL, "decay_offset": 2, "beta1": None}, FLAT),
]


LICENCES = {
    "Lamb": "Apache-2.0, in part MIT (cybertronai/pytorch-lamb)",
    "Lars": "Apache-2.0",
    "Adafactor": "Apache-2.0, in part MIT (facebookresearch/fairseq)",
    "NvNovoGrad": "Apache-2.0",
    "Lion": "Apache-2.0",
    "AdafactorBigVision": "Apache-2.0",
}


def made(optimizer, params, lr, theirs):
    """Make one of timm's optimizers, which take names of fewer dtypes than dtypes."""
    if "momentum_dtype" in theirs:
        theirs = {**theirs, "momentum_dtype": getattr(torch, theirs["momentum_dtype"])}
    return optimizer(params, lr=lr, **theirs)


def main():
    version = importlib.metadata.version("timm")
    notes = {
        "Lamb": "corrected_weight_decay takes the first lr for the largest, which is ours' peak_lr.",
        "Lars": "trust_clip bounds ratio / lr from above only, which for a positive ratio is LARC's (0, 1) too.",
        "Adafactor": "lrs of null: the relative step. A dimension must exceed min_dim_size_to_factor in timm, and "
        "reach it in ours. Where the first two of three dimensions both exceed it, timm factors these, otherwise the "
        "last two.",
        "NvNovoGrad": "amsgrad and corrected_weight_decay, which ours has not, were left at their default, off.",
        "Lion": "corrected_weight_decay, which ours has not, was left at its default, off.",
        "AdafactorBigVision": "momentum_dtype is the dtype of PyTorch where it is given, and bfloat16 by default.",
    }
    torch.set_default_dtype(torch.float64)  # in which NvNovoGrad makes its second moment
    recorded = {"Lamb": LAMB, "Lars": LARS, "Adafactor": ADAFACTOR, "NvNovoGrad": NOVOGRAD, "Lion": LION}
    recorded["AdafactorBigVision"] = ADAFACTOR_BIG_VISION
    for name, cases in recorded.items():
        file = "adafactor_bv" if name == "AdafactorBigVision" else name.lower()
        optimizer = getattr(importlib.import_module(f"timm.optim.{file}"), name)
        write(
            "timm",
            name,
            cases,
            torch_steps(partial(made, optimizer)),
            "float64",
            f"torch {torch.__version__.partition('+')[0]} CPU",
            version=version,
            source=f"PyPI timm {version}, timm/optim/{file}.py",
            licence=LICENCES[name],
            command="python tests/parity/record/from_timm.py",
            notes=notes[name],
        )


if __name__ == "__main__":
    main()
