"""The ranks of the pool in ranks.py, and the process that they are forked from.

A rank takes a call, makes a process group for it, runs it, and says what came of it.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import socket
import sys
import time
import traceback
import warnings
from datetime import timedelta
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # which PyTorch imports with the first DTensor: once, and not in every rank
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
from sharding.ranks import Group

import layerwise.torch
from sharding import cells, layouts

IMPORTING = 3  # of the first calls
joined: Group | None = None


def join(rank: int, group: Group) -> None:
    """Be in this process group, and in no other, once all are in it: one that left before would fail the others.

    A process that fails to join counts its groups differently from then on, and could join no other: it ends.
    """
    global joined
    if joined == group:
        return
    leave()
    store, world, seconds = group
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=seconds)
        )
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    joined = group
    dist.barrier()


def leave() -> None:
    global joined
    joined = None
    cells.gradients.cache_clear()
    layouts.mesh_of.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def outcome(function: Any, arguments: Any, rank: int, group: Group) -> tuple[Any, str, str]:
    """The fields of an `Outcome`."""
    try:
        join(rank, group)
        value = function(*arguments)
        dist.barrier()  # whoever is late must not find others in the next call
    except Exception as problem:
        answer = None, type(problem).__name__, traceback.format_exc()
        leave()  # which tells the others, if they wait for this one
        return answer
    return value, "", ""


def serve(line: Connection) -> None:
    """Be a rank until the line ends."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    line.send_bytes(pickle.dumps((layerwise.__version__, "", "")))
    for number in count():
        try:
            call = line.recv_bytes()
        except EOFError:
            return
        try:
            function, arguments, *rest = pickle.loads(call)
        except Exception:
            answer = None, "unpickling", traceback.format_exc()
        else:
            answer = outcome(function, arguments, *rest)
        line.send_bytes(pickle.dumps(answer))
        gc.collect()  # models and their hooks are cycles
        if number < IMPORTING:
            gc.freeze()  # what has been imported need not be looked through again


def exit_code(pid: int, seconds: float) -> int:
    """Return how a rank has ended, after killing it if it has not ended by then."""
    end = time.monotonic() + seconds
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(found[1])


def main() -> None:
    """Fork a rank whenever that is asked for, before any computation has started a thread."""
    torch.set_num_threads(1)
    stay = ".* began at zero, and will hardly move", "most weights of .* will not move"
    for of_first_steps in (*stay, "steps of .* have no trust ratio", "Muon is for hidden", "AdamMini has one"):
        warnings.filterwarnings("ignore", of_first_steps, UserWarning)  # many tests step zeros on purpose
    gc.freeze()
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, fds, *_ = socket.recv_fds(requests, 100, 2)
        if not request:
            return
        word, *numbers = request.decode().split()
        if word == "wait":
            requests.send(str(exit_code(int(numbers[0]), float(numbers[1]))).encode())
            continue
        line, stderr = fds
        if not (pid := os.fork()):
            requests.close()
            os.dup2(stderr, 1)
            os.dup2(stderr, 2)
            os.close(stderr)
            serve(Connection(line))
            return
        os.close(line)
        os.close(stderr)
        requests.send(str(pid).encode())


if __name__ == "__main__":
    main()
