"""The gradient noise scale, from gradients of parts of a batch that training computes anyway.

With n parts of b examples each, whose gradients g_i have the mean ḡ, G being the gradient of the whole distribution and
Σ the covariance of one example's (McCandlish et al., arXiv 1812.06162, appendix A.1):

    tr Σ ≈ b·n/(n − 1)·(mean |g_i|² − |ḡ|²)
    |G|² ≈ |ḡ|² − (mean |g_i|² − |ḡ|²)/(n − 1)

Only the sum of all |g_i|² is needed. So it does not matter to which pass a parameter's gradient belongs, none is kept,
and parameters that a pass does not reach count as zeros.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from layerwise.errors import (
    GradientError,
    HyperparameterError,
    LayerwiseError,
    StateError,
    SynchronizationError,
    sentence,
)
from layerwise.options import checks
from layerwise.torch.arrays._library import arithmetic_dtype
from layerwise.torch.sharding._agreement import reduced
from layerwise.torch.sharding._cuts import Axis, axis_of, cut_of
from layerwise.torch.sharding._dtensors import is_dtensor, local
from layerwise.torch.step import _checks

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

Norm = tuple[Tensor, int]  # the local part of a tensor, and the number of its parts
BATCH = "Pass the number of examples in each micro-batch on each process; skip smaller ones."
AGAIN = "Call update() once before each optimizer.step(), after the last backward pass and before gradients are cleared"
KEYS = ("weight", "signal", "noise")


class Estimate(NamedTuple):
    """Two unbiased estimates from one step. Average them before you divide: the ratio of two estimates is biased.

    Attributes:
        signal: |G|², of the gradient that many examples would have.
        noise: tr Σ, of the gradient of one example.
    """

    signal: float
    noise: float


class StepSums(NamedTuple):
    """The sums of one step: over the passes, and after the exchange also over the processes."""

    squares: float  # Σ|g_i|²
    big: float  # |Σg_i|²
    passes: float
    batch: float


class NoiseScale:
    """A measurement of the gradient noise scale tr Σ/|G|², a batch size, during training.

    The batch must come in parts: micro-batches whose gradients accumulate, or one or more on each process of
    DistributedDataParallel or `fully_shard`. Wrap the model first.

    Args:
        model: The model.
        beta: The decay rate of the averages of signal and noise.
        every: Measure one of so many steps.
        group: The processes that train the model; None is all.
        replicas: The number of processes with batches of their own, as the size of the data-parallel dimension under
            tensor parallelism; None is all of `group`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        beta: float = 0.99,
        every: int = 1,
        group: object = None,
        replicas: int | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise HyperparameterError(
                sentence("model", "a torch.nn.Module", model, "Pass the model, wrapped if it is.")
            )
        self._model, self._axis = model, _axis(group)
        self._beta = checks.number(0, 1)(
            "beta", beta, ("0.99 averages over about the last hundred steps; 0 does not average.")
        )
        self._every, self._updates = checks.integer(1)("every", every, "1 measures each step, 10 every tenth."), 0
        self._ranks = 1 if self._axis is None else len(self._axis.ranks)
        self._replicas = _replicas(replicas, self._ranks)
        self._average = dict.fromkeys(KEYS, 0.0)
        self._hooks: list[RemovableHandle] = []
        self._hooked: dict[int, Tensor] = {}
        self.discard()
        self._listen(model)
        self._hooks += [m.register_forward_pre_hook(_weakly(self._listen)) for m in _sharded(model)]

    # ---- in the backward pass

    def _listen(self, module: nn.Module, _: object = None) -> None:
        # In its forward pass a sharded module has whole parameters, with gradients of this process alone.
        for name, p in module.named_parameters():
            if p.requires_grad and id(p) not in self._hooked:
                _checks.check_parameter(name, p)
                cut_of(name, p).check_observed(name)
                self._hooked[id(p)] = p
                self._hooks.append(p.register_hook(partial(_weakly(self._note), name, id(p))))  # type: ignore[no-untyped-call]

    def _note(self, name: str, number: int, g: Tensor) -> None:
        if self._updates % self._every:
            return
        _checks.check_gradient(name, self._hooked[number], g)
        self._norms.append(_norm(g.detach()))
        self._passes[number] += 1

    # ---- before a step

    def update(self, batch: int | Sequence[int], scale: float = 1.0) -> Estimate | None:
        """Read the gradients of one step, after its last backward pass and before anything changes them.

        It returns None for a step that is not measured, and for gradients that are not finite. All processes must call
        it.

        Args:
            batch: The number of examples in a micro-batch, or a list with one number for each.
            scale: The factor on the mean loss of a micro-batch: 1/n if the losses of n are divided by n, the scale of a
                GradScaler, or both.
        """
        self._updates += 1
        if (self._updates - 1) % self._every:
            return None
        seen = StepSums(0.0, 0.0, 0.0, 0.0)
        problem: LayerwiseError | None = None
        try:
            seen, scale = (
                self._seen(batch),
                checks.number(0, above=True)("scale", scale, ("Pass 1 if the loss is not scaled.")),
            )
        except LayerwiseError as wrong:
            problem = wrong
        finally:
            self.discard()
        seen = self._of_all(seen, problem)
        if not math.isfinite(seen.squares + seen.big):
            return None
        found = _estimate(seen, self._replicas, scale)
        for key, x in zip(KEYS, (1.0, *found), strict=True):
            self._average[key] = self._beta * self._average[key] + (1 - self._beta) * x
        return found

    def discard(self) -> None:
        """Forget the gradients since the last update, for example if the step is not taken."""
        self._norms: list[Norm] = []
        self._passes: Counter[int] = Counter()

    def _seen(self, batch: object) -> StepSums:
        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        if not self._passes:
            raise GradientError(
                f"no backward pass was seen since the last update. {AGAIN}, and wrap the model before creating the "
                "NoiseScale."
            )
        if len(grads) < len(self._passes):
            raise GradientError(f"{len(self._passes) - len(grads)} gradients were cleared before the update. {AGAIN}.")
        passes = max(self._passes.values())
        if passes * self._replicas == 1:
            raise GradientError(
                "one micro-batch does not show its noise. Accumulate the gradients of at least two for each step, or "
                "train on several processes."
            )
        size = _one_size(batch, passes)
        here = _squares(self._norms) * self._replicas / self._ranks
        return StepSums(here, _squares([_norm(g) for g in grads]) / self._ranks, passes, size)

    def _of_all(self, seen: StepSums, problem: LayerwiseError | None) -> StepSums:
        """Return the sums over all processes; raise unless all have the same number and size of micro-batches."""
        if self._axis is None:
            if problem is not None:
                raise problem
            return seen
        counts = seen.passes, seen.batch
        report = [*seen, *(x * x for x in counts), float(problem is not None)]
        *sums, passes, batch, problems = reduced(self._axis, torch.tensor(report, dtype=torch.float64)).tolist()
        if problem is not None:
            raise problem
        if problems:
            raise SynchronizationError(
                "another process of the group could not update its noise scale; see its error message."
            )
        found = StepSums(*sums)
        if (found.passes**2, found.batch**2) != (self._ranks * passes, self._ranks * batch):
            raise SynchronizationError(
                f"this process had {seen.passes} micro-batches of {seen.batch} examples, but another process had "
                "others. Leave out the last, incomplete batches (drop_last=True)."
            )
        return found._replace(passes=seen.passes, batch=seen.batch)

    # ---- results

    @property
    def signal(self) -> float:
        """|G|², averaged; nan before the first update."""
        return self._averaged("signal")

    @property
    def noise(self) -> float:
        """tr Σ of the gradient of one example, averaged; nan before the first update."""
        return self._averaged("noise")

    @property
    def value(self) -> float:
        """The noise scale, in examples: inf if the gradient does not stand out from its noise."""
        signal, noise = self.signal, self.noise
        return math.inf if signal <= 0 else noise / signal

    def _averaged(self, key: str) -> float:
        weight = self._average["weight"]
        return self._average[key] / weight if weight else math.nan

    def state_dict(self) -> dict[str, float]:
        """Return the averages, the same on every process."""
        return dict(self._average)

    def load_state_dict(self, state_dict: Mapping[str, float]) -> None:
        """Continue from saved averages.

        Args:
            state_dict: The result of `state_dict()`.
        """
        self._average = _checked(state_dict)

    def remove(self) -> None:
        """Remove the hooks from the model. The measurements stay."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.discard()

    def __enter__(self) -> NoiseScale:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a hook with only a weak reference: without other references, a noise scale and its model are freed."""
    held = WeakMethod(method)

    def hook(*args: object) -> None:
        if (there := held()) is not None:
            there(*args)

    return hook


