"""The common base of all optimizers in the Paddle API."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import paddle
from paddle.base import core
from paddle.base.dygraph.base import in_to_static_mode
from paddle.base.framework import in_pir_mode
from paddle.optimizer.lr import LRScheduler

from layerwise.catalog.presets import Like
from layerwise.core.first_step import WaysOut, warn_of_first_steps
from layerwise.core.library import EPSILON, LOW
from layerwise.core.lock import StepLock
from layerwise.core.plan import Plan
from layerwise.core.slots import PlannedTensor, Slots, StepScalars, TensorsToStep
from layerwise.engines import Candidate, choose_engines
from layerwise.engines.compiled import candidate, signals_wait
from layerwise.engines.rule import RuleEngine
from layerwise.errors import EngineError, HyperparameterError, ParameterError, ScheduledError, sentence
from layerwise.layout.blocks import as_blocks
from layerwise.layout.pieces import lay_out
from layerwise.options import checks
from layerwise.options.by_name import ByName, check_matched
from layerwise.options.settings import Hyper
from layerwise.paddle import _state
from layerwise.paddle._append import ParameterStep as InProgram
from layerwise.paddle._arrays import (
    TENSORS,
    Arrays,
    Tensor,
    all_finite,
    check_apart,
    check_gradient,
    check_loss,
    check_parameter,
    dense,
    dtype_name,
    fast_product_dtype,
    is_same,
    listed,
    shape_of,
)
from layerwise.paddle._checkpoints import Checkpoints
from layerwise.paddle._groups import (
    Group,
    Settings,
    bounds_of_clip,
    check_clip,
    groups_of,
    of_program,
    prepared_by_paddle,
    rates_of,
    register,
    settings_of,
    tensors_to_numbers,
)
from layerwise.paddle._spelling import RATE, as_rate, decay_argument, joined, preset
from layerwise.paddle._static import Graph, firsts_of, gradient_stops, trainable
from layerwise.storage.options import PLAIN, RequestedStorage

LIBRARY = Arrays()
ENGINES = (candidate(), Candidate("rule", RuleEngine(LIBRARY, stack_size=1 << 12, matrix_size=1 << 15)))
WAYS_OUT = WaysOut(
    "Exempt them from the ratio, such as with exclude_from_weight_decay_fn and adapt='decayed'.",
    "Pass multi_precision=True.",
    "Keep their ratio with adapt=True, or give their group a learning_rate (a factor) of 0.001.",
    "Step them with AdamW, in an optimizer of its own with parameters=[…].",
    'Give each output a rate of its own with blocks={"linear_*.w_0": Blocks("each", axis=1), "embedding_*": "each"}.',
)
PEAKS = ("base_lr", "end_lr", "max_lr")  # schedulers may start with a smaller rate
Pairs = Sequence[tuple[Tensor, Tensor]]


# When paddle.jit.to_static compiles the bytecode of a function around a step, it leaves Paddle's own frames to Python,
# and ours with this.
if hasattr(core, "eval_frame_skip_file_prefix"):
    core.eval_frame_skip_file_prefix((f"{Path(__file__).parents[1]}{os.sep}",))


def _in_static() -> bool:
    """Return True in the static graph; raise where a step is not possible."""
    if in_to_static_mode():
        raise EngineError(
            "an optimizer cannot step inside paddle.jit.to_static. Compile only the model, and call step() outside."
        )
    if paddle.in_dynamic_mode():
        return False
    if not in_pir_mode():
        raise EngineError("layerwise.paddle needs Paddle's new program format (PIR). Leave FLAGS_enable_pir_api at 1.")
    return True


class Optimizer(Checkpoints, paddle.optimizer.Optimizer, Like):  # type: ignore[misc]  # Paddle is not there for every checker
    """A `paddle.optimizer.Optimizer` that carries out a rule."""

    _rule: ModuleType
    _hyper: type[Hyper]
    # Paddle's own attributes, which its wrappers read and write.
    _dtype: paddle.dtype | None
    _learning_rate: float | LRScheduler
    _master_weights: dict[str, Tensor]

    def __init__(self, given: Mapping[str, object]) -> None:
        # No docstring, because the classes would inherit it; `given` has every argument by name.
        self._graph = Graph() if _in_static() else None
        given = tensors_to_numbers(given)
        rate = given["learning_rate"]
        lr = as_rate(rate()) if isinstance(rate, LRScheduler) else rate
        self._is_open = self._graph is not None and given["parameters"] is None  # to all parameters of the program
        self._groups = [of_program(self._hyper, given, lr)] if self._is_open else groups_of(self._hyper, given, lr)
        self._by_name = ByName("blocks", given["blocks"], None, as_blocks)
        self._skip_nonfinite = checks.flag("skip_nonfinite", given["skip_nonfinite"])
        self._engines = choose_engines(given["engine"], ENGINES if self._graph is None else ENGINES[1:])
        multi_precision = checks.flag("multi_precision", given["multi_precision"])
        self._members = [p for group in self._groups for p in group.params]
        in_dicts = any(group.given for group in self._groups)
        parameters: list[Any] = [dict(group.given) for group in self._groups] if in_dicts else self._members
        if not self._is_open:
            check_matched("blocks", self._by_name.patterns, [p.name for p in self._members])
        super().__init__(
            rate if isinstance(rate, LRScheduler) else float(self._groups[0].h.lr),
            None if self._is_open else parameters,
            None,
            given["grad_clip"],
            given["name"],
        )
        self._multi_precision = multi_precision
        self._tensors, self._one_at_a_time = Slots(LIBRARY), StepLock()
        self._planned_with: Any = None  # wrappers may have set these when the settings were made
        self._settings: dict[str, Hyper] = {}  # of each parameter by its name
        self._by_paddle: list[Group] = []  # groups whose gradients Paddle prepares

    def _add_param_group(self, param_group: Settings) -> None:
        """Add a group to Paddle's own list."""
        group = self._groups[len(self._param_groups)]
        register(group, decay_argument(self._hyper) != "weight_decay")
        self._param_groups.append({**group.given, "params": group.params, "grad_clip": group.clip})

    @classmethod
    def _like(cls, name: str, given: Mapping[str, object]) -> Settings:
        return joined(preset(name), given)

    # ---- the step

    def step(self) -> None:
        """Step every parameter that has a gradient: all, or none if one of them cannot be."""
        self._check_mode()
        if self._graph is not None:
            raise EngineError(
                "step() is for the dynamic graph. In the static graph, minimize(loss) adds the step to the program, "
                "and each run of an Executor performs it."
            )
        self._take([(p, g) for p, g in zip(self._members, _gradients(self._members), strict=True) if g is not None])

    def minimize(
        self, loss: object, startup_program: object = None, parameters: object = None, no_grad_set: object = None
    ) -> tuple[list[paddle.pir.Operation], list[tuple[Tensor, Tensor]]]:
        """Step the parameters, or those given here, except those in `no_grad_set`, after `loss.backward()`.

        As in Paddle's optimizers, the result is an empty list, and a list of parameters with their gradients. In the
        static graph this adds the backward pass and the step to the program, and the first list has its operations.
        """
        pairs = self.backward(loss, startup_program, parameters, no_grad_set)
        return self._apply_optimize(loss, startup_program, pairs), pairs

    def backward(
        self,
        loss: object,
        startup_program: object = None,
        parameters: object = None,
        no_grad_set: object = None,
        callbacks: object = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Return pairs of parameters and gradients for `apply_gradients`: those given here, or all with a gradient,
        except those in `no_grad_set`. Both arguments hold parameters or their names.
        """
        self._check_mode()
        check_loss(loss)
        known = trainable(loss) if self._is_open else self._members
        some = self._some(parameters, known)
        others = gradient_stops(no_grad_set, known) if self._graph is not None else []
        stops = [one for one in listed(no_grad_set) if not any(one is other for other in others)]
        left_out = {p.name for p in self._some(stops, known)}
        params = [p for p in some or known if p.name not in left_out]
        if self._graph is not None:
            given = super().backward(loss, startup_program, params, {*others}, callbacks) if params else []
            return cast("list[tuple[Tensor, Tensor]]", given)
        grads = core.eager.get_all_grads(params)
        return [(p, g) for p, g in zip(params, grads, strict=True) if g is not None]

    def apply_gradients(self, params_grads: Pairs) -> list[paddle.pir.Operation]:
        """Step these parameters with these gradients; with None a parameter stays unchanged.

        In the static graph this adds the step to the program, and returns its operations.
        """
        self._check_mode()
        known, pairs = {p.name for p in self._members}, list(params_grads)
        seen: set[str] = set()
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], TENSORS):
                shown = type(pair).__name__
                raise ParameterError(
                    f"`params_grads` must be pairs of a parameter and its gradient, but one is {shown}. Pass what "
                    "backward() returned."
                )
            name = pair[0].name
            if name in seen or not (self._is_open or name in known):
                raise ParameterError(
                    f"{name} is not one of this optimizer's parameters, or is listed twice. Pass each once."
                )
            seen.add(name)
        pairs = [(p, g) for p, g in pairs if g is not None and not p.stop_gradient]
        if self._graph is not None:
            return self._append(self._graph, pairs) if pairs else []
        self._take(pairs)
        return []

    def _apply_optimize(
        self, loss: Any, startup_program: Any, params_grads: Any, param_group_idx: int = 0
    ) -> list[paddle.pir.Operation]:
        """Do the same for Paddle's wrappers of optimizers."""
        pairs = params_grads["params"] if isinstance(params_grads, dict) else params_grads
        if self._graph is None:
            return self.apply_gradients(pairs)
        with paddle.static.program_guard(loss.block.program, startup_program):
            return self.apply_gradients(pairs)

    def _check_mode(self) -> None:
        if (static := _in_static()) != (self._graph is not None):
            made, now = ("dynamic", "static") if static else ("static", "dynamic")
            raise EngineError(
                f"the optimizer was created in the {made} graph, but this is the {now} graph. Create another one for "
                "it; the state of one loads into the other."
            )

    def _some(self, which: object, known: Sequence[Tensor]) -> list[Tensor]:
        """Return parameters, given themselves or by name."""
        by_name, found = {p.name: p for p in known}, []
        for one in listed(which):
            name = one.name if isinstance(one, TENSORS) else one
            p = by_name.get(name) if isinstance(name, str) else None
            if p is None or not (isinstance(one, str) or is_same(one, p)):
                raise ParameterError(
                    f"{name!r} is not one of this optimizer's parameters. Pass its tensors, or their names."
                )
            found.append(p)
        return found

    def _append(self, graph: Graph, pairs: Pairs) -> list[paddle.pir.Operation]:
        """Add a step of these parameters to their program."""
        program, startup = pairs[0][0].block.program, paddle.static.default_startup_program()
        for p, g in pairs:
            check_parameter(p)
            check_gradient(p, g)
        # The appended operations compute in the dtypes of a step, whatever the model's dtypes are.
        with paddle.static.program_guard(program), paddle.amp.auto_cast(enable=False):
            self._adopt([p for p, _ in pairs])
            self._heed_wrappers()
            plans = [self._plan_of(p, self._settings[p.name]) for p, _ in pairs]
            graph.begin(program)
            skip = graph.skip(
                self._get_auxiliary_var("found_inf"), [g for _, g in pairs] if self._skip_nonfinite else []
            )
            grads = self._prepared(pairs) if self._by_paddle else [g for _, g in pairs]
            self._dtype = pairs[0][0].dtype if self._dtype is None else self._dtype  # Paddle's name for the rate
            self._create_global_learning_rate()
            rates = rates_of([p for p, _ in pairs], self._global_learning_rate())
            low = [self._multi_precision and dtype_name(p) in LOW for p, _ in pairs]
            dues = [
                InProgram(p, g, plan, own, self._create_master_weight(p) if is_low else None)
                for (p, _), g, plan, own, is_low in zip(pairs, grads, plans, rates, low, strict=True)
            ]
            new = [due for due in dues if due.p.name not in graph]
            operations = graph.append(dues, self._names, skip)
        warn_of_first_steps(firsts_of(new, startup, self._peak(self.get_lr()), self._by_name.is_given), WAYS_OUT)
        return operations

    def _adopt(self, params: Sequence[Tensor]) -> None:
        """Add parameters of the program, if the optimizer is open to all of them."""
        known = {p.name for p in self._members}
        if new := [p for p in params if p.name not in known]:
            names = [*known, *(p.name for p in new)]
            check_matched("blocks", self._by_name.patterns, names)
            self._members += new
            self._groups[0].params.extend(new)
            self._planned_with = None

    def _take(self, pairs: Pairs) -> None:
        """Step parameters together: all, or none if one of them cannot be."""
        pairs = [(p, dense(g) if g.is_selected_rows() else g) for p, g in pairs if not p.stop_gradient]
        params, grads = [p for p, _ in pairs], [g for _, g in pairs]
        with self._one_at_a_time, signals_wait, paddle.no_grad():
            if self._overflowed() or (self._skip_nonfinite and not _is_finite(grads)):
                self._tensors.skipped += 1
                return
            if not params:
                return
            self._heed_wrappers()
            given = self._prepared(pairs) if self._by_paddle else grads
            api, due = PaddleApi(self, params), TensorsToStep([p.name for p in params], params, given)
            firsts = self._tensors.step_tensors(api, due, self._engines, self._tensors.reusable_step(api, due))
            self._note_masters()
            if firsts:
                warn_of_first_steps(firsts, WAYS_OUT)

    def _overflowed(self) -> bool:
        """Return whether a GradScaler has found overflowed gradients, and record for it that this was read."""
        found = self._get_auxiliary_var("found_inf")
        if not isinstance(found, paddle.Tensor):  # nothing, or the answer of an earlier step
            return False
        overflowed = bool(found)
        self._set_auxiliary_var("found_inf", overflowed)
        return overflowed

    def _peak(self, lr: float) -> float:
        """Return the highest rate that the schedule names, for a parameter whose rate is now `lr`."""
        schedule, now = self._learning_rate, self.get_lr()
        numbers = (getattr(schedule, key, None) for key in PEAKS)
        factor = lr / now if now else 1.0  # the parameter's own factor
        return max([lr, *(factor * x for x in numbers if isinstance(x, (int, float)))])

    def _plan_of(self, p: Tensor, h: Hyper) -> Plan:
        shape, dtype = shape_of(p), dtype_name(p)
        layout = lay_out(
            p.name,
            self._rule,
            h.with_fast_dtype(fast_product_dtype(dtype)),
            shape,
            self._by_name(p.name),
            EPSILON[dtype],
        )
        return Plan.of(p.name, self._rule, h, shape, layout)

    def _note_masters(self) -> None:
        """Store the master weights where Paddle's wrappers look for them, under Paddle's names."""
        if not (self._multi_precision or self._master_weights):
            return
        masters = _state.masters_of(self._tensors.slots)
        for p in self._members:
            if p.name in masters and p.name not in self._master_weights:
                _state.rename_master(p, masters[p.name])
        self._master_weights = masters

    def _heed_wrappers(self) -> None:
        """Create the settings, also again if a wrapper, such as fleet or paddle.amp.decorate, has changed them."""
        in_dicts = bool(self._param_groups) and isinstance(self._param_groups[0], dict)
        clips = [own["grad_clip"] for own in self._param_groups] if in_dicts else [self._grad_clip]
        bounds = [bounds_of_clip(clip) for clip in clips]  # it may have been set on the same clip
        if self._planned_with == (seen := (self._multi_precision, clips, bounds)):
            return
        groups = [group._replace(clip=clip) for group, clip in zip(self._groups, clips, strict=True)]
        for group in groups:
            check_clip(group.clip, group.h)
        self._settings, self._by_paddle = settings_of(groups)
        self._groups, self._planned_with = groups, seen
        self._tensors.drop_steps()

    def _prepared(self, pairs: Pairs) -> list[Tensor]:
        """Return the gradients for the rule; Paddle prepares them if no option of the rule does the same."""
        found = {p.name: (p, g) for p, g in pairs}
        for group in self._by_paddle:
            own = [found[p.name] for p in group.params if p.name in found]
            for p, g in own:
                check_gradient(p, g)
            found |= {p.name: (p, g) for (p, _), g in zip(own, prepared_by_paddle(self, group, own), strict=True)}
        return [g for _, g in found.values()]

    # ---- attributes

    @property
    def skipped(self) -> int:
        """The number of steps skipped because of nan or inf."""
        return self._tensors.skipped if self._graph is None else self._graph.skipped

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return len(self._members)

    def stats(self) -> dict[str, dict[str, Tensor]]:
        """Return the measurements of each parameter's last step by its name: numbers, or with blocks an array.

        They are `weight_norm`, `update_norm`, both also as `_rms`, and `trust_ratio`. In the static graph they are
        variables, for the `fetch_list` of a run.
        """
        return self._tensors.stats() if self._graph is None else self._graph.stats()

    def get_lr(self) -> float:
        """Return the learning rate: the number, or the scheduler's present value."""
        rate = self._learning_rate
        return float(rate() if isinstance(rate, LRScheduler) else rate)

    def set_lr(self, value: float) -> None:
        """Set the learning rate; raise if it follows a scheduler."""
        value = RATE("value", value, "Pass a number such as 1e-3.")
        if isinstance(self._learning_rate, LRScheduler):
            raise ScheduledError(
                f"the learning rate follows a scheduler, which {value!r} would end. Change the scheduler, or replace "
                "it with set_lr_scheduler."
            )
        if self._graph is not None and self._graph.program is not None:
            self._graph.set_rate(self._global_learning_rate(self._graph.program), value)
        self._learning_rate = value

    def set_lr_scheduler(self, scheduler: object) -> None:
        """Let the learning rate follow this scheduler from now on."""
        if not isinstance(scheduler, LRScheduler):
            raise HyperparameterError(
                sentence("scheduler", "an LRScheduler of Paddle", scheduler, "set_lr takes a number.")
            )
        if self._graph is not None and self._graph.program is not None:
            raise ScheduledError(
                "the program already has its learning rate. Pass the scheduler as `learning_rate`, or set it before "
                "minimize()."
            )
        as_rate(scheduler())
        self._learning_rate = scheduler

    def __repr__(self) -> str:
        return f"layerwise.paddle.{type(self).__name__}(learning_rate={self.get_lr()}, {len(self._members)} parameters)"


class PaddleApi:
    """The properties of an optimizer's parameters, in a step of these."""

    keeps_weights = True

    def __init__(self, optimizer: Optimizer, params: Sequence[Tensor]) -> None:
        self.optimizer, self.params = optimizer, params

    @property
    def has_blocks(self) -> bool:
        return bool(self.optimizer._by_name.is_given)

    def step_dependencies(self, due: TensorsToStep) -> list[int]:
        return list(map(id, due.params))

    def plan_tensors(self, due: TensorsToStep) -> list[PlannedTensor]:
        want = RequestedStorage(master=True) if self.optimizer._multi_precision else PLAIN
        plans = [self._plan(name, p) for name, p in zip(due.names, due.params, strict=True)]
        for p, g in zip(due.params, due.grads, strict=True):
            check_gradient(p, g)
        check_apart(due.params)
        return [PlannedTensor(plan, want) for plan in plans]

    def _plan(self, name: Any, p: Tensor) -> Plan:
        check_parameter(p)
        plan: Plan = self.optimizer._plan_of(p, self.optimizer._settings[name])
        slot = self.optimizer._tensors.slots.get(name)
        if slot is not None:
            if any(shape_of(slot.arrays[field]) != plan.state_shapes[field] for field in plan.fields):
                raise ParameterError(
                    f"the shape of {name} has changed since its state was created. Create a new optimizer."
                )
            _state.check_not_freed(name, slot)
        return plan

    def step_scalars(self, planned: Sequence[PlannedTensor], counts: Sequence[int]) -> StepScalars:
        lr = rates_of(self.params, as_rate(self.optimizer.get_lr()))
        return StepScalars([n + 1 for n in counts], lr, [one.plan.h.weight_decay for one in planned])

    def largest_lr(self, planned: PlannedTensor, lr: float) -> float:
        return self.optimizer._peak(lr)


def _gradients(params: list[Tensor]) -> list[Tensor | None]:
    """Return the gradient of each parameter; Paddle's `main_grad` takes precedence, as in its optimizers."""
    found: list[Tensor | None] = core.eager.get_all_grads(params)
    for i, p in enumerate(params):
        main = getattr(p, "main_grad", None)
        if main is not None:
            found[i] = main
    return found


def _is_finite(grads: Sequence[Tensor]) -> bool:
    found = all_finite(grads)
    return found is None or bool(found)
