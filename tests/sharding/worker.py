"""One rank of the pool in ranks.py: takes a call, makes a process group for it, runs it, says what came of it."""

from __future__ import annotations

import faulthandler
import gc
import pickle
import signal
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
from sharding.ranks import Group

import layerwise.torch
from sharding import layouts

joined: Group | None = None


def join(rank: int, group: Group) -> None:
    """Be in this process group, and in no other."""
    global joined
    if joined == group:
        return
    leave()
    store, world, seconds = group
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=seconds)
    )
    joined = group


def leave() -> None:
    global joined
    joined = None
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


def main() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    torch.set_num_threads(1)
    gc.freeze()
    line = Connection(int(sys.argv[1]))
    line.send_bytes(pickle.dumps((layerwise.__version__, "", "")))
    while True:
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


if __name__ == "__main__":
    main()
