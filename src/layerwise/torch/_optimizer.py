"""The base of all optimizers in the PyTorch API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layerwise.catalog.presets import Like
from layerwise.core.slot import own_entries
from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, sentence
from layerwise.layout.blocks import as_blocks
from layerwise.options import arguments, checks
from layerwise.options.by_name import ByName, check_matched
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Array, T
from layerwise.torch.arrays._library import arithmetic_dtype
from layerwise.torch.checkpoints import _loading
from layerwise.torch.checkpoints._saving import saved_form
from layerwise.torch.groups._arguments import check_blocks, check_given, check_group, listed, warn_of_odd, warn_of_set
from layerwise.torch.groups._members import Group, GroupDict, distinct_name, is_named, named_by_places
from layerwise.torch.groups._options import (
    NOT_OF_A_GROUP,
    GroupOptions,
    agreed_by_groups,
    described_groups,
    proportional_rates,
    without_nones,
)
from layerwise.torch.groups._rules import (
    RuleOptions,
    RulePerGroup,
    RulePerOptimizer,
    check_offloaded,
    check_rates_captured,
    naming_group,
)
from layerwise.torch.offload._stepper import OffloadedStepper
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._ranks import process_group_ref
from layerwise.torch.step import _checks
from layerwise.torch.step._engines import check_device, engine_name
from layerwise.torch.step._partial import PartialSteps
from layerwise.torch.step._plan import forget_state, has_state
from layerwise.torch.step._planner import Setup
from layerwise.torch.step._stepper import Stepper, stepper_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.optim.optimizer import StateDict


class Optimizer(torch.optim.Optimizer, Like):
    """A `torch.optim.Optimizer` that carries out the rules of its groups: one rule for all of them, or one named by
    each.
    """

    _rule: ModuleType | None = None  # None: each group names its rule
    _hyper: type[Hyper]
    _way_out = "The parameters come first: opt = Lamb(model.parameters(), lr=1e-3)."

    @classmethod
    def __subclasses__(cls) -> list[type]:
        # Packages look PyTorch's optimizers up by the names of all subclasses; AdamW and SGD would then exist twice.
        return [] if cls is Optimizer else type.__subclasses__(cls)

    def __init__(self, given: Mapping[str, Any]) -> None:
        # No docstring, because the classes would inherit it; `given` has every argument by name.
        params: Any = given["params"]
        check_given(params, self._way_out)
        warn_of_set(params)
        params = params if isinstance(params, Tensor) else list(params)
        given = {**given, **agreed_by_groups(params, given)}
        of_groups = {**given, "blocks": None}  # a group's own blocks come after blocks by name
        rules = (
            RulePerGroup(of_groups)
            if self._rule is None
            else RulePerOptimizer(RuleOptions(self._rule, self._hyper, of_groups))
        )
        blocks = ByName("blocks", given["blocks"], None, as_blocks)
        setup = Setup(
            GroupOptions(rules, given["differentiable"], blocks),
            checks.flag("skip_nonfinite", given["skip_nonfinite"]),
            engine_name(given["fused"], given["foreach"], given["differentiable"]),
            checks.flag("offload", given["offload"]),
        )
        self._of_all = {name: given[name] for name in (*NOT_OF_A_GROUP, "blocks") if name not in arguments.PROCESSES}
        processes = {name: process_group_ref(name, given[name]) for name in arguments.PROCESSES}
        self._stepper = _stepper_for(setup)(self, setup, processes)
        setup.groups.check_given()
        if setup.offload and setup.groups.differentiable:
            raise ContradictionError(sentence("offload", "False when differentiable=True", True, "Drop one of them."))
        super().__init__(params, setup.groups.defaults())
        if self.model_group is None:  # otherwise the pattern may match in a later group
            names = [one for p, name in stepper_of(self).members.all() for one in cuts.division_of(p).names(name)]
            check_matched("blocks", blocks.patterns, names)

    # Our attributes, which torch's own __getstate__ leaves out.
    def __getstate__(self) -> dict[str, object]:
        stepper = stepper_of(self)
        members = stepper.members.all()  # this updates the names
        # A copy does not know what described parameters contain.
        described = [i for i, (p, _) in enumerate(members) if cuts.division_of(p) is not cuts.WHOLE]
        own = stepper.setup, stepper.ranks.groups, stepper.skipped, described
        return {**super().__getstate__(), "_of_all": self._of_all, "_copied": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        setup, processes, skipped, described = state.get("_copied", (None, {}, 0, ()))
        super().__setstate__({key: x for key, x in state.items() if key != "_copied"})
        if setup is not None:
            self._stepper = _stepper_for(setup)(self, setup, processes, skipped)
            for i in described:
                cuts.forget(self.parameters()[i])
        stepper_of(self).forget()  # torch also calls this for every checkpoint
        groups = stepper_of(self).groups
        for group in self.param_groups:
            group.update(groups.filled({**self.defaults, **group}))
            groups.complete(group)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler leaves unscaling and skipping to the step, as with PyTorch's fused optimizers.

        Trainers that clip by themselves refuse such optimizers. So it does only if an option asks for it, or if the
        scaler cannot do it itself: in a CUDA graph, with float16 gradients, if processes have to skip together, and
        if the backward pass has left no gradients, where the step then raises an error.
        """
        stepper = stepper_of(self)
        asked = self._of_all["fused"] is True or stepper.setup.skip_nonfinite or stepper.in_backward
        captured = any(group["capturable"] for group in self.param_groups)
        shared = any(getattr(self, name) is not None for name in arguments.PROCESSES)
        # Trainers read this at any time: it contacts no other process, and leaves errors to the step.
        return asked or captured or shared or any(p.dtype is torch.float16 or cuts.is_cut(p) for p in self.parameters())

    @property
    def model_group(self) -> ProcessGroup | None:
        """The process group of all processes that hold tensors of the model, or None."""
        found = stepper_of(self).ranks.model_group
        return None if found is None else found.group

    @model_group.setter
    def model_group(self, group: object) -> None:
        stepper_of(self).ranks.set_group("model_group", process_group_ref("model_group", group))

    @property
    def replica_group(self) -> ProcessGroup | None:
        """The process group of all processes that have copies of the tensors, or None."""
        found = stepper_of(self).ranks.groups["replica_group"]
        return None if found is None else found.group

    @replica_group.setter
    def replica_group(self, group: object) -> None:
        stepper_of(self).ranks.set_group("replica_group", process_group_ref("replica_group", group))

    # ---- groups

    def add_param_group(self, param_group: GroupDict) -> None:
        """Add parameters with settings of their own; options that are left out are the optimizer's.

        Args:
            param_group: A mapping with `params` and any options of a group. If other groups have names, parameters
                without one are named by their position.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but is a {type(param_group).__name__}")
        check_group(param_group)
        groups = stepper_of(self).groups
        param_group = groups.given(param_group)
        # A copy, because torch fills a group with defaults, which the caller should not see. Arguments of the optimizer
        # itself may be repeated: wrappers such as ZeroRedundancyOptimizer put everything into every group, and copy it
        # from our groups into checkpoints, which cannot contain a process group.
        group = {key: x for key, x in without_nones(param_group).items() if not self._repeats(key, x, param_group)}
        given = [key for key in param_group.keys() - group.keys() if param_group[key] is not None]
        with naming_group(len(self.param_groups)):
            group = groups.new({**self.defaults, **group}, group)
        group |= {"params": listed(param_group["params"]), **dict.fromkeys(given)}
        check_blocks(groups.blocks.given, group, is_named(group))
        number = len(self.param_groups)
        with named_by_places([*self.param_groups, group]):
            try:
                super().add_param_group(group)
                stepper_of(self).ranks.added(group["params"])
                self._check_members(group, number)
                groups.note_keys(group)
                warn_of_odd(self.param_groups, param_group["params"])
            except Exception:
                del self.param_groups[number:]
                raise

    def __repr__(self) -> str:
        return described_groups(type(self).__name__, self.param_groups, stepper_of(self).groups)

    def _check_members(self, group: Group, number: int) -> None:
        groups, setup = stepper_of(self).groups, stepper_of(self).setup
        check_rates_captured(group)
        if setup.offload:
            check_offloaded(group)
        for p, name in stepper_of(self).members.named(number):
            _checks.check_parameter(name, p)
            cuts.cut_of(name, p)
            groups.check_fits(group, arithmetic_dtype(p.dtype))
            device = "cpu" if setup.offload else p.device.type
            check_device(setup.engine, name, device, groups.rules.of(group))

    def _repeats(self, key: str, value: object, group: Group) -> bool:
        """Return True if the whole optimizer was given this very value, so that it is not an option of the group."""
        groups = stepper_of(self).groups
        of_all = {**self._of_all, **{name: getattr(self, name) for name in arguments.PROCESSES}}
        if key in of_all:
            return of_all[key] is value
        shared = groups.rules.shared
        return key in shared and shared[key] is value and key not in groups.known(group)

    # ---- the step

    @staticmethod
    def profile_hook_step(func: Callable[..., T]) -> Callable[..., T]:
        """Report an error in a hook or a closure to other ranks, like one in the step; PyTorch wraps steps with
        this.
        """
        hooked = torch.optim.Optimizer.profile_hook_step(func)

        @wraps(hooked)
        def step(self: Optimizer, *args: object, **kwargs: object) -> T:
            agreement = self._stepper.of(self).agreement
            if agreement is None:
                return hooked(self, *args, **kwargs)
            with agreement.reports_errors():
                return hooked(self, *args, **kwargs)

        return step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every parameter that has a gradient.

        Args:
            closure: A function that evaluates the model again and returns the loss, which `step` then returns.
        """
        loss = None
        if closure is not None:
            _check_closure(closure)
            agreement = self._stepper.of(self).agreement
            with torch.enable_grad(), nullcontext() if agreement is None else agreement.during_closure():
                loss = closure()
        self._stepper.of(self, steps=True).step()
        return loss

    def step_parameter(self, p: Tensor, group: Group | None = None, i: int | None = None) -> None:
        """Step one parameter with its present gradient, and leave the gradient to the caller.

        Trainers call it in a hook of the parameter, once its gradient is complete, and free the gradient themselves. It
        takes the same step as `step()` would for this parameter: its step count advances, and `step()` finds nothing to
        do once the gradient is gone. Without a gradient nothing happens.

        Args:
            p: The parameter.
            group: Its entry of `param_groups`; None finds it.
            i: Its index in that entry; None finds it.
        """
        PartialSteps(stepper_of(self)).step(p, group, i)
        self._opt_called = True  # schedulers of torch read it, and `step()` need not be called

    def step_param(self, p: Tensor, group: Group | None = None) -> None:
        """Step one parameter, by the name and arguments that sd-scripts and musubi-tuner use for `step_parameter`."""
        self.step_parameter(p, group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients.

        Args:
            set_to_none: Set them to None; otherwise fill them with zeros.
        """
        super().zero_grad(set_to_none)
        for begin_again in stepper_of(self).when_zeroed:
            begin_again()

    @property
    def skipped(self) -> int | Tensor:
        """The number of skipped steps; a tensor on the device if only the device knows it."""
        found = stepper_of(self).skipped
        return found.clone() if isinstance(found, Tensor) else found

    # ---- between steps

    def get_lr(self) -> Any:
        """Return the learning rate, or a list with one for each group if they differ."""
        rates = [group["lr"] for group in self.param_groups]
        return rates[0] if all(rate is rates[0] or rate == rates[0] for rate in rates) else rates

    def set_lr(self, lr: float | Tensor, *, proportional: bool = False) -> None:
        """Set the learning rate of every group.

        Args:
            lr: The learning rate.
            proportional: Set the first group's rate to it, and keep the proportions of the others.
        """
        if any(stepper_of(self).groups.scheduled(self, group) for group in self.param_groups):
            raise ContradictionError(
                f"`lr` follows a scheduler, whose next step would overwrite {lr!r}. Change the scheduler, or drop it "
                "and create a new optimizer."
            )
        for group in self.param_groups:
            stepper_of(self).groups.check({**group, "lr": lr})
        rates = proportional_rates(self.param_groups, lr) if proportional else [lr] * len(self.param_groups)
        for group, rate in zip(self.param_groups, rates, strict=True):
            stepper_of(self).groups.check({**group, "lr": rate})
        for group, rate in zip(self.param_groups, rates, strict=True):
            group.pop("initial_lr", None)  # from a schedule that ended with the saved run
            if group["capturable"] and isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate.reshape(()) if isinstance(rate, Tensor) else rate)  # a captured step reads it
            else:
                group["lr"] = rate
        stepper_of(self).groups.begun_elsewhere = False

    def engines(self) -> dict[str, str]:
        """Return, by parameters' names, the engine that took the last step of each."""
        found: dict[str, str] = stepper_of(self).engines_by_parameter()
        return found

    @property
    def num_parameters(self) -> int:
        """The number of parameters, counted as tensors."""
        return len(stepper_of(self).members)

    def parameters(self) -> list[Tensor]:
        """Return all parameters, group by group."""
        return [p for p, _ in stepper_of(self).members.all()]

    def clear_state(self, which: str | Tensor | None = None) -> None:
        """Forget the state of one parameter, or of all, except other programs' entries. The next step starts it again.

        Args:
            which: The parameter, or its name; None means all.
        """
        found = [p for p, name in stepper_of(self).members.all() if which is None or p is which or name == which]
        if which is not None and not any(has_state(self.state.get(p)) for p in found):
            shown = which if isinstance(which, str) else type(which).__name__
            known = stepper_of(self).members.all()[:5]
            names = ", ".join(repr(name) for p, name in known if has_state(self.state.get(p)))
            raise ParameterError(f"no state is kept for {shown!r}. Names with state: {names or 'none'}.")
        for p in found:
            forget_state(self.state, p)
        stepper_of(self).forget()

    def storage(self) -> dict[str, dict[str, Any]]:
        """Return how each parameter and its state are stored, by name; before the first step, how they will be.

        `weights` is the dtype, followed by the number of bits held beside it: "bfloat16+8". `state` has the dtype of
        each of its fields; "int8" is 8 bits in groups. `bytes` counts weights and state, of the whole tensor if it is
        sharded. `why` gives the reason for each field that does not follow `state_dtype`. `products` is the dtype in
        which Muon multiplies, which `ns_dtype=None` leaves to the device.
        """
        found: dict[str, dict[str, Any]] = {}
        for number, group in enumerate(self.param_groups):
            checked = stepper_of(self).groups.check(group)
            for p, name in stepper_of(self).members.named(number):
                plan = stepper_of(self).planner.plan_for(p, checked, name)
                found[distinct_name(name, found)] = plan.storage_plan(p, checked.want).report(
                    own_entries(self.state.get(p, {}))
                )
        return found

    def stats(self) -> dict[str, dict[str, Array]]:
        """Return the measurements of each parameter's last step by name: numbers, or with blocks an array.

        They are `weight_norm`, `update_norm`, both also as `_rms`, and `trust_ratio`. A step does not wait for the
        device; reading its measurements does.
        """
        return {name: measured for _, name, measured in stepper_of(self).measured()}

    # ---- checkpoints

    def state_dict(self) -> StateDict:
        """Return the state and the groups in torch.optim's form. A function among the options is saved only by name.

        State stored in integers is saved as bytes, along one more dimension.
        """
        for p in self.parameters():
            cuts.division_of(p).check_saved()
        return saved_form(self, super().state_dict)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a checkpoint, or raise StateError and change nothing.

        Parameters are matched by name if both sides have names, and otherwise by their places. State keeps the dtype in
        which it was saved; if `state_dtype` asks for another, the next step converts it. Rates that schedulers move
        (lr, weight_decay, betas, momentum) come from the checkpoint; every other option stays as it was given here, and
        a warning names those that differ.

        Args:
            state_dict: The result of `state_dict()`.
        """
        begun_here = any(stepper_of(self).groups.scheduled(self, group) for group in self.param_groups)
        _loading.load(self, state_dict)
        stepper_of(self).groups.begun_elsewhere = not begun_here and any(
            "initial_lr" in group for group in self.param_groups
        )


def _stepper_for(setup: Setup) -> type[Stepper]:
    """Return what takes the steps of an optimizer."""
    return OffloadedStepper if setup.offload else Stepper


def _check_closure(closure: object) -> None:
    if not callable(closure):
        way_out = "Call loss.backward() first, and then step()."
        raise HyperparameterError(sentence("closure", "a function that returns the loss", closure, way_out))
