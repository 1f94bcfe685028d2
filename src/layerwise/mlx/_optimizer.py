"""The common base of all optimizers in the MLX API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from math import inf
from types import ModuleType
from typing import Any

import mlx.core as mx
from mlx import optimizers as theirs
from mlx.utils import tree_flatten, tree_map, tree_map_with_path

from layerwise.catalog.hidden_matrices import is_misplaced_vector, warn_of_nonhidden
from layerwise.catalog.presets import Like, preset
from layerwise.core.first_step import FirstStep, WaysOut, warn_of_first_steps
from layerwise.drivers import TensorRun, drive_whole
from layerwise.drivers.partial_sums import next_requests
from layerwise.drivers.scaled import ScaledSum, StepNamespace
from layerwise.engines.rule import in_stacks
from layerwise.errors import (
    ContradictionError,
    GradientError,
    HyperparameterError,
    ParameterError,
    StateError,
    sentence,
)
from layerwise.layout.blocks import Blocks
from layerwise.layout.pieces import Piece, lay_out
from layerwise.options.checks import number
from layerwise.options.misspellings import check_settable
from layerwise.options.settings import Hyper, options_in_order
from layerwise.rules.arrays import apply_moves
from layerwise.rules.requests import Array, Asking, Coefficients, Now, Scalar, Stepped
from layerwise.rules.scalars import Compute, H

nn: Any = import_module("mlx.nn")  # has no types
LR, DECAY = "learning_rate", "weight_decay"
CALLED = {"lr": LR}
OF_ALL = ("step", LR, DECAY)  # in the state, next to those of parameters
COMPUTED_IN = {mx.float64: mx.float64, **dict.fromkeys((mx.float32, mx.float16, mx.bfloat16), mx.float32)}
MOST = 8  # the number of terms that float32 adds up with hardly any error
COLUMNS = 32
LARGE = 1 << 12  # the number of elements from which summing in parts, which MLX does faster, is worth its operations
Tree = Any  # of arrays, as mlx.utils takes it
State = dict[str, mx.array]  # of a parameter, by field
SCHEDULE = "A schedule must return such a number for every step."
Leaf = tuple[mx.array, mx.array, dict[str, Any]]  # a gradient, its parameter and its state

AT_ZERO = {"weight_norm": 0.0}  # the measurements of such a tensor's first step
EXEMPT = "Step them with an optimizer without it, by mlx.optimizers.MultiOptimizer."


class Optimizer(theirs.Optimizer, Like):
    """An `mlx.optimizers.Optimizer` that carries out a rule."""

    _rule: ModuleType
    _hyper: type[Hyper]

    def __init__(self, given: Mapping[str, object]) -> None:
        # No docstring, because the classes would inherit it; `given` has every argument by name.
        super().__init__()  # type: ignore[no-untyped-call]  # MLX leaves out that it returns None
        options = {name: given[CALLED.get(name, name)] for name in options_in_order(self._hyper)}
        if isinstance(options["lr"], dict):  # as modules of MLX are, which are callable besides
            way_out = "The model goes to opt.update(model, gradients)."
            raise HyperparameterError(sentence(LR, "a number or a function of the step", options["lr"], way_out))
        self._hyper.check("lr", options["lr"], LR, CALLED)
        made: Any = self._hyper
        h = made(**options)
        if h.follows_step:
            h = h.settled(beta2=_OfArrays("beta2", h.beta2, 1))
        rates = {LR: h.lr, **({DECAY: h.weight_decay} if callable(h.weight_decay) else {})}
        for name, rate in rates.items():
            self._maybe_schedule(name, _OfArrays(name, rate) if callable(rate) else rate)
        self._h = h.settled(lr=0.0)  # one for all rates
        self._pieces: dict[tuple[tuple[int, ...], float, int], Piece] = {}
        self._seen: dict[str, tuple[int, ...]] = {}  # the shapes of parameters, by name

    @classmethod
    def _like(cls, name: str, given: Mapping[str, object]) -> dict[str, object]:
        return {**{CALLED.get(option, option): value for option, value in preset(name).items()}, **given}

    @property
    def learning_rate(self) -> mx.array:
        """The learning rate of the last step; before any step, of the first."""
        rate: mx.array = self.state[LR]
        return rate

    @learning_rate.setter
    def learning_rate(self, value: float | mx.array) -> None:
        if LR in self._schedulers:
            way_out = "Create the optimizer with a number if you want to set other numbers later."
            raise ContradictionError(sentence(LR, "set by its schedule only", value, way_out))
        if not isinstance(value, mx.array):  # may be traced
            value = number(0)(LR, value, "Pass a number such as 1e-3.")
        self.state[LR] = mx.array(value)

    def __setattr__(self, name: str, value: object) -> None:
        if "_seen" in vars(self):  # it is made
            known = {CALLED.get(option, option) for option in options_in_order(self._hyper)}
            check_settable(self, name, known - {LR}, known)
        super().__setattr__(name, value)

    def update(self, model: object, gradients: Tree) -> None:
        """Step the parameters of a model that have gradients.

        Args:
            model: The model.
            gradients: A tree of gradients.
        """
        if not isinstance(model, nn.Module):
            way_out = "Call update(model, gradients)."
            raise ParameterError(sentence("model", "an mlx.nn.Module", model, way_out))
        if isinstance(gradients, nn.Module) or not isinstance(gradients, (dict, list, tuple)):
            way_out = "Pass what mlx.nn.value_and_grad(model, loss) gives."
            raise GradientError(sentence("gradients", "a tree of arrays", gradients, way_out))
        model.update(self.apply_gradients(gradients, model))

    def init(self, parameters: Tree) -> None:
        """Create the state of parameters that have none.

        Args:
            parameters: A tree of parameters.
        """
        for name in OF_ALL:
            if name in parameters:
                raise ParameterError(f"the state has a field called {name}. Give that parameter another name.")
        tree_map_with_path(_check_parameter, parameters)
        super().init(parameters)
        leaves: Any = tree_flatten(parameters)
        if new := [(path, p) for path, p in leaves if path not in self._seen]:
            self._seen.update((path, tuple(p.shape)) for path, p in new)
            self._look_at_first(new)

    def _look_at_first(self, new: Sequence[tuple[str, mx.array]]) -> None:
        """Warn once about parameters that cannot be trained well."""
        h = self._h
        lam = 1.0 if DECAY in self._schedulers else h.weight_decay
        zero = _zeros(new) if FirstStep("", h, AT_ZERO, lam).starts_at_zero else ()
        warn_of_first_steps([FirstStep(path, h, AT_ZERO, lam) for path in zero], WaysOut(EXEMPT))
        if vectors := [path for path, p in new if is_misplaced_vector(h, p.shape)]:
            name = type(self).__name__
            rest = f"MultiOptimizer([{name}(0.02), AdamW(1e-3)], [layerwise.mlx.hidden_matrices(model)])"
            warn_of_nonhidden(name, vectors, f"Step them with AdamW: {rest}.")

    def init_single(self, parameter: mx.array, state: State) -> None:
        """Create the state of one parameter."""
        state.update({field: mx.zeros(shape, dtype) for field, (shape, dtype) in self._fields(parameter).items()})

    def _piece(self, parameter: mx.array, n: int = 1) -> Piece:
        """Return the piece that a parameter is, or that so many like it are if they are stacked."""
        key = tuple(parameter.shape), float(mx.finfo(parameter.dtype).eps), n
        if key not in self._pieces:
            shape, eps, _ = key
            h = (
                self._h
                if parameter.dtype == mx.float64
                else self._h.with_fast_dtype(None if _on_processor() else "float16")
            )
            whole, blocks = (shape, None) if n == 1 else ((n, *shape), Blocks("each"))
            [self._pieces[key]] = lay_out("", self._rule, h, whole, blocks, eps).pieces
        return self._pieces[key]

    def _fields(self, parameter: mx.array) -> dict[str, tuple[tuple[int, ...], mx.Dtype]]:
        shapes = zip(self._rule.State._fields, self._piece(parameter).fields, strict=True)
        asked = {field: getattr(mx, dtype) for field, dtype in self._h.state_dtypes().items()}
        usual = COMPUTED_IN[parameter.dtype]
        return {field: (shape, asked.get(field, usual)) for field, shape in shapes if shape is not None}

    def apply_gradients(self, gradients: Tree, parameters: Tree) -> Tree:
        """Return the parameters after a step, in a tree like the gradients.

        Parameters without a gradient are left out. All tensors step together, because a norm may cover all gradients.

        Args:
            gradients: A tree of gradients.
            parameters: A tree of parameters, possibly with more parameters than gradients; or the model.
        """
        try:
            chosen = tree_map(lambda _, p: p, gradients, parameters)
        except (KeyError, IndexError) as missing:
            raise GradientError(f"there is a gradient for {missing}, but no such parameter.") from None
        tree_map_with_path(_check_gradient, gradients, chosen)
        self.init(chosen)
        leaves: list[Any] = []
        tree_map_with_path(lambda *leaf: leaves.append(leaf), gradients, chosen, self.state)
        for path, _, p, state in leaves:
            self._check_state(path, p, state)
        self.state.update({name: schedule(self.step) for name, schedule in self._schedulers.items()})
        self.state["step"] = self.step + 1
        stepped = self._stepped([leaf for _, *leaf in leaves])
        return tree_map(lambda _: next(stepped), gradients)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """Return one parameter after a step by itself, and write its state."""
        return next(self._stepped([(gradient, parameter, state)]))

    def _stepped(self, leaves: Sequence[Leaf]) -> Iterator[mx.array]:
        """Step tensors, write their states, and return the new parameters. Small ones that are alike step as one."""
        xp = MlxFunctions(len({COMPUTED_IN[p.dtype] for _, p, _ in leaves}) > 1)
        kinds = {(p.shape, p.dtype): p for _, p, _ in leaves if not self._h.of_matrices}
        if _is_traced(self.step):  # and probably compiled: arithmetic without sums is one loop anyway
            kinds = {kind: p for kind, p in kinds.items() if self._sums(p)}
        kind_of = [kind if (kind := (p.shape, p.dtype)) in kinds else None for _, p, _ in leaves]
        stacks = in_stacks(kind_of, [p.size for _, p, _ in leaves])
        tasks = [[leaves[i] for i in places] for places in stacks]
        ends = drive_whole(xp, [self._run(xp, some) for some in tasks])
        made: dict[int, mx.array] = {}
        for places, some, [(stepped, kept)] in zip(stacks, tasks, ends, strict=True):
            for field, x in zip(self._rule.State._fields, kept, strict=True):
                for (_, _, state), own in zip(some, () if x is None else _apart(x, len(some)), strict=x is not None):
                    state[field] = own.astype(state[field].dtype)
            made |= zip(places, _apart(stepped.astype(some[0][1].dtype), len(some)), strict=True)
        return iter([made[i] for i in range(len(leaves))])

    def _sums(self, p: mx.array) -> bool:
        """Return True if the rule requests sums of such a parameter."""
        piece = self._piece(p)
        state = self._rule.State(*(None if shape is None else mx.zeros(shape) for shape in piece.fields))
        try:
            next_requests(self._rule.step(MlxFunctions(), p, p, state, piece.h, Now(1, 0.0, 0.0, beta2=0.5)), None)
        except StopIteration:
            return False
        return True

    def _run(self, xp: MlxFunctions, leaves: Sequence[Leaf]) -> TensorRun:
        _, first, state = leaves[0]
        piece, dtype = self._piece(first, len(leaves)), COMPUTED_IN[first.dtype]
        h = piece.h
        fields = [[leaf[2][field] for leaf in leaves] if field in state else None for field in self._rule.State._fields]
        kept = self._rule.State(*(None if each is None else _together(each, dtype) for each in fields))
        p, g = (_together(each, dtype) for each in ([p for _, p, _ in leaves], [g for g, _, _ in leaves]))
        now = xp.once(("now", id(h), dtype), lambda: self._now(h, dtype))
        step = _moving(self._rule.step(xp, p, g, kept, h, now), xp, p)
        alike = h if h.of_matrices else None
        return TensorRun((step,), piece.shape, piece.block_dims, together=h.needs_model_sum, alike=alike)

    def _now(self, h: Hyper, dtype: mx.Dtype) -> Now:
        t, lr = (x.astype(dtype) for x in (self.step, self.learning_rate))
        lam = self.state[DECAY].astype(dtype) if DECAY in self._schedulers else h.weight_decay
        return Now(t, lr, lam, beta2=h.beta2_of(t, mx.maximum))

    def _check_state(self, path: str, parameter: mx.array, state: State) -> None:
        wanted = {field: shape for field, (shape, _) in self._fields(parameter).items()}
        found = {field: tuple(getattr(x, "shape", ())) for field, x in state.items()}
        if found != wanted:
            raise StateError(
                f"the state of {path} does not fit {type(self).__name__}: it has {found}, but should have {wanted}. "
                "Load a state that was saved by this optimizer with these options."
            )


def _moving(rule: Asking[Stepped], xp: MlxFunctions, p: mx.array) -> Asking[tuple[mx.array, Any]]:
    """Take a rule to its end, and return the new parameter and state."""
    stepped = yield from rule
    return apply_moves(xp, p, tuple((still(a), x) for a, x in stepped.moves)), stepped.state


def _together(each: Sequence[mx.array], dtype: Any) -> mx.array:
    cast = [x.astype(dtype) for x in each]
    return cast[0] if len(cast) == 1 else mx.stack(cast)


def _apart(x: mx.array, n: int) -> Sequence[mx.array]:
    return [x] if n == 1 else [mx.squeeze(one, 0) for one in mx.split(x, n)]


class _OfArrays:
    """A schedule that returns arrays, as MLX's do. Plain numbers are checked; arrays may be traced."""

    def __init__(self, name: str, schedule: Callable[[mx.array], float | mx.array], high: float = inf) -> None:
        self._name, self._schedule, self._high = name, schedule, high

    def __call__(self, step: mx.array) -> mx.array:
        value = self._schedule(step)
        if isinstance(value, mx.array):
            return value
        return mx.array(number(0, self._high)(f"{self._name}(step)", value, SCHEDULE))


