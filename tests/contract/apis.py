"""One adapter for each API: what the contract asks of an optimizer, done as users of that API do it.

A new API gets all tests of this folder by a class here. `OFFERS` says what it has; a test that needs `blocks` says
`@pytest.mark.offers("blocks")`, and is not there for APIs without.
"""

from __future__ import annotations

import copy
import inspect
import io
import os
import tempfile
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases import case_of
from promotion import strict

Arrays = dict[str, np.ndarray]
SHAPES = {"matrix": (4, 3), "vector": (5,), "scalar": (), "stack": (2, 3, 4)}
DTYPES = ("float64", "float32", "float16", "bfloat16")
LOW = ("float16", "bfloat16")
# How near a step may be to that in float64, of the largest number of a tensor.
NEAR = {"float64": 1e-12, "float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


def arrays(seed: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> Arrays:
    """Named arrays of normal numbers."""
    draw = np.random.default_rng(seed)
    return {name: np.asarray(draw.normal(size=shape)) for name, shape in shapes.items()}


def as_dtype(x: Any, dtype: str) -> np.ndarray:
    return np.asarray(x).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def rounded(named: Arrays, dtype: str) -> Arrays:
    """The numbers that a dtype has of these, in float64."""
    return {name: as_dtype(x, dtype).astype(np.float64) for name, x in named.items()}


def bits(x: Any) -> Any:
    """What two nests of arrays, tensors and numbers must share to be the same bit for bit."""
    if isinstance(x, Mapping):
        return {key: bits(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [bits(one) for one in x]
    x = numpy_of(x)
    return (x.dtype.name, x.shape, x.tobytes()) if isinstance(x, np.ndarray) else repr(x)


def numpy_of(x: Any) -> Any:
    """An array of any library as NumPy's, with its bits; everything else as it is."""
    if not hasattr(x, "dtype") or not hasattr(x, "shape") or isinstance(x, np.ndarray):
        return x
    if type(x).__module__ == "mlx.core":
        import mlx.core as mx

        return np.asarray(x.astype(mx.float32)).astype(ml_dtypes.bfloat16) if x.dtype == mx.bfloat16 else np.asarray(x)
    if hasattr(x, "detach"):  # PyTorch's and Paddle's, of which neither knows NumPy's bfloat16
        x = x.detach()
        if str(x.dtype).endswith("bfloat16"):
            wide = x.float() if hasattr(x, "float") else x.astype("float32")
            return wide.numpy().astype(ml_dtypes.bfloat16)
        return x.cpu().numpy()
    return np.asarray(x)


def close(ours: Arrays, wanted: Arrays, tolerance: float = 1e-12, hint: object = "") -> None:
    """Equal to `tolerance` of the largest number in each array."""
    assert ours.keys() == wanted.keys()
    for name, one in wanted.items():
        one = np.asarray(one, np.float64)
        size = np.max(np.abs(one), initial=0)
        got = np.asarray(ours[name], np.float64)
        np.testing.assert_allclose(got, one, rtol=0, atol=tolerance * size, err_msg=f"{name} {hint}")


class Run:
    """An optimizer of an API with its weights. Subclasses make it and step it."""

    api: Api
    opt: Any
    _weights: dict[str, Any]

    def __init__(self, api: Any, name: str, dtype: Any, options: dict[str, Any]) -> None:
        self.api, self.name, self.dtype, self.options = api, name, dtype, options
        self.case = None if name == "Mixed" else case_of(name)

    def dtype_of(self, name: str) -> str:
        return self.dtype if isinstance(self.dtype, str) else self.dtype[name]

    def step(self, grads: Mapping[str, Any], **now: Any) -> Any:
        """Take a step. Gradients are numbers in float64, which become the weights' dtype; None or no entry is none."""
        raise NotImplementedError

    def weights(self) -> Arrays:
        """The values, in float64."""
        return {name: numpy_of(w).astype(np.float64) for name, w in self._weights.items()}

    def bits(self) -> Any:
        return bits(self._weights)

    def state(self) -> dict[str, Arrays]:
        """The state of each name, as arrays by field."""
        raise NotImplementedError

    def save(self) -> Any:
        """What a checkpoint of this API holds."""
        raise NotImplementedError

    def load(self, state: Any) -> None:
        raise NotImplementedError

    @property
    def skipped(self) -> int:
        return int(self.opt.skipped)

    def everything(self) -> Any:
        """All that an error must leave as it was."""
        return self.bits(), bits(self.save()), self.skipped if self.api.has("skip") else 0

    def spoiled(self, name: str, field: str, change: Any) -> Any:
        """A checkpoint in which `change` made something else of a field's array; of None, nothing."""
        raise NotImplementedError

    def copied(self, how: Any) -> Run:
        """A copy of the optimizer, made by `how`, with weights of its own."""
        raise NotImplementedError

    def change(self, **options: Any) -> None:
        """Change options between two steps."""
        raise NotImplementedError

    def stats(self) -> dict[str, Any]:
        return self.opt.stats()

    def set_lr(self, lr: Any) -> None:
        self.opt.set_lr(lr)


def walk(run: Run, steps: Iterable[int], but: Collection[str] = ()) -> Run:
    """Steps on gradients of these seeds, of all names but some."""
    shapes = {name: w.shape for name, w in sorted(run.weights().items())}
    for t in steps:
        grads = arrays(100 + t, shapes)
        run.step({name: g for name, g in grads.items() if name not in but})
    return run


class Api:
    """Base of the adapters."""

    name: str
    run: type[Run]
    offers: frozenset[str]
    raises = staticmethod(pytest.raises)

    def __repr__(self) -> str:
        return self.name

    @classmethod
    def has(cls, *what: str) -> bool:
        return {*what} <= cls.offers

    @contextmanager
    def world(self) -> Any:
        """What this API needs around it."""
        yield

    def make(self, name: str, weights: Arrays, *, dtype: Any = "float64", groups: Any = None, **options: Any) -> Run:
        """An optimizer of these weights, of one dtype or each of its own. `groups` are pairs of names and options."""
        if "engine" in options and options["engine"] is None:
            del options["engine"]
        run = self.run(self, name, dtype, options)
        run.given = SimpleNamespace(groups=groups, options=options)
        run.begin(weights, groups, dict(options))
        return run

    def busy(self, name: str, weights: Arrays, **more: Any) -> Run:
        """An optimizer under options with which every part of its state matters."""
        return self.make(name, weights, **{**case_of(name).busy, **more})

    def again(self, run: Run) -> Run:
        """A new optimizer of the same weights that has loaded what the other saved."""
        given = run.given
        other = self.make(run.name, run.weights(), dtype=run.dtype, groups=given.groups, **given.options)
        other.load(run.save())
        return other


# ---- NumPy


class NumPyRun(Run):
    def begin(self, weights: Arrays, groups: Any, options: dict[str, Any]) -> None:
        import layerwise.numpy

        self._weights = {name: as_dtype(w, self.dtype_of(name)).copy() for name, w in weights.items()}
        assert groups is None, "one optimizer has one group"
        self.opt = getattr(layerwise.numpy, self.name)(**options)

    def step(self, grads: Mapping[str, Any]) -> Any:
        given = {name: g if g is None else as_dtype(g, self.dtype_of(name)) for name, g in grads.items()}
        return self.opt.step_all(self._weights, given)

    def state(self) -> dict[str, Arrays]:
        found: dict[str, Arrays] = {}
        for key, value in self.opt.state_dict().items():
            name, slash, field = key.rpartition("/")
            if slash and field != "shape":
                found.setdefault(name, {})[field] = value
        return found

    def save(self) -> Any:
        file = io.BytesIO()
        np.savez(file, **self.opt.state_dict())
        file.seek(0)
        return dict(np.load(file, allow_pickle=False))

    def load(self, state: Any) -> None:
        self.opt.load_state_dict(state)

    def spoiled(self, name: str, field: str, change: Any) -> Any:
        saved = self.save()
        found = change(saved.pop(f"{name}/{field}", None))
        return saved if found is None else {**saved, f"{name}/{field}": np.array(found)}

    def copied(self, how: Any) -> Run:
        twin = copy.copy(self)
        twin.opt, twin._weights = how(self.opt), {name: w.copy() for name, w in self._weights.items()}
        return twin

    def change(self, **options: Any) -> None:
        self.opt.set_options(**options)

    def set_lr(self, lr: Any) -> None:
        self.opt.lr = lr


class NumPy(Api):
    name, run = "NumPy", NumPyRun
    offers = frozenset([
        "skip", "empty", "extremes", "blocks", "schedules", "stats", "state_dtype", "own_counts",
        "clipping", "none", "lr", "engines", "functions", "numbers", "in_place", "copies", "change",
        "spoiled", "saves_lr", "patterns", "clear",
    ])  # fmt: skip


# ---- PyTorch


WAYS: dict[str | None, dict[str, bool]] = {None: {}, "rule": {"fused": False}, "foreach": {"foreach": True}}


class TorchRun(Run):
    def begin(self, weights: Arrays, groups: Any, options: dict[str, Any]) -> None:
        import torch

        import layerwise.torch

        self.torch = torch
        self._weights = {
            name: torch.nn.Parameter(torch.tensor(np.asarray(w)).to(getattr(torch, self.dtype_of(name))))
            for name, w in weights.items()
        }
        options |= WAYS[options.pop("engine", None)]
        params: Any = self._weights.items()
        if groups is not None:
            params = [{"params": [(name, self._weights[name]) for name in names], **own} for names, own in groups]
        self.opt = getattr(layerwise.torch, self.name)(params, **options)

    def step(self, grads: Mapping[str, Any]) -> Any:
        for name, p in self._weights.items():
            g = grads.get(name)
            p.grad = None if g is None else self.torch.tensor(np.asarray(g, np.float64)).to(p.dtype)
        return self.opt.step()

    def state(self) -> dict[str, Arrays]:
        return {
            name: {field: numpy_of(x) for field, x in self.opt.state[p].items()}
            for name, p in self._weights.items()
            if p in self.opt.state
        }

    def save(self) -> Any:
        file = io.BytesIO()
        self.torch.save(self.opt.state_dict(), file)
        file.seek(0)
        return self.torch.load(file, weights_only=True)

    def load(self, state: Any) -> None:
        self.opt.load_state_dict(state)

    def spoiled(self, name: str, field: str, change: Any) -> Any:
        saved = self.save()
        state = saved["state"][list(self._weights).index(name)]
        old = state.pop(field, None)
        found = change(None if old is None else numpy_of(old))
        if found is not None:
            state[field] = self.torch.tensor(found) if isinstance(found, np.ndarray) else found
        return saved

    def copied(self, how: Any) -> Run:
        twin = copy.copy(self)
        twin.opt = how(self.opt)
        twin._weights = dict(zip(self._weights, twin.opt.parameters(), strict=True))
        return twin

    def change(self, **options: Any) -> None:
        for group in self.opt.param_groups:
            group.update(options)


class Torch(Api):
    name, run = "Torch", TorchRun
    offers = frozenset([
        "skip", "empty", "extremes", "blocks", "groups", "mixed", "stats", "state_dtype", "own_counts",
        "clipping", "none", "lr", "set_lr", "engines", "functions", "numbers", "in_place", "copies", "change",
        "spoiled", "saves_lr", "patterns", "clear", "foreach",
    ])  # fmt: skip


# ---- JAX


@cache
def _program(name: str, options: tuple[tuple[str, type, Any], ...], large: int) -> Any:
    """A transformation and its jitted step, the same objects each time, so that XLA compiles it once for all tests."""
    return _made(name, {key: value for key, _, value in options})


def _made(name: str, options: dict[str, Any]) -> Any:
    import jax
    import optax

    import layerwise.jax

    tx = getattr(layerwise.jax, name.lower())(**options)

    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return tx, jax.jit(step)


def optax_arguments(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the rule, with the rule's defaults, as the function of JAX calls them."""
    import layerwise.jax
    from layerwise.options.arguments import OWN_FORM
    from layerwise.options.names import OPTAX, optax_defaults

    h = case_of(name).hyper
    own_form = {one.name for one in OWN_FORM.get(name, ())}
    known = inspect.signature(getattr(layerwise.jax, name.lower())).parameters
    usual = OPTAX.as_arguments(h, {one.name: one.default for one in fields(h)})
    usual = {key: value for key, value in usual.items() if key in known and key not in own_form}
    given = OPTAX.as_arguments(h, {**optax_defaults(h), **options})
    if "decay_rate" in given:
        given["decay_rate"] = -given["decay_rate"]
    return {**usual, **given}


class JaxRun(Run):
    def begin(self, weights: Arrays, groups: Any, options: dict[str, Any]) -> None:
        import jax.numpy as jnp

        from layerwise.jax import _drive

        assert groups is None, "groups are optax.partition"
        arguments = {"stats": True, **optax_arguments(self.name, options)}
        if isinstance(blocks := arguments.get("blocks"), Mapping):
            arguments["blocks"] = {**dict.fromkeys(weights), **blocks}  # a tree like the parameters
        try:
            key = tuple((name, type(x), x) for name, x in sorted(arguments.items()))
            self.opt, self._step = _program(self.name, key, _drive.LARGE)
        except TypeError:  # options without a hash
            self.opt, self._step = _made(self.name, arguments)
        self._weights = {name: jnp.asarray(as_dtype(w, self.dtype_of(name))) for name, w in weights.items()}
        self._state = self.opt.init(self._weights)

    def step(self, grads: Mapping[str, Any]) -> None:
        import jax.numpy as jnp

        given = {name: None if grads.get(name) is None else grads[name] for name in self._weights}
        given = {name: g if g is None else jnp.asarray(as_dtype(g, self.dtype_of(name))) for name, g in given.items()}
        unknown = {name: np.asarray(g) for name, g in grads.items() if name not in given}
        self._weights, self._state = self._step(self._weights, self._state, {**given, **unknown})

    def state(self) -> dict[str, Arrays]:
        """Fields have the names that the rule gives them."""
        whole = getattr(self._state, "inner", self._state)
        fields = zip(self.case.rule.State._fields, whole[1:-1], strict=True)
        trees = {field: tree for field, tree in fields if tree is not None}
        held = getattr(self._state, "weights", None)
        return {name: self._fields_of(name, trees, held) | {"step": np.asarray(whole.count)} for name in self._weights}

    def _fields_of(self, name: str, trees: dict[str, Any], held: Any) -> Arrays:
        found: Arrays = {}
        for field, tree in trees.items():
            parts = {field: tree}
            if isinstance(tree, tuple):  # groups of 8 bits
                parts = {field: tree.codes, f"{field}_unit": tree.unit}
            found |= {part: np.asarray(tree[name]) for part, tree in parts.items() if tree[name] is not None}
        if held is not None and held[name] is not None:
            found["master" if held[name].dtype == np.float32 else "remainder"] = np.asarray(held[name])
        return found

    def save(self) -> Any:
        import jax

        return jax.tree.map(np.array, self._state)

    def load(self, state: Any) -> None:
        import jax
        import jax.numpy as jnp

        self._state = jax.tree.map(jnp.asarray, state)

    def stats(self) -> dict[str, Any]:
        import layerwise.jax

        return layerwise.jax.stats(self._state)


class Jax(Api):
    name, run = "Jax", JaxRun
    offers = frozenset(["blocks", "schedules", "stats", "state_dtype", "clipping", "none", "functions"])
    # Not "in_place": optax adds what a step returns, and that rounds for a second time.

    @contextmanager
    def world(self) -> Any:
        jax = pytest.importorskip("jax")
        before = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", True)
        with strict():
            yield
        jax.config.update("jax_enable_x64", before)


# ---- Paddle


class PaddleRun(Run):
    def begin(self, weights: Arrays, groups: Any, options: dict[str, Any]) -> None:
        import paddle
        from paddle_front.front import parameter

        self.paddle = paddle
        self._weights = {name: parameter(name, w, self.dtype_of(name)) for name, w in weights.items()}
        self.opt = self.front(self._weights, groups, options)

    def front(self, params: dict[str, Any], groups: Any, options: dict[str, Any]) -> Any:
        """The optimizer of these parameters."""
        import layerwise.paddle
        from layerwise.options.names import PADDLE

        front = getattr(layerwise.paddle, self.name)

        def spelled(given: Mapping[str, Any]) -> dict[str, Any]:
            known = {key: given[key] for key in front._hyper.__dataclass_fields__ if key in given}
            return {
                **PADDLE.as_arguments(front._hyper, known),
                **{key: x for key, x in given.items() if key not in known},
            }

        if self.case.name == "Lamb":  # Paddle's own uses the ratio where weights decay
            options = {"weight_decay": 0.0, "adapt": True, **options}
        parameters: Any = [*params.values()]
        if groups is not None:
            # A group's learning_rate is a factor in Paddle.
            parameters = [{"params": [params[name] for name in names], **spelled(own)} for names, own in groups]
        return front(parameters=parameters, **spelled(options))

    def step(self, grads: Mapping[str, Any]) -> Any:
        for name, p in self._weights.items():
            g = grads.get(name)
            p.grad = None if g is None else self.paddle.cast(self.paddle.to_tensor(np.asarray(g, np.float64)), p.dtype)
        return self.opt.step()

    def state(self) -> dict[str, Arrays]:
        """Fields have the names that Paddle gives them."""
        found: dict[str, Arrays] = {}
        for key, value in self.opt.state_dict().items():
            name = max((name for name in self._weights if key.startswith(name + "_")), key=len, default=None)
            if name is not None:
                field = key[len(name) + 1 :].rpartition("_")[0]
                named = {"step": numpy_of(value)[0]} if field.endswith("_step") else {field: numpy_of(value)}
                found.setdefault(name, {}).update(named)
        return found

    def save(self) -> Any:
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The input state dict is empty")
            self.paddle.save(self.opt.state_dict(), file)
        file.seek(0)
        return self.paddle.load(file)

    def load(self, state: Any) -> None:
        self.opt.set_state_dict(state)


class Paddle(Api):
    name, run = "Paddle", PaddleRun
    offers = frozenset([
        "skip", "extremes", "blocks", "groups", "stats", "own_counts", "clipping", "none", "lr", "set_lr", "engines",
        "functions", "numbers", "in_place", "patterns", "clear",
    ])  # fmt: skip

    @contextmanager
    def world(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a package warns of while it is imported is not ours
            pytest.importorskip("paddle")
        yield


class PaddleStaticRun(PaddleRun):
    """A program that steps all parameters on gradients that are fed."""

    def begin(self, weights: Arrays, groups: Any, options: dict[str, Any]) -> None:
        import paddle
        from paddle_front.programs import Stepped

        self.paddle = paddle
        made, self._weights = [], weights
        self._measured: dict[str, Any] = {}

        def make(params: dict[str, Any]) -> Any:
            self._weights = params
            made.append(self.front(params, groups, dict(options)))
            return made[0]

        self.program = Stepped(make, weights, {name: self.dtype_of(name) for name in weights})
        [self.opt] = made

    def step(self, grads: Mapping[str, Any]) -> None:
        variables = self.opt.stats()
        names = [(name, key) for name, one in variables.items() for key in one]
        found = self.program.run(grads, [variables[name][key] for name, key in names])
        self._measured = {}
        for (name, key), x in zip(names, found, strict=True):
            self._measured.setdefault(name, {})[key] = x if x.ndim else float(x)

    def stats(self) -> dict[str, Any]:
        return {name: dict(one) for name, one in self._measured.items()}

    def weights(self) -> Arrays:
        return self.program.numbers()

    def bits(self) -> Any:
        return bits(self.program.kept())

    def state(self) -> dict[str, Arrays]:
        with self.program.world():
            return super().state()

    def save(self) -> Any:
        file = io.BytesIO()
        self.paddle.save(self.program.state(), file)
        file.seek(0)
        return self.paddle.load(file, return_numpy=True)

    def load(self, state: Any) -> None:
        self.program.load(state)

    def set_lr(self, lr: Any) -> None:
        with self.program.world():
            super().set_lr(lr)


class PaddleStatic(Api):
    name, run = "Paddle static", PaddleStaticRun
    offers = frozenset(["blocks", "groups", "stats", "clipping", "lr", "set_lr", "in_place", "patterns", "clear"])

    @contextmanager
    def world(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip("paddle")
            from paddle_front.programs import static_graph
        with static_graph():
            yield


# ---- Keras


class KerasRun(Run):
    def begin(self, weights: Arrays, groups: Any, options: dict[str, Any]) -> None:
        import keras

        import layerwise.keras

        self.keras = keras
        rate = {"learning_rate": options.pop("lr")} if "lr" in options else {}
        self._weights = {
            name: keras.Variable(as_dtype(w, self.dtype), dtype=self.dtype, name=name) for name, w in weights.items()
        }
        self.opt = getattr(layerwise.keras, self.name)(**rate, **options)
        self.opt._rest = None  # Muon steps all here; what it leaves to AdamW is tested in keras_front
        self.opt.build([*self._weights.values()])

    def step(self, grads: Mapping[str, Any]) -> None:
        given = [self.keras.ops.convert_to_tensor(as_dtype(grads[name], self.dtype)) for name in self._weights]
        self.opt.apply(given, [*self._weights.values()])

    def weights(self) -> Arrays:
        return {name: np.asarray(w.value).astype(np.float64) for name, w in self._weights.items()}

    def bits(self) -> Any:
        return bits({name: np.asarray(w.value) for name, w in self._weights.items()})

    def state(self) -> dict[str, Arrays]:
        found: dict[str, Arrays] = {name: {} for name in self._weights}
        for one in self.opt.variables:
            name, _, field = one.name.partition("_")
            if name in found:
                found[name][field] = np.asarray(one.value)
        return found

    def save(self) -> Any:
        store: dict[str, Any] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy, about Keras
            self.opt.save_own_variables(store)
        return store

    def load(self, state: Any) -> None:
        self.opt.load_own_variables(state)

    def set_lr(self, lr: Any) -> None:
        self.opt.learning_rate = lr


class Keras(Api):
    name, run = "Keras", KerasRun
    offers = frozenset(["lr", "set_lr", "in_place", "saves_lr"])

    @contextmanager
    def world(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.environ.setdefault("KERAS_BACKEND", "numpy")  # keras_front/ has the others
            dtypes = pytest.importorskip("keras.src.backend.common.dtypes")
        with pytest.MonkeyPatch.context() as patch:  # Keras makes float32 of float64 in means and roots
            patch.setitem(dtypes.BIT64_TO_BIT32_DTYPE, "float64", "float64")
            yield


# ---- MLX


class MlxRun(Run):
    def begin(self, weights: Arrays, groups: Any, options: dict[str, Any]) -> None:
        import mlx.core as mx

        import layerwise.mlx

        assert groups is None, "groups are mlx.optimizers.MultiOptimizer"
        self.mx = mx
        self._weights = {name: self._array(name, w) for name, w in weights.items()}
        rate = {"learning_rate": options.pop("lr")} if "lr" in options else {}
        self.opt = getattr(layerwise.mlx, self.name)(**rate, **options)

    def _array(self, name: str, x: Any) -> Any:
        return self.mx.array(np.asarray(x, np.float64), dtype=getattr(self.mx, self.dtype_of(name)))

    def step(self, grads: Mapping[str, Any]) -> None:
        given = {name: self._array(name, g) for name, g in grads.items() if g is not None}
        self._weights |= self.opt.apply_gradients(given, self._weights)

    def state(self) -> dict[str, Arrays]:
        kept = {name: self.opt.state[name] for name in self._weights if name in self.opt.state}
        return {name: {field: numpy_of(x) for field, x in one.items()} for name, one in kept.items()}

    def save(self) -> Any:
        from mlx.utils import tree_flatten

        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/state.npz"
            self.mx.savez(path, **dict(tree_flatten(self.opt.state)))
            saved = self.mx.load(path)
            self.mx.eval(saved)  # before its file is gone
        return saved

    def load(self, state: Any) -> None:
        from mlx.utils import tree_unflatten

        self.opt.state = tree_unflatten([*state.items()])

    def set_lr(self, lr: Any) -> None:
        self.opt.learning_rate = lr


class Mlx(Api):
    name, run = "MLX", MlxRun
    offers = frozenset([
        "extremes", "schedules", "clipping", "none", "lr", "set_lr", "functions", "in_place", "saves_lr",
    ])  # fmt: skip

    @contextmanager
    def world(self) -> Any:
        mx = pytest.importorskip("mlx.core")
        before = mx.default_device()
        mx.set_default_device(mx.cpu)  # which has float64
        yield
        mx.set_default_device(before)


APIS: dict[str, type[Api]] = {one.name: one for one in (NumPy, Torch, Jax, Paddle, PaddleStatic, Keras, Mlx)}
EVERYWHERE = ("NumPy", "Torch", "Jax", "MLX")  # whose packages `make test` has
