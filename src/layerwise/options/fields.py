"""The declarations of options, and those that several rules share."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any, Literal, TypeVar

from layerwise.options import checks
from layerwise.options.checks import FLAG, NONE, Check, alternatives, dtype, number, one_of, pair, schedule, true_means

T = TypeVar("T")
RATE = number(0) | schedule()
OFF = number(0) | NONE
LR = "Pass a number such as lr=1e-3, or a function of the step. To freeze a tensor, lr=0 is allowed."
DECAY_SCALES = {
    "lr": ('the learning rate ("lr")', '"lr" for lr·λ'),
    "step": ('the step size ("step")', '"step" for the whole step size·λ'),
    "none": ('1 ("none")', '"none" for λ'),
}


def option(
    default: T,
    check: Check,
    means: str,
    way_out: str,
    *,
    shown: bool = True,
    optax_default: object = MISSING,
) -> T:
    """Declare an option: its default, its check, its meaning in one sentence, and the way out of an error.

    Args:
        shown: True if the representation of the settings shows it.
        optax_default: Its default in the JAX API, if different from the other APIs.
    """
    made: T = checks.option(default, check, way_out, shown, means=means, optax_default=optax_default)
    return made


def flag(default: bool, means: str) -> bool:
    return option(default, FLAG, means, true_means(means))


def lr(default: float, means: str = "Learning rate.") -> float:
    return option(default, RATE, means, LR)


def weight_decay(default: float = 0.0, optax_default: object = MISSING) -> float:
    way_out = "Pass a number such as weight_decay=0.01, or 0 for none. To maximize, use maximize=True."
    return option(default, RATE, "Weight decay λ.", way_out, optax_default=optax_default)


def decay_scale(*scales: str, optax_default: object = MISSING) -> Any:
    """Declare the factors that weight_decay may be multiplied by, the default first."""
    factors, ways_out = zip(*(words for name, words in DECAY_SCALES.items() if name in scales), strict=True)
    return option(
        scales[0],
        one_of(*(name for name in DECAY_SCALES if name in scales)),
        f"Multiply weight_decay by {alternatives(factors)}.",
        f"Pass {alternatives(ways_out)}.",
        optax_default=optax_default,
    )


def decay(l2: str) -> Literal["decoupled", "l2"]:
    """Declare where weight decay enters a step without a trust ratio; `l2` names a rule that has it on the gradient."""
    return option(
        "decoupled",
        one_of("decoupled", "l2"),
        f'Apply weight_decay to the weights, times lr ("decoupled"), or to the gradient ("l2", {l2}).',
        f'Pass "decoupled" as in AdamW, or "l2" for the gradient, {l2}.',
    )


def place_of_decay() -> Literal["ratio", "decoupled", "l2"]:
    """Declare where weight decay enters the step of a rule with a trust ratio."""
    return option(
        "ratio",
        one_of("ratio", "decoupled", "l2"),
        'Apply weight_decay to the update, inside the trust ratio ("ratio"), to the weights first ("decoupled"), or to '
        'the gradient ("l2").',
        'Pass "ratio" for decay inside the trust ratio, "decoupled" as in AdamW, or "l2" for the gradient.',
    )


def betas(b1: float = 0.9, b2: float = 0.999) -> tuple[float, float]:
    """Declare the decay rates of Adam's two moments."""
    return option(
        (b1, b2),
        pair(number(0, 1), number(0, 1)),
        "Decay rates of the first moment m and of the second moment v.",
        f"Pass two numbers such as betas=({b1}, {b2}).",
    )


def eps(default: float, means: str, above: bool = False, optax_default: object = MISSING) -> float:
    """Declare a small number that keeps a denominator from being 0; it must be `above` 0 if it is a bound."""
    such_as = f"{default or 1e-8:.0e}".replace("e-0", "e-") + ("" if default else ", or 0")
    way_out = f"Pass a small number such as eps={such_as}."
    return option(default, number(0, above=above), means, way_out, optax_default=optax_default)


def eps_root() -> float:
    way_out = "Pass a small number such as eps_root=1e-12, or 0."
    return option(0.0, number(0), "Added inside the root of the denominator.", way_out)


def adapt(default: bool) -> bool:
    """Declare for which tensors a trust ratio is used."""
    return option(
        default,
        one_of(True, False, "decayed"),
        'Use the trust ratio for all tensors (True), for none (False), or where weight_decay is not 0 ("decayed").',
        'Pass True, False, or "decayed" to adapt only where weight_decay is not 0.',
    )


def clip_threshold() -> float | None:
    """Declare the bound of an update's root mean square."""
    return option(
        1.0,
        number(0, above=True) | NONE,
        "Scale an update down if its root mean square exceeds this; None turns this off.",
        "Pass a number such as 1.0, or None for no bound.",
    )


def momentum(default: float) -> float:
    way_out = "Pass a number such as momentum=0.9, or 0 for none."
    return option(default, number(0, 1), "Decay rate of the momentum buffer; 0 means no buffer.", way_out)


def dampening() -> float:
    return option(
        0.0,
        number(0, 1, to=True),
        "From the second step on, multiply what enters the momentum buffer by 1 - dampening.",
        "Pass a number such as dampening=0.1, or 0 for none.",
    )


def nesterov() -> bool:
    """Declare Nesterov's momentum; `HeavyBall` checks it against momentum and dampening."""
    return flag(False, "Use Nesterov's momentum; needs momentum > 0 and dampening = 0.")


def momentum_dtype(optax_default: object = MISSING) -> Any:
    """Declare the dtype that stores the momentum; `StoredMomentum` passes it to the APIs."""
    return option(
        None,
        NONE | dtype("float16", "bfloat16", "float32", "float64"),
        "The dtype that stores the momentum, or its name; None uses the dtype of the other state.",
        "Pass the dtype of the momentum, or its name, or None for the dtype of the other state.",
        optax_default=optax_default,
    )
