"""The demo's tasks, with their optimizers, batches and settings.

The repository's benchmark `tune_demo` found all settings, with the same budget for every optimizer and batch.
README.md has the protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any, Literal

from layerwise.recipes import Recommendation, recommend


@dataclass(frozen=True)
class Task:
    """A model and its data, how long it is trained, and at which batches."""

    data: Literal["digits", "text"]
    model: Literal["cnn", "transformer"]
    examples: int  # in an epoch
    epochs: float
    small: int
    large: int
    seeds: int = 3
    share: float = 1.0  # of the training that settings were tuned for: less in a quick look
    width: int = 64  # of the transformer

    @property
    def metric(self) -> Literal["accuracy", "loss"]:
        return "accuracy" if self.data == "digits" else "loss"

    @property
    def digits(self) -> int:
        """The digits after the point of a figure."""
        return 1 if self.metric == "accuracy" else 3

    @property
    def unit(self) -> str:
        return " %" if self.metric == "accuracy" else ""

    @property
    def figure(self) -> str:
        """The figure and its unit, in words."""
        return "test accuracy, %" if self.metric == "accuracy" else "test loss, nats"


@dataclass(frozen=True)
class Tuned:
    """Settings found at one batch."""

    lr: float
    warmup: int  # in steps
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)  # weight decay, and betas or momentum


@dataclass(frozen=True)
class Contender:
    """An optimizer, and the settings found for it at the small and at the large batch."""

    name: str
    optimizer: str  # where it is imported from
    scaled_as: str  # the optimizer of ours whose recipe scales its rate
    small: Tuned
    large: Tuned | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)  # which are not tuned
    groups: Mapping[str, Any] = field(default_factory=dict, hash=False)  # what `param_groups` takes besides the model
    dtype: Literal["float32", "bfloat16"] = "float32"  # of weights and gradients; all is computed in float32
    may_diverge: bool = False
    of: Contender | None = None  # the one in float32 whose settings these are

    @property
    def is_ours(self) -> bool:
        return not self.optimizer.startswith("torch.")

    def stored(self, name: str, dtype: Literal["float32", "bfloat16"] = "bfloat16", **options: Any) -> Contender:
        """Return this contender with weights and state in fewer bytes."""
        return replace(self, name=name, dtype=dtype, options={**self.options, **options}, of=self)


@dataclass(frozen=True)
class Act:
    """A task for several contenders, at some of its batches."""

    number: int
    title: str
    task: Task
    contenders: tuple[Contender, ...]
    batches: tuple[int, ...]
    brief: bool = False  # one seed at batches that no sentence is about: all but the last

    @property
    def heading(self) -> str:
        return f"Act {self.number}. {self.title}"

    def cases(self) -> list[Case]:
        """Return each contender at each batch, with the settings found there."""
        large, last = self.task.large, self.batches[-1]
        return [
            Case(self.task, one, batch, batch == large, self.brief and batch != last)
            for one in self.contenders
            for batch in self.batches
        ]

    def runs(self, seeds: range) -> Iterator[Run]:
        return (Run(case, seed) for case in self.cases() for seed in case.seeds(seeds))

    def quick(self) -> Act:
        """Return a part of the training: a look, not a result."""
        task, share = self.task, QUICK_SHARE[self.task.data]
        return replace(self, task=replace(task, epochs=task.epochs * share, share=share))


@dataclass(frozen=True)
class Case:
    """One row of the final table: a contender at a batch. Acts with the same task have the same cases."""

    task: Task
    contender: Contender
    batch: int
    retuned: bool = False
    once: bool = False  # with one seed

    @property
    def tuned(self) -> Tuned:
        """The settings that this case starts from."""
        return self.contender.large if self.retuned and self.contender.large else self.contender.small

    @property
    def options(self) -> dict[str, Any]:
        """The optimizer's options besides parameters and learning rate."""
        return {**self.contender.options, **self.tuned.options}

    @cached_property
    def recipe(self) -> Recommendation:
        """Learning rate and warm-up: as they were tuned at this batch, or scaled from the small one."""
        tuned, batch = self.tuned, self.batch if self.retuned else self.task.small
        samples = self.task.epochs * self.task.examples
        return recommend(
            self.contender.scaled_as,
            self.batch,
            reference_batch=batch,
            reference_lr=tuned.lr,
            reference_warmup=min(0.6, ceil(self.task.share * tuned.warmup) / (samples / batch)),
            total_samples=samples,
        )

    @property
    def lr(self) -> float:
        return self.recipe.lr

    @property
    def lr_is(self) -> str:
        """The origin of the learning rate, in words."""
        if self.retuned or self.batch == self.task.small:
            return f"tuned at batch {self.batch:,}"
        k = self.batch // self.task.small
        return f"{self.tuned.lr:g}, tuned at batch {self.task.small:,}, times √{k:,}"

    def seeds(self, seeds: range) -> range:
        return seeds[: 1 if self.once else self.task.seeds]

    @property
    def steps(self) -> int:
        return ceil(self.task.epochs * self.task.examples / self.batch)

    @property
    def name(self) -> str:
        return self.contender.name

    def __str__(self) -> str:
        return f"{self.name}, batch {self.batch:,}"


