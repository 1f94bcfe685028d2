"""Records of the measurements of an optimizer's steps, while it trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from layerwise.contrib.records import CsvFile, Record, writing_to
from layerwise.engines.measurements import clipped_flag
from layerwise.options import checks
from layerwise.options.settings import Hyper
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.groups._members import Group
from layerwise.torch.step._prepared import step_counts
from layerwise.torch.step._stepper import stepper_of
from layerwise.torch.tools._weights import checked_optimizer


class Monitor:
    """The hooks that watch an optimizer. `remove()` removes them, as does leaving the context.

    `engines` counts the tensors that each engine stepped in the last step that was written, and `products` the matrices
    that were multiplied in each dtype.
    """

    def __init__(self, optimizer: Optimizer, writer: object, every: int) -> None:
        # The optimizer holds the hooks and passes itself to them: a reference to it would create a cycle.
        self._every, self._write = every, writing_to(writer)
        self.engines: Mapping[str, int] = {}
        self.products: Mapping[str, int] = {}
        self._loaded(optimizer)
        self._hooks = [
            optimizer.register_step_post_hook(self._stepped),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]

    @property
    def path(self) -> Path | None:
        """The path of the table, if the monitor writes one."""
        return self._write.path if isinstance(self._write, CsvFile) else None

    def _loaded(self, optimizer: Any) -> None:
        self._count = self._last = _steps(optimizer)

    def _stepped(self, optimizer: Any, *_: object) -> None:
        self._count += 1
        if self._count % self._every:
            return
        self._count = _steps(optimizer)  # fewer, if steps were skipped
        if self._count % self._every or self._count == self._last or _muted(optimizer):
            return
        self._last = self._count
        self.engines, self.products = Counter(optimizer.engines().values()), stepper_of(optimizer).products()
        self._write(self._count, _record(optimizer))

    def remove(self) -> None:
        """Stop writing."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def monitor(optimizer: Optimizer, writer: object, every: int = 1) -> Monitor:
    """Write trust ratios, norms, the RMS of updates and the fraction of clipped layers of every nth step.

    Steps are counted by the optimizer, and continue where a checkpoint left off. Steps that are not written cost almost
    nothing. To stop, call remove() on the result, or use it as a context.

    Args:
        optimizer: An optimizer of `layerwise.torch`.
        writer: A TensorBoard SummaryWriter, or anything with `add_scalar(tag, value, step)`; a Weights & Biases run, or
            anything with `log(dict)`; or the path of a .csv file.
        every: Write one of so many steps.
    """
    checked_optimizer(optimizer, 'monitor(optimizer, "run.csv")')
    every = checks.integer(1)("every", every, "1 writes each step, 10 every tenth.")
    return Monitor(optimizer, writer, every)


def _steps(optimizer: Optimizer) -> int:
    """Return the largest number of steps that a parameter has taken."""
    members = optimizer.parameters()  # `state` may have entries of other programs
    steps = [state["step"] for state in map(optimizer.state.get, members) if state and "step" in state]
    return max(step_counts(steps)) if steps else 0


def _muted(optimizer: Optimizer) -> bool:
    """Return True if the step is not a real one: torch.distributed.checkpoint steps with lr=0 to create the state."""
    return all(group["lr"] is not None and float(group["lr"]) == 0 for group in optimizer.param_groups)


def _record(optimizer: Optimizer) -> Record:
    members = stepper_of(optimizer).members
    settings: dict[Tensor, tuple[Hyper, Group]] = {
        p: (stepper_of(optimizer).settings_of(group).h, group)
        for i, group in enumerate(optimizer.param_groups)
        for p in (*group["params"], *chain.from_iterable(members.buffers[i : i + 1]))  # or has left it meanwhile
    }
    found = {}
    for p, name, measured in stepper_of(optimizer).measured():
        h, group = settings[p]
        found[name] = {**measured, "clipped": clipped_flag(measured, h, float(group["weight_decay"]))}
    return found
