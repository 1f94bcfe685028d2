"""Memory that another thread takes away from tensors stays until the step that works on it has ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from engines.worlds import needed

pytestmark = needed

SWAPPED = """
import threading
import torch
from layerwise.torch import Lamb
from layerwise.errors import LayerwiseError

large = [torch.nn.Parameter(torch.ones(10, 1000, 1000)) for _ in range(2)]  # freed memory leaves
small = [torch.nn.Parameter(torch.ones(300, 1000)) for _ in range(2)]
stop = threading.Event()

def swap(params):
    while not stop.is_set():
        for p in params:
            p.data = torch.ones(p.shape)

for params, times in ((large, 12), (small, 300)):
    opt = Lamb(params, lr=0.01)
    for p in params:
        p.grad = torch.ones(p.shape)
    opt.step()
    stop.clear()
    swapping = threading.Thread(target=swap, args=(params,))
    swapping.start()
    for _ in range(times):
        try:
            opt.step()
        except LayerwiseError:  # nothing was stepped
            pass
    stop.set()
    swapping.join()
print("alive")
"""


def printed(script):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    return done.stdout or done.stderr


def test_weights_that_another_thread_replaces_end_no_process():
    assert printed(SWAPPED) == "alive\n"


@pytest.mark.slow  # imports Paddle
def test_nor_do_those_of_paddle():
    pytest.importorskip("paddle")
    assert printed(PADDLE) == "alive\n"


PADDLE = """
import threading
import paddle
from layerwise.paddle import Lamb

params = [paddle.create_parameter([10000, 1000], "float32") for _ in range(2)]
opt = Lamb(learning_rate=0.01, parameters=params)
sum((p * p).sum() for p in params).backward()
opt.step()
stop = threading.Event()

def swap():
    while not stop.is_set():
        for p in params:
            p.data = paddle.ones([10000, 1000])

swapping = threading.Thread(target=swap)
swapping.start()
for _ in range(12):
    opt.step()
stop.set()
swapping.join()
print("alive")
"""

ROUNDS = """
import torch
from engines.worlds import WORLDS, make_job, mapped, now_of
from cases import case_of
from layerwise import engines
from layerwise.engines.compiled import CompiledEngine

h = case_of("SGD").hyper(max_grad_norm=1.0)
one = mapped(make_job(case_of("SGD"), h, (9000, 1000), (), 0), lambda x: torch.from_numpy(x).clone())
prepared = CompiledEngine().prepare([engines.Job(one.rule, one.h, one.p, one.state)])

class Others:
    def announce(self, stepper, buckets=()):
        pass

    def add_up(self, requests, sums):
        one.p.data, one.g.data = torch.ones(1), torch.ones(1)
        return sums

prepared.step([one.g], [now_of(h, 1)], others=Others())
print("alive")
"""


def test_memory_stays_as_long_as_a_step_in_rounds():
    assert printed(ROUNDS) == "alive\n"
