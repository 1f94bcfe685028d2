"""The demo's tasks, with their optimizers, batches and settings.

The repository's benchmark `tune_demo` found all settings, with the same budget for every optimizer and batch. At the
large batch each optimizer runs twice: with the settings of the small batch, scaled as `layerwise.recipes` says, and
with those tuned at the large batch itself. README.md has the protocol.
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
        return self.optimizer.startswith("layerwise.")

    def stored(self, name: str, dtype: Literal["float32", "bfloat16"] = "bfloat16", **options: Any) -> Contender:
        """Return this contender with weights and state in fewer bytes."""
        return replace(self, name=name, dtype=dtype, options={**self.options, **options}, of=self)


@dataclass(frozen=True)
class Act:
    """A task for several contenders: at the small batch, or at the small and at the large one."""

    number: int
    title: str
    task: Task
    contenders: tuple[Contender, ...]
    grows: bool = True  # from the small batch to the large one

    @property
    def heading(self) -> str:
        return f"Act {self.number}. {self.title}"

    @property
    def batches(self) -> tuple[int, ...]:
        return (self.task.small, self.task.large) if self.grows else (self.task.small,)

    @property
    def columns(self) -> tuple[tuple[int, bool], ...]:
        """Each batch, and whether settings were tuned at the large one."""
        return (*((batch, False) for batch in self.batches), *((batch, True) for batch in self.batches[1:]))

    def cases(self) -> list[Case]:
        return [Case(self.task, contender, *column) for contender in self.contenders for column in self.columns]

    def runs(self, seeds: range) -> Iterator[Run]:
        """Yield every case with every seed. LAMB's first at the small batch also measures its gradients' noise."""
        for case in self.cases():
            noisy = (case.contender, case.batch) == (LAMB, self.task.small)
            for seed in case.seeds(seeds):
                yield Run(case, seed, measures_noise=noisy and seed == seeds[0])

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
        return seeds[:AT_SMALL] if self.batch == self.task.small else seeds

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
    """One training, which one worker does from start to end."""

    case: Case
    seed: int
    measures_noise: bool = False

    @property
    def cost(self) -> float:
        """An estimate of how long it takes, in milliseconds of a two-core virtual machine."""
        step, example = (1.0, 0.05) if self.case.task.model == "cnn" else (2.0, 0.9)
        return self.case.steps * (step + example * self.case.batch)

    def __str__(self) -> str:
        return f"{self.case}, seed {self.seed}"


DIGITS = Task("digits", "cnn", examples=1024, epochs=30, small=32, large=1024)
TEXT = Task("text", "transformer", examples=2048, epochs=4, small=8, large=128)

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
SCALED = {"scale_parameter": True}
ADAFACTOR = Contender("Adafactor", "layerwise.torch.Adafactor", "Adafactor", Tuned(0.08, 12), options=SCALED)
WITH_MOMENTUM = Contender(  # in no act, but tuned as the others, for `benchmarks/precision.py`
    "Adafactor+momentum", "layerwise.torch.Adafactor", "Adafactor", Tuned(0.08, 50), options={**SCALED, "beta1": 0.9}
)
LAMB_SMALL = LAMB.stored("LAMB 24+8", master_weights="split24", state_dtype="int8")
ADAFACTOR_SMALL = ADAFACTOR.stored("Adafactor bf16", rounding="stochastic")

ACTS = (
    Act(
        1,
        "LARS against SGD with momentum and AdamW: digits, a small network without normalization",
        DIGITS,
        (SGD, ADAMW_DIGITS, LARS),
    ),
    Act(2, "LAMB against AdamW: a transformer that reads text by characters", TEXT, (ADAMW, LAMB)),
    Act(
        3,
        "LAMB and Adafactor in fewer bytes, against AdamW: the transformer of act 2",
        TEXT,
        (ADAMW, LAMB, LAMB_SMALL, ADAFACTOR_SMALL),
        grows=False,
    ),
)
SEEDS, AT_SMALL = 3, 2  # at the small batch seeds differ less, and take longer
QUICK_SHARE = {"digits": 0.5, "text": 0.1875}  # of the epochs
