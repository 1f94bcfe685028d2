"""The first steps of parameters, and what they show about later ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice

import numpy as np
from torch import Tensor

from layerwise.catalog.hidden_matrices import is_embedding_or_head, is_misplaced_vector, is_unsplit_matrix
from layerwise.core.first_step import FirstStep, WaysOut, warn_of_first_steps
from layerwise.engines import Stats
from layerwise.engines.compiled import BatchMeasurements
from layerwise.engines.measurements import has_trust_ratio
from layerwise.errors import HyperparameterError
from layerwise.options.values import Scalar
from layerwise.torch.groups._members import Group, Members
from layerwise.torch.groups._options import GroupOptions
from layerwise.torch.groups._rules import RULE, is_on_device
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._prepared import TensorStep, on_host
from layerwise.torch.step._work import DueGroup

FINER = 'Pass master_weights="split", or rounding="stochastic".'
SLOWER = 'Keep their ratio with param_groups(model, rule="lars"), or give their group a smaller lr.'
OTHERS = 'Step them with AdamW: Mixed(param_groups(model, rule="{}", lr=…)).'
BLOCKS = (
    'Give each row a rate of its own with AdamMini(param_groups(model, rule="adammini")), or pass `blocks` by name.'
)
OF_SCHEDULES = ("initial_lr", "max_lr")  # of schedulers, which may begin with a smaller rate
PEAKS = ("lr", *OF_SCHEDULES)


def exempt(found: Sequence[FirstStep], groups: Sequence[Group]) -> str:
    """Return advice on how to exempt tensors that began at zero.

    If only they have no weight decay, as biases and norms in trainers' groups, an option exempts them. `param_groups`
    exempts biases by default, and others by name.
    """
    stuck = [one for one in found if one.starts_at_zero]
    if stuck and all(map(_has_none_if_decayed, stuck)) and any(_number(group["weight_decay"]) for group in groups):
        return (
            'Pass adapt="decayed", which removes the trust ratio wherever weight_decay is 0, or use '
            "param_groups(model)."
        )
    names = {name for group in groups for name in group.get("param_names", ())}
    way_out = "Exempt biases and norms from the ratio with param_groups(model)"
    others = [one.name for one in stuck if one.name in names and "bias" not in str(one.name)]
    if not others:
        return f"{way_out}, and other parameters with param_groups(model, no_adapt=[…])."
    shown = "".join(f', "{name}"' for name in others[:5]) + ", …" * (len(others) > 5)
    return f'{way_out}, and other parameters with param_groups(model, no_adapt=["bias", "norm"{shown}]).'


def _has_none_if_decayed(one: FirstStep) -> bool:
    """Return True if adapt="decayed" is an option of the tensor's rule, and turns off its trust ratio."""
    try:
        return (
            not one.weight_decay
            and getattr(one.h, "adapt", None) is True
            and bool(type(one.h).check("adapt", "decayed"))
        )
    except HyperparameterError:
        return False


def firsts(step: TensorStep, dues: Sequence[DueGroup], which: Collection[int]) -> Iterator[FirstStep]:
    """Yield the first steps, just taken, of parameters with these ids, except those without problems."""
    measured, at = step.measured, 0
    zero = _began_at_zero(measured)
    each = zip(step.plans, step.params, step.storage_plans, step.states, strict=True)
    for due in dues if measured else ():
        peak, lam = _peak(due.group), _number(due.group["weight_decay"])
        adapted = has_trust_ratio(due.h, lam)
        for plan, p, storage_plan, state in islice(each, len(due.params)):
            jobs = range(at, at := at + len(plan.held))
            if not adapted or id(p) not in which:
                continue
            dtype = storage_plan.rounding_dtype(state) if storage_plan.is_low else None
            if p.numel() and (dtype is not None or True in zero[jobs.start : jobs.stop]):
                for name, found in plan.measured(on_host(measured[i]) for i in jobs):
                    yield FirstStep(name, plan.h, found, lam, peak, dtype)


