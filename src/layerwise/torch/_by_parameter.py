"""A step of some parameters by themselves: in the backward pass, or one by one as a trainer asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from layerwise.errors import ContradictionError, ParameterError, sentence
from layerwise.hyper import Hyper
from layerwise.torch._answering import Answering
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._alive import alive
from layerwise.torch.step._settings import Current
from layerwise.torch.step._turn import Due, with_gradients

Member = tuple[int, Tensor]  # the number of a group, and a parameter of it
SET_HOOKS = "Take it from optimizer.param_groups; loading a checkpoint makes new ones, so set hooks after that."


class ByParameter(Answering):
    """A `torch.optim.Optimizer` that can step some of its parameters by themselves."""

    _current: Callable[..., Current]
    _due_of: Callable[..., Due]
    _step_due: Callable[..., None]
    _searched_ddp = False  # whether that was looked for since steps are taken in a process group

    def step_parameter(self, p: Tensor, group: Mapping[str, Any] | None = None, i: int | None = None) -> None:
        """Step one parameter with its present gradient, and leave the gradient to the caller.

        Trainers call it in a hook of the parameter, once its gradient is complete, and free the gradient themselves. It
        is the step that `step()` takes of this parameter: its step count advances, and `step()` finds nothing to do
        once the gradient is gone. Without a gradient nothing happens.

        Args:
            p: The parameter.
            group: Its entry of `param_groups`; None finds it.
            i: Its place in that entry; None finds it.
        """
        number = self._number_of(p, group, i)
        self._opt_called = True  # schedulers of torch ask for it, and `step()` need not be called
        if p.grad is None:
            return
        dues = self._dues_of([(number, p)])
        if self._agreement() is not None:
            raise ContradictionError(
                "step_parameter cannot step a parameter of which other processes hold parts: each would need a "
                "collective of its own. Use layerwise.torch.step_in_backward, which steps modules of fully_shard as "
                "their gradients are reduced, or call optimizer.step() after the backward pass."
            )
        self._check_reduced("step_parameter")
        self._searched_ddp = cuts.in_group()
        self._step_due(dues, None)

    def step_param(self, p: Tensor, group: Mapping[str, Any] | None = None) -> None:
        """Step one parameter, by the name and arguments that sd-scripts and musubi-tuner use for `step_parameter`."""
        self.step_parameter(p, group)

    def _number_of(self, p: Tensor, group: Mapping[str, Any] | None, i: int | None) -> int:
        """Return the number of the parameter's group, or raise if this is not it."""
        for number, own in enumerate(self.param_groups):
            if (group is None or own is group) and _has(own["params"], p, i):
                return number
        raise ParameterError(self._misplaced(p, group, i))

    def _misplaced(self, p: Any, group: Any, i: Any) -> str:
        if not isinstance(p, Tensor) or not any(_has(own["params"], p, None) for own in self.param_groups):
            shown = f"a tensor of shape {tuple(p.shape)}" if isinstance(p, Tensor) else repr(p)
            return f"`p` must be a parameter of this optimizer, but is {shown}. Add it by add_param_group()."
        name = next(name for own, name in self._members() if own is p)
        if group is not None and not any(own is group and _has(own["params"], p, None) for own in self.param_groups):
            which = next((n for n, own in enumerate(self.param_groups) if own is group), None)
            shown = "no entry of param_groups" if which is None else f"param_groups[{which}]"
            return f"`group` must be the entry of param_groups that has {name!r}, but is {shown}. {SET_HOOKS}"
        way_out = "Leave it out, or bind it as a default of the hook: a loop's variable has its last value by then."
        return sentence("i", f"the place of {name!r} in its group", i, way_out)

    def _dues_of(self, members: Iterable[Member]) -> list[Due]:
        """Return what is due of these parameters, by groups."""
        found: dict[int, list[Tensor]] = {}
        for number, p in members:
            found.setdefault(number, []).append(p)
        each = (self._due_alone(number, found[number]) for number in sorted(found))
        return [due for due in each if due.params]

    def _due_alone(self, number: int, params: list[Tensor]) -> Due:
        group = self.param_groups[number]
        now = self._current(group)
        self._refuse(now.h)
        return self._due_of(number, group, now, with_gradients(params))

    def _refuse(self, h: Hyper) -> None:
        """Raise if a step with these settings needs more than the gradients of a few parameters."""
        if self.model_group is not None:
            way_out = "Other stages of the model take other turns; call optimizer.step() after the backward pass."
            allowed = "None where parameters are stepped by themselves"
            raise ContradictionError(sentence("model_group", allowed, self.model_group, way_out))
        if h.asks_of_model:
            way_out = "It needs all gradients at once; max_grad_norm_per_tensor needs one."
            allowed = "None where parameters are stepped by themselves, as in the backward pass"
            raise ContradictionError(sentence("max_grad_norm", allowed, h.model_bound, way_out))

    def _check_reduced(self, what: str) -> None:
        """Raise where gradients are those of this process alone, because DistributedDataParallel adds them up later."""
        if cuts.in_group() and not self._searched_ddp and _in_ddp(self):
            raise ContradictionError(
                f"{what} steps before DistributedDataParallel has added up the gradients, which it keeps in its "
                "buckets, so that nothing would be freed either. Call optimizer.step() after the backward pass."
            )


def _has(params: Any, p: Tensor, i: int | None) -> bool:
    """Return whether this list has the parameter, at the place `i` if that is given."""
    if i is None:
        return any(own is p for own in params)
    return type(i) is int and 0 <= i < len(params) and params[i] is p


def _in_ddp(optimizer: ByParameter) -> bool:
    """Return whether a DistributedDataParallel that is alive holds one of the parameters."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(p) in own for ddp in list(alive(DistributedDataParallel)) for p in ddp.parameters())
