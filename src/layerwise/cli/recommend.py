"""Settings for a batch size, and code to paste."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from layerwise.catalog.registry import ENTRIES
from layerwise.cli.usage import in_shell, number_parser, one_of
from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.options.checks import Check, integer
from layerwise.recipes import CURVES, Recommendation, recommend
from layerwise.recipes.advice import format_percent
from layerwise.recipes.question import ABOVE_0, EXPONENTS, SHARE

COUNT, SERIES = number_parser(int, integer(1)), [curve.name for curve in CURVES]


def figure(means: str, check: Check = ABOVE_0) -> Any:
    return typer.Option(**number_parser(float, check), help=means)


def command(
    optimizer: Annotated[str, typer.Argument(help="Such as lamb.", **one_of("optimizer", lambda: ENTRIES))],
    batch: Annotated[int, typer.Argument(**COUNT, help="Samples a step, over all devices.")],
    reference_batch: Annotated[
        int | None, typer.Option(**COUNT, help=("A batch size that you have tuned, with …"))
    ] = None,
    reference_lr: Annotated[
        float | None, figure("… the best learning rate of the optimizer at that batch size.")
    ] = None,
    adamw_lr: Annotated[float | None, figure("Or AdamW's rate, if you have no run of this optimizer yet.")] = None,
    reference_warmup: Annotated[float | None, figure("Its warm-up, as a fraction of the run.", SHARE)] = None,
    reference_decay: Annotated[
        float | None, figure("The weight decay of an AdamW run at that rate, for LAMB with keep_norm.")
    ] = None,
    total_samples: Annotated[float | None, figure("Samples of the whole run, to compute its steps.")] = None,
    like: Annotated[
        str | None,
        typer.Option(help="A published series, such as nus-resnet.", **one_of("published series", lambda: SERIES)),
    ] = None,
    rule: Annotated[str, typer.Option(help="sqrt or linear.", **one_of("rule", lambda: EXPONENTS))] = "sqrt",
    as_text: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Learning rate, warm-up, betas and decay for a batch size, each with its source, and code to paste."""
    given = {name: value for name, value in locals().items() if name not in ("as_text", "adamw_lr")}  # as there
    lines: Iterable[str]
    try:
        if adamw_lr is None:
            if reference_batch is not None and reference_lr is None:
                raise ContradictionError(
                    "`reference_batch` needs a rate that was tuned at that batch. Add `reference_lr`, or `adamw_lr`."
                )
            found = recommend(**given)
            lines = [str(found)]
        else:
            tried = _rates(ENTRIES[optimizer].name, adamw_lr, reference_lr)
            found = recommend(**given | {"reference_lr": tried[1]})
            lines = coming_from_adamw(found, tried, adamw_lr, reference_batch)
    except HyperparameterError as problem:
        called = {} if adamw_lr is None else {"reference_lr": "adamw_lr"}
        raise type(problem)(in_shell(str(problem), called)) from None
    print(as_json(found) if as_text else "\n".join([*lines, *code(found)]))


# Multiples of AdamW's rate at the same batch size, from the page "Start in five minutes".
OF_ADAMW = {"Lamb": (3.0, 6.0, 10.0), "Adafactor": (0.5, 1.0, 2.0)}
YOUR_OWN = ". Your own is better: give it by --reference-warmup"


def _rates(optimizer: str, adamw_lr: float, reference_lr: float | None) -> tuple[float, ...]:
    """Return the learning rates to try, at the batch size at which AdamW's is known."""
    if reference_lr is not None:
        raise ContradictionError(
            f"leave out `adamw_lr`: --reference-lr is {optimizer}'s own rate, and more reliable than AdamW's."
        )
    if optimizer not in OF_ADAMW:
        raise ContradictionError(
            f"`adamw_lr` works for {' and '.join(OF_ADAMW)} only: no rule gives {optimizer}'s rate from AdamW's. Leave "
            f"it out; the page of {optimizer} suggests a first rate."
        )
    return tuple(factor * adamw_lr for factor in OF_ADAMW[optimizer])


def coming_from_adamw(
    found: Recommendation, tried: tuple[float, ...], adamw_lr: float, batch: int | None
) -> Iterator[str]:
    """Yield the answer for a user who has only a run of AdamW: a few lines, without sources."""
    scale = found.lr / tried[1]
    rates = ", ".join(f"{rate * scale:.2g}" for rate in tried)
    factors = ", ".join(f"{factor:g}" for factor in OF_ADAMW[found.optimizer])
    yield f"{found.optimizer} at batch {found.batch:,}, coming from AdamW with lr {adamw_lr:g} at batch {batch:,}"
    adamw = f"AdamW with lr {adamw_lr * scale:.2g}, yours × {scale:.3g}"
    yield f"first: try {adamw}. Tuned, it can match {found.optimizer}"
    yield f"learning rate: try {rates}, which are {factors} times that. Keep the best, then try its half and double"
    for line in found.lines:
        if not line.alternative and line.setting != "learning rate":
            yield f"{line}{YOUR_OWN * (line.setting == 'warm-up' and bool(line.series))}"


def code(found: Recommendation) -> Iterator[str]:
    """Yield lines of Python that create the optimizer, and its schedule if the length of the run is known.

    Without a run of the user's there are none: settings of another task would not fit. Unchanged settings get names
    that the user has to fill in, such as `your_betas`.
    """
    if found.run:
        return
    values = {key: _rounded(value) for key, value in found.kwargs().items()}
    options = ", ".join([f"{key}={x!r}" for key, x in values.items()] + [f"{key}=your_{key}" for key in found.yours])
    name, known = "Mixed" if found.keep_norm else found.optimizer, found.steps is not None
    yield ""
    if known:
        yield "from layerwise.schedules import Polynomial"
    yield f"from layerwise.torch import {name}, param_groups{', scheduler' * known}"
    yield ""
    if found.keep_norm:
        others = '{"rule": "adamw", "lr": your_lr, "betas": your_betas, "weight_decay": your_weight_decay}'
        yield f'groups = param_groups(model, rule="{found.optimizer.lower()}", {options}, others={others})'
        yield "optimizer = Mixed(groups)"
    else:
        rule = f', rule="{name.lower()}"' if ENTRIES[name].hyper.of_small else ""
        yield f"optimizer = {name}(param_groups(model{rule}), {options})"
    if known:
        yield (
            f"schedule = scheduler(optimizer, Polynomial({values['lr']!r}, {found.steps}, {found.warmup_steps or 0}))"
            "  # schedule.step() after each step"
        )
    elif found.warmup:
        yield f"# warm-up: {format_percent(found.warmup)} of the steps; with --total-samples the schedule too"


def _rounded(value: object) -> object:
    """Return a setting with six digits."""
    if isinstance(value, tuple):
        return tuple(map(_rounded, value))
    return float(f"{value:.6g}") if isinstance(value, float) else value


def as_json(found: Recommendation) -> str:
    more = {"warmup_steps": found.warmup_steps, "extrapolated": found.extrapolated, "kwargs": found.kwargs()}
    return json.dumps(asdict(found) | more | {"code": "\n".join(code(found)).strip()}, indent=2)
