"""TensorFlow Addons' LAMB.

To run it:

    pip install tensorflow-cpu==2.15.1 tensorflow-addons==0.23.0
    python tests/parity/record/from_addons.py
"""

import tensorflow as tf
import tensorflow_addons as tfa
from recording import case, keras_steps, write

FLAT, WARM = [0.01] * 4, [0.002, 0.004, 0.016, 0.008]
CASES = [
    case({}, {}, [0.001] * 4),
    case({"weight_decay": 0.1}, {"weight_decay": 0.1}, WARM),
    case(
        {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01, "weight_decay": 0.01},
        {"betas": [0.8, 0.95], "eps": 0.01, "weight_decay": 0.01},
        FLAT,
    ),
    case({"global_clipnorm": 0.5}, {"max_grad_norm": 0.5}, FLAT),
    case({"clipnorm": 0.5}, {"max_grad_norm_per_tensor": 0.5}, FLAT),
    case({"clipvalue": 0.25}, {"max_grad_value": 0.25}, FLAT),
]


DEFAULTS = {"beta_1": 0.9, "beta_2": 0.999, "weight_decay": 0.0}


def new(lrs, theirs):
    # Python floats would be stored in float32.
    tensors = {name: tf.constant(theirs.get(name, value), tf.float64) for name, value in DEFAULTS.items()}
    return tfa.optimizers.LAMB(learning_rate=lrs, **{**theirs, **tensors})


def main():
    write(
        "tensorflow_addons",
        "LAMB",
        CASES,
        keras_steps(new),
        "float64",
        f"tensorflow-cpu {tf.__version__}",
        version=tfa.__version__,
        source=f"PyPI tensorflow-addons {tfa.__version__}, tensorflow_addons/optimizers/lamb.py",
        licence="Apache-2.0",
        command="python tests/parity/record/from_addons.py",
        notes="The two exclude_from lists, which turn decay and ratio off for tensors by name, are not covered; "
        "epsilon=0 is an AttributeError in this version. The learning rate was given as a schedule, the betas and the "
        "decay as float64 tensors, since Python floats are stored in float32.",
    )


if __name__ == "__main__":
    main()
