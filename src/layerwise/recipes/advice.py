"""The answer: the settings, and the origin of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from layerwise.checks import one_of
from layerwise.errors import ContradictionError, sentence
from layerwise.schedules import Polynomial

Front = Literal["torch", "numpy", "jax"]


@dataclass(frozen=True)
class Line:
    """One setting: its value, why it is that, and how far the batch is from any published point."""

    setting: str
    value: str
    why: str
    distance: str
    series: str = ""  # the published one that it is from
    extrapolated: bool = False
    alternative: bool = False  # what else there is to say of the setting above

    def __str__(self) -> str:
        return f"{'  ' * self.alternative}{self.setting}: {self.value}; {self.why}; {self.how_far}"

    @property
    def how_far(self) -> str:
        return f"extrapolated: {self.distance}" if self.extrapolated else self.distance


@dataclass(frozen=True)
class Recommendation:
    """Settings for a batch size. None is what there is no reason to change. Print one for all that is known of it."""

    optimizer: str
    batch: int
    lr: float
    warmup: float | None  # as a share of the run
    betas: tuple[float, float] | None
    momentum: float | None
    weight_decay: float | None
    steps: int | None
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    keep_norm: bool | None = None

    @property
    def extrapolated(self) -> bool:
        """True if a setting goes beyond published ones."""
        return any(line.extrapolated for line in self.lines if not line.alternative)

    @property
    def warmup_steps(self) -> int | None:
        return None if self.steps is None or self.warmup is None else round(self.warmup * self.steps)

    def kwargs(self, front: Front = "torch") -> dict[str, Any]:
        """Return keyword arguments for layerwise.torch's or layerwise.numpy's class, or layerwise.jax's function."""
        FRONT("front", front, "It says whose names the arguments have.")
        options = ("lr", "betas", "momentum", "weight_decay", "keep_norm")
        known = {name: value for name in options if (value := getattr(self, name)) is not None}
        if front == "jax":
            known["learning_rate"] = known.pop("lr")
            if self.betas is not None:
                known["b1"], known["b2"] = known.pop("betas")
        return known

    def schedule(self, power: float = 1.0, end: float = 0.0) -> Polynomial:
        """Return the warm-up to lr, and a polynomial from there to `end`, over the whole run."""
        if self.steps is None:
            way_out = "Ask again with total_samples; the length of a run is not known without."
            raise ContradictionError(sentence("total_samples", "given for a schedule", None, way_out))
        return Polynomial(self.lr, self.steps, self.warmup_steps or 0, power=power, end=end)

    def explain(self) -> list[str]:
        """Return a line for each setting, with its reason and its distance; then notes, and the sources."""
        return [
            f"{self.optimizer} at batch {self.batch:,}" + (f", {self.steps:,} steps" if self.steps else ""),
            *map(str, self.lines),
            *(f"note: {note}" for note in self.notes),
            *(f"source: {source}" for source in self.sources),
        ]

    def __str__(self) -> str:
        return "\n".join(self.explain())


FRONT = one_of("torch", "numpy", "jax")
