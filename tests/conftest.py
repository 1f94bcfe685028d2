from __future__ import annotations

import gc
import os
import signal
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from xla import quick_flags

# What takes longest begins first, so that with several workers (`-n`) none is left with it at the end.
LONGEST = [Path(__file__).parent / name for name in ("sharding", "offload", "jax_front", "gpu", "contract", "parity")]
PROJECT = Path(__file__).parent / "project"

gc.disable()  # until all tests are collected: what is imported stays

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores among themselves

# Nearly all that XLA compiles for a test runs once or twice, on a few numbers.
os.environ.setdefault("XLA_FLAGS", " ".join(quick_flags()))

if find_spec("torch") and find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported anywhere


@pytest.fixture
def jax64():
    """JAX in float64, for this test alone."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def interrupts():
    """An interrupt is a KeyboardInterrupt, also where a shell runs the tests in its background and ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def process_group():
    """This process alone as a group of torch.distributed."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available():
        pytest.skip("torch was built without distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def faithful_interpreter():
    """Triton's interpreter as it is needed where there is no GPU: it rounds as one does."""
    import torch

    if torch.cuda.is_available():
        yield
        return
    from gpu.interpreting import faithfully

    with faithfully():
        yield


def pytest_ignore_collect(collection_path, config):
    """Leave out, unless they are asked for, tests of documents, tools, benchmarks and tests: `make test-project`."""
    asked = (Path(config.invocation_params.dir, str(one).partition("::")[0]) for one in config.args)
    return True if collection_path == PROJECT and not any(one.is_relative_to(PROJECT) for one in asked) else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc):
    """Leave out cases before pytest makes items of them, which takes long: of four, `make test` tries one."""
    from selection import chosen

    yield
    kept = chosen(metafunc.definition, metafunc._calls, metafunc.config.option.keyword)
    if metafunc.config.option.markexpr == "not slow":
        kept = [case for case in kept if not case.is_slow] or kept[:1]  # without a case it would be a test of its own
    metafunc._calls[:] = [case.call for case in kept]


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: _turn(item.path))


@cache
def _turn(path):
    return next((i for i, longest in enumerate(LONGEST) if path.is_relative_to(longest)), len(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Spare the garbage collector what was imported: it would look through millions of objects again and again."""
    found = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # tracing makes many objects that stay
    gc.enable()
    return found


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from scheduling import Scheduler

    return Scheduler(config, log)
