from __future__ import annotations

# Files whose tests are all slow. To collect them is slow as well: it imports their packages.
PEERS = (
    "test_keras.py",
    "test_keras_states.py",
    "test_paddle.py",
    "test_paddle_front.py",
    "test_pytorch_optimizer.py",
    "test_transformers.py",
)


def pytest_ignore_collect(collection_path, config):
    return True if config.option.markexpr == "not slow" and collection_path.name in PEERS else None
