"""The answer: the settings, and the origin of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from layerwise.catalog.registry import ENTRIES
from layerwise.errors import ContradictionError, sentence
from layerwise.options.checks import one_of
from layerwise.options.names import OPTAX
from layerwise.schedules import Polynomial

Front = Literal["torch", "numpy", "jax"]
"""The API whose argument names are used."""


@dataclass(frozen=True)
class Line:
    """One setting: its value, the reason, and the distance of the batch from any published point.

    Attributes:
        setting: The name of the setting.
        value: Its value, in words.
        why: The reason.
        distance: The distance of the batch from the nearest published point, in words.
        series: The published series that it is from.
        extrapolated: True if the batch lies beyond the published points.
        alternative: True for a remark on the setting above.
    """

    setting: str
    value: str
    why: str
    distance: str
    series: str = ""
    extrapolated: bool = False
    alternative: bool = False

    def __str__(self) -> str:
        return f"{'  ' * self.alternative}{self.setting}: {self.value} ({self.why}; {self.how_far})"

    @property
    def how_far(self) -> str:
        """The distance, marked if it is an extrapolation."""
        return f"extrapolated: {self.distance}" if self.extrapolated else self.distance


@dataclass(frozen=True)
class Recommendation:
    """Settings for a batch size; None means no reason to change a setting. Print one for reasons and sources.

    Attributes:
        optimizer: The name of the optimizer.
        batch: The batch size.
        lr: The learning rate.
        warmup: The warm-up, as a share of the run.
        betas: The decay rates of the moments.
        momentum: The momentum.
        weight_decay: The weight decay.
        steps: The number of steps of the run, if its length was given.
        lines: The reason and the distance of each setting.
        notes: Further remarks.
        sources: The sources.
        keep_norm: The option `keep_norm`.
        run: The published run that the settings are from; empty if they are yours.
        power: The power of the polynomial after the warm-up, if that run had one.
        end: The learning rate at its end.
        yours: The options that stay as they were in your run.
    """

    optimizer: str
    batch: int
    lr: float
    warmup: float | None
    betas: tuple[float, float] | None
    momentum: float | None
    weight_decay: float | None
    steps: int | None
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    keep_norm: bool | None = None
    run: str = ""
    power: float | None = None
    end: float = 0.0
    yours: tuple[str, ...] = ()

    @property
    def extrapolated(self) -> bool:
        """True if a setting goes beyond published ones."""
        return any(line.extrapolated for line in self.lines if not line.alternative)

    @property
    def warmup_steps(self) -> int | None:
        """The warm-up in steps, if the length of the run is known."""
        return None if self.steps is None or self.warmup is None else round(self.warmup * self.steps)

    def kwargs(self, front: Front = "torch") -> dict[str, Any]:
        """Return keyword arguments for an optimizer.

        Args:
            front: The API whose names the arguments have.
        """
        FRONT("front", front, "It defines the names of the arguments.")
        options = ("lr", "betas", "momentum", "weight_decay", "keep_norm")
        known = {name: value for name in options if (value := getattr(self, name)) is not None}
        return OPTAX.as_arguments(ENTRIES[self.optimizer].hyper, known) if front == "jax" else known

    def schedule(self, power: float | None = None, end: float | None = None) -> Polynomial:
        """Return a schedule of the whole run: the warm-up to lr, then a polynomial.

        Args:
            power: The power of the polynomial; 1 is a line. None is that of the published run, or 1.
            end: The learning rate at the end. None is that of the published run, or 0.
        """
        if self.steps is None:
            way_out = "Ask again with total_samples: the length of a run is not known without it."
            raise ContradictionError(sentence("total_samples", "given for a schedule", None, way_out))
        power, end = self.power if power is None else power, self.end if end is None else end
        return Polynomial(self.lr, self.steps, self.warmup_steps or 0, power=power or 1.0, end=end)

    def explain(self) -> list[str]:
        """Return a line for each setting, with its reason and its distance; then notes, and the sources."""
        return [
            f"{self.optimizer} at batch {self.batch:,}"
            + (f", {self.steps:,} steps" if self.steps else "")
            + (f", from {self.run}" if self.run else ""),
            *map(str, self.lines),
            *(f"note: {note}" for note in self.notes),
            *(f"source: {source}" for source in self.sources),
        ]

    def __str__(self) -> str:
        return "\n".join(self.explain())


FRONT = one_of("torch", "numpy", "jax")


def format_number(x: float, digits: int = 3) -> str:
    """Return a number with this many digits: 1,020 and not 1.02e+03, 2.9e-6 and not 2.9e-06."""
    x = float(f"{x:.{digits}g}")
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.{digits}g}".replace("e-0", "e-")


def format_percent(share: float) -> str:
    """Return a fraction in percent; below a tenth, only as a bound."""
    return "less than 0.1 %" if 0 < share < 1e-3 else f"{format_number(100 * share)} %"
