from __future__ import annotations

# Files whose tests are all slow. To collect them is slow as well: it imports their packages.


def pytest_ignore_collect(collection_path, config):
    return True if config.option.markexpr == "not slow" and collection_path.name.startswith("test_") else None


def pytest_configure(config):
    config.addinivalue_line("markers", "requires_trainable_backend: a mark of Keras's tests")