def _axis(group: object) -> Axis | None:
    """Return the processes that train the model, if there are several."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return None
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise HyperparameterError(
            sentence("group", "a process group that this process is in", group, "Pass what new_group() returned.")
        )
    axis = axis_of(dist.group.WORLD if group is None else group)
    return axis if len(axis.ranks) > 1 else None


def _replicas(replicas: object, ranks: int) -> int:
    if replicas is None:
        return ranks
    found: int = checks.integer(1)("replicas", replicas, "Pass the size of the data-parallel dimension of the mesh.")
    if ranks % found:
        raise HyperparameterError(sentence("replicas", f"a divisor of the {ranks} processes", found, "Leave it out."))
    return found


def _sharded(model: nn.Module) -> Iterator[nn.Module]:
    """Return the modules on which `fully_shard` was called; none if it has not been imported."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return (m for m in model.modules() if kind is not None and isinstance(m, kind))


def _norm(x: Any) -> Norm:
    parts = 1
    if is_dtensor(x):
        if any(placement.is_partial() for placement in x.placements):
            x = x.full_tensor()
        else:
            cuts = enumerate(x.placements)
            parts = math.prod(x.device_mesh.size(i) for i, placement in cuts if not placement.is_replicate())
    return torch.linalg.vector_norm(local(x), dtype=arithmetic_dtype(x.dtype)), parts