def without_ratio(due: DueGroup, plans: Sequence[Plan]) -> Iterator[FirstStep]:
    """Yield first steps of parameters of a group that have no trust ratio, and so are not measured."""
    read = [due.group.get(key) for key in (*PEAKS, "weight_decay")]
    if True in map(is_on_device, read):  # reading it would mean waiting for the device
        return
    lam, peak = _number(due.group["weight_decay"]), _peak(due.group)
    if not has_trust_ratio(due.h, lam):
        yield from (FirstStep(plan.name, due.h, {}, lam, peak) for plan in plans)


def not_hidden(due: DueGroup, plans: Sequence[Plan]) -> Iterator[FirstStep]:
    """Yield first steps of parameters of a group whose rule is for hidden matrices, although they are not.

    Names identify embeddings and the head, unless the group named its rule: then they were intended.
    """
    for one in chain.from_iterable(plan.stored_together for plan in plans) if due.h.of_matrices else ():
        if is_misplaced_vector(one.h, one.shape) or (RULE not in due.group and is_embedding_or_head(one.name)):
            yield FirstStep(one.name, due.h, {}, 0.0, misplaced=True)


def unblocked_matrices(due: DueGroup, plans: Sequence[Plan]) -> Iterator[FirstStep]:
    """Yield first steps of matrices of a group that are one block each, although its rule is for smaller blocks."""
    for one in chain.from_iterable(plan.stored_together for plan in plans) if due.h.by_row else ():
        if is_unsplit_matrix(one.h, one.shape):
            yield FirstStep(one.name, due.h, {}, 0.0, is_whole=True)


def _peak(group: Group) -> float:
    """Return the largest learning rate of a group that is known."""
    return max((_number(group[key]) for key in PEAKS if group.get(key) is not None), default=0.0)


def _began_at_zero(measured: Sequence[Stats]) -> list[bool]:
    """Return, for each job, whether the weights, or those of a block, are measured to be all zero."""
    norms, means = (
        measured.column(name) if isinstance(measured, BatchMeasurements) else [one.get(name) for one in measured]
        for name in ("weight_norm", "weight_rms")
    )
    found = []
    for norm, mean in zip(norms, means, strict=True):
        x = mean if norm is None else norm
        found.append(x is not None and 0.0 in np.ravel(x.detach().numpy() if isinstance(x, Tensor) else x))
    return found


def _number(x: Scalar) -> float:
    """Return the value of a rate, which may be a tensor through which a gradient flows."""
    return float(x.detach() if isinstance(x, Tensor) else x)


class FirstSteps:
    """The first steps of an optimizer's parameters, and warnings about them."""

    def __init__(self, groups: GroupOptions, members: Members) -> None:
        self._groups, self._members = groups, members
        self.waiting: dict[int, Tensor] = {}
        """Parameters whose first step still has to be checked, by id."""
        self.odd: list[FirstStep] = []  # first steps that are too long, or of parameters that are not for the rule
        self._warned = False  # of some of these

    def look_at_new(self, dues: Sequence[DueGroup], plans: Sequence[Plan]) -> None:
        """Record, once, parameters that step too far without a trust ratio, or are not for their rule."""
        states, each = self._members.optimizer.state, iter(plans)
        fast, misplaced, whole = list[FirstStep](), list[FirstStep](), list[FirstStep]()
        for due in dues if not self._warned else ():
            both = zip(due.params, islice(each, len(due.params)), strict=True)
            if new := [plan for p, plan in both if p not in states]:
                fast += [one for one in without_ratio(due, new) if one.rate_is_too_high]
                misplaced += not_hidden(due, new)
                whole += unblocked_matrices(due, new)
        if whole and any(self._groups.blocks_of(group).is_given for group in self._members.groups):
            whole.clear()
        self.odd = [*fast, *misplaced, *whole]

    def warn(self, step: TensorStep, dues: Sequence[DueGroup], skip: Tensor | None) -> None:
        """Warn about problems that the step shows, if it is the first of some parameters."""
        if self.odd:
            odd, self.odd, self._warned = self.odd, [], True
            warn_of_first_steps(odd, WaysOut("", FINER, SLOWER, OTHERS.format(odd[-1].h.optimizer.lower()), BLOCKS))
        if self.waiting and not (skip is not None and skip):
            found = list(firsts(step, dues, self.waiting))
            for p in step.params:
                self.waiting.pop(id(p), None)
            if found:
                warn_of_first_steps(found, WaysOut(exempt(found, self._members.groups), FINER, SLOWER))