def _zeros(parameters: Sequence[tuple[str, mx.array]]) -> list[str]:
    """Return the parameters that are zero; none if they are traced, because they have no values then."""
    return [path for path, p in parameters if p.size and not _is_traced(p) and not mx.any(p).item()]


def _is_traced(x: mx.array) -> bool:
    try:
        mx.eval(x)
    except (ValueError, RuntimeError):
        return True
    return False


def _check_parameter(path: str, parameter: object) -> None:
    dtype = getattr(parameter, "dtype", type(parameter).__name__)
    if dtype not in COMPUTED_IN:
        raise ParameterError(
            f"{path} has the dtype {dtype}, but weights must be float64, float32, float16 or bfloat16. Freeze it, so "
            "that it has no gradient."
        )


def _check_gradient(path: str, gradient: object, parameter: mx.array) -> None:
    if not isinstance(gradient, mx.array) or gradient.shape != parameter.shape:
        found = getattr(gradient, "shape", gradient)
        raise GradientError(f"the gradient of {path} must have its shape {parameter.shape}, but is {found}.")


# ---- MLX's functions in the form that rules use, with sums accurate to the last digits of their dtype


class SharedSquares(ScaledSum):
    """A sum of squares to which the sums of other tensors are added."""

    __slots__ = ()

    def __add__(self, other: Any) -> SharedSquares:
        factor = mx.maximum(self.factor, other.factor)
        mine, theirs = self.factor / factor, other.factor / factor
        return SharedSquares(factor, self.sum * mine * mine + other.sum * theirs * theirs)


