"""DeepSpeed's ZeRO-Offload with our LAMB as its client optimizer, on one process without an accelerator.

    python -m offload.with_deepspeed STAGE

It compares the weights with those of LAMB on float32 copies, and prints the names in the measurements of the last step.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch

from layerwise.torch import Lamb, flat

OPTIONS: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
HERE = {"DS_ACCELERATOR": "cpu", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
BATCHES = [torch.full((2, 8), x, dtype=torch.bfloat16) for x in (1.0, -0.5, 2.0)]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)).bfloat16()


def expected() -> list[torch.Tensor]:
    own = model()
    masters = [p.detach().float().requires_grad_() for p in own.parameters()]
    opt = Lamb(masters, **OPTIONS)
    for x in BATCHES:
        own(x).float().square().mean().backward()
        for p, master in zip(own.parameters(), masters, strict=True):
            master.grad, p.grad = p.grad.float(), None
        opt.step()
        with torch.no_grad():
            for p, master in zip(own.parameters(), masters, strict=True):
                p.copy_(master)
    return [p.detach() for p in own.parameters()]


def found(stage: int) -> tuple[list[torch.Tensor], list[str]]:
    import deepspeed

    own = model()
    opt = Lamb(own.named_parameters(), **OPTIONS)
    offload: dict[str, Any] = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "gradient_clipping": 1e9,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": offload,
    }
    engine = deepspeed.initialize(model=own, optimizer=opt, config=config, dist_init_required=True)[0]
    flat.from_deepspeed(engine)
    for x in BATCHES:
        engine.backward(engine(x).float().square().mean())
        engine.step()
    with deepspeed.zero.GatheredParameters(list(own.parameters()), enabled=stage == 3):
        return [p.detach().clone() for p in own.parameters()], sorted(opt.stats())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ.update(HERE, MASTER_PORT=sys.argv[2])
    weights, names = found(int(sys.argv[1]))
    for x, y in zip(weights, expected(), strict=True):
        torch.testing.assert_close(x, y, rtol=2**-7, atol=0)
    print(names)
