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

import layerwise.torch


def outcome(function: Any, arguments: Any, rank: int, world: int, store: str, timeout: float) -> tuple[Any, str, str]:
    """The fields of an `Outcome`."""
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=timeout)
        )
        value = function(*arguments)
        dist.barrier()  # else whoever is done first takes the store and the connections with it
    except Exception as problem:
        return None, type(problem).__name__, traceback.format_exc()
    else:
        return value, "", ""
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()  # models and hooks are cycles, and hold process groups


def main() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main()
