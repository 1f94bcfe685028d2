"""The methods of an optimizer between its steps: measurements, rates, and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from layerwise.errors import ContradictionError, ParameterError, warn
from layerwise.first import warn_of
from layerwise.hyper import Hyper
from layerwise.torch._agreeing import Agreeing
from layerwise.torch.step import _schedule
from layerwise.torch.step._first import FINER, exempt, firsts
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._settings import NOT_OF_A_GROUP, proportional_rates
from layerwise.torch.step._storage import storing
from layerwise.torch.step._turn import Due, Turn, params_of


class Answering(Agreeing):
    """A `torch.optim.Optimizer` that reports the measurements of its steps, its rates and its state."""

    _begun_elsewhere: bool  # whether initial_lr is of a schedule that only the checkpoint had
    _skipped: int | Tensor
    _plans: dict[Tensor, Plan]

    _of_all: dict[str, Any]  # what was given once for all groups
    _plan_for: Callable[..., Plan]
    _settings_of: Callable[..., Hyper]

    def _forget_plans(self) -> None:
        self._plans = {}
        self._warned: set[tuple[str, str]] = set()
        self._first: dict[Tensor, None] = {}  # parameters whose first step is still to be looked at
        self._turns: dict[bytes, Turn] = {}  # by their parameters, the last taken at the end

    @property
    def skipped(self) -> int | Tensor:
        """The number of skipped steps; a tensor on the device if only the device knows it."""
        return self._skipped.clone() if isinstance(self._skipped, Tensor) else self._skipped

    def _count_skipped(self, skip: Tensor | None) -> None:
        """Count a skipped step that only the device knows of."""
        if skip is not None:
            # In place, so that a captured step counts on.
            self._skipped += skip.to(self._skipped.device) if isinstance(self._skipped, Tensor) else skip

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
        if any(_schedule.moves(self, group) for group in self.param_groups):
            raise ContradictionError(
                f"`lr` follows a scheduler, which would overwrite {lr!r} at its next step. Change the scheduler, "
                "or drop it and make a new optimizer."
            )
        for group in self.param_groups:
            self._groups.check({**group, "lr": lr})
        rates = proportional_rates(self.param_groups, lr) if proportional else [lr] * len(self.param_groups)
        for group, rate in zip(self.param_groups, rates, strict=True):
            self._groups.check({**group, "lr": rate})
        for group, rate in zip(self.param_groups, rates, strict=True):
            group.pop("initial_lr", None)  # of a schedule that ended with the run that was saved
            if group["capturable"] and isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate.reshape(()) if isinstance(rate, Tensor) else rate)  # a captured step sees it
            else:
                group["lr"] = rate
        self._begun_elsewhere = False

    def _repeats(self, key: str, value: Any, group: Mapping[str, Any]) -> bool:
        """Return True if the whole optimizer was given this very value, so that it is no option of the group."""
        own = {**self._of_all, "model_group": self.model_group} if key in NOT_OF_A_GROUP else self._groups.kinds.shared
        return key in own and own[key] is value and key not in self._groups.known(group)

    def parameters(self) -> list[Tensor]:
        """Return all parameters, group by group."""
        return [p for p, _ in self._members()]

    def clear_state(self, which: str | Tensor | None = None) -> None:
        """Forget the state of one parameter, or of all. The next step begins it again.

        Args:
            which: The parameter, or its name; None is all.
        """
        found = [p for p, name in self._members() if which is None or p is which or name == which]
        if which is not None and not any(p in self.state for p in found):
            shown = which if isinstance(which, str) else type(which).__name__
            names = ", ".join(repr(name) for p, name in self._members()[:5] if p in self.state)
            raise ParameterError(f"no state is kept for {shown!r}. Known are: {names or 'none'}.")
        for p in found:
            self.state.pop(p, None)
        self._forget_plans()

    def storage(self) -> dict[str, dict[str, Any]]:
        """Return how each parameter and its state are stored, by name; before the first step, how they will be.

        `weights` is the dtype, followed by the number of bits held beside it: "bfloat16+8". `state` has the dtype of
        each of its fields; "int8" is 8 bits in groups. `bytes` counts weights and state, of the whole tensor if it is
        sharded. `why` gives the reason for each field that does not follow `state_dtype`.
        """
        found: dict[str, dict[str, Any]] = {}
        for number, group in enumerate(self.param_groups):
            h, want = self._settings_of(group), self._groups.wanted(group)
            for p, name in self._named(number):
                plan = self._plan_for(p, group, h, name)
                found[_apart(name, found)] = storing(plan, p, want).report(self.state.get(p, {}))
        return found

    def _warn_of_layouts(self, dues: Sequence[Due], plans: Sequence[Plan]) -> None:
        """Warn once of each parameter whose layout does not allow the requested storage of its state."""
        wants = [due.want for due in dues for _ in due.params]
        found = {
            (plan.name, key): stored
            for p, plan, want in zip(params_of(dues), plans, wants, strict=True)
            for key in want.state
            if plan.state_shapes[key] is not None and (stored := storing(plan, p, want).chosen(key)).by_layout
        }
        new = {which: stored for which, stored in found.items() if which not in self._warned}
        for (name, key), stored in new.items():
            warn(f"{key!r} of {name} is stored in {stored.dtype} and not in 8 bits: {stored.why}.")
        self._warned.update(new)

    def _look_at_first(self, turn: Turn, dues: Sequence[Due], skip: Tensor | None) -> None:
        """Say what the first steps of parameters show of those to come, if this was one."""
        if not self._first or (skip is not None and skip):
            return
        found = list(firsts(turn, dues, self._first, self.state))
        done = set(turn.params)
        self._first = {p: None for p in self._first if p not in done}
        names = {name for group in self.param_groups for name in group.get("param_names", ())}
        warn_of(found, exempt(found, names), FINER)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the measurements of each parameter's last step by name: numbers, or with blocks an array.

        They are `weight_norm`, `update_norm`, both also as `_rms`, and `trust_ratio`. A step does not wait for the
        device; reading its measurements does. If processes have disagreed about a step on the device, this raises the
        error.
        """
        self._agreed.check_earlier(forget=False)
        return {name: measured for _, name, measured in self._measured()}

    def _measured(self) -> Iterator[tuple[Tensor, str, dict[str, Any]]]:
        """Yield the same, with each parameter before its name."""
        latest = {p: measured for turn in self._turns.values() for p, measured in turn.stats()}
        found: list[str] = []
        for p, measured in latest.items():
            for name, one in measured:
                found.append(_apart(name, found))
                yield p, found[-1], one


def _apart(name: str, others: Iterable[str]) -> str:
    """Return a name that is not among the others: two models' parameters may have the same name."""
    copies = sum(other == name or other.startswith(f"{name} (") for other in others)
    return f"{name} ({copies + 1})" if copies else name