class MlxFunctions(StepNamespace):
    """The functions of `mlx.core`, for one step.

    `mx.compile` fuses all arithmetic up to an array into one loop over it, even if its result is the same for each
    element. So the numbers of a step, a tensor, a row or a column are kept `still`, and are computed once.
    """

    amax = staticmethod(mx.max)
    asarray = staticmethod(mx.array)  # the older name

    def __init__(self, mixed: bool = False) -> None:
        super().__init__(mx)
        self._mixed = mixed  # whether the squares of some tensors overflow float64, and of others do not

    @staticmethod
    def still(x: Array) -> Array:
        """Return an array, or numbers, unchanged for each element."""
        return still(x)

    def coefficients(self, of: Compute[H], h: H, now: Now) -> Coefficients:
        """Return the numbers of a step."""
        found: Coefficients = self.once((of, id(now)), lambda: still(of(self, h, now)))
        return found

    def squares_in_float64(self, terms: mx.array, dims: tuple[int, ...]) -> mx.array | None:
        """Return the sum in float64, on a CPU."""
        if not _is_widened(terms):
            return None
        if len(dims) == terms.ndim and terms.size >= LARGE:
            return mx.reshape(_squares_of_all(mx.reshape(terms, (-1,))), (1,) * terms.ndim)
        wide = _wide(terms)
        return mx.sum(wide * wide, axis=dims, keepdims=True) if dims else wide * wide

    def length(self, squares: ScaledSum | mx.array) -> Array:
        """Return the root of a sum of squares."""
        if isinstance(squares, ScaledSum):
            return still(squares.factor * mx.sqrt(squares.sum))
        return still(mx.sqrt(squares).astype(mx.float32))  # was wide

    def sqrt(self, x: mx.array) -> mx.array:
        """Return the root."""
        root = mx.sqrt(x)
        return still(root) if 1 in x.shape else root

    def sum(self, terms: mx.array, axis: tuple[int, ...], keepdims: bool) -> mx.array:
        """Sum over these dimensions, to the last digits of the dtype."""
        parts = terms
        if terms.size >= LARGE and _is_widened(terms):
            longest = max(axis, key=lambda d: terms.shape[d])
            parts = _in_parts(_in_parts(terms, longest), longest)
        return mx.sum(_wide(parts), axis=axis, keepdims=keepdims).astype(terms.dtype)

    def multiplies(self, x: mx.array, dtype: str) -> mx.Dtype | None:
        """Return a dtype of 16 bits if the device has products of it."""
        return None if _on_processor() else getattr(mx, dtype)

    def product(self, x: mx.array, y: mx.array) -> mx.array:
        """Return the product of matrices in the dtype of the arithmetic."""
        return (x @ y).astype(COMPUTED_IN[x.dtype])

    def signs(self, x: mx.array) -> mx.array:
        """Return 1 or −1, or x itself if it is 0 or nan."""
        large = mx.array(1e162 if x.dtype == mx.float64 else 1e23, x.dtype)  # its square times any number is above 1
        return mx.maximum(mx.minimum(x * large * large, 1.0), -1.0)

    def unless_off(self, a: Scalar, y: mx.array) -> mx.array:
        """Return y, or 0 if `a` is 0: rates are arrays, which are not known to be 0 before the step."""
        return mx.where(a == 0, mx.zeros((), y.dtype), y) if isinstance(a, mx.array) else y

    def reshape(self, x: ScaledSum | mx.array, shape: tuple[int, ...]) -> SharedSquares | mx.array:
        """Return an array, or a tensor's sum of squares in the shape of all tensors'."""
        if isinstance(x, ScaledSum):
            return SharedSquares(*(mx.reshape(one, shape) for one in x))
        found = mx.reshape(x, shape)
        return (
            SharedSquares(mx.ones_like(found), found)
            if self._mixed and shape == () and x.dtype == mx.float64
            else found
        )


