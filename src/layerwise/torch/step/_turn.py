"""Parameters that step together: checked, laid out and handed to an engine once, while they stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from layerwise.checks import as_float
from layerwise.core import turn
from layerwise.core.nows import Nows
from layerwise.engines import Job
from layerwise.hyper import Hyper, in_words
from layerwise.rules.asks import Now
from layerwise.storage.options import Wanted
from layerwise.torch.sharding._agreement import Agreement, of_gradient
from layerwise.torch.sharding._cuts import local
from layerwise.torch.sharding._flat import missing_gradient
from layerwise.torch.sharding._peers import Peers, Skips
from layerwise.torch.step import _state, _storage
from layerwise.torch.step._counts import Counts
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._storage import storing
from layerwise.torch.step._tensors import alike, written
from layerwise.torch.step._watch import States, watch

Local = tuple[list[Tensor], list[Tensor]]  # the local parts of parameters and gradients


class Due(NamedTuple):
    """Parameters of one group whose turn it is, with their gradients, and the settings of the group."""

    number: int
    group: dict[str, Any]
    rule: Any
    h: Hyper
    want: Wanted
    params: list[Tensor]
    grads: list[Tensor]


def params_of(dues: Sequence[Due]) -> list[Tensor]:
    """Return all of the parameters."""
    return dues[0].params if len(dues) == 1 else [p for due in dues for p in due.params]


def grads_of(dues: Sequence[Due]) -> list[Tensor]:
    """Return the gradients of all of them."""
    return dues[0].grads if len(dues) == 1 else [g for due in dues for g in due.grads]


def with_gradients(params: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters that have gradients, and their gradients."""
    grads = [p.grad for p in params]
    found = [g for g in grads if g is not None]
    if len(found) == len(grads):
        return list(params), found
    grads = [missing_gradient(p) if g is None else g for p, g in zip(params, grads, strict=True)]
    return [p for p, g in zip(params, grads, strict=True) if g is not None], [g for g in grads if g is not None]


def with_grads(dues: Sequence[Due], grads: Sequence[Tensor]) -> list[Due]:
    """Return the same with these gradients."""
    each = iter(grads)
    return [due._replace(grads=list(islice(each, len(due.params)))) for due in dues]


def _options(dues: Sequence[Due]) -> list[tuple[Any, ...]]:
    """Return the groups' settings that are part of the plan; the rates are not."""
    return [(due.h, len(due.params), due.group["capturable"], due.want) for due in dues]


