"""The rules and the driver rebuilt from source with an error in the mathematics, to hold the oracles against."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from inspect import getsource
from types import CodeType, ModuleType, SimpleNamespace
from unittest.mock import patch

from cases import CASES, Case

from mutants.errors import Error, errors

MODULES = (
    "layerwise.rules.scalars",
    "layerwise.rules.arrays",
    "layerwise.rules.clipping",
    "layerwise.rules.trust",
    "layerwise.rules.factors",
    "layerwise.rules.row_normalization",
    "layerwise.rules.products",
    "layerwise.rules.newton_schulz",
    *(case.rule.__name__ for case in CASES),
    "layerwise.drivers.partial_sums",
    "layerwise.drivers.whole",
    "layerwise.drivers.sharded",
    "layerwise.drivers",
    "layerwise.engines.rule",
)


MUTANTS = errors("rules")


def module_of(error: Error) -> str:
    """Return the module that the error is in."""
    return error.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def world(error: Error) -> SimpleNamespace:
    """Return the mathematics with the error, while the installed package stays as it is."""
    target = module_of(error)
    sources = {name: getsource(import_module(name)) for name in MODULES} | {target: error.broken()}
    own = [case for case in CASES if case.rule.__name__ == target]  # an error in one rule is in no other
    return rebuilt(sources, own or CASES)


def rebuilt(sources: dict[str, str], cases: list[Case] = CASES) -> SimpleNamespace:
    """The driver and the rules of these cases made of sources, and of one another."""
    built: dict[str, ModuleType] = {}
    others = {case.rule.__name__ for case in CASES} - {case.rule.__name__ for case in cases}
    with patch.dict(sys.modules):
        for name, source in sources.items():
            if name not in others:
                built[name] = sys.modules[name] = ModuleType(name)
                exec(_compiled(source, name), built[name].__dict__)  # noqa: S102
    drive, engine = built["layerwise.drivers"], built["layerwise.engines.rule"]
    rules = {case.name: built.get(case.rule.__name__, case.rule) for case in CASES}
    return SimpleNamespace(
        rules=rules, cases=cases, local=drive.drive_whole, Run=drive.TensorRun, RuleEngine=engine.RuleEngine
    )


@cache
def _compiled(source: str, name: str) -> CodeType:
    return compile(source, f"<{name}>", "exec")
