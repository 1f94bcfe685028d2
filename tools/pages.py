"""Tables and lists of the documentation that follow from the rules' declarations."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from source import source_of, wrapped

from layerwise.catalog.registry import ENTRIES, Entry
from layerwise.options.settings import Hyper, options_in_order

# What stands between the two lines is generated.
SECTION = re.compile(r"(<!-- generated: (\w+) (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

WITH_METHODS = "Lamb"
WITH_SHARED = "Lamb"  # whose page describes the options that it shares with others
AS_THERE = "[as in LAMB](lamb.md#options)"
SHOWN = {
    "torch": "\n    options: {members: [like, step, zero_grad, stats, get_lr, set_lr, num_parameters, parameters, "
    "clear_state, add_param_group, load_state_dict, step_parameter]}",
    "keras": "\n    options: {members: [like, get_config], inherited_members: false}",
    "mlx": "\n    options: {members: [like, init, apply_gradients, learning_rate]}",
    "paddle": "\n    options: {members: [like, step, minimize, apply_gradients, stats, skipped, get_lr, set_lr, "
    "set_lr_scheduler, num_parameters, clear_state, state_dict, set_state_dict]}",
}
ALONE = "\n    options: {members: [], inherited_members: false}"


def all_of_them(docs: Path) -> dict[Path, str]:
    """Return every page that has generated sections, as it should be."""
    pages = [*sorted((docs / "optimizers").glob("*.md")), *sorted((docs / "reference").glob("*.md"))]
    texts = {page: page.read_text("utf-8") for page in pages}
    return {page: SECTION.sub(_section, text) for page, text in texts.items() if SECTION.search(text)}


def _section(found: re.Match[str]) -> str:
    start, kind, of, end = found.groups()
    return f"{start}\n{KINDS[kind](of)}\n\n{end}"


A_FUNCTION = " or a function of the step"
BESIDE_NUMBERS = "in PyTorch also a tensor of one element, in NumPy, JAX and MLX also a function of the step"
# What APIs take in place of a number that changes from step to step; a function of the step is not for all of them.
BY_API = {"lr": f"{BESIDE_NUMBERS}, in Keras and Paddle also their schedules", "weight_decay": BESIDE_NUMBERS}


def _allowed(name: str, allowed: str, optimizer: str) -> str:
    """Return the values that an option may have, by API where they differ."""
    if name not in BY_API:
        return allowed
    by_api = f"; {BY_API[name]}" if optimizer == WITH_SHARED else f", or {AS_THERE}"
    return allowed.replace(A_FUNCTION, "") + by_api


def call(optimizer: str) -> str:
    """Return an optimizer's options with their defaults, as a call."""
    h = ENTRIES[optimizer].hyper
    given = ", ".join(f"{name}={source_of(h.__dataclass_fields__[name].default)}" for name in options_in_order(h))
    told = f"`help({optimizer})` says what each means, the site also which values are allowed:"
    return f"{told}\n\n```text\n{wrapped(f'{optimizer}({given})', 110)}\n```"


def options(optimizer: str) -> str:
    """Return the site's table of an optimizer's options. What another page describes has a row for each default."""
    h = ENTRIES[optimizer].hyper
    rows, shared = ["| option | default | allowed | meaning |", "|---|---|---|---|"], dict[str, list[str]]()
    for name in options_in_order(h):
        spec = h.__dataclass_fields__[name]
        default, allowed = source_of(spec.default), spec.metadata["check"].allowed
        if optimizer != WITH_SHARED and _is_shared(h, name):
            shared.setdefault(default, []).append(f"`{name}`")
            continue
        cells = (default, _allowed(name, allowed, optimizer), spec.metadata["means"])
        rows.append(f"| `{name}` | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*rows, *(f"| {', '.join(names)} | {one} | | {AS_THERE} |" for one, names in shared.items())])


def _is_shared(h: type[Hyper], name: str) -> bool:
    """Return whether an option is one that the page of all shared ones describes as well."""
    there: Any = ENTRIES[WITH_SHARED].hyper.__dataclass_fields__.get(name)
    own: Any = h.__dataclass_fields__[name]
    return name not in h.__annotations__ and there is not None and there.metadata == own.metadata


def reference(api: str) -> str:
    """Return the entries of all optimizers in the reference of an API; methods, which they share, are shown once."""
    rows = []
    for entry in ENTRIES.values():
        shown = SHOWN.get(api, "") if entry.name == WITH_METHODS else ALONE
        rows += [f"::: layerwise.{api}.{name}" + (shown if api != "jax" else "") for name in _public(api, entry)]
    return "\n\n".join(rows)


def _public(api: str, entry: Entry) -> tuple[str, ...]:
    return (entry.name.lower(), f"{entry.name}State") if api == "jax" else (entry.name,)


KINDS: dict[str, Callable[[str], str]] = {"options": call, "reference": reference}
