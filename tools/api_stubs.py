"""The stubs of the APIs' classes and functions, which are made at import: for readers, editors and type checkers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

from source import source_of

from layerwise.catalog import docstrings
from layerwise.catalog.registry import ENTRIES, Entry
from layerwise.catalog.signatures import APIS, of_mixed
from layerwise.options import arguments
from layerwise.options.arguments import REQUIRED, Argument

WIDTH = 120
LONGEST_SUMMARY = 109  # in a line, indented, with quotes on both sides and a full stop
DOCS = Path(__file__).parents[1] / "docs"
# What signatures name, and where it is.
HOMES = {
    "collections.abc": "Callable Mapping Sequence",
    "typing": "Any Literal NamedTuple TypeAlias",
    "keras.optimizers.schedules": "LearningRateSchedule",
    "optax": "GradientTransformationExtraArgs",
    "paddle.nn.clip": "GradientClipBase",
    "paddle.optimizer.lr": "LRScheduler",
    "torch.distributed": "ProcessGroup",
    "layerwise.jax._make": "ByLeaf Number",
    "layerwise.layout.blocks": "BlocksByName Split",
    "layerwise.options.arguments": "ByName StateDtype",
    "layerwise.options.settings": "Adapt Bounds Scheduled",
}

# Arguments of the APIs, which formulas do not know.
OF_APIS = {*chain(arguments.TORCH, arguments.JAX, arguments.NUMPY, arguments.KERAS, arguments.PADDLE)}

GENERATED = "Printed by `make generate` from the declarations in layerwise/rules: change those, not this file."


class ApiModule(NamedTuple):
    """An API: its guide, what its module is, its own types, and whether its classes describe their options here."""

    guide: str
    title: str
    own: Mapping[str, str]  # what signatures name besides, and where it is
    rate: str = ""  # what `Rate` is, where the module defines it
    described: bool = False


MODULES = {
    "torch": ApiModule(
        "pytorch.md",
        "The optimizers as classes of `torch.optim.Optimizer`.",
        {"torch": "Tensor", "layerwise.torch._optimizer": "Optimizer"},
        'Rate: TypeAlias = float | Tensor\n"""A number, or a tensor of one, as a captured CUDA graph reads it."""',
        described=True,
    ),
    "jax": ApiModule(
        "jax.md",
        "The optimizers as functions that return optax transformations, and their states.",
        {"layerwise.jax._make": "ByLeaf Number Rate"},
    ),
    "numpy": ApiModule(
        "numpy.md",
        "The optimizers as classes that update named arrays in place.",
        {"layerwise.numpy._optimizer": "Optimizer"},
    ),
    "keras": ApiModule(
        "keras.md",
        "The optimizers as classes of `keras.optimizers.Optimizer`.",
        {"layerwise.keras._optimizer": "Optimizer"},
        "Rate: TypeAlias = float | LearningRateSchedule | Callable[[], Any]",
    ),
    "mlx": ApiModule(
        "mlx.md",
        "The optimizers as classes of `mlx.optimizers.Optimizer`.",
        {"layerwise.mlx._optimizer": "Optimizer"},
        "Rate: TypeAlias = float | Callable[[Any], Any]",
    ),
    "paddle": ApiModule(
        "paddle.md",
        "The optimizers as classes of `paddle.optimizer.Optimizer`.",
        {"paddle": "Tensor", "layerwise.paddle._optimizer": "Optimizer"},
    ),
}


def all_of_them() -> dict[str, str]:
    """Return the stubs by their paths within the package."""
    return {"torch/mixed.pyi": _mixed(), **{f"{api}/optimizers.pyi": _module(api) for api in MODULES}}


def _module(api: str) -> str:
    module = MODULES[api]
    names = [name for entry in ENTRIES.values() for name in _names(api, entry)]
    text = f"Each has a page with its formula, and {page(module.guide)} is the guide. help() describes all arguments."
    made = [_function(entry) if api == "jax" else _class(api, entry) for entry in ENTRIES.values()]
    return stub(module, text, names, made)


def stub(module: ApiModule, text: str, names: Iterable[str], made: Sequence[str]) -> str:
    """Return a stub with these classes and functions, and what they need."""
    code = re.sub('""".*?"""', "", "\n".join([module.rate, *made]), flags=re.DOTALL)
    words = {*re.findall(r"\w+", code)}
    homes = {home: sorted(words & {*known.split()}) for home, known in {**HOMES, **module.own}.items()}
    groups: dict[int, list[str]] = {0: [], 1: [], 2: []}  # Python's own, others', ours
    for home, named in sorted(homes.items()):
        if named:
            group = 0 if home in ("collections.abc", "typing") else 1 + home.startswith("layerwise")
            groups[group].append(f"from {home} import {', '.join(named)}")
    head = f'"""{module.title}\n\n{GENERATED}\n{text}'.rstrip() + '\n"""'
    imports = ["\n".join(group) for group in groups.values() if group]
    return "\n\n".join([head, *imports, _public(names), "# fmt: off", *([module.rate] if module.rate else []), *made])


def _public(names: Iterable[str]) -> str:
    """Return the list of public names, in lines."""
    listed = ", ".join(f'"{name}"' for name in sorted(names, key=lambda name: (not name.isupper(), name)))
    first, *more = (f"[{line.rstrip(',')}]" for line in textwrap.wrap(listed, WIDTH - len("__all__ += []")))
    return "\n".join([f"__all__ = {first}", *(f"__all__ += {line}" for line in more)])


def page(path: str) -> str:
    """Return a page as it is called wherever the package is installed: by its title in the documentation."""
    title, _, _ = (DOCS / path).read_text("utf-8").partition("\n")
    return f'"{title.removeprefix("# ")}"'


def _names(api: str, entry: Entry) -> tuple[str, ...]:
    return (f"{entry.name}State", entry.name.lower()) if api == "jax" else (entry.name,)


def summary(entry: Entry) -> str:
    """Return what classes say of a rule first, if it fits in a line."""
    found = docstrings.first_line(entry)
    if len(found) > LONGEST_SUMMARY + 1:
        raise SystemExit(
            f"The first line of the docstring of {entry.rule.__name__}, which is the summary of {entry.name} in all "
            f"APIs, has {len(found)} characters. Shorten it: at most {LONGEST_SUMMARY} fit a line there."
        )
    return found


def _class(api: str, entry: Entry) -> str:
    declared = APIS[api](entry)
    own = [one for one in declared if one.name in entry.hyper.__dataclass_fields__] if MODULES[api].described else []
    return class_of(entry.name, _doc(summary(entry), own), declared)


def class_of(name: str, doc: str, declared: Sequence[Argument]) -> str:
    """Return a class of the stub."""
    return (
        f"class {name}(Optimizer):\n{textwrap.indent(doc, '    ')}\n\n"
        f"    def __init__(\n        self,\n{textwrap.indent(signature(declared), '        ')}\n    ) -> None: ...\n"
    )


def _mixed() -> str:
    declared = of_mixed()
    doc = docstrings.mixed_doc(declared).rstrip()
    module = MODULES["torch"]._replace(title="The optimizer whose groups name their rules.", rate="")
    return stub(module, "", ["Mixed"], [class_of("Mixed", f'"""{doc}\n"""', declared)])


def _function(entry: Entry) -> str:
    state, name = _names("jax", entry)
    parts = "\n".join(f"    {part}: Any" for part in docstrings.fields_of_state(entry))
    doc = textwrap.indent(_doc(docstrings.doc_beginning(entry, "jax")), "    ")
    of_state = textwrap.fill(docstrings.state_doc_beginning(entry), WIDTH - 4)
    return (
        f"class {state}(NamedTuple):\n{textwrap.indent(_doc(of_state), '    ')}\n\n    count: Any\n{parts}\n"
        f"    stats: Any = None\n\n"
        f"def {name}(\n{textwrap.indent(signature(APIS['jax'](entry)), '    ')}\n"
        f") -> GradientTransformationExtraArgs:\n{doc}\n"
    )


def _doc(text: str, described: Sequence[Argument] = ()) -> str:
    if not described:
        return f'"""{text}"""' if "\n" not in text else f'"""{text}\n"""'
    return f'"""{docstrings.documented(text, "Args", {one.name: one.means for one in described})}"""'


def signature(declared: Sequence[Argument]) -> str:
    """Return arguments as source. Those given by place, a rule's by name, and the API's own begin a line each."""
    lines = []
    for (keyword, _), group in groupby(declared, lambda one: (one.keyword, one.keyword and one in OF_APIS)):
        if keyword and "*," not in lines:
            lines.append("*,")
        each = ", ".join(_source(one).replace(" ", "~") for one in group)
        lines += [line.replace("~", " ") for line in textwrap.wrap(f"{each},", WIDTH - 8, break_on_hyphens=False)]
    return "\n".join(lines)


def _source(one: Argument) -> str:
    return f"{one.name}: {one.type}" + ("" if one.default is REQUIRED else f" = {source_of(one.default)}")
