"""What is trained, with which optimizers, at which batches, and with which learning rates.

Every learning rate stands once: as tuned at the act's small batch by `benchmarks/tune_demo.py`, whose figures are in
`benchmarks/results/tune_demo.csv`. At the large batch it is multiplied by √k, as `layerwise.recipes` says; `retuned`
is a rate tuned at the large batch itself, to be shown beside it. docs/demo.md has the protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any, Literal

from layerwise.recipes import Recommendation, recommend

Metric = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class Task:
    """A model and its data, how long it is trained, and at which batches."""

    data: Literal["digits", "text"]
    model: Literal["cnn", "transformer"]
    examples: int  # in an epoch
    epochs: float
    warmup: int  # in steps, at every batch the same
    small: int  # the batch that learning rates are tuned at
    large: int

    @property
    def metric(self) -> Metric:
        return "accuracy" if self.data == "digits" else "loss"


@dataclass(frozen=True)
class Contender:
    """An optimizer with its options, and the learning rates that were found for it."""

    name: str
    optimizer: str  # where it is imported from
    scaled_as: str  # the optimizer of ours whose recipe scales its rate
    lr: float  # tuned at the small batch
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    retuned: float | None = None  # tuned at the large batch
    may_diverge: bool = False


@dataclass(frozen=True)
class Act:
    """A task for several contenders: at the small batch, or at the small and at the large one."""

    number: int
    title: str
    task: Task
    contenders: tuple[Contender, ...]
    grows: bool = True  # from the small batch to the large one

    @property
    def batches(self) -> tuple[int, ...]:
        return (self.task.small, self.task.large) if self.grows else (self.task.small,)


@dataclass(frozen=True)
class Case:
    """One row of the final table: a contender at a batch. Acts with the same task have the same cases."""

    task: Task
    contender: Contender
    batch: int
    retuned: bool = False

    @cached_property
    def recipe(self) -> Recommendation:
        """Learning rate and warm-up by the square-root rule, from what was tuned at the small batch."""
        task, lr, tuned = self.task, self.contender.lr, self.task.small
        if self.retuned and self.contender.retuned is not None:
            lr, tuned = self.contender.retuned, self.batch
        samples = task.epochs * task.examples
        return recommend(
            self.contender.scaled_as,
            self.batch,
            reference_batch=tuned,
            reference_lr=lr,
            reference_warmup=min(0.6, task.warmup / (samples / tuned)),
            total_samples=samples,
        )

    @property
    def lr(self) -> float:
        return self.recipe.lr

    @property
    def lr_is(self) -> str:
        """Where the learning rate is from, in words."""
        if self.retuned or self.batch == self.task.small:
            return f"tuned at batch {self.batch:,}"
        k = self.batch // self.task.small
        return f"{self.contender.lr:g}, tuned at batch {self.task.small:,}, times √{k:,}"

    @property
    def steps(self) -> int:
        return ceil(self.task.epochs * self.task.examples / self.batch)

    @property
    def name(self) -> str:
        return f"{self.contender.name} re-tuned" if self.retuned else self.contender.name

    def __str__(self) -> str:
        return f"{self.name}, batch {self.batch:,}"


@dataclass(frozen=True)
class Run:
    """What a worker does in one go."""

    case: Case
    seed: int
    measures_noise: bool = False

    def __str__(self) -> str:
        return f"{self.case}, seed {self.seed}"


SMALL_DECAY, DECAY = {"weight_decay": 1e-4}, {"weight_decay": 0.01}
MOMENTUM = {"momentum": 0.9, **SMALL_DECAY}

DIGITS = Task("digits", "cnn", examples=1024, epochs=30, warmup=6, small=32, large=1024)
TEXT = Task("text", "transformer", examples=2048, epochs=4, warmup=12, small=8, large=128)

SGD = Contender("SGD", "torch.optim.SGD", "Lars", 0.08, MOMENTUM, retuned=0.2263, may_diverge=True)
LARS = Contender("LARS", "layerwise.torch.Lars", "Lars", 10.0, MOMENTUM)
ADAMW = Contender("AdamW", "torch.optim.AdamW", "Lamb", 0.002, DECAY, retuned=0.004)
LAMB = Contender("LAMB", "layerwise.torch.Lamb", "Lamb", 0.02, DECAY)
SCALED = {"scale_parameter": True}
ADAFACTOR = Contender("Adafactor", "layerwise.torch.Adafactor", "Adafactor", 0.08, SCALED)
WITH_MOMENTUM = Contender(
    "Adafactor+momentum", "layerwise.torch.Adafactor", "Adafactor", 0.08, {**SCALED, "beta1": 0.9}
)

ACTS = (
    Act(1, "LARS against SGD with momentum: digits, a small network without normalisation", DIGITS, (SGD, LARS)),
    Act(2, "LAMB against AdamW: a transformer that reads text by characters", TEXT, (ADAMW, LAMB)),
    Act(
        3,
        "Adafactor without and with momentum, against AdamW: the transformer of act 2",
        TEXT,
        (ADAMW, ADAFACTOR, WITH_MOMENTUM),
        grows=False,
    ),
)
SEEDS, AT_SMALL = 3, 2  # at the small batch seeds differ less, and take longer
QUICK_SHARE = {"digits": 0.5, "text": 0.1875}  # of the epochs


def quick(act: Act) -> Act:
    """A part of the training: a look, not a result."""
    task, share = act.task, QUICK_SHARE[act.task.data]
    return replace(act, task=replace(task, epochs=task.epochs * share, warmup=ceil(task.warmup * share)))


def cases(act: Act) -> Iterator[Case]:
    """Each contender at each batch, and at the large one once more with a rate that was tuned there."""
    for contender in act.contenders:
        for batch in act.batches:
            yield Case(act.task, contender, batch)
        if act.grows and contender.retuned is not None:
            yield Case(act.task, contender, act.task.large, retuned=True)


def seeds_of(case: Case, seeds: range) -> range:
    return seeds[:AT_SMALL] if case.batch == case.task.small else seeds


def runs(act: Act, seeds: range) -> Iterator[Run]:
    """Every case with every seed; LAMB's first at the small batch measures the noise of its gradients as it goes."""
    for case in cases(act):
        noisy = (case.contender, case.batch) == (LAMB, act.task.small)
        for seed in seeds_of(case, seeds):
            yield Run(case, seed, measures_noise=noisy and seed == seeds[0])