@dataclass(frozen=True)
class Run:
    """One training, which one worker does from start to end."""

    case: Case
    seed: int

    @property
    def cost(self) -> float:
        """An estimate of how long it takes, in milliseconds of a two-core virtual machine."""
        step, example = (1.0, 0.05) if self.case.task.model == "cnn" else (2.0, 0.9)
        if "muon" in self.case.contender.optimizer:
            step += 20 if self.case.contender.of else 6
        return self.case.steps * (step + example * self.case.batch)

    def __str__(self) -> str:
        return f"{self.case}, seed {self.seed}"


DIGITS = Task("digits", "cnn", examples=1024, epochs=30, small=32, large=1024)
TEXT = Task("text", "transformer", examples=2048, epochs=4, small=8, large=128, seeds=2)

SGD = Contender(
    "SGD",
    "torch.optim.SGD",
    "Lars",
    Tuned(0.08, 100, {"momentum": 0.9, "weight_decay": 1e-3}),
    Tuned(0.2263, 2, {"momentum": 0.9, "weight_decay": 1e-4}),
    may_diverge=True,
)
ADAMW_DIGITS = Contender(
    "AdamW",
    "torch.optim.AdamW",
    "Lamb",
    Tuned(0.016, 50, {"betas": (0.9, 0.999), "weight_decay": 0.1}),
    Tuned(0.016, 2, {"betas": (0.9, 0.98), "weight_decay": 0.01}),
)
LARS = Contender(
    "LARS",
    "layerwise.torch.Lars",
    "Lars",
    Tuned(10.0, 100, {"momentum": 0.9, "weight_decay": 1e-3}),
    Tuned(113.1, 2, {"momentum": 0.8, "weight_decay": 1e-4}),
)
ADAMW = Contender(
    "AdamW",
    "torch.optim.AdamW",
    "Lamb",
    Tuned(0.008, 200, {"betas": (0.9, 0.98), "weight_decay": 0.01}),
    Tuned(0.004, 24, {"betas": (0.9, 0.98), "weight_decay": 0.01}),
)
LAMB = Contender(
    "LAMB",
    "layerwise.torch.Lamb",
    "Lamb",
    Tuned(0.02, 100, {"betas": (0.9, 0.999), "weight_decay": 0.1}),
    Tuned(0.04, 3, {"betas": (0.9, 0.999), "weight_decay": 0.0}),
)
MUON = Contender(  # hidden matrices by Muon, the rest by AdamW at the same rate
    "Muon + AdamW",
    "demo.train.muon",
    "Lamb",
    Tuned(0.016, 100, {"momentum": 0.9, "weight_decay": 0.01}),
    Tuned(0.032, 6, {"momentum": 0.9, "weight_decay": 0.01}),
    groups={"rule": "muon", "weight_decay": 1.0},  # 1 where there is decay
)
SCALED = {"scale_parameter": True}
ADAFACTOR = Contender("Adafactor", "layerwise.torch.Adafactor", "Adafactor", Tuned(0.08, 12), options=SCALED)
WITH_MOMENTUM = Contender(
    "Adafactor+momentum", "layerwise.torch.Adafactor", "Adafactor", Tuned(0.08, 50), options={**SCALED, "beta1": 0.9}
)
IN_24_AND_8: dict[str, Any] = {"master_weights": "split24", "state_dtype": "int8"}
LAMB_SMALL = LAMB.stored("8-bit LAMB", **IN_24_AND_8)
MUON_SMALL = MUON.stored("8-bit Muon + AdamW", **IN_24_AND_8)
ADAFACTOR_SMALL = ADAFACTOR.stored("bf16 Adafactor", rounding="stochastic")

ACTS = (
    Act(1, "A small network that learns digits, without normalization", DIGITS, (SGD, ADAMW_DIGITS, LARS), (32, 1024)),
    Act(2, "A transformer that reads text by characters", TEXT, (ADAMW, LAMB, MUON), (128,)),
    Act(3, "The same transformer, in fewer bytes", TEXT, (ADAMW, MUON, MUON_SMALL), (128,)),
)
# Too long for a demo: `benchmarks/full_demo.py` trains it as well, with more seeds.
MANY_SEEDS = replace(TEXT, seeds=5)
IN_FEWER_BYTES = (ADAMW, LAMB_SMALL, ADAFACTOR_SMALL, MUON_SMALL)
LONGER = Act(4, "Fewer bytes, for 1,024 steps", MANY_SEEDS, IN_FEWER_BYTES, (8,))
SEEDS = max(act.task.seeds for act in ACTS)
QUICK_SHARE = {"digits": 0.5, "text": 0.1875}  # of the epochs