def still(x: Array) -> Array:
    """Return an array, or numbers some of which are arrays, by an operation that is not fused into a loop."""
    if isinstance(x, tuple):
        return type(x)(*map(still, x)) if hasattr(x, "_fields") else tuple(map(still, x))
    return mx.contiguous(x) if isinstance(x, mx.array) else x


def _squares_of_all(terms: mx.array) -> mx.array:
    """Return the sum of the squares of a long row in float64: first of a few numbers in one loop, then of columns."""
    even = terms.size // (MOST * COLUMNS) * MOST * COLUMNS
    sums: Array = sum(x * x for x in map(_wide, mx.split(terms[:even], MOST)))
    total = mx.sum(mx.sum(mx.reshape(sums, (COLUMNS, -1)), axis=0))
    return total if even == terms.size else total + mx.sum(mx.square(_wide(terms[even:])))


def _in_parts(terms: mx.array, d: int) -> mx.array:
    """Return sums of a few numbers each along a dimension, which becomes that much shorter."""
    shape = terms.shape
    few = next((n for n in range(MOST, 3, -1) if shape[d] % n == 0), 1)
    if few == 1 or not terms.size:
        return terms
    return mx.sum(mx.reshape(terms, (*shape[:d], few, shape[d] // few, *shape[d + 1 :])), axis=d)


def _wide(terms: mx.array) -> mx.array:
    """Return the terms of a sum in float64 on a CPU, where MLX adds one number after another.

    A sum of two million float32 numbers would otherwise have two digits. GPUs, most of which have no float64, add in a
    tree.
    """
    return terms.astype(mx.float64) if _on_processor() else terms


def _is_widened(terms: mx.array) -> bool:
    return _on_processor() and terms.dtype != mx.float64


def _on_processor() -> bool:
    return bool(mx.default_device() == mx.Device(mx.cpu))
