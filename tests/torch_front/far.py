"""A device of PyTorch's own that lies nowhere: what its tensors compute is computed on the CPU, behind their back.

Run as a program, it steps all optimizers there and on the CPU by the reference implementation, and compares them; and
it compares how tensors there are watched for changes. One process has one such device, for good.
"""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import layerwise.torch as front
from layerwise.catalog.registry import ENTRIES
from layerwise.engines import addresses, compiled
from layerwise.errors import EngineError


class Far(torch.Tensor):
    """A tensor on that device, around one in this machine's memory, whose address it does not have."""

    near: torch.Tensor

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> Far:
        made = torch.Tensor._make_wrapper_subclass(
            cls, near.shape, near.stride(), dtype=near.dtype, device=torch.device(NAME, 0), dispatch_device=True
        )
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        given = {key: x for key, x in (kwargs or {}).items() if key != "device"}
        before = {id(x.near): x for x in args if isinstance(x, Far)}
        found = func(*tree_map(near, args), **tree_map(near, given))
        goes_back = (kwargs or {}).get("device", torch.device(NAME)).type == "cpu"
        return found if goes_back else tree_map(lambda x: before[id(x)] if id(x) in before else far(x), found)


def near(x):
    return x.near if isinstance(x, Far) else x


def far(x):
    return Far(x) if isinstance(x, torch.Tensor) else x


def stepped(name: str, where, **options) -> list[torch.Tensor]:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(where(torch.randn(shape))) for shape in ((6, 4), (5,))]
    opt = getattr(front, name)(params, lr=0.01, **options)
    for _ in range(3):
        for p in params:
            p.grad = where(torch.randn(p.shape))
        opt.step()
    assert all(x.device.type == params[0].device.type for s in opt.state.values() for x in s.values() if x.dim())
    return [near(p.detach()) for p in params]


def watched_by_the_extension() -> None:
    """With PyTorch's table for exchanges, and as in older releases without it."""
    types = torch.Tensor, torch.nn.Parameter, (torch.float32,) * 4 + (torch.int64,)
    for table in (torch.Tensor.__dlpack_c_exchange_api__, None):
        compiled._native.open_torch(*types, table)
        arrays, m = [there(), there()], there()
        watching = addresses.addresses_of(arrays)
        assert not isinstance(watching, addresses.PythonArraysRecord)
        assert watching.same(arrays)
        assert watching.like([there()])
        assert not watching.like([torch.zeros(2, 3)])
        assert not compiled._native.reaches(arrays[0])
        assert compiled._native.counts([m]) is None
        assert compiled._native.count([m]) is False


def there() -> torch.Tensor:
    x = torch._C._acc.create_empty_tensor((2, 3), torch.float32)
    assert x.device.type == NAME
    return x


def main() -> None:
    for name in (entry.name for entry in ENTRIES.values()):
        expected, found = stepped(name, lambda x: x, fused=False), stepped(name, Far)
        assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(expected, found, strict=True)), name
        with pytest.raises(EngineError, match=r"cannot step these tensors|has no fused kernels"):
            stepped(name, Far, fused=True)
        print(name)
    if (
        compiled._native is not None
        and hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
        and hasattr(torch._C, "_acc")
    ):
        watched_by_the_extension()


NAME = sys.argv[1] if len(sys.argv) > 1 else "privateuseone"
if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(None if NAME == "privateuseone" else NAME)
    main()
