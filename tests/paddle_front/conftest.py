from __future__ import annotations


def pytest_ignore_collect(collection_path, config):
    # All tests here are slow, and to collect them is slow as well: it imports Paddle.
    return True if config.option.markexpr == "not slow" and collection_path.name.startswith("test_") else None
