"""The optimizer whose groups name their rules.

Printed by `make generate` from the declarations in layerwise/rules: change those, not this file.
"""

from typing import Any, Literal

from torch.distributed import ProcessGroup

from layerwise.layout.blocks import BlocksByName
from layerwise.options.arguments import StateDtype
from layerwise.options.settings import Bounds
from layerwise.torch._optimizer import Optimizer

__all__ = ["Mixed"]

# fmt: off

class Mixed(Optimizer):
    """One optimizer for parameter groups with different rules. Each group names its rule and has that rule's options.

    Options that a group leaves out have the defaults of its rule. The arguments here mean the same in every rule,
    and hold for the groups that do not set them. Examples are on the page "PyTorch API".

    Args:
        params: Parameter groups, each with its "rule" (the name of an optimizer such as "lamb", in any case, or its
            class) and the options of that rule.
        max_grad_norm: Scale all gradients down together so that their global norm is at most this; None is off.
        max_grad_norm_per_tensor: Scale the gradient of each tensor or block down to at most this norm; None is off.
        max_grad_value: Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns
            this off.
        maximize: Maximize the objective: negate the gradient first.
        blocks: Blocks within parameters, by name or pattern, such as {'*.qkv.weight': 3}; each counts as a layer.
            Needs named_parameters().
        master_weights: Keep extra precision for bfloat16 and float16 weights: a float32 copy (True), or the 16 bits
            ("split") or 8 bits ("split24") that each weight lacks.
        rounding: Rounding of 16-bit weights and state. None is "nearest" for weights, except "split24", and
            "stochastic" for these and for state stored in bfloat16 or 8 bits by `state_dtype` or a checkpoint.
        state_dtype: Storage of the state: "float32", "bfloat16" or "int8" (8 bits in groups of 64), or a mapping
            from names of state to these. None keeps the dtype of the arithmetic, or that of a loaded checkpoint.
        seed: The seed of stochastic rounding, the same on all processes.
        skip_nonfinite: Skip a step if any gradient contains nan or inf, and count it in `skipped`.
        model_group: Processes with other tensors of the same model, as in a pipeline; they clip and skip together.
        replica_group: Processes with the same tensors, as under DDP; they take steps together and divide products
            of matrices.
        differentiable: Let autograd differentiate through the step, as in torch.optim.
        capturable: Allow the step to be captured in a CUDA graph, as in torch.optim.
        fused: True requires an engine with kernels, False uses PyTorch operations, None picks the fastest
            available.
        foreach: True steps lists of tensors by PyTorch's foreach functions, False does not, None does on
            accelerators for what has no kernels.
        offload: Keep the state of parameters on an accelerator in the host's memory, and step them there.
    """

    def __init__(
        self,
        params: Any,
        *,
        max_grad_norm: float | None = None, max_grad_norm_per_tensor: float | None = None,
        max_grad_value: float | Bounds | None = None, maximize: bool = False,
        blocks: BlocksByName | None = None, master_weights: bool | Literal["split", "split24"] = False,
        rounding: Literal["nearest", "stochastic"] | None = None,
        state_dtype: StateDtype | None = None,
        seed: int = 0, skip_nonfinite: bool = False, model_group: ProcessGroup | None = None,
        replica_group: ProcessGroup | None = None, differentiable: bool = False, capturable: bool = False,
        fused: bool | None = None, foreach: bool | None = None, offload: bool = False,
    ) -> None: ...
