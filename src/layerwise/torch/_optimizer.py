"""What `Lamb`, `Lars` and `Adafactor` have in common as PyTorch optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from layerwise import checks
from layerwise.blocks import Blocks, as_blocks
from layerwise.engines import Candidate, Job, choose
from layerwise.engines.native import candidate
from layerwise.engines.rule import RuleEngine
from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, sentence
from layerwise.hyper import Settings
from layerwise.layout import Layout, lay_out
from layerwise.names import ByName
from layerwise.rules.asks import Now
from layerwise.telemetry import summary
from layerwise.torch import _loading, _state, _tensors
from layerwise.torch._settings import Groups, named

# A step makes a dozen tensors of the size of what it works on. PyTorch returns those of large tensors to the system
# and asks for them anew, which costs more than the arithmetic; slices of this size it keeps.
SLICE = 1 << 19
RULE = RuleEngine(torch, _tensors.read, _tensors.write, SLICE)
ENGINES = (candidate(RULE, _tensors.written), Candidate("rule", RULE))
DIFFERENTIABLE = RuleEngine(torch, _tensors.read_apart, _tensors.write)


class Due(NamedTuple):
    """A parameter whose turn it is."""

    p: Tensor
    g: Tensor
    group: dict[str, Any]
    h: Settings
    name: str


@dataclass(frozen=True)
class Plan:
    """How one parameter is stepped, and what that was planned for."""

    h: Settings
    shape: torch.Size
    dtype: torch.dtype
    layout: Layout
    state_shapes: dict[str, tuple[int, ...] | None]


def _check_blocks(argument: str, value: Any) -> Blocks:
    return as_blocks(value, argument)


class Optimizer(torch.optim.Optimizer):
    """A `torch.optim.Optimizer` that carries out a rule."""

    _rule: Any
    _hyper: type[Settings]
    _step_supports_amp_scaling = True

    def __init__(self, params: Any, given: Mapping[str, Any]) -> None:
        """`given` holds every argument of the subclass by name."""
        self._groups = Groups(self._hyper, given["differentiable"])
        defaults = {name: given[name] for name in self._groups.known}
        self._by_name = ByName("blocks", given["blocks"], None, _check_blocks)
        self._skip_nonfinite = checks.FLAG("skip_nonfinite", given["skip_nonfinite"], "Pass True or False.")
        self._engine = _engine_name(given["fused"])
        self._forget_plans()
        self._when_zeroed: list[Callable[[], None]] = []
        self.skipped: int | Tensor = 0
        self._groups.check(defaults)
        super().__init__(params, defaults)

    def _forget_plans(self) -> None:
        self._plans: dict[Tensor, Plan] = {}
        self._measured: dict[Tensor, tuple[str, list[dict[str, Any]], Layout]] = {}

    # What torch's own __getstate__ leaves out is what is ours.
    def __getstate__(self) -> dict[str, Any]:
        own = {key: self.__dict__[key] for key in ("_by_name", "_skip_nonfinite", "_engine", "_groups", "skipped")}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._when_zeroed = []
        self._forget_plans()
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    # ---- groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; what is not said is as for the others."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        self._groups.check_keys(param_group)
        self._groups.check({**self.defaults, **param_group})
        # A copy, because torch fills a group with defaults, which are not the caller's to see.
        super().add_param_group(dict(param_group))
        try:
            self._check_members(self.param_groups[-1], len(self.param_groups) - 1)
        except Exception:
            self.param_groups.pop()
            raise

    def _check_members(self, group: Mapping[str, Any], number: int) -> None:
        for p, name in named(group, number):
            _tensors.check_parameter(name, p)
        if isinstance(self._by_name.given, Mapping) and "param_names" not in group:
            raise HyperparameterError(
                sentence("blocks", "None for parameters without names", self._by_name.given, "Pass named_parameters().")
            )

    # ---- the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every parameter that has a gradient; `closure` reevaluates the model and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.step_due(list(self._due()))
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        super().zero_grad(set_to_none)
        for forget in self._when_zeroed:
            forget()

    def settings_of(self, group: Mapping[str, Any]) -> Settings:
        """The group's hyperparameters, if all it says is right."""
        return self._groups.check(group)

    def _due(self) -> Iterator[Due]:
        settings = [self.settings_of(group) for group in self.param_groups]
        if any(h.asks_of_model for h in settings):
            settings = [self._groups.counted(h) for h in settings]
        for i, (group, h) in enumerate(zip(self.param_groups, settings, strict=True)):
            for p, name in named(group, i):
                if p.grad is not None:
                    yield self.due(p, p.grad, group, h, name)

    def due(self, p: Tensor, g: Tensor, group: dict[str, Any], h: Settings, name: str) -> Due:
        """A parameter and its gradient, checked."""
        _tensors.check_parameter(name, p)
        _tensors.check_gradient(name, p, g)
        if group["differentiable"] and p.is_leaf and p.requires_grad:
            raise ParameterError(
                f"{name} is a leaf that requires grad, which a differentiable step cannot write to. Step a clone of it."
            )
        return Due(p, g, group, h, name)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # its tracer loses count of rules that wait
    def step_due(self, due: Sequence[Due]) -> None:
        """Step these parameters together: all, or none if one of them cannot be."""
        if not due:
            return
        plans = [self._plan(one) for one in due]
        with torch.set_grad_enabled(self._groups.differentiable):
            skip = _to_skip([one.g for one in due], getattr(self, "found_inf", None), self._skip_nonfinite)
            if isinstance(skip, bool):
                self.skipped = self.skipped + 1
                return
            jobs = [self._jobs(one, plan, skip) for one, plan in zip(due, plans, strict=True)]
            engine = DIFFERENTIABLE if self._groups.differentiable else choose(self._engine, ENGINES)
            measured = iter(engine.step([job for each in jobs for job in each]))
            for one, plan, each in zip(due, plans, jobs, strict=True):
                self._measured[one.p] = one.name, [next(measured) for _ in each], plan.layout
                _state.finish(one.p, self.state[one.p], skip)
            if skip is not None:
                self.skipped = self.skipped + skip.long()

    def _plan(self, one: Due) -> Plan:
        plan = self._plans.get(one.p)
        if plan is not None and plan.shape != one.p.shape:
            raise ParameterError(
                f"{one.name} had the shape {tuple(plan.shape)}, now {tuple(one.p.shape)}. Make the optimizer anew."
            )
        if plan is None or plan.h is not one.h or plan.dtype != one.p.dtype:
            plan = self.plan_for(one.p, one.h, one.name)
            _state.check_shapes(one.name, self.state.get(one.p, {}), plan.state_shapes)
            self._plans[one.p] = plan
        return plan

    def plan_for(self, p: Tensor, h: Settings, name: str) -> Plan:
        """How this parameter is to be stepped with these settings."""
        blocks = self._by_name(name)
        layout = lay_out(name, self._rule, h, tuple(p.shape), blocks, torch.finfo(p.dtype).eps)
        shapes = dict(zip(self._rule.State._fields, layout.state_shapes(), strict=True))
        return Plan(h, p.shape, p.dtype, layout, shapes)

    def _jobs(self, one: Due, plan: Plan, skip: Tensor | None) -> list[Job]:
        group, on_device = one.group, one.group["capturable"] or skip is not None
        dtypes = {key: getattr(torch, dtype) for key, dtype in plan.h.state_dtypes().items()}
        state = self.state[one.p]
        _state.ready(state, one.p, plan.state_shapes, dtypes, group["master_weights"], on_device)
        if group["differentiable"]:
            _state.apart(state)
        scale = getattr(self, "grad_scale", None)
        now = Now(
            t=state["step"] + 1 if on_device else int(state["step"]) + 1,
            lr=1.0 if group["lr"] is None else _scalar(group["lr"]),
            weight_decay=_scalar(group["weight_decay"]),
            g_scale=1.0 if scale is None else _scalar(scale),
        )
        stored = [state.get(key) if shape is not None else None for key, shape in plan.state_shapes.items()]
        p = state.get("master", one.p)
        return [
            Job(
                rule=self._rule,
                h=piece.h,
                now=now,
                p=piece.view(p),
                g=piece.view(one.g),
                state=self._rule.State(*(None if s is None else piece.view(s) for s in stored)),
                block_dims=piece.block_dims,
                skip=skip,
            )
            for piece in plan.layout.pieces
        ]

    # ---- what people ask

    def get_lr(self) -> Any:
        """The learning rate, or a list of one for each group where they differ."""
        rates = [group["lr"] for group in self.param_groups]
        return rates[0] if all(rate is rates[0] or rate == rates[0] for rate in rates) else rates

    def set_lr(self, lr: float | Tensor) -> None:
        """Set the learning rate of every group."""
        if any("initial_lr" in group for group in self.param_groups):
            raise ContradictionError(
                f"`lr` follows a scheduler, which would overwrite {lr!r} at its next step. Change the scheduler, "
                "or drop it and make the optimizer anew."
            )
        for group in self.param_groups:
            self._groups.check({**group, "lr": lr})
        for group in self.param_groups:
            group["lr"] = lr

    @property
    def num_parameters(self) -> int:
        """How many parameters there are, counted as tensors."""
        return sum(len(group["params"]) for group in self.param_groups)

    def stats(self) -> dict[str, dict[str, Any]]:
        """What the last step of each parameter measured, by name: numbers, or with blocks an array of one a block.

        `weight_norm`, `update_norm`, both also as `_rms`, and `trust_ratio`. Reading them waits for the device;
        taking the step did not.
        """
        found: dict[str, dict[str, Any]] = {}
        for name, measured, layout in self._measured.values():
            # Two models' parameters may have the same name.
            copies = sum(other == name or other.startswith(f"{name} (") for other in found)
            found[f"{name} ({copies + 1})" if copies else name] = summary(_on_host(measured), layout.pieces)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a checkpoint, or raise StateError and stay as it was.

        State keeps the dtype it was saved with. Rates that schedulers move (lr, weight_decay, betas, momentum) come
        from the checkpoint; every other option stays as it was given here, and a warning names those that differ.
        """
        _loading.load(self, super().load_state_dict, state_dict)
        self._forget_plans()


def _scalar(value: float | Tensor) -> float | Tensor:
    return value.reshape(()) if isinstance(value, Tensor) else value


def _engine_name(fused: Any) -> str | None:
    checks.one_of(None, True, False)("fused", fused, "None takes the fastest engine, True insists on a fused one.")
    if fused:
        choose("cpu", ENGINES)
    return {None: None, True: "cpu", False: "rule"}[fused]


def _to_skip(grads: Sequence[Tensor], found_inf: Tensor | None, skip_nonfinite: bool) -> Tensor | Literal[True] | None:
    """Whether to skip the step: True or None where that costs nothing to know, else a tensor on the device."""
    found = [] if found_inf is None else [found_inf.reshape(()) > 0]
    if skip_nonfinite:
        found += [~torch.isfinite(g).all() for g in grads]
    if not found:
        return None
    device = next((f.device for f in found if f.device.type != "cpu"), found[0].device)
    skip = torch.stack([f.to(device) for f in found]).any()
    if device.type != "cpu":
        return skip
    return True if bool(skip) else None


def _on_host(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: v.detach().cpu().double().numpy() if isinstance(v, Tensor) else v for k, v in m.items()} for m in measured
    ]
