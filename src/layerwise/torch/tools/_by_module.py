"""Steps in the backward pass of parameters that FSDP2 reduces together, module by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from layerwise.engines.compiled import signals_wait
from layerwise.errors import ParameterError
from layerwise.torch._alone import Alone
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._agreement import Agreement
from layerwise.torch.sharding._modules import NO_PASS, NO_UNIT, at_end_of_pass, current_pass
from layerwise.torch.sharding._owner import stepper_of

LEFT = "nothing of this module was stepped; the modules before it in this backward pass were"


def there(optimizer: ReferenceType[Optimizer]) -> Optimizer:
    """Return the optimizer, or raise if it is gone."""
    found = optimizer()
    if found is None:
        raise ParameterError(
            "the optimizer that steps this parameter in the backward pass no longer exists. Keep a reference to it "
            "while you train; to train without it, call remove() on what step_in_backward() returned."
        )
    return found


class ByModule:
    """Steps the parameters of a module once the gradients of the next one have arrived, or the backward pass ends.

    FSDP2 calls the hooks of a module's parameters when their gradients are reduced, one after the other. That is a
    point in the order of collectives, which is the same on all processes whatever else differs on them. So each module
    has its turn at the first hook of the next one, also if nothing of it is to be stepped: there processes meet and
    find out if they disagree.
    """

    def __init__(self, optimizer: Optimizer, every: int, units: Mapping[int, int]) -> None:
        # Hooks of parameters refer to this: a reference to the optimizer, or to modules, would close a circle.
        self._optimizer, self._every, self._units = ref(optimizer), every, units
        self._cuts = {id(p): cuts.cut_of("a parameter", p) for p in optimizer.parameters() if id(p) in units}
        self._passes: Counter[int] = Counter()  # by the parameters' identities, as all that follows
        self._agreements: dict[int, Agreement | None] = {}  # by unit
        # Whether gradients are added up over processes; fully_shard on one process of several leaves that to others.
        self.reduces = any(cut is not None and bool(cut.axes or cut.replicas) for cut in self._cuts.values())
        self._begin(NO_PASS)

    def _begin(self, number: int) -> None:
        """Begin a backward pass. Leftovers of a failed pass stay as they are."""
        self._pass = number
        self._ends: bool = False  # whether its end will be noticed
        self._unit = NO_UNIT  # of the parameters that wait
        self._waiting: dict[int, tuple[int, ReferenceType[Tensor]]] = {}
        self._stream: Any = None

    def hook(self, number: int) -> Callable[[Tensor], None]:
        """Return the hook for a parameter of the group with this number."""

        def arrived(p: Tensor) -> None:
            if current_pass() != self._pass:
                self._begin(current_pass())
            if not self._ends:
                at_end_of_pass(self._end)
                self._ends = True
            unit = self._units[id(p)]
            if self._unit not in (NO_UNIT, unit):
                self._turn()
            self._unit = unit
            self._note(number, p)

        return arrived

    def forget(self) -> None:
        """Begin to count passes again: gradients were stepped elsewhere, or are gone."""
        self._passes.clear()
        self._begin(NO_PASS)

    def _note(self, number: int, p: Tensor) -> None:
        self._passes[id(p)] += 1
        self._waiting[id(p)] = number, ref(p)  # which a pass that fails leaves behind
        if p.device.type != "cpu":
            self._stream = torch.accelerator.current_stream(p.device)  # on which the gradient is made

    def _end(self) -> None:
        """Give the last module of the pass its turn."""
        self._ends = False
        if self._unit != NO_UNIT:
            self._turn()

    def _turn(self) -> None:
        """Step the waiting parameters that are due, and free their gradients."""
        ripe = [one for key, one in self._waiting.items() if self._passes[key] >= self._every]
        due = [(number, p) for number, waiting in ripe if (p := waiting()) is not None]
        agreement = self._agreement_about(self._unit)
        self._waiting, self._unit = {}, NO_UNIT
        with signals_wait:
            self._await_gradients()
            with nullcontext() if agreement is None else agreement.reports_errors():
                optimizer = there(self._optimizer)
                ranks = stepper_of(optimizer).ranks
                ranks.agreement()  # which finds out what has changed about the parameters
                ranks.agreed.check_earlier(forget=False)
                Alone(stepper_of(optimizer)).step_and_free(due, agreement)
            for _, p in due:
                del self._passes[id(p)]

    def _agreement_about(self, unit: int) -> Agreement | None:
        """Return the agreement on the turns of a module, of which every one has its own list of sums."""
        if unit not in self._agreements:
            # With the processes that hold other parts of these very parameters: others may have none.
            axes, replicas = cuts.axes_of([cut for key, cut in self._cuts.items() if self._units[key] == unit])
            self._agreements[unit] = Agreement(axes, replicas, left=LEFT) if axes else None
        return self._agreements[unit]

    def _await_gradients(self) -> None:
        """Let the stream of the step wait for the stream that reduced the gradients."""
        if self._stream is not None:
            here = torch.accelerator.current_stream(self._stream.device)
            if here != self._stream:
                here.wait_stream(self._stream)
