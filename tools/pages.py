"""Tables and lists of the documentation that follow from the rules' declarations."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from source import source_of

from layerwise.hyper import options_in_order
from layerwise.registry import ENTRIES, Entry

# What stands between the two lines is generated.
SECTION = re.compile(r"(<!-- generated: (\w+) (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

WITH_METHODS = "Lamb"
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


A_CALLABLE = " or a callable of the step"
BESIDE_NUMBERS = "in PyTorch also a tensor of one element, in NumPy, JAX and MLX also a callable of the step"
# What APIs take in place of a number that changes from step to step; a function of the step is not for all of them.
BY_API = {"lr": f"{BESIDE_NUMBERS}, in Keras and Paddle also a schedule of theirs", "weight_decay": BESIDE_NUMBERS}


def _allowed(name: str, allowed: str) -> str:
    """Return the values that an option may have, by API where they differ."""
    return f"{allowed.replace(A_CALLABLE, '')}; {BY_API[name]}" if name in BY_API else allowed


def options(optimizer: str) -> str:
    """Return the table of an optimizer's options."""
    h = ENTRIES[optimizer].hyper
    rows = ["| option | default | allowed | meaning |", "|---|---|---|---|"]
    for name in options_in_order(h):
        spec = h.__dataclass_fields__[name]
        cells = (source_of(spec.default), _allowed(name, spec.metadata["check"].allowed), spec.metadata["means"])
        rows.append(f"| `{name}` | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def reference(front: str) -> str:
    """Return the entries of all optimizers in a front's reference; methods, which they share, are shown once."""
    rows = []
    for entry in ENTRIES.values():
        shown = SHOWN.get(front, "") if entry.name == WITH_METHODS else ALONE
        rows += [f"::: layerwise.{front}.{name}" + (shown if front != "jax" else "") for name in _public(front, entry)]
    return "\n\n".join(rows)


def _public(front: str, entry: Entry) -> tuple[str, ...]:
    return (entry.name.lower(), f"{entry.name}State") if front == "jax" else (entry.name,)


KINDS: dict[str, Callable[[str], str]] = {"options": options, "reference": reference}
