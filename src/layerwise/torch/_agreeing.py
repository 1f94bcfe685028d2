"""An optimizer on several processes: the processes with which it agrees on a step, and its reports to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.errors import ContradictionError, ParameterError, sentence
from layerwise.threads import OneAtATime
from layerwise.torch._names import Named
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding import _replaced
from layerwise.torch.sharding._agreement import Agreement
from layerwise.torch.sharding._flat import Flat, changes, flat_of, forget, stretched, tensors_of
from layerwise.torch.sharding._model_group import ModelGroup, as_model_group
from layerwise.torch.sharding._peers import Skips
from layerwise.torch.step import _tensors
from layerwise.torch.step._settings import Groups
from layerwise.torch.step._turn import Due, Turn


class Agreeing(Named):
    """A `torch.optim.Optimizer` whose parameters may lie on several processes."""

    _groups: Groups
    _model_group: ModelGroup | None
    _skip_nonfinite: bool
    _one_at_a_time: OneAtATime
    _turns: dict[bytes, Turn]
    _buffers: Sequence[Sequence[Tensor]] = ()  # of each group, where a wrapper puts them in only to step them

    def _forget_agreement(self) -> None:
        """Begin as on one process; the next step finds out which processes hold other parts."""
        self._agreed = Agreement(())
        self._added: Any = WeakTensorKeyDictionary()  # parameters that groups were made with
        self._axes: tuple[cuts.Axis, ...] | None = None  # of all parameters; None where some are new
        self._described = changes()  # of flat buffers, when that was determined
        self._known: dict[int, ReferenceType[Tensor]] = {}  # all parameters of which cuts are known
        self._searched, self._idle = False, 0

    @property
    def model_group(self) -> Any:
        """The process group of all processes that hold tensors of the model, or None."""
        return None if self._model_group is None else self._model_group.group

    @model_group.setter
    def model_group(self, group: Any) -> None:
        self._model_group, self._axes = as_model_group(group), None

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """Report an error in a hook or a closure to other ranks like one in the step; PyTorch wraps steps by this."""
        hooked = torch.optim.Optimizer.profile_hook_step(func)

        @wraps(hooked)
        def step(self: Agreeing, *args: Any, **kwargs: Any) -> Any:
            agreement = self._agreement()
            with nullcontext() if agreement is None else agreement.reports_errors():
                return hooked(self, *args, **kwargs)

        return step

    def _loss_of(self, closure: Callable[[], Any] | None) -> Any:
        if closure is None:
            return None
        agreement = self._agreement()
        with torch.enable_grad(), nullcontext() if agreement is None else agreement.during_closure():
            return closure()

    def _might_skip(self) -> bool:
        return self._skip_nonfinite or getattr(self, "found_inf", None) is not None

    def _skips(self, agreement: Agreement, dues: Sequence[Due], here: Sequence[Tensor], now: Any) -> Skips:
        """Return this process's report on skipping; for steps that may be captured, on the device."""
        devices = {g.device for g in here}
        # Others than the optimizer's own agreement are not looked at in its next step.
        own = agreement is self._agreed and len(devices) == 1
        may_be_captured = own and all(due.group["capturable"] for due in dues)
        leave = agreement.to_leave(devices.pop(), now) if may_be_captured else None
        scaler = getattr(self, "found_inf", None) is not None
        return Skips(bool(now) if leave is None else leave, self._skip_nonfinite, scaler)

    def _to_skip(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> Any:
        """Return True if this process skips the step; the gaps of a flat buffer do not count."""
        looked_at = list(stretched(params, grads)) if self._might_skip() else ()
        return _tensors.to_skip(looked_at, getattr(self, "found_inf", None), self._skip_nonfinite)

    def _names_of_tensors(self) -> list[str]:
        return [one for p, name in self._members() for one in tensors_of(p, name)]

    def _places_of_flats(self) -> dict[str, Any]:
        """Return the places of flat buffers, for a copy that does not know their contents."""
        each = ((g, i, p) for g, group in enumerate(self.param_groups) for i, p in enumerate(group["params"]))
        return {"_flats": [(g, i) for g, i, p in each if flat_of(p) is not None]}

    def _forget_flats(self) -> None:
        for g, i in self.__dict__.pop("_flats", ()):
            forget(self.param_groups[g]["params"][i])

    def _members(self) -> list[tuple[Tensor, str]]:
        return [each for i in range(len(self.param_groups)) for each in self._named(i)]

    def _check_model(self, due: int) -> None:
        """Raise if parameters without gradients are no longer the model's; checked when their number changes."""
        idle = self.num_parameters - due
        if due and idle == self._idle:
            return
        self._idle = idle
        search = cuts.in_group() and not self._searched
        self._searched = _replaced.check(self._members(), search) or self._searched

    def _are_members(self, params: Sequence[Tensor]) -> bool:
        """Return True if these were in the groups when the cuts of all parameters were determined."""
        return all(id(p) in self._known and self._known[id(p)]() is p for p in params)

    def _cuts(self) -> list[cuts.Cut | Flat | None]:
        """Return the cut of each parameter, or raise if one has left its state behind."""
        members = self._members()
        found = [cuts.cut_of(name, p) for p, name in members]
        own = {id(p) for p, _ in members}
        left = {p.shape for p in self.state if id(p) not in own and not cuts.is_dtensor(p)}
        each = zip(members, found, strict=True) if left else ()
        bare = (
            name for (p, name), cut in each if isinstance(cut, cuts.Cut) and p.shape in left and p not in self.state
        )
        if name := next(bare, None):
            raise ParameterError(
                f"{name} is a DTensor that was put in a group in place of another tensor, with which its state "
                "stayed. Make the optimizer after the model is sharded and load the state through "
                "torch.distributed.checkpoint, or begin again after optimizer.state.clear()."
            )
        self._known = {id(p): ref(p) for p, _ in members}
        return found

    def _agreement(self) -> Agreement | None:
        """Return the agreement with the processes that hold other parts of the parameters, or None."""
        if self._described != changes() or self._axes is None:
            with self._one_at_a_time:
                self._agree_anew()
        return self._agreed if self._shares else None

    def _agree_anew(self) -> None:
        """Find out which processes hold other parts of the parameters, unless another thread has done so."""
        if self._described != changes():
            self._axes, self._described = None, changes()
            self._turns.clear()
        if self._axes is None:
            found = self._cuts()
            axes, replicas, joint = cuts.axes_of(found)
            self._wrapped = any(cut is not None for cut in found)
            shared = bool(axes) or self._model_group is not None
            if shared and self._groups.differentiable:
                raise ContradictionError(
                    sentence("differentiable", "False with sharded parameters", True, "Differentiate on one process.")
                )
            group = self.model_group
            # Kept if it can be: its list of sums need not be sent for.
            if (self._agreed.axes, self._agreed.replicas, self._agreed.model_group) != (axes, replicas, group):
                self._agreed = Agreement(axes, replicas, joint, group)
                self._turns.clear()
            self._shares, self._axes = shared, axes

    def _renewed(self, agreement: Agreement | None) -> Agreement | None:
        """Return the agreement that replaces this one once the members of groups have changed."""
        of_all, self._axes = agreement in (None, self._agreed), None
        found = self._agreement()
        return found if of_all else agreement
