"""Programs of Paddle's static graph for tests: parameters of given numbers, stepped on gradients that are fed."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from contract.apis import numpy_of
from paddle_front.front import paddle

static = paddle.static


@contextmanager
def static_graph():
    """The static graph, with names and a scope of its own."""
    paddle.enable_static()
    try:
        with of_its_own(static.Scope()):
            yield
    finally:
        paddle.disable_static()


@contextmanager
def of_its_own(scope):
    """Paddle keeps the stack of calls of each operation, which takes most of the time here: one call will do."""
    with (
        patch.object(sys, "tracebacklimit", 1, create=True),
        paddle.utils.unique_name.guard(),
        static.scope_guard(scope),
    ):
        yield


def variable(name, a, dtype="float64", **given):
    """A parameter of this name; its numbers are put into the scope when the startup program has run."""
    attr = paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Constant(1.0), **given)
    return paddle.create_parameter(list(np.shape(a)), dtype, attr=attr)


def bits_of(a, dtype):
    """Numbers as the scope takes them: of bfloat16 its bits."""
    a = np.asarray(a, np.float32 if dtype == "bfloat16" else dtype)
    if dtype != "bfloat16":
        return a
    return ((a.view(np.uint32) + 0x7FFF + ((a.view(np.uint32) >> 16) & 1)) >> 16).astype(np.uint16)


def layer(x, size, name, activation=None, **weight):
    """A dense layer of this name, whatever else Paddle has named."""
    attrs = [paddle.ParamAttr(name=f"{name}.{what}", **own) for what, own in (("w", weight), ("b", {}))]
    return static.nn.fc(x, size, weight_attr=attrs[0], bias_attr=attrs[1], activation=activation)


class Stepped:
    """Parameters with an optimizer in a program and a scope of their own, which is run on gradients of all of them."""

    def __init__(self, make, weights, dtype="float64", given=None):
        self.dtypes = {name: dtype if isinstance(dtype, str) else dtype[name] for name in weights}
        self.main, self.start, self.exe = static.Program(), static.Program(), static.Executor()
        self.scope = static.Scope()
        with self.world(), static.program_guard(self.main, self.start):
            self.params = {name: variable(name, a, self.dtypes[name], **(given or {})) for name, a in weights.items()}
            self.opt = make(self.params)
            fed = [(p, static.data(f"{name}@fed", list(p.shape), p.dtype)) for name, p in self.params.items()]
            self.ops = self.opt.apply_gradients(fed)
            self.exe.run(self.start)
        for name, a in weights.items():
            self.set(name, a)

    def world(self):
        """What is done with the program is done here."""
        return of_its_own(self.scope)

    def set(self, name, a):
        numbers = bits_of(a, self.dtypes[name])
        self.scope.find_var(name).get_tensor().set(numbers, paddle.CPUPlace())
        if master := self.scope.find_var(f"{name}_fp32_master_0"):  # which the startup program copies
            wide = (numbers.astype(np.uint32) << 16).view(np.float32) if numbers.dtype == np.uint16 else numbers
            master.get_tensor().set(wide.astype(np.float32), paddle.CPUPlace())

    def run(self, grads, fetch=(), **more):
        feed = {f"{name}@fed": bits_of(g, self.dtypes[name]) for name, g in grads.items()}
        with self.world():
            return self.exe.run(self.main, feed={**feed, **more}, fetch_list=list(fetch))

    def kept(self):
        """The weights, as NumPy holds them."""
        with paddle.base.dygraph.guard():
            tensors = {name: paddle.Tensor(self.scope.find_var(name).get_tensor()) for name in self.params}
            return {name: numpy_of(tensor.clone()) for name, tensor in tensors.items()}

    def numbers(self):
        return {name: a.astype(np.float64) for name, a in self.kept().items()}

    def state(self):
        with self.world():
            return self.opt.state_dict()

    def load(self, state):
        with self.world():
            self.opt.set_state_dict(state)
