"""What others' offload makes of our optimizers: they step there, and lose what the page says.

The calls are those of torchao 0.18.0 (`optim/cpu_offload.py`), megatron-core 0.16.1
(`optimizer/cpu_offloading/hybrid_optimizer.py`) and DeepSpeed 0.19.8 (`runtime/zero/stage3.py`), without their copies.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from layerwise.errors import HyperparameterError
from layerwise.torch import SGD, Adafactor, Lamb, Lars

SHAPES = {"first": (64, 128), "second": (32, 64), "third": (64,)}
STEPS = 3
FRONTS = [Lamb, Lars, Adafactor]


class LikeTorchAO:
    """An optimizer for each parameter, made of its host copy, which has its gradient from the start."""

    def __init__(self, params: list[Tensor], optimizer_class: Any, **kwargs: Any) -> None:
        self.host: dict[Tensor, Tensor] = {}
        self.optims = {}
        for p in params:
            host = torch.empty_like(p, device="cpu")
            host.grad = torch.empty_like(host)
            host.copy_(p.detach())
            self.host[p] = host
            self.optims[p] = optimizer_class([{"params": host}], **kwargs)

    def step(self) -> None:
        for p, optim in self.optims.items():
            self.host[p].grad.copy_(p.grad)
            optim.step()
            p.detach().copy_(self.host[p])


class LikeMegatron:
    """Optimizers of groups with copies that require no gradient; lr is put into new groups before each step."""

    def __init__(self, params: list[Tensor], cls: Any, each_its_own: bool, **kwargs: Any) -> None:
        self.copies = {p: p.detach().clone() for p in params}
        for copy in self.copies.values():
            copy.requires_grad = False
        groups = [{"params": [copy], **kwargs} for copy in self.copies.values()]
        self.optims = [cls([one]) for one in groups] if each_its_own else [cls(groups)]
        self.lr = kwargs["lr"]
        for optim in self.optims:
            optim.register_step_post_hook(self._back)

    def _back(self, *_: Any) -> None:
        for p, copy in self.copies.items():
            p.data.copy_(copy.data)

    def step(self) -> None:
        for optim in self.optims:
            optim.param_groups = [{**group, "lr": self.lr} for group in optim.param_groups]
            for group in optim.param_groups:
                for copy in group["params"]:
                    p = next(p for p, own in self.copies.items() if own is copy)
                    if copy.grad is None:
                        copy.grad = torch.empty(copy.shape, dtype=copy.dtype)
                    copy.grad.data.copy_(p.grad)
            optim.step(None)
            for state in optim.state.values():  # which it moves to where the optimizer is
                for key, x in state.items():
                    state[key] = x.to("cpu")


def params() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES.values()]


def trained(make: Callable[[list[Tensor]], Any]) -> list[Tensor]:
    own = params()
    opt = make(own)
    random = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        for p in own:
            p.grad = torch.randn(p.shape, generator=random)
        with torch.no_grad():
            opt.step()
    return [p.detach() for p in own]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


HOW = {
    "torchao": lambda front, **options: lambda own: LikeTorchAO(own, front, lr=0.01, **options),
    "Megatron": lambda front, **options: lambda own: LikeMegatron(own, front, False, lr=0.01, **options),
    "Megatron, overlapping": lambda front, **options: lambda own: LikeMegatron(own, front, True, lr=0.01, **options),
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("how", HOW)
def test_steps_are_the_ordinary_ones(how, front):
    assert same(trained(HOW[how](front)), trained(lambda own: front(own, lr=0.01)))


@pytest.mark.parametrize("how", ["torchao", "Megatron, overlapping"])
def test_with_an_optimizer_for_each_tensor_each_is_clipped_by_its_own_norm(how):
    found = trained(HOW[how](SGD, max_grad_norm=0.5))
    assert same(found, trained(lambda own: SGD(own, lr=0.01, max_grad_norm_per_tensor=0.5)))
    assert not same(found, trained(lambda own: SGD(own, lr=0.01, max_grad_norm=0.5)))


def test_where_all_have_one_the_norm_is_that_of_all():
    expected = trained(lambda own: SGD(own, lr=0.01, max_grad_norm=0.5))
    assert same(trained(HOW["Megatron"](SGD, max_grad_norm=0.5)), expected)


def test_names_are_lost_and_blocks_say_so():
    with pytest.raises(HyperparameterError, match="blocks"):
        HOW["torchao"](Lamb, blocks={"first": 2})(params())


def test_zero_3_puts_one_partition_after_the_other_into_a_group():
    """A group is empty but for the moment in which one of its sub-groups steps: as a whole, or a part of each rank."""

    class LikeZero3:
        def __init__(self, own: list[Tensor]) -> None:
            self.own = own
            self.fp32 = [p.detach().clone().flatten().requires_grad_() for p in own]
            self.opt = Lamb([{"params": own}], lr=0.01)
            self.opt.param_groups[0]["params"] = []

        def step(self) -> None:
            for p, partition in zip(self.own, self.fp32, strict=True):
                partition.grad = p.grad.flatten()
                self.opt.param_groups[0]["params"] = [partition]
                self.opt.step()
                self.opt.param_groups[0]["params"] = []
                p.copy_(partition.view(p.shape))

    assert same(trained(LikeZero3), trained(lambda own: Lamb(own, lr=0.01)))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_itself_steps_with_our_lamb_and_names(stage):
    pytest.importorskip("deepspeed")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "offload.with_deepspeed", str(stage), str(port)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "['0.bias', '0.weight', '1.bias', '1.weight']"
