"""States in few bits as bitsandbytes and FlashOptim save them, with the numbers that these read in them.

To run it:

    pip install torch bitsandbytes==0.50.2 flashoptim==0.1.4
    TRITON_INTERPRET=1 python tests/parity/record/states.py
"""

import base64
import importlib.metadata
import json
from pathlib import Path

import bitsandbytes
import flashoptim.optimizers as flash
import torch
import triton

HERE = Path(__file__).parents[2] / "torch_front" / "states"
SHAPE = (3, 100)  # two blocks of 256, and ten groups of 32, the last ones with room left


def packed(x):
    return {"dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape), "bytes": text(x)}


def text(x):
    return base64.b64encode(x.detach().contiguous().view(torch.uint8).numpy().tobytes()).decode()


def write(package, optimizer, state, group, numbers):
    found = {
        "implementation": f"{package} {importlib.metadata.version(package)}, {optimizer}",
        "licence": {"bitsandbytes": "MIT", "flashoptim": "Apache-2.0"}[package],
        "command": "TRITON_INTERPRET=1 python tests/parity/record/states.py",
        "group": group,
        "state": {key: packed(x) if isinstance(x, torch.Tensor) else x for key, x in state.items()},
        "numbers": {key: packed(x) for key, x in numbers.items()},
    }
    HERE.mkdir(exist_ok=True)
    (HERE / f"{package}.{optimizer}.json").write_text(json.dumps(found, indent=1) + "\n")


def of_bitsandbytes():
    p = torch.nn.Parameter(torch.randn(SHAPE))
    opt = bitsandbytes.optim.AdamW8bit([p], lr=0.01, min_8bit_size=1)
    for _ in range(3):
        p.grad = torch.randn(SHAPE)
        opt.step()
    saved = opt.state_dict()
    [state] = saved["state"].values()
    kept = state["__bnb_optimizer_quant_state__"]
    read = bitsandbytes.functional.dequantize_blockwise
    numbers = {
        name: read(kept[f"state{i}"], absmax=kept[f"absmax{i}"], code=kept[f"qmap{i}"], blocksize=256)
        for i, name in ((1, "exp_avg"), (2, "exp_avg_sq"))
    }
    write("bitsandbytes", "AdamW8bit", {"step": state["step"], **kept}, saved["param_groups"][0], numbers)


def of_flashoptim():
    """By its kernels, in Triton's interpreter, with the settings of FlashAdamW."""
    m, state, numbers = torch.randn(SHAPE), {"step": 3}, {}
    for key, x, squared in (("exp_avg", m, False), ("exp_avg_sq", m * m, True)):
        codes, scales, back = (
            torch.empty(SHAPE, dtype=torch.uint8 if squared else torch.int8),
            torch.empty(triton.cdiv(m.numel(), 32), dtype=torch.float16),
            torch.empty(SHAPE),
        )
        most = 255.0 if squared else 127.0
        kind = flash.tl.uint8 if squared else flash.tl.int8
        options = {"GROUP_SIZE": 32, "SQRT": squared, "SOFTSIGN": not squared, "BLOCK_SIZE_N": 256}
        flash._triton_quantize_kernel.fn[(2,)](x, codes, scales, m.numel(), OUT_MAX=most, OUT_DTYPE=kind, **options)
        flash._triton_dequantize_kernel.fn[(2,)](codes, scales, back, m.numel(), IN_MAX=most, **options)
        state |= {f"{key}::quantized": codes, f"{key}::scales": scales}
        numbers[key] = back
    group = flash.FlashAdamW(
        [torch.nn.Parameter(m)], lr=0.01, quantize=False, fused=False, master_weight_bits=None
    ).state_dict()
    write("flashoptim", "FlashAdamW", state, group["param_groups"][0], numbers)


if __name__ == "__main__":
    torch.manual_seed(0)
    of_bitsandbytes()
    of_flashoptim()
