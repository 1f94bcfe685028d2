"""What the recorders share: the tensors, the loading of another project's file, the stepping, the JSON file.

A recorder `from_<project>.py` runs that project's own optimizer on the tensors below and writes
`tests/parity/traces/<package>.<optimizer>.json`. It either imports the package from the environment it is run in, or
loads a source file whose path is given on the command line; its docstring says which, and how to come by it.
"""

import importlib.util
import json
import platform
import sys
import types
from pathlib import Path

import numpy as np

TRACES = Path(__file__).parent.parent / "traces"
SHAPES = {"matrix": (5, 3), "vector": (4,), "cube": (2, 3, 4), "zeros": (3,)}
# Powers of two, so that every number is exact in float32 too.
TENSOR_SCALE = {"matrix": 1.0, "vector": 2.0**-10, "cube": 32.0, "zeros": 0.125}
STEP_SCALE = [1.0, 2.0**-10, 2.0, 0.25]


def _tensors():
    rng = np.random.default_rng(20190401)

    def normal(shape):
        return rng.standard_normal(shape).astype(np.float32).astype(np.float64)

    params = {name: normal(shape) for name, shape in SHAPES.items()}
    params["zeros"] = np.zeros(SHAPES["zeros"])
    grads = [{name: normal(shape) * TENSOR_SCALE[name] * s for name, shape in SHAPES.items()} for s in STEP_SCALE]
    grads[2]["matrix"] = np.zeros(SHAPES["matrix"])  # a zero gradient after the state has filled
    return params, grads


PARAMS, GRADS = _tensors()


def load(path, **stubs):
    """The module in the file `path`.

    `stubs` are modules that it imports and does not need for its optimizer, by name with "__" for a dot.
    """
    for name, attributes in stubs.items():
        module = types.ModuleType(name.replace("__", "."))
        module.__dict__.update(attributes)
        sys.modules[module.__name__] = module
    spec = importlib.util.spec_from_file_location("recorded", path)
    module = sys.modules["recorded"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def case(theirs, ours, lrs, differs=None, **extra):
    """One run: their constructor's arguments without the learning rate, the equal ones of ours, and the lr per step."""
    return {"theirs": theirs, "lrs": lrs, "ours": ours, "differs": differs, **extra}


def torch_steps(build, dtype="float64"):
    """A function of a case: the parameters after each step of the torch optimizer `build(parameters, lr, theirs)`."""
    import torch

    def steps(run):
        params = {name: torch.nn.Parameter(torch.tensor(p, dtype=getattr(torch, dtype))) for name, p in PARAMS.items()}
        optimizer = build(list(params.values()), run["lrs"][0], run["theirs"])
        for lr, grads in zip(run["lrs"], GRADS, strict=True):
            if lr is not None:
                for group in optimizer.param_groups:
                    group["lr"] = lr
            for name, p in params.items():
                p.grad = torch.tensor(grads[name], dtype=p.dtype)
            optimizer.step()
            yield {name: p.detach().numpy() for name, p in params.items()}

    return steps


def keras_steps(build, dtype="float64"):
    """As `torch_steps`, for a Keras 2 optimizer under TensorFlow 2; `build(lrs, theirs)`, lrs a schedule."""
    import tensorflow as tf
    from tensorflow.python.keras.optimizer_v2 import learning_rate_schedule

    # TensorFlow carries an older copy of Keras, and some optimizers want the schedules of that.
    class Lrs(tf.keras.optimizers.schedules.LearningRateSchedule, learning_rate_schedule.LearningRateSchedule):
        def __init__(self, values):
            self.values = values

        def __call__(self, step):
            return tf.gather(tf.constant(self.values, dtype), tf.cast(step, tf.int32))

        def get_config(self):
            return {"values": self.values}

    def steps(run):
        params = {name: tf.Variable(p, dtype=dtype, name=name) for name, p in PARAMS.items()}
        optimizer = build(Lrs(run["lrs"]), run["theirs"])
        for grads in GRADS:
            optimizer.apply_gradients([(tf.constant(grads[name], dtype), p) for name, p in params.items()])
            yield {name: p.numpy() for name, p in params.items()}

    return steps


def write(package, optimizer, cases, steps, dtype, library, **provenance):
    """Run every case and write the file of one optimizer; `library` is what it ran on, such as "torch 2.13.0 CPU"."""
    head = {
        "package": package,
        "optimizer": optimizer,
        **provenance,
        "recorded_with": f"python {platform.python_version()}, {library}, {dtype}",
        "params": {name: {"shape": list(p.shape), "data": p.ravel().tolist()} for name, p in PARAMS.items()},
        "grads": [_flat(g) for g in GRADS],
    }
    runs = [{**run, "dtype": dtype, "trajectory": [_flat(p) for p in steps(run)]} for run in cases]
    file = TRACES / f"{package}.{optimizer}.json"
    fields = [f"{_json(key)}: {_json(value)}" for key, value in head.items()]
    fields.append('"runs": [\n' + ",\n".join(map(_json, runs)) + "\n]")
    file.write_text("{\n" + ",\n".join(fields) + "\n}\n")


def _json(value):
    return json.dumps(value, separators=(",", ":"))


def _flat(arrays):
    # str of a NumPy scalar is the shortest decimal that reads back as that number in its own dtype.
    return {name: [float(str(x)) for x in np.asarray(a).ravel()] for name, a in arrays.items()}
