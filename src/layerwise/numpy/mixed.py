"""Several optimizers that step the names of one model together."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from layerwise.checks import FLAG
from layerwise.core.steps import Steps
from layerwise.engines import choose
from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, StateError, sentence
from layerwise.first import First
from layerwise.hyper import ClippedByNorm
from layerwise.names import Name, as_name, check_matched, check_twin, few, matches
from layerwise.numpy._arrays import Array
from layerwise.numpy._optimizer import Optimizer
from layerwise.numpy._saved import WAY_OUT as SAVED
from layerwise.numpy._saved import held
from layerwise.numpy._together import ENGINES, Stepper
from layerwise.storage.options import COUNT
from layerwise.threads import OneAtATime

WAY_OUT = 'Pass a mapping such as {"*.bias": AdamW(lr=1e-3), "*": Lamb(lr=1e-2)}.'
OF_ALL = ("skip_nonfinite", "engine", "max_grad_norm")  # what members leave to the whole


class Mixed(Stepper):
    """Optimizers by name: each steps the names that match its pattern, and all step together.

    An exact name takes precedence over patterns such as "*.bias"; patterns apply in their order. Members keep their own
    options, which you can read and set as always: `opt["*"].lr = 0.1`. Examples are on the page "NumPy API".

    Args:
        optimizers: A mapping from names or patterns to optimizers of layerwise.numpy.
        max_grad_norm: Scale all gradients down together so that their global norm is at most this, whichever optimizer
            steps them; None is off.
        skip_nonfinite: Skip a step if any gradient contains nan or inf, and count it in `skipped`.
        engine: Engine to use: "rule" avoids kernels, and None picks the fastest.
    """

    # Options are the optimizers': with these alone, `opt.lr = 0.1` is an error, and no attribute that nothing reads.
    __slots__ = (
        "_engine",
        "_limit",
        "_members",
        "_one_at_a_time",
        "_routes",
        "_skipped",
        "_skips",
        "_steps",
    )

    def __init__(
        self,
        optimizers: Mapping[Any, Optimizer],
        *,
        max_grad_norm: float | None = None,
        skip_nonfinite: bool = False,
        engine: str | None = None,
    ) -> None:
        _check(optimizers)
        self._members: dict[Any, Optimizer] = dict(optimizers)
        self._skips = FLAG("skip_nonfinite", skip_nonfinite, "Pass True or False.")
        choose(engine, ENGINES)
        self._engine = engine
        self._steps = Steps()
        self._routes: dict[Name, Any] = {}  # the pattern of each name that was given
        self._skipped = 0
        self._one_at_a_time = OneAtATime()
        self.max_grad_norm = max_grad_norm

    @property
    def max_grad_norm(self) -> float | None:
        """The bound of the global norm of all gradients, or None. You can set it, with effect from the next step."""
        return self._limit

    @max_grad_norm.setter
    def max_grad_norm(self, limit: float | None) -> None:
        self._limit: float | None = ClippedByNorm.check("max_grad_norm", limit)

    def __getitem__(self, pattern: Any) -> Optimizer:
        return self._members[pattern]

    @property
    def optimizers(self) -> Mapping[Any, Optimizer]:
        """The optimizers by their names or patterns."""
        return MappingProxyType(self._members)

    @property
    def steps(self) -> int:
        """The number of steps taken by the name with the most steps."""
        return max(one.steps for one in self._members.values())

    @property
    def skipped(self) -> int:
        """The number of steps skipped because of nan or inf."""
        return self._skipped

    def _step_all(self, weights: Mapping[Any, Array], grads: Mapping[Any, Any]) -> list[First] | None:
        if not self._routes:
            check_matched("optimizers", self._members, list(weights))
        new = [name for name in weights if name not in self._routes]
        routes = self._routes | {name: self._pattern_of(name) for name in new}
        for name in new:
            check_twin(as_name(name), weights, self._routes)
        given: dict[Any, Any] = {pattern: (one, {}, {}) for pattern, one in self._members.items()}
        for i, values in enumerate((weights, grads), 1):
            for name, value in values.items():
                given[routes[name]][i][name] = value
        firsts = self._take([*given.values()], True, self._skips, self._engine, self.max_grad_norm)
        self._skipped += firsts is None
        self._routes = routes
        return firsts

    def _pattern_of(self, name: Any) -> Any:
        own = as_name(name)
        if found := [one for one in self._members if matches(own, one)]:
            return own if own in found else found[0]
        raise ParameterError(
            f'no optimizer steps {name!r}: it matches none of {few(self._members)}. "*" matches what is left.'
        )

    @property
    def parameters(self) -> dict[Name, tuple[int, ...]]:
        """The names seen so far, stepped or given without a gradient, and their shapes."""
        return {name: shape for one in self._members.values() for name, shape in one.parameters.items()}

    def stats(self) -> dict[Name, dict[str, Any]]:
        """Return the measurements of each name's last step, as its optimizer reports them."""
        return {name: found for one in self._members.values() for name, found in one.stats().items()}

    def clear_state(self, name: Name | None = None) -> None:
        """Forget the state of one name, or of all. The next step begins it again.

        Args:
            name: The name; None is all.
        """
        members = self._members.values() if name is None else [self._members[self._pattern_of(name)]]
        for one in members:
            one.clear_state(name)

    def state_dict(self) -> dict[str, Array]:
        """Return the whole state, to continue bit for bit, in new plain arrays: np.savez(file, **opt.state_dict())."""
        saved = {"optimizer": np.array("Mixed"), "members": np.array(len(self._members))}
        saved["skipped"] = np.array(self._skipped)
        for i, one in enumerate(self._members.values()):
            saved |= {f"{i}.{key}": value for key, value in one.state_dict().items()}
        return saved

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state, or raise StateError and change nothing.

        Every name has to belong to an optimizer with the same rule as before.

        Args:
            state: The result of `state_dict()`, or the file that it was saved to, as np.load returns it.
        """
        parts, skipped = _apart(state, len(self._members))
        loaded = [one._loaded(part) for one, part in zip(self._members.values(), parts, strict=True)]
        for (pattern, one), saved in zip(self._members.items(), loaded, strict=True):
            for name in saved.slots:
                if (here := self._pattern_of(name)) != pattern:
                    own, other = (each._hyper.optimizer for each in (one, self._members[here]))
                    raise StateError(
                        f"{name!r} was stepped by the optimizer of {pattern!r}, {own}, and here it is by that of "
                        f"{here!r}, {other}. Make it with the patterns that it was saved with."
                    )
        for one, each in zip(self._members.values(), loaded, strict=True):
            one._take_over(each)
        self._skipped = skipped
        self._routes.clear()

    def __repr__(self) -> str:
        members = ", ".join(f"{pattern!r}: {one!r}" for pattern, one in self._members.items())
        bound = "" if self.max_grad_norm is None else f", max_grad_norm={self.max_grad_norm!r}"
        return f"layerwise.numpy.Mixed({{{members}}}{bound})"


def _check(optimizers: Any) -> None:
    if not isinstance(optimizers, Mapping) or not optimizers:
        raise HyperparameterError(
            sentence("optimizers", "a mapping from names or patterns to optimizers", optimizers, WAY_OUT)
        )
    for pattern, one in optimizers.items():
        argument = f"optimizers[{pattern!r}]"
        if not isinstance(one, Optimizer):
            raise HyperparameterError(sentence(argument, "an optimizer of layerwise.numpy", one, WAY_OUT))
        if sum(one is other for other in optimizers.values()) > 1:
            raise HyperparameterError(
                sentence(argument, "an optimizer of its own", one, "Make one for each pattern; each keeps its state.")
            )
        for option in OF_ALL:
            if (value := getattr(one, option, None)) not in (None, False, 0):
                way_out = f"Pass {option} to Mixed: it is of all of them."
                raise ContradictionError(sentence(f"{argument}.{option}", "left out", value, way_out))


def _apart(state: Any, members: int) -> tuple[list[dict[str, Any]], int]:
    if not isinstance(state, Mapping) or str(state.get("optimizer")) != "Mixed":
        found = state.get("optimizer", "nothing known") if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"the state is of {found}, not of Mixed. {SAVED}")
    counts = {key: held(key, state, COUNT) for key in ("members", "skipped")}
    if counts["members"] != members:
        raise StateError(
            f"the state is of {counts['members']} optimizers, and this Mixed has {members}. Make it with the "
            "optimizers that it was saved with."
        )
    parts: list[dict[str, Any]] = [{} for _ in range(members)]
    for key, value in state.items():
        number, _, own = str(key).partition(".")
        if own and number.isdecimal() and int(number) < members:
            parts[int(number)][own] = value
        elif key not in ("optimizer", *counts):
            raise StateError(f"the state has the unknown key {key!r}. {SAVED}")
    return parts, counts["skipped"]
