"""The common base of all optimizers in the Keras API."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from layerwise.catalog.hidden_matrices import ADAMW
from layerwise.catalog.presets import Like, preset
from layerwise.core.first_step import FirstStep, WaysOut, warn_of_first_steps
from layerwise.core.library import EPSILON, arithmetic_dtype
from layerwise.drivers import TensorRun, drive_whole
from layerwise.engines.rule import in_stacks
from layerwise.errors import ContradictionError, GradientError, HyperparameterError, ParameterError, sentence, warn
from layerwise.keras._adamw_for_rest import OF_PRESETS, AdamWForRest
from layerwise.keras._backends import BackendFunctions, namespace
from layerwise.layout.blocks import Blocks
from layerwise.layout.pieces import Piece, Shape, lay_out
from layerwise.options import names as names_in_apis
from layerwise.options.arguments import KERAS
from layerwise.options.checks import NONE, is_called_with, number, numpy_to_python
from layerwise.options.fields import OFF
from layerwise.options.misspellings import check_settable
from layerwise.options.settings import Hyper, options_in_order
from layerwise.rules.arrays import apply_moves
from layerwise.rules.requests import Array, Now

LR_WAY_OUT = (
    "Pass a number such as 1e-3, a schedule of keras.optimizers.schedules such as CosineDecay, or a function without "
    "arguments."
)
RATE = number(0)
CLIP_WAY_OUT = "Pass a number > 0, or None for no clipping."
# Checks of rates, and of Keras's arguments that have no option.
CHECKED = {
    "weight_decay": (OFF, "Pass a number such as 0.01, or None or 0 for none."),
    **dict.fromkeys(("clipnorm", "clipvalue", "global_clipnorm"), (OFF, CLIP_WAY_OUT)),
    "loss_scale_factor": (number(0, above=True) | NONE, "Pass the factor that multiplied the loss, such as 1024."),
}
EXEMPT = (
    'Exempt them from the ratio with adapt="decayed", a weight_decay, and '
    'exclude_from_weight_decay(var_names=["bias"]) with their names.'
)
# Arguments without effect in Keras's optimizer, by the preset that copies it.
WITHOUT_EFFECT = {
    "keras.Adafactor": {
        "relative_step": "It has no effect in Keras's optimizer. Leave it out, or do without the preset."
    }
}
EXCLUDED = "excluded_from_weight_decay"  # in a config
Member = tuple[Array, keras.Variable]  # a gradient and its variable
SAVED_BY = "optimizer"  # the key of the optimizer's name in a saved state


class Optimizer(keras.optimizers.Optimizer, Like):  # type: ignore[misc]  # Keras has no types
    """A `keras.optimizers.Optimizer` that carries out a rule."""

    _rule: ModuleType
    _hyper: type[Hyper]

    def __init__(self, given: Mapping[str, object]) -> None:
        # No docstring, because the classes would inherit it; `given` has every argument by name.
        namespace()  # raises if the backend is not supported
        given = {name: numpy_to_python(x) for name, x in given.items()}
        given |= {name: check(name, given[name], way_out) for name, (check, way_out) in CHECKED.items()}
        lr, options = self._rate(given["learning_rate"]), self._given(given)
        if options["weight_decay"] is None:
            options["weight_decay"] = 0.0
        for name in options:
            if callable(options[name]):
                way_out = "Pass a number; for a schedule, use learning_rate."
                raise HyperparameterError(sentence(name, "a value that a config can hold", options[name], way_out))
        made: Any = self._hyper
        h = made(lr=0.0 if callable(lr) else lr, **options)
        super().__init__(
            lr if callable(lr) else float(h.lr),
            weight_decay=float(h.weight_decay),
            **{one.name: given[one.name] for one in KERAS},
        )
        self._h = h.settled(lr=0.0)  # one for all rates
        self._rest = AdamWForRest(given, h) if h.of_matrices else None
        self._excluded_names: tuple[str, ...] = ()
        self._is_looked_at = False
        self._xp: BackendFunctions | None = None  # during a step

    def __setattr__(self, name: str, value: object) -> None:
        if "_rest" in vars(self):  # it is made
            fixed = {
                *self._options(),
                *(one for names in names_in_apis.KERAS.renamed_options(self._hyper).values() for one in names),
            }
            check_settable(self, name, fixed - {"weight_decay"}, {*fixed, "learning_rate"})
        super().__setattr__(name, value)

    @property
    def weight_decay(self) -> float | None:
        """Weight decay λ. If you set it, it takes effect from the next step that is traced."""
        return self._weight_decay

    @weight_decay.setter
    def weight_decay(self, value: float | None) -> None:
        check, way_out = CHECKED["weight_decay"]
        value = check("weight_decay", value, way_out)
        if hasattr(self, "_h"):
            replace(self._h, weight_decay=value or 0.0)  # raises if other options contradict it
        self._weight_decay: float | None = value

    @classmethod
    def _like(cls, name: str, given: Mapping[str, object]) -> dict[str, Any]:
        for argument, way_out in WITHOUT_EFFECT.get(name, {}).items():
            if argument in given:
                raise ContradictionError(sentence(argument, f"left out with {name}", given[argument], way_out))
        found, said = names_in_apis.OF_KERAS.as_arguments(cls._hyper, preset(name)), dict(given)
        for option, names in names_in_apis.KERAS.renamed_options(cls._hyper).items():
            if option in found and option not in said and said.keys() & {*names}:
                usual = found[option] if len(names) > 1 else (found[option],)
                made = tuple(said.pop(one, number) for one, number in zip(names, usual, strict=True))
                found[option] = made if len(names) > 1 else made[0]
        return {**found, **OF_PRESETS.get(name, {}), **said}

    @classmethod
    def _rate(cls, value: object) -> object:
        """Return the learning rate: a number, or what Keras calls for one; None if the rule has its own."""
        if isinstance(value, keras.optimizers.schedules.LearningRateSchedule) or is_called_with(value):
            return value
        check = RATE if cls._hyper.__dataclass_fields__["lr"].default is not None else RATE | NONE
        return check("learning_rate", value, LR_WAY_OUT)

    @classmethod
    def _options(cls) -> Sequence[str]:
        return [
            name
            for name in options_in_order(cls._hyper)
            if name not in names_in_apis.OF_KERAS.renamed_options(cls._hyper)
        ]

    @classmethod
    def _given(cls, given: Mapping[str, object]) -> dict[str, object]:
        """Return the options; some may be given under Keras's names."""
        options = {name: given[name] for name in cls._options()}
        for option, names in names_in_apis.KERAS.renamed_options(cls._hyper).items():
            theirs = {name: given[name] for name in names if given[name] is not None}
            if not theirs:
                continue
            name, value = next(iter(theirs.items()))
            ours, spec = cls._hyper.check(option, options[option]), cls._hyper.__dataclass_fields__[option]
            if names_in_apis.is_pair(names):
                made: Any = names_in_apis.checked_pair(cls._hyper, option, tuple(names), theirs)
            else:
                made = spec.metadata["check"](name, value, f"Pass a number such as {name}={spec.default}.")
            if ours not in (spec.default, made):
                way_out = f"Both mean the same: pass {' and '.join(names)}, or {option}."
                raise ContradictionError(sentence(name, f"None with {option}={ours!r}", value, way_out))
            options[option] = made
        return options

    def exclude_from_weight_decay(
        self, var_list: Sequence[keras.Variable] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Exclude variables from weight decay: these, and those whose names contain one of `var_names`."""
        super().exclude_from_weight_decay(var_list, var_names)
        self._excluded_names = tuple(var_names or ())

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Create the state of each variable."""
        if self.built:
            return
        super().build(variables)
        named = [(variable.path, tuple(variable.shape)) for variable in variables]
        self._is_rest = [False] * len(named) if self._rest is None else self._rest.picked(named)
        settings: dict[Hyper, Hyper] = {}  # equal settings are one object, so that a step computes their numbers once
        pieces = [self._piece(*one) for one in zip(variables, self._is_rest, strict=True)]
        self._pieces = [replace(piece, h=settings.setdefault(piece.h, piece.h)) for piece in pieces]
        self._kept = [
            [self._state_variable(variable, one, piece.h) for one in zip(rule.State._fields, piece.fields, strict=True)]
            for variable, piece, is_rest in zip(variables, self._pieces, self._is_rest, strict=True)
            for rule in [self._rule_of(is_rest)]
        ]
        if not self._is_looked_at:
            self._look_at_first(variables)

    def _look_at_first(self, variables: Sequence[keras.Variable]) -> None:
        """Warn about variables that will hardly move."""
        firsts = []
        for variable, piece in zip(variables, self._pieces, strict=True):
            lam = float(self.weight_decay or 0.0) if self._use_weight_decay(variable) else 0.0
            first = FirstStep(variable.path, piece.h, {"weight_norm": 0.0}, lam)
            if first.starts_at_zero and _is_zero(variable):
                firsts.append(first)
        warn_of_first_steps(firsts, WaysOut(EXEMPT))

    def _rule_of(self, is_rest: bool) -> ModuleType:
        return ADAMW.rule if is_rest else self._rule

    def _piece(self, variable: keras.Variable, is_rest: bool, n: int = 0) -> Piece:
        """Return the piece that a variable is, or that so many like it are if they are stacked."""
        name, dtype = variable.path, keras.backend.standardize_dtype(variable.dtype)
        if dtype not in EPSILON:
            allowed = ", ".join(EPSILON)
            raise ParameterError(f"{name} has the dtype {dtype}, but weights must be {allowed}. Set trainable=False.")
        h = self._rest.h if self._rest and is_rest else self._h
        h = h.with_fast_dtype(None if dtype == "float64" else namespace().fast_product_dtype)
        shape, blocks = ((n, *variable.shape), Blocks("each")) if n else (tuple(variable.shape), None)
        return lay_out(name, self._rule_of(is_rest), h, shape, blocks, EPSILON[dtype]).pieces[0]

    def _state_variable(
        self, variable: keras.Variable, one: tuple[str, Shape | None], h: Hyper
    ) -> keras.Variable | None:
        field, shape = one
        if shape is None or self._overwrite_variable_with_gradient(variable):
            return None
        dtype = h.state_dtypes().get(field) or _computing(variable)
        # State of the variable's own shape is distributed over devices like the variable.
        layout = getattr(variable, "_layout", None) if tuple(shape) == tuple(variable.shape) else None
        return self.add_variable(shape, dtype=dtype, layout=layout, name=f"{variable.path.replace('/', '_')}_{field}")

    def _backend_update_step(
        self, grads: Sequence[Array], trainable_variables: Sequence[keras.Variable], learning_rate: Array
    ) -> None:
        """Step all variables, which share the numbers of the step; small ones, and matrices, with those like them."""
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            _check_gradient(gradient, variable)
        self._xp = xp = namespace()
        members = list(zip(grads, trainable_variables, strict=True))
        together, apart = ([], members) if xp.alone() else self._alike(xp, members)
        try:
            for some in together:
                self._step(some, learning_rate)
            super()._backend_update_step([g for g, _ in apart], [v for _, v in apart], learning_rate)
        finally:
            self._xp = None  # some numbers may be traced

    def _alike(self, xp: BackendFunctions, members: Sequence[Member]) -> tuple[list[Sequence[Member]], list[Member]]:
        """Return gradients and variables: those that step together, and the others."""
        kinds = [self._kind(v) for _, v in members]
        matrices = {kind for kind, (_, v) in zip(kinds, members, strict=True) if self._of_matrices(v)}
        stacks = kinds if xp.stacks else [kind if kind in matrices else None for kind in kinds]
        places = in_stacks(stacks, [prod(v.shape) for _, v in members], matrices)
        some = [[members[i] for i in each] for each in places]
        return [one for one in some if len(one) > 1], [one for alone in some if len(alone) == 1 for one in alone]

    def _kind(self, variable: keras.Variable) -> Hashable:
        i = self._get_variable_index(variable)
        return self._is_rest[i], variable.dtype, tuple(variable.shape), self._use_weight_decay(variable)

    def _of_matrices(self, variable: keras.Variable) -> bool:
        return bool(self._pieces[self._get_variable_index(variable)].h.of_matrices)

    def update_step(self, gradient: Array, variable: keras.Variable, learning_rate: object) -> None:
        """Step one variable."""
        self._step([(gradient, variable)], learning_rate)

    def _step(self, members: Sequence[Member], learning_rate: object) -> None:
        """Step variables that are alike: matrices side by side; others stacked, as one of so many blocks."""
        xp = self._xp or namespace()
        stacks = [[one] for one in members] if self._of_matrices(members[0][1]) else [members]
        begun = [self._begun(xp, stack, learning_rate) for stack in stacks]
        for (_, p, places), (stepped,) in zip(begun, drive_whole(xp, [run for run, _, _ in begun]), strict=True):
            for targets, new in zip(places, (apply_moves(xp, p, stepped.moves), *stepped.state), strict=True):
                if targets[0] is not None:
                    each = [new] if len(targets) == 1 else ops.unstack(new, len(targets))
                    for target, own in zip(targets, each, strict=True):
                        self.assign(target, ops.cast(own, target.dtype))

    def _begun(
        self, xp: BackendFunctions, stack: Sequence[Member], learning_rate: object
    ) -> tuple[TensorRun, Array, list[Sequence[keras.Variable]]]:
        """Return the run of a variable, or of a stack; the variable, and where it and its state are."""
        places, n = [self._get_variable_index(v) for _, v in stack], len(stack)
        i, variable, dtype = places[0], stack[0][1], _computing(stack[0][1])
        rule = self._rule_of(self._is_rest[i])
        piece = self._pieces[i] if n == 1 else self._piece(variable, self._is_rest[i], n)
        kept = list(zip(*(self._kept[i] for i in places), strict=True))
        variables, grads = [v for _, v in stack], [xp.dense(g) for g, _ in stack]
        each = ([None if one is None else ops.cast(one, dtype) for one in x] for x in (variables, grads, *kept))
        p, g, *state = (x[0] if n == 1 or x[0] is None else ops.stack(x) for x in each)
        now = self._now(xp, i, dtype, learning_rate, self._use_weight_decay(variable))
        rules = (rule.step(xp, p, g, rule.State(*state), piece.h, now),)
        alike = piece.h if piece.h.of_matrices else None
        return TensorRun(rules, piece.shape, piece.block_dims, alike=alike), p, [variables, *kept]

    def _now(self, xp: BackendFunctions, i: int, dtype: str, learning_rate: object, decays: bool) -> Now:
        is_rest, h = self._is_rest[i], self._pieces[i].h

        def made() -> Now:
            t, lr = (xp.number(ops.cast(x, dtype)) for x in (self.iterations + 1, learning_rate))
            decay = self.weight_decay
            if self._rest and is_rest:
                lr, decay = lr * self._rest.lr_ratio, self._rest.decay(decay)
            return Now(t, lr, float(decay or 0.0) if decays else 0.0, beta2=h.beta2_of(1))

        now: Now = xp.once((id(h), dtype, decays), made)
        return now

    def _apply_weight_decay(self, variables: object) -> None:
        """Do nothing: the rule applies weight decay where its formula has it."""

    def save_own_variables(self, store: Any) -> None:
        """Save the state with the optimizer's name: Keras identifies variables only by number."""
        super().save_own_variables(store)
        store[SAVED_BY] = np.frombuffer(self._hyper.optimizer.encode(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Load a state that this optimizer saved. For another optimizer's, change nothing and warn, as Keras does."""
        own = {key: store[key] for key in [*store.keys()]}
        saved_by = own.pop(SAVED_BY, None)
        found = "another package" if saved_by is None else np.asarray(saved_by).tobytes().decode()
        if found == self._hyper.optimizer:
            super().load_own_variables(own)
            return
        warn(
            f"the saved optimizer state was skipped: its {len(own)} variables are of {found}, but this is "
            f"{type(self).__name__}. To continue from it, load it into its own optimizer and use layerwise.convert."
        )

    def get_config(self) -> dict[str, object]:
        """Return all arguments, as `from_config` takes them."""
        if getattr(self, "_exclude_from_weight_decay", ()):
            warn(
                "the config does not contain the variables passed as exclude_from_weight_decay(var_list=…). Exclude "
                "them by var_names."
            )
        excluded = {EXCLUDED: {"var_names": [*self._excluded_names]}} if self._excluded_names else {}
        own = {name: getattr(self._h, name) for name in self._options()} | (self._rest.config if self._rest else {})
        return {**super().get_config(), **own, "weight_decay": self.weight_decay, **excluded}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, object] | None = None) -> Any:
        """Return an optimizer made from a config, with its exclusions from weight decay."""
        own = dict(config)
        excluded = own.pop(EXCLUDED, None)
        made = super().from_config(own, custom_objects)
        made._is_looked_at = True  # loaded weights arrive after the state is created
        if excluded:
            made.exclude_from_weight_decay(var_names=excluded["var_names"])
            if excluded.get("places"):
                warn("the config excludes variables from weight decay by their indices. Exclude them by var_names.")
        return made


def _check_gradient(gradient: Array, variable: keras.Variable) -> None:
    shapes = [tuple(getattr(x, "shape", None) or ()) for x in (gradient, variable)]
    if None not in shapes[0] and shapes[0] != shapes[1]:  # a traced dimension may be unknown
        raise GradientError(
            f"the gradient of {variable.path} has the shape {shapes[0]}, but its variable has {shapes[1]}."
        )


def _is_zero(variable: keras.Variable) -> bool:
    """Return True if a variable is 0; False if it has no value yet, or is traced."""
    try:
        with namespace().outside():
            return prod(variable.shape) > 0 and not bool(ops.any(ops.not_equal(variable, 0)))
    except Exception:  # each backend has a different one
        return False


def _computing(variable: keras.Variable) -> str:
    """Return the dtype of a variable's arithmetic and state: at least float32."""
    return arithmetic_dtype(keras.backend.standardize_dtype(variable.dtype))
