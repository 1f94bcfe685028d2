"""Time a step of the Keras, MLX and Paddle APIs beside the framework's own optimizers.

python benchmarks/frameworks.py mlx
python benchmarks/frameworks.py paddle
KERAS_BACKEND=jax python benchmarks/frameworks.py keras        # or torch, or tensorflow, which needs tensorflow-cpu

Both optimizers of a pair run in one process, in turns, on the same float32 numbers, with the framework's own number of
threads. A ratio is a median over the framework's: below 1 ours is faster. Keras's steps are compiled by its backend:
jitted with donated variables, a function of TensorFlow, with PyTorch as they are. MLX's are timed compiled and plain.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.shapes import SETS, Shapes, parameters
from layerwise.cli.info import version_of
from rows import RESULTS, alternately, append, figures, parser_of, provenance, show

LR = 1e-3
ROUNDS = {"bert-base": 9, "tiny-1000": 15, "square-197": 61}
Steps = dict[str, Callable[[], object]]


def arrays(shapes: Shapes, scale: float) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name.replace(".", "_"): scale * random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def keras_steps(name: str, shapes: Shapes) -> Steps:
    import keras

    import layerwise.keras

    made = {"keras": getattr(keras.optimizers, name)(LR), "layerwise": getattr(layerwise.keras, name)(LR)}
    grads = [keras.ops.convert_to_tensor(g) for g in arrays(shapes, 1e-3).values()]
    start = {"jax": _jitted, "tensorflow": _function}.get(keras.config.backend(), _eager)
    return {label: start(optimizer, grads, _variables(shapes)) for label, optimizer in made.items()}


def _variables(shapes: Shapes) -> list[Any]:
    import keras

    return [keras.Variable(x) for x in arrays(shapes, 0.02).values()]


def _eager(optimizer: Any, grads: Any, variables: Any) -> Callable[[], object]:
    optimizer.build(variables)
    return lambda: optimizer.apply(grads)


def _function(optimizer: Any, grads: Any, variables: Any) -> Callable[[], object]:
    import tensorflow

    optimizer.build(variables)
    step = tensorflow.function(lambda: optimizer.apply(grads))

    def taken() -> None:
        step()
        variables[-1].value.numpy()

    return taken


def _jitted(optimizer: Any, grads: Any, variables: Any) -> Callable[[], object]:
    import jax

    optimizer.build(variables)
    # In the order of the results, as Keras's own training has them: in another XLA would copy what is donated.
    step = jax.jit(lambda values, own: optimizer.stateless_apply(own, grads, values), donate_argnums=(0, 1))
    kept = [[v.value + 0 for v in variables], [v.value + 0 for v in optimizer.variables]]

    def taken() -> None:
        kept[:] = jax.block_until_ready(step(*kept))

    return taken


def mlx_steps(name: str, shapes: Shapes) -> Steps:
    import mlx.core as mx
    import mlx.optimizers as theirs

    import layerwise.mlx

    own: dict[str, Any] = {"Adafactor": {"relative_step": False}}
    # Ours has no counterpart of LAMB and LARS in MLX, where AdamW stands for what the memory allows.
    peer = getattr(theirs, name, theirs.AdamW)(LR, **own.get(name, {}))
    made = {f"mlx.{type(peer).__name__}": peer, "layerwise": getattr(layerwise.mlx, name)(LR)}
    params, grads = ({key: mx.array(x) for key, x in arrays(shapes, scale).items()} for scale in (0.02, 1e-3))
    steps: Steps = {}
    for label, optimizer in made.items():
        optimizer.init(params)
        mx.eval(optimizer.state, params, grads)
        compiled = mx.compile(optimizer.apply_gradients, inputs=[optimizer.state], outputs=[optimizer.state])
        for how, step in (("compiled", compiled), ("plain", optimizer.apply_gradients)):
            steps[f"{label}, {how}"] = lambda step=step, own=optimizer: mx.eval(step(grads, params), own.state)
    return steps


def paddle_steps(name: str, shapes: Shapes) -> Steps:
    import paddle

    import layerwise.paddle

    steps: Steps = {}
    for label, module in (("paddle", paddle.optimizer), ("layerwise", layerwise.paddle)):
        params = [paddle.create_parameter(x.shape, "float32") for x in arrays(shapes, 0.02).values()]
        for p, x, g in zip(params, arrays(shapes, 0.02).values(), arrays(shapes, 1e-3).values(), strict=True):
            p.set_value(x)
            p.grad = paddle.to_tensor(g)
        steps[label] = getattr(module, name)(learning_rate=LR, parameters=params).step
    return steps


STEPS = {
    "keras": (keras_steps, ("AdamW", "Lamb", "Adafactor")),
    "mlx": (mlx_steps, ("AdamW", "Adafactor", "Lion", "SGD", "Lamb", "Lars")),
    "paddle": (paddle_steps, ("AdamW", "Lamb")),
}


def measure(api: str, name: str, set_name: str, rounds: int) -> list[dict[str, object]]:
    shapes = SETS[set_name]()
    found = alternately(STEPS[api][0](name, shapes), rounds)
    common = {"optimizer": name, "shapes": set_name, "tensors": len(shapes), "parameters": parameters(shapes)}
    half = len(found) // 2  # the framework's own come first, in the same order
    labels = list(found)
    base = dict(zip(labels, labels[:half] * 2, strict=True))
    return [
        {**common, "implementation": label, **figures(timing, found[base[label]])} for label, timing in found.items()
    ]


def main() -> None:
    parser = parser_of(__doc__, "frameworks.csv")
    parser.add_argument("api", choices=STEPS)
    parser.add_argument("--shapes", choices=SETS, action="append", help="only these sets; may be repeated")
    parser.add_argument("--optimizer", action="append", help="only these; may be repeated")
    given = parser.parse_args()
    versions = {name: version_of(name) or "" for name in ("keras", "mlx", "paddlepaddle", "tensorflow-cpu")}
    api = given.api
    if api == "keras":
        import keras

        api = f"keras on {keras.config.backend()}"
    for set_name in given.shapes or ROUNDS:
        for name in given.optimizer or STEPS[given.api][1]:
            rows = measure(given.api, name, set_name, ROUNDS.get(set_name, 9))
            show(f"{api}: {name}, {set_name}", rows, ["implementation", "median_ms", "q1_ms", "q3_ms", "ratio"])
            if not given.no_write:
                append(RESULTS / "frameworks.csv", [{"api": api, **row, **provenance(), **versions} for row in rows])
            gc.collect()


if __name__ == "__main__":
    main()