def _differ_in_numbers(options: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> bool:
    if len(options) != len(others):
        return False
    return all(
        rest == other_rest and type(h) is type(other) and h.form() == other.form()
        for (h, *rest), (other, *other_rest) in zip(options, others, strict=True)
    )


class Turn:
    """A prepared step of these parameters; other ranks may hold parts of them."""

    def __init__(
        self,
        dues: Sequence[Due],
        here: Local,
        plans: Sequence[Plan],
        states: States,
        on_device: bool,
        prepare: turn.Prepare,
        agreement: Agreement | None = None,
    ) -> None:
        self.params, self._here = list(params_of(dues)), here[0]
        self.plans, self.on_device, self.states = plans, on_device, [states[p] for p in self.params]
        beside = zip(self._here, (_storage.named_state(state).master for state in self.states), strict=True)
        masters = [(here, local(master)) for here, master in beside if master is not None]
        self._masters = list(alike(*zip(*masters, strict=True)))
        self._remainders = _storage.Remainders(self._here, self.states)
        self._wrappers = [p for p, here in zip(self.params, self._here, strict=True) if p is not here]
        self._options, self._watch = _options(dues), watch(self.params, grads_of(dues), states)
        wants = [due.want for due in dues for _ in due.params]
        each = zip(self.params, plans, self.states, wants, strict=True)
        jobs = [job for p, plan, state, want in each for job in storing(plan, p, want).jobs(state)]
        self._stored = [_storage.dtypes(p, state) for p, state in zip(self._here, self.states, strict=True)]
        self._turn = turn.Turn(plans, jobs, prepare)
        alone = self._turn.whole and agreement is None
        self._itself = alone and all(map(_is_itself, jobs, self.params, self.states))
        held = [one for plan in plans for one in plan.held]
        self._counts = self._counts_of(dues, self._turn.prepared.counts and alone)
        self._steps = [step for counts in self._counts for step in counts.steps]
        self._uncounted = [step for counts in self._counts if not counts.by_engine for step in counts.steps]
        self.agreement = agreement
        self._peers = None if agreement is None else Peers(agreement, held, self._described())

    def _counts_of(self, dues: Sequence[Due], by_engine: bool) -> list[Counts]:
        """Return the step counts of each group."""
        steps = iter(state["step"] for state in self.states)
        on_device = (self.on_device or due.group["capturable"] for due in dues)
        return [
            Counts(list(islice(steps, len(due.params))), on, by_engine) for due, on in zip(dues, on_device, strict=True)
        ]

    def holds(self, grads: list[Tensor], states: States, at_once: bool) -> bool:
        """Return True if no tensor has changed since this was prepared.

        If the step follows `at_once`, the engine looks at its own tensors itself and may raise `Changed`. Then this
        compares only that they are still the parameter's.
        """
        return self._watch.same(self.params, grads, states, at_once and self._itself)

    def follows(self, grads: list[Tensor], states: States) -> bool:
        """Return True if the same tensors have only moved in memory, and step them there from now on."""
        if self._turn.prepared.layouts is None or not self._itself or not self._watch.moved(self.params, grads, states):
            return False
        self._watch = watch(self.params, grads, states)
        self._turn.prepare_again(self._turn.jobs)
        return True

    def has_settings(self, dues: Sequence[Due]) -> bool:
        """Return True if the groups' settings have not changed."""
        return _options(dues) == self._options

    def takes(self, dues: Sequence[Due]) -> bool:
        """Return True if the groups' settings differ only in numbers, which this then takes over."""
        options, again = _options(dues), self._turn.prepared.layouts is not None
        # With others, what is planned is part of what is agreed.
        if self._peers is not None or not again or not _differ_in_numbers(options, self._options):
            return False
        self._options, held = options, (one for plan in self.plans for one in plan.held)
        hs = [due.h for due in dues for _ in due.params]
        each = [(h, torch.finfo(plan.dtype).eps) for h, plan in zip(hs, self.plans, strict=True) for _ in plan.held]
        fitted = [h.fit(one.piece.shape, one.piece.block_dims, eps) for one, (h, eps) in zip(held, each, strict=True)]
        self._turn.prepare_again([job._replace(h=h) for job, h in zip(self._turn.jobs, fitted, strict=True)])
        return True

    def step(
        self, dues: Sequence[Due], grads: Sequence[Tensor], skip: Tensor | None, scale: Any, skips: Skips | None = None
    ) -> None:
        """Carry it out, count it, and round master weights into their parameters; raise `Changed` as engines do.

        `skip` is known on the device alone; `skips` informs the other processes.
        """
        nows = self._nows(dues, scale)
        if self._peers is not None and skips is not None:
            self._peers.begin(nows, skips, partial(_words, self.plans, nows, self._options, self._stored))
        self._remainders.follow()
        self._turn.step(grads, nows, skip, self._peers)
        if self._peers is not None:
            self._peers.taken()
        self._remainders.written()
        if self._uncounted:
            _state.count(self._uncounted, skip)
        for heres, masters in self._masters:
            torch._foreach_copy_(heres, masters)
        if self._wrappers:
            written(self._wrappers)

    def _described(self) -> str:
        """Return everything that defines the step and does not change from step to step."""
        plans = [plan.described() for plan in self.plans]
        return repr([[options[2:] for options in self._options], plans, self._stored])

    def _nows(self, dues: Sequence[Due], scale: Any) -> list[Now]:
        # This rank may have nothing to step where others have.
        g_scale = 1.0 if scale is None else _scalar(scale, any(due.group["differentiable"] for due in dues))
        each = [(due, counts, *_rates(due), g_scale) for due, counts in zip(dues, self._counts, strict=True)]
        if any(counts.on_device for counts in self._counts):
            return [now for due, counts, *rates in each for now in self._nows_of(due, counts, rates)]
        taken, made, nows = _state.counts(self._steps), Nows(), list[Now]()
        alike = taken.count(taken[0]) == len(taken) if taken else True  # as good as always
        for due, _, *rates in each:
            if alike:
                nows += [made.of(due.h, taken[0] + 1, *rates)] * len(due.params)
            else:
                nows += [made.of(due.h, t + 1, *rates) for t in taken[len(nows) : len(nows) + len(due.params)]]
        return nows

    def _nows_of(self, due: Due, counts: Counts, rates: Sequence[Any]) -> list[Now]:
        if counts.on_device:
            return counts.nows(due.h, tuple(rates))
        made = Nows()
        return [made.of(due.h, t + 1, *rates) for t in _state.counts(counts.steps)]

    def stats(self) -> Iterator[tuple[Tensor, list[tuple[Any, dict[str, Any]]]]]:
        """Yield each parameter with the measurements of its step, by the names of its tensors."""
        return zip(self.params, self._turn.stats(_on_host), strict=False)


def _is_itself(job: Job, p: Tensor, state: Mapping[str, Any]) -> bool:
    """Return True if the engine gets these very tensors, and no others in the same memory."""
    return job.p is p and all(x is None or any(x is own for own in state.values()) for x in job.state)


def _rates(due: Due) -> tuple[float | Tensor, float | Tensor]:
    """Return lr and weight decay of a group."""
    lr, settled, followed = due.group["lr"], cast("Any", due.h), due.group["differentiable"]
    return _scalar(settled.lr if lr is None else lr, followed), _scalar(due.group["weight_decay"], followed)


def _scalar(value: float | Tensor, followed: bool) -> float | Tensor:
    """Return a number, if it is at hand and no gradient flows through it."""
    if not isinstance(value, Tensor):
        return float(value) if isinstance(value, (int, float)) else as_float(value)  # an int may need over 64 bits
    if not followed and value.device.type == "cpu":
        return value.item()
    return value if value.ndim == 0 else value.reshape(())


def _on_host(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.detach().cpu().double().numpy() if isinstance(v, Tensor) else v for k, v in measured.items()}


def _words(
    plans: Sequence[Plan], nows: Sequence[Now], options: Sequence[tuple[Any, ...]], stored: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return the changing inputs of the step in words, to name those that differ on another process."""
    words: dict[str, Any] = {of_gradient(plan.name): "there" for plan in plans}
    for plan, now in zip(plans, nows, strict=True):
        words[f"the rule of {plan.name!r}"] = plan.h.optimizer
        words[f"the step of {plan.name!r}"] = now.t
        words[f"lr of {plan.name!r}"], words[f"weight_decay of {plan.name!r}"] = now.lr, now.weight_decay
        words |= {f"`{key}` of {plan.name!r}": in_words(value) for key, value in vars(plan.h).items()}
        words[f"beta2 of {plan.name!r} at this step"] = now.beta2
        words[f"the shape of {plan.name!r}"] = plan.in_words()
        words["grad_scale"] = now.g_scale
    for plan, want in zip(plans, (want for _, n, _, want in options for _ in range(n)), strict=True):
        words |= {f"`{key}` of {plan.name!r}": x for key, x in want.words().items()}
    for plan, one in zip(plans, stored, strict=True):
        words |= {f"the dtype of {key!r} of {plan.name!r}": x for key, x in one.items()}
    return words
