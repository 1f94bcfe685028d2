"""One training run with `layerwise.torch`, or with PyTorch's own optimizer for comparison."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from importlib import import_module
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from demo.data import Data, Split, load
from demo.models import new_model
from demo.result import Outcome, Ratios
from demo.settings import Case, Run
from layerwise.torch import Mixed, param_groups, scheduler

POINTS = 64  # of a curve
AT_ONCE = 256  # test examples


def train(run: Run, data: Data | None = None) -> Outcome:
    """Train, and measure on the test data; stop at the first loss that is not finite."""
    case = run.case
    data = data or load(case.task)
    torch.manual_seed(run.seed)
    model = new_model(case.task).to(getattr(torch, case.contender.dtype))
    opt = new_optimizer(case, model)
    outcome = Outcome(parameters=sum(p.numel() for p in model.parameters()))
    with warnings.catch_warnings():
        # The demo's protocol has a ratio for every tensor, also for biases, which begin at zero.
        warnings.filterwarnings("ignore", ".* began at zero")
        _steps(run, model, opt, data.train, outcome)
    outcome.weight_bytes, outcome.state_bytes = weight_bytes(model), state_bytes(opt)
    if not outcome.diverged:
        outcome.accuracy, outcome.loss = measure(model.float(), data.test)
    return outcome


def new_optimizer(case: Case, model: nn.Module) -> Any:
    """Return the case's optimizer: no decay of biases and normalisation, a trust ratio for every tensor."""
    module, _, name = case.contender.optimizer.rpartition(".")
    groups = param_groups(model, **{"no_adapt": (), **case.contender.groups})
    return getattr(import_module(module), name)(groups, lr=case.lr, **case.options)


def muon(
    groups: list[dict[str, Any]],
    lr: float,
    momentum: float,
    weight_decay: float,
    ns_dtype: str | None = None,
    **options: Any,
) -> Mixed:
    """Return the optimizer of hidden matrices by Muon, and of the rest by AdamW at the same lr."""
    for group in groups:
        hidden = group["rule"] == "Muon"
        by_muon = {"momentum": momentum, "scale": "match_rms_adamw", "ns_dtype": ns_dtype}
        group.update(by_muon if hidden else {"betas": (0.9, 0.95)})
        group.update(lr=lr, weight_decay=weight_decay * group["weight_decay"], **options)
    return Mixed(groups)


def _steps(run: Run, model: nn.Module, opt: Any, data: Split, outcome: Outcome) -> None:
    schedule = scheduler(opt, run.case.recipe.schedule())
    every = max(1, run.case.steps // POINTS)
    start = perf_counter()
    for step, (x, y) in enumerate(batches(data, run), 1):
        opt.zero_grad()
        batch_loss = loss_of(model, x, y)
        batch_loss.backward()  # type: ignore[no-untyped-call]
        loss = batch_loss.item()
        opt.step()
        schedule.step()
        diverged = not math.isfinite(loss)
        if diverged or step % every == 0 or step == run.case.steps:
            outcome.losses.append((step, loss))
            outcome.ratios.append((step, trust_ratios(opt)))
        if diverged:
            break
    outcome.seconds = perf_counter() - start


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss, computed in float32 whatever the weights are stored in, so that storage alone differs."""
    if next(model.parameters()).dtype == torch.float32:
        return cross_entropy(model(x), y.flatten())
    wide = {name: p.float() for name, p in model.named_parameters()}
    return cross_entropy(functional_call(model, wide, (x,)), y.flatten())


def batches(data: Split, run: Run) -> Iterator[Split]:
    """Yield the batches in an order that the seed decides, the same for every optimizer; each epoch has its own."""
    draw = torch.Generator().manual_seed(run.seed)
    left = run.case.steps
    while True:
        for rows in torch.split(torch.randperm(len(data.x), generator=draw), run.case.batch):
            if left == 0:
                return
            yield Split(data.x[rows], data.y[rows])
            left -= 1


@torch.no_grad()
def measure(model: nn.Module, data: Split) -> tuple[float, float]:
    """Return the accuracy in percent, and the mean loss."""
    loss = right = 0.0
    for x, y in zip(torch.split(data.x, AT_ONCE), torch.split(data.y, AT_ONCE), strict=True):
        scores, labels = model(x), y.flatten()
        loss += cross_entropy(scores, labels, reduction="sum").item()
        right += (scores.argmax(1) == labels).sum().item()
    return 100 * right / data.y.numel(), loss / data.y.numel()


def trust_ratios(opt: Any) -> Ratios:
    """Return the trust ratios of the weights, by layer; none for PyTorch's optimizers."""
    stats = opt.stats() if hasattr(opt, "stats") else {}
    return {
        name.removesuffix(".weight"): float(seen["trust_ratio"])
        for name, seen in stats.items()
        if name.endswith("weight") and "trust_ratio" in seen
    }


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of the weights that the model shows; what the optimizer holds beside them is its state."""
    return sum(p.nbytes for p in model.parameters())


def state_bytes(opt: Any) -> int:
    """Return the bytes of the optimizer's state without step counts, which are not of the parameters' size."""
    tensors = ((key, x) for kept in opt.state.values() for key, x in kept.items() if isinstance(x, Tensor))
    return sum(x.numel() * x.element_size() for key, x in tensors if key != "step")
