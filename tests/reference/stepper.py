"""What surrounds the formulas: names, blocks, step counts."""

import numpy as np

from .gradient import prepare
from .tensors import cut, join


class Stepper:
    """Base of the references. A subclass gives `update`, the formula for one tensor (or one block of it).

    `count[name]` is the name's own step t. `state[name]` and `seen[name]` are dicts of the buffers and of the last
    step's numbers; for a name with blocks they are lists of such dicts.
    """

    def __init__(
        self,
        lr,
        weight_decay,
        blocks,
        max_grad_norm,
        max_grad_norm_per_tensor,
        max_grad_value,
        maximize,
    ):
        self.lr = lr
        self.weight_decay = weight_decay
        self.blocks = blocks or {}
        self.max_grad_norm = max_grad_norm
        self.max_grad_norm_per_tensor = max_grad_norm_per_tensor
        self.max_grad_value = max_grad_value
        self.maximize = maximize
        self.count = {}
        self.state = {}
        self.seen = {}

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """The new p and the numbers of the step; `state` holds the block's buffers and is written to."""
        raise NotImplementedError

    def step(self, params, grads, lr=None, weight_decay=None, lr_scale=1.0):
        """New parameters; a name without a gradient keeps its values, its state and its step count."""
        lr = self.lr if lr is None else lr
        lam = self.weight_decay if weight_decay is None else weight_decay
        cut_grads, new_params = {}, {}
        for name in params:
            if grads.get(name) is not None:
                cut_grads[name] = cut(grads[name], self.blocks.get(name))
        # Infinities and NaNs are results like any other here.
        with np.errstate(all="ignore"):
            cut_grads = prepare(
                cut_grads, self.maximize, self.max_grad_value, self.max_grad_norm_per_tensor, self.max_grad_norm
            )
            for name, param in params.items():
                if name in cut_grads:
                    new_params[name] = self._step_name(name, param, cut_grads[name], lr, lam, lr_scale)
                else:
                    new_params[name] = np.array(param, dtype=np.float64)
        return new_params

    def _step_name(self, name, param, grads, lr, lam, lr_scale):
        """Step one tensor, block by block."""
        block = self.blocks.get(name)
        params = cut(param, block)
        self.count[name] = t = self.count.get(name, 0) + 1
        if name not in self.state:
            self.state[name] = {} if block is None else [{} for _ in params]
        states = [self.state[name]] if block is None else self.state[name]
        new, seen = [], []
        for state, p, g in zip(states, params, grads, strict=True):
            new_p, numbers = self.update(state, p, g, t, lr, lam, lr_scale)
            new.append(new_p)
            seen.append(numbers)
        self.seen[name] = seen[0] if block is None else seen
        return join(new, param.shape, block)
