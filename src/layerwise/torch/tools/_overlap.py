"""Copies of an offloaded step in parallel with the device: gradients during the backward pass, weights during the
forward.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal
from weakref import ref

from torch import Tensor, nn

from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.options import checks
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.offload._host import RETURNING, RING, GradientSums, make_devices_wait
from layerwise.torch.offload._stepper import OffloadedStepper
from layerwise.torch.sharding._cuts import several_processes
from layerwise.torch.sharding._dtensors import is_dtensor
from layerwise.torch.sharding._wrapped_modules import units_of
from layerwise.torch.step._stepper import stepper_of
from layerwise.torch.tools._weights import checked_optimizer

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class Overlap:
    """The hooks of `overlap`; `remove()` removes them."""

    def __init__(self, optimizer: Optimizer, stepper: OffloadedStepper, modules: Iterable[Any]) -> None:
        # Parameters hold the hooks: a reference to the host's side would keep it as long as the model.
        self._stepper, self._units = ref(stepper), frozenset(units_of(optimizer.parameters()))
        params: list[Any] = [p for p in optimizer.parameters() if p.requires_grad]
        self._hooks: list[RemovableHandle] = [p.register_post_accumulate_grad_hook(self._arrived) for p in params]
        for module in modules:
            # Sharded weights are gathered at another time, perhaps before the module is called.
            stepper.host.by_module |= {id(p) for p in module.parameters() if not is_dtensor(p)}
            self._hooks += [module.register_forward_pre_hook(_wait), module.register_state_dict_pre_hook(_wait)]

    def _arrived(self, p: Tensor) -> None:
        # With several processes, only FSDP2's hooks run after gradients are reduced; those of others run before.
        complete = id(p) in self._units or not several_processes()
        stepper: OffloadedStepper | None = self._stepper()
        if stepper is not None and complete:
            stepper.arrived(p)

    def remove(self) -> None:
        """Copy in `optimizer.step()` again; a second call changes nothing."""
        stepper: OffloadedStepper | None = self._stepper()
        host = None if stepper is None else stepper.host
        if host is not None and host.sums is not None and host.sums.has_any:
            raise ContradictionError("gradients were accumulated on the host. Call opt.zero_grad() before remove().")
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if host is not None:
            host.by_module.clear()
            host.sums = None
        make_devices_wait(list(RETURNING))


def _wait(module: nn.Module, *_: object) -> None:
    make_devices_wait(module.parameters())


def overlap(
    optimizer: Optimizer,
    modules: nn.Module | Iterable[nn.Module] = (),
    *,
    every: int = 1,
    accumulate: Literal["device", "host"] = "device",
    memory: int = RING,
) -> Overlap:
    """Copy gradients to the host during the backward pass, and weights back while the next forward pass has begun.

    It needs an optimizer with `offload=True`, whose steps stay the same. Without it gradients are copied when `step()`
    is called, and the device waits for all weights. To go back to that, call remove() on the result. The compiled
    engine measures gradients that have arrived during the backward pass; only `step()` writes.

    With several processes, gradients of `fully_shard` are copied during the backward pass, and those of others, such as
    DistributedDataParallel's, in `step()`, because they are reduced after the hooks.

    A gradient that was changed since it was copied, for example by clipping or unscaling, is copied again. Change
    `p.grad` itself: PyTorch does not notice writes to `p.grad.data`.

    Args:
        optimizer: An optimizer of `layerwise.torch` with `offload=True`.
        modules: Modules that wait for their own weights when their forward begins, such as the layers of the model. The
            device waits for all other weights at once. A weight of these modules may be used only in their forward,
            after it, and in state_dict(): nothing may read it, or write to it, between `step()` and that.
        every: The number of backward passes whose gradients accumulate. With "device" they leave in the last of them.
        accumulate: Add up gradients on the "device", in `p.grad`, or on the "host": each leaves the device as it
            arrives, `p.grad` is None, and the host has memory for all of them. Clip by `max_grad_norm` then, and begin
            again by `optimizer.zero_grad()`.
        memory: The bytes of host memory for gradients on their way. With `max_grad_norm`, and for sharded parameters,
            all gradients are in host memory together, whatever this says.
    """
    stepper = stepper_of(checked_optimizer(optimizer, "overlap(optimizer, modules)"))
    if not isinstance(stepper, OffloadedStepper):
        raise ContradictionError("overlap() is for steps on the host. Make the optimizer with offload=True.")
    found = _called([modules] if _is_called(modules) else modules)
    own = {id(p) for p in optimizer.parameters()}
    if found and not any(id(p) in own for module in found for p in module.parameters()):
        raise HyperparameterError(
            "no module of `modules` holds a parameter of this optimizer. Pass the model that it trains."
        )
    host = stepper.host
    host.every = checks.integer(1)("every", every, "Pass the number of backward passes per step.")
    checks.one_of("device", "host")(
        "accumulate", accumulate, '"device" adds gradients up in p.grad, and "host" in the host\'s memory.'
    )
    host.most = checks.integer(1)("memory", memory, "Pass a number of bytes, such as 2**28.")
    host.forget()
    if accumulate == "host":
        host.sums = GradientSums(memory)
    return Overlap(optimizer, stepper, found)


def _called(modules: Any) -> list[nn.Module]:
    """Return the modules; raise if one has no forward, before which it could wait."""
    found = list(modules)
    if odd := [one for one in found if not _is_called(one)]:
        way_out = "Pass the modules in a ModuleList, which is never called itself."
        raise HyperparameterError(sentence("modules", "modules with a forward method", odd[0], way_out))
    return found


def _is_called(module: object) -> bool:
    return isinstance(module, nn.Module) and type(module).forward is not nn.Module.forward