def _squares(norms: Sequence[Norm]) -> float:
    """Return the local part of the sum of their squares, times the number of processes over which it is added up."""
    device = norms[0][0].device if norms else None
    numbers = torch.stack([norm.to(device) for norm, _ in norms]).tolist() if norms else []
    return math.fsum(parts * x * x for x, (_, parts) in zip(numbers, norms, strict=True))


def _one_size(batch: object, passes: int) -> int:
    """Return the size of each micro-batch of this process."""
    given = [batch] * passes if not isinstance(batch, Sequence) or isinstance(batch, str) else batch
    sizes = [checks.integer(1)("batch", size, BATCH) for size in given]
    if len(sizes) != passes:
        raise HyperparameterError(sentence("batch", f"as many sizes as backward passes, {passes}", batch, BATCH))
    if len(set(sizes)) > 1:
        raise HyperparameterError(sentence("batch", "the same size for all micro-batches", batch, BATCH))
    size: int = sizes[0]
    return size


def _estimate(seen: StepSums, replicas: int, scale: float) -> Estimate:
    n = seen.passes * replicas
    small, big = seen.squares / n, seen.big / seen.passes**2  # processes have averaged their gradients, passes added
    of_mean = (small - big) / (n - 1)  # the part of |ḡ|² that is noise
    return Estimate((big - of_mean) / scale**2, n * seen.batch * of_mean / scale**2)


def _checked(state: object) -> dict[str, float]:
    way_out = "Pass what state_dict() of a NoiseScale returned."
    if not isinstance(state, Mapping) or state.keys() != {*KEYS}:
        raise StateError(f"the state of a noise scale must have the keys {list(KEYS)}, but is {state!r}. {way_out}")
    try:
        return {key: checks.as_float(state[key]) for key in KEYS}
    except checks.RefusedValue:
        raise StateError(f"the state of a noise scale must be finite numbers, but is {state!r}. {way_out}") from None
