"""The common part of all optimizers as Paddle has them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import paddle
from paddle.base import core
from paddle.base.dygraph.base import in_to_static_mode
from paddle.optimizer.lr import LRScheduler

from layerwise import checks
from layerwise.blocks import as_blocks
from layerwise.core.library import EPSILON, LOW
from layerwise.core.plan import Plan
from layerwise.core.slot import Slot
from layerwise.core.steps import Steps
from layerwise.core.tensors import Asked, Due, Numbers, Planned, Tensors
from layerwise.engines import Candidate, choose
from layerwise.engines.compiled import candidate, signals_wait
from layerwise.engines.rule import RuleEngine
from layerwise.errors import (
    EngineError,
    HyperparameterError,
    ParameterError,
    ScheduledError,
    StateError,
    sentence,
    warn,
)
from layerwise.first import WaysOut, warn_of
from layerwise.hyper import Hyper
from layerwise.layout import lay_out
from layerwise.names import ByName, check_matched, few
from layerwise.paddle import _state
from layerwise.paddle._arrays import (
    Arrays,
    Tensor,
    check_apart,
    check_gradient,
    check_parameter,
    dtype_name,
    is_finite,
    shape_of,
)
from layerwise.paddle._groups import (
    Group,
    bounds_of_clip,
    check_clip,
    groups_of,
    prepared_by_paddle,
    rate_of,
    register,
    settings_of,
)
from layerwise.paddle._spelling import RATE, as_rate, decay_argument, joined, preset
from layerwise.paddle._state import BESIDE, MASTERS, SCHEDULER, Names
from layerwise.storage.options import PLAIN, Wanted
from layerwise.storage.weights import MASTER
from layerwise.threads import OneAtATime
from layerwise.variants import Like

LIBRARY = Arrays()
ENGINES = (candidate(), Candidate("rule", RuleEngine(LIBRARY, stack_size=1 << 12)))
WAYS_OUT = WaysOut(
    "Exempt them from it, such as by exclude_from_weight_decay_fn with adapt='decayed'.",
    "Pass multi_precision=True.",
    "Leave them their ratio by adapt=True, or give their group the learning_rate 0.001, a factor.",
)
PEAKS = ("base_lr", "end_lr", "max_lr")  # of schedulers, which may begin with less
Pairs = Sequence[tuple[Tensor, Tensor]]


# Where a function around a step is compiled from bytecode (paddle.jit.to_static), that compiler leaves Paddle's own
# frames to Python, and by this ours.
if hasattr(core, "eval_frame_skip_file_prefix"):
    core.eval_frame_skip_file_prefix((f"{Path(__file__).parents[1]}{os.sep}",))


def _check_mode() -> None:
    if in_to_static_mode() or not paddle.in_dynamic_mode():
        raise EngineError(
            "layerwise.paddle steps in dynamic graph mode alone: call paddle.disable_static() and keep the step out of "
            "paddle.jit.to_static, or use Paddle's own optimizers there."
        )


class Optimizer(paddle.optimizer.Optimizer, Like):  # type: ignore[misc]  # Paddle is not there for every checker
    """A `paddle.optimizer.Optimizer` that carries out a rule."""

    _rule: Any
    _hyper: type[Hyper]
    # Paddle's own, which its wrappers read and write.
    _learning_rate: Any
    _master_weights: dict[str, Tensor]

    def __init__(self, given: Mapping[str, Any]) -> None:
        # No docstring, which the classes would inherit in place of theirs: `given` has every argument by name.
        _check_mode()
        given = dict(given)
        rate = given["learning_rate"]
        lr = as_rate(rate()) if isinstance(rate, LRScheduler) else rate
        self._groups = groups_of(self._hyper, given, lr)
        self._by_name = ByName("blocks", given["blocks"], None, as_blocks)
        self._skip_nonfinite = checks.FLAG("skip_nonfinite", given["skip_nonfinite"], "Pass True or False.")
        self._engines = choose(given["engine"], ENGINES)
        multi_precision = checks.FLAG("multi_precision", given["multi_precision"], "Pass True or False.")
        self._members = [p for group in self._groups for p in group.params]
        check_matched("blocks", self._by_name.patterns, [p.name for p in self._members])
        in_dicts = any(group.given for group in self._groups)
        parameters = [dict(group.given) for group in self._groups] if in_dicts else self._members
        super().__init__(
            rate if isinstance(rate, LRScheduler) else float(self._groups[0].h.lr),
            parameters,
            None,
            given["grad_clip"],
            given["name"],
        )
        self._multi_precision = multi_precision
        self._tensors, self._steps, self._one_at_a_time = Tensors(LIBRARY, keeps=True), Steps(), OneAtATime()
        self._planned_with: Any = None  # what wrappers may have set, when settings were made
        self._settings: dict[str, Any] = {}  # of each parameter by its name
        self._by_paddle: list[Group] = []  # those whose gradients Paddle prepares

    def _add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take over a group in Paddle's own list."""
        group = self._groups[len(self._param_groups)]
        register(group, decay_argument(self._hyper) != "weight_decay")
        self._param_groups.append({**group.given, "params": group.params, "grad_clip": group.clip})

    @classmethod
    def _like(cls, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return joined(preset(name), given)

    # ---- the step

    def step(self) -> None:
        """Step every parameter that has a gradient: all, or none if one of them cannot be."""
        _check_mode()
        self._take([(p, g) for p, g in zip(self._members, _gradients(self._members), strict=True) if g is not None])

    def minimize(
        self, loss: Any, startup_program: Any = None, parameters: Any = None, no_grad_set: Any = None
    ) -> tuple[list[Any], list[tuple[Tensor, Tensor]]]:
        """Step the parameters, or those given here, but not those in `no_grad_set`, after `loss.backward()`.

        As of Paddle's optimizers the result is an empty list, and a list of parameters with their gradients.
        """
        pairs = self.backward(loss, startup_program, parameters, no_grad_set)
        self._take(pairs)
        return [], pairs

    def backward(
        self,
        loss: Any,
        startup_program: Any = None,
        parameters: Any = None,
        no_grad_set: Any = None,
        callbacks: Any = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the parameters that have a gradient, each with it, for `apply_gradients`: all but those in
        `no_grad_set`, or of those given here. Both hold parameters or their names.
        """
        _check_mode()
        if not isinstance(loss, paddle.Tensor):
            shown = type(loss).__name__
            raise ParameterError(f"`loss` must be a tensor, but is {shown}. Pass the loss, after loss.backward().")
        some, left_out = self._some(parameters), {p.name for p in self._some(no_grad_set)}
        params = [p for p in some or self._members if p.name not in left_out]
        grads = core.eager.get_all_grads(params)
        return [(p, g) for p, g in zip(params, grads, strict=True) if g is not None]

    def _some(self, which: Any) -> list[Tensor]:
        known, found = {p.name: p for p in self._members}, []
        single = isinstance(which, (str, paddle.Tensor))
        for one in [which] if single else () if which is None else which:
            name = one.name if isinstance(one, paddle.Tensor) else one
            p = known.get(name) if isinstance(name, str) else None
            if p is None or not (isinstance(one, str) or one is p):
                raise ParameterError(
                    f"{name!r} is none of this optimizer's parameters. Pass tensors that it was made with, or their "
                    "names."
                )
            found.append(p)
        return found

    def apply_gradients(self, params_grads: Pairs) -> list[Any]:
        """Step these parameters with these gradients; None leaves one where it is."""
        _check_mode()
        known, pairs = {p.name for p in self._members}, list(params_grads)
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], paddle.Tensor):
                shown = type(pair).__name__
                raise ParameterError(
                    f"`params_grads` must be pairs of a parameter and its gradient, but one is {shown}. Pass what "
                    "backward() returned."
                )
            if pair[0].name not in known:
                raise ParameterError(
                    f"{pair[0].name} is none of this optimizer's parameters, or is there twice. Pass each once."
                )
            known.remove(pair[0].name)
        self._take(pairs)
        return []

    def _apply_optimize(
        self, loss: Any, startup_program: Any, params_grads: Any, param_group_idx: int = 0
    ) -> list[Any]:
        """Do the same where Paddle's wrappers of optimizers ask for it."""
        return self.apply_gradients(params_grads["params"] if isinstance(params_grads, dict) else params_grads)

    def _take(self, pairs: Pairs) -> None:
        """Step parameters together: all, or none if one of them cannot be."""
        pairs = [(p, g) for p, g in pairs if g is not None and not p.stop_gradient]
        params, grads = [p for p, _ in pairs], [g for _, g in pairs]
        with self._one_at_a_time, signals_wait, paddle.no_grad():
            if self._overflowed() or (self._skip_nonfinite and not is_finite(grads)):
                self._tensors.skipped += 1
                return
            if not params:
                return
            lr = as_rate(self.get_lr())
            rates = [rate_of(p, lr) for p in params]
            self._heed_wrappers()
            given = self._prepared(pairs) if self._by_paddle else grads

            def numbers(dues: Sequence[Due]) -> list[Numbers]:
                each = zip(dues, rates, strict=True)
                return [(due.slot.step + 1, rate, cast("Any", due.plan.h).weight_decay) for due, rate in each]

            def check() -> None:
                for p, g in zip(params, given, strict=True):
                    check_parameter(p)
                    check_gradient(p, g)
                check_apart(params)

            names = [p.name for p in params]
            asked = Asked(self._tensors, names, params, given, self._plan, numbers, self._peak, check)
            firsts = self._steps.take([asked], self._engines)
            self._note_masters()
            warn_of(firsts, WAYS_OUT)

    def _overflowed(self) -> bool:
        """Return whether a GradScaler has found that gradients overflowed, and note for it that this was heard."""
        found = self._get_auxiliary_var("found_inf")
        if not isinstance(found, paddle.Tensor):  # nothing, or an answer that was given in an earlier step
            return False
        overflowed = bool(found)
        self._set_auxiliary_var("found_inf", overflowed)
        return overflowed

    def _peak(self, due: Due, lr: float) -> float:
        schedule, now = self._learning_rate, self.get_lr()
        numbers = (getattr(schedule, key, None) for key in PEAKS)
        factor = lr / now if now else 1.0  # of the parameter's own
        return max([lr, *(factor * x for x in numbers if isinstance(x, (int, float)))])

    def _plan(self, name: Any, p: Tensor) -> Planned:
        check_parameter(p)
        plan, slot = self._plan_of(p, self._settings[name]), self._tensors.slots.get(name)
        if slot is not None:
            if any(shape_of(slot.arrays[field]) != plan.state_shapes[field] for field in plan.fields):
                raise ParameterError(f"{name} has another shape than its state was made for. Make a new optimizer.")
            _state.check_held(name, slot)
        return Planned(plan, Wanted(master=True) if self._multi_precision else PLAIN)

    def _plan_of(self, p: Tensor, h: Hyper) -> Plan:
        shape = shape_of(p)
        layout = lay_out(p.name, self._rule, h, shape, self._by_name(p.name), EPSILON[dtype_name(p)])
        return Plan.of(p.name, self._rule, h, shape, layout)

    def _note_masters(self) -> None:
        """Note the master weights where Paddle's wrappers look for them, with the names that Paddle gives them."""
        if not (self._multi_precision or self._master_weights):
            return
        masters = _state.masters_of(self._tensors.slots)
        for p in self._members:
            if p.name in masters and p.name not in self._master_weights:
                _state.named_master(p, masters[p.name])
        self._master_weights = masters

    def _heed_wrappers(self) -> None:
        """Make the settings, and again where a wrapper, such as fleet or paddle.amp.decorate, has set others."""
        in_dicts = isinstance(self._param_groups[0], dict)
        clips = [own["grad_clip"] for own in self._param_groups] if in_dicts else [self._grad_clip]
        bounds = [bounds_of_clip(clip) for clip in clips]  # which may have been set on the same clip
        if self._planned_with == (seen := (self._multi_precision, clips, bounds)):
            return
        groups = [group._replace(clip=clip) for group, clip in zip(self._groups, clips, strict=True)]
        for group in groups:
            check_clip(group.clip, group.h)
        self._settings, self._by_paddle = settings_of(groups)
        self._groups, self._planned_with = groups, seen
        self._tensors.forget()

    def _prepared(self, pairs: Pairs) -> list[Tensor]:
        """Return gradients as they go into the rule, where Paddle prepares what no option of the rule does."""
        found = {id(p): (p, g) for p, g in pairs}
        for group in self._by_paddle:
            own = [found[id(p)] for p in group.params if id(p) in found]
            for p, g in own:
                check_gradient(p, g)
            found |= {id(p): (p, g) for (p, _), g in zip(own, prepared_by_paddle(self, group, own), strict=True)}
        return [g for _, g in found.values()]

    # ---- what is asked and set

    @property
    def skipped(self) -> int:
        """The number of steps left out because of nan or inf."""
        return self._tensors.skipped

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return len(self._members)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the measurements of each parameter's last step by its name: numbers, or with blocks an array.

        They are `weight_norm`, `update_norm`, both also as `_rms`, and `trust_ratio`.
        """
        return self._tensors.stats()

    def get_lr(self) -> float:
        """Return the learning rate: the number, or what the scheduler says now."""
        rate = self._learning_rate
        return float(rate() if isinstance(rate, LRScheduler) else rate)

    def set_lr(self, value: float) -> None:
        """Set the learning rate, which no scheduler may have."""
        value = RATE("value", value, "Pass a number such as 1e-3.")
        if isinstance(self._learning_rate, LRScheduler):
            raise ScheduledError(
                f"the learning rate follows a scheduler, which {value!r} would end. Change the scheduler, or replace "
                "it by set_lr_scheduler."
            )
        self._learning_rate = value

    def set_lr_scheduler(self, scheduler: Any) -> None:
        """Let the learning rate follow this scheduler from now on."""
        if not isinstance(scheduler, LRScheduler):
            raise HyperparameterError(
                sentence("scheduler", "an LRScheduler of Paddle", scheduler, "set_lr takes a number.")
            )
        as_rate(scheduler())
        self._learning_rate = scheduler

    def clear_state(self, which: str | Tensor | None = None) -> None:
        """Forget the state of one parameter, given itself or by name, or of all: they begin again when next stepped."""
        self._tensors.clear(which.name if isinstance(which, paddle.Tensor) else which)
        self._master_weights = _state.masters_of(self._tensors.slots)

    # ---- checkpoints

    @property
    def _names(self) -> Names:
        return Names(self._hyper.optimizer, "" if self._name is None else f"{self._name}_")

    def state_dict(self) -> dict[str, Any]:
        """Return the state under the names that Paddle's optimizers give it, for paddle.save."""
        self._heed_wrappers()
        found = _state.dump(self._names, self._settings, self._tensors.slots)
        if isinstance(self._learning_rate, LRScheduler):
            found[SCHEDULER] = self._learning_rate.state_dict()
        return found

    def set_state_dict(self, state_dict: Any) -> None:
        """Take over a saved state, of this class or of Paddle's own; or raise StateError and stay as it was."""
        if not isinstance(state_dict, Mapping):
            shown = type(state_dict).__name__
            raise StateError(f"the state must be a dict, but is {shown}. Pass what state_dict() returned.")
        arrays = {key: x for key, x in state_dict.items() if key not in BESIDE}
        masters = state_dict.get(MASTERS)
        slots = self._loaded(arrays, {} if masters is None else masters)
        _state.load_scheduler(self._learning_rate, state_dict)
        self._tensors.begin(slots)
        self._master_weights = _state.masters_of(slots)

    load_state_dict = set_state_dict
    set_dict = set_state_dict

    def _loaded(self, arrays: Mapping[str, Any], masters: Any) -> dict[str, Slot]:
        known = {p.name: p for p in self._members}
        found = _state.by_parameter(self._names, self._rule.State._fields, known, arrays)
        if not isinstance(masters, Mapping) or not masters.keys() <= known.keys():
            shown = [*masters] if isinstance(masters, Mapping) else type(masters).__name__
            raise StateError(f"{MASTERS!r} must be a dict from names of parameters here, but is {shown}.")
        low = [p.name for p in self._members if dtype_name(p) in LOW] if self._multi_precision else []
        if dropped := [name for name in masters if name not in low]:
            warn(
                f"the state holds master weights that are dropped, of {few(dropped)}: multi_precision=True "
                "keeps those of float16 and bfloat16 parameters.",
            )
        self._heed_wrappers()
        slots = {}
        for name, one in found.items():
            p = known[name]
            slots[name] = slot = _state.slot_of(self._names, self._plan_of(p, self._settings[name]), p, one)
            if name in masters and name in low:
                master = _state.taken(f"the master weight of {name}", masters[name], p, shape_of(p), "float32")
                slot.arrays[MASTER] = _state.named_master(p, master, getattr(masters[name], "name", None))
        return slots

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_called": [p.name for p in self._members], "_planned_with": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        called = state.pop("_called")
        self.__dict__.update(state)
        # Copies of parameters have names of their own.
        now = dict(zip(called, (p.name for p in self._members), strict=True))
        self._tensors.slots = {now[name]: slot for name, slot in self._tensors.slots.items()}
        self._master_weights = {now[name]: master for name, master in self._master_weights.items()}

    def __repr__(self) -> str:
        return f"layerwise.paddle.{type(self).__name__}(learning_rate={self.get_lr()}, {len(self._members)} parameters)"


def _gradients(params: list[Tensor]) -> list[Tensor | None]:
    """Return the gradient of each parameter; what Paddle keeps as `main_grad` goes first, as in its optimizers."""
    found: list[Tensor | None] = core.eager.get_all_grads(params)
    for i, p in enumerate(params):
        main = getattr(p, "main_grad", None)
        if main is not None:
            found[i] = main
    return found
