"""The reference: each parameter of what it shows has a type and a meaning."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

DOCS = Path(__file__).parents[1] / "docs"
SHOWN = re.compile(r"^::: (\S+)(?:\n    options: .*members: \[(.*?)\])?", re.MULTILINE)
OF_BUILTINS = {"ParamGroups", "optional"}  # a list and a string, with the signatures of those
ELSEWHERE = ("layerwise.keras", "layerwise.paddle")  # made of the same declarations, for packages that tests lack
VARIADIC = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def found(path):
    """Return the object that a page shows."""
    home, _, name = path.rpartition(".")
    parent = import_module(home)
    return getattr(parent, name) if hasattr(parent, name) else import_module(path)


def members(one, listed):
    """Yield functions and classes that belong to an entry, each with the signature that a reader sees."""
    if isinstance(one, ModuleType):
        for name in getattr(one, "__all__", ()):
            yield from members(getattr(one, name), None)
        return
    yield one
    if inspect.isclass(one):
        for name in vars(one) if listed is None else filter(None, re.split(r", ?", listed)):
            method = inspect.getattr_static(one, name)
            if not name.startswith("_") and inspect.isfunction(method) and "layerwise" in method.__module__:
                yield method


def entries():
    for page in sorted((DOCS / "reference").glob("*.md")):
        for path, listed in SHOWN.findall(page.read_text("utf-8")):
            if not path.startswith(ELSEWHERE):
                yield pytest.param(path, listed or None, id=path)


def undescribed(one):
    """Return the parameters of a function or class that its docstring leaves out, or that have no type."""
    parameters = inspect.signature(one).parameters.values()
    doc = inspect.getdoc(one) or ""
    for p in parameters:
        name = VARIADIC.get(p.kind, "") + p.name
        if p.name != "self" and not re.search(rf"^    {re.escape(name)}: \S", doc, re.MULTILINE):
            yield name
        if p.annotation is p.empty and p.name != "self":
            yield f"{name} without a type"


@pytest.mark.parametrize(("path", "listed"), [*entries()])
def test_each_parameter_has_a_type_and_a_meaning(path, listed):
    for one in members(found(path), listed):
        if inspect.isclass(one) and issubclass(one, Exception):
            continue
        if (
            callable(one)
            and getattr(one, "__name__", "") not in OF_BUILTINS
            and "layerwise" in getattr(one, "__module__", "")
        ):
            assert not [*undescribed(one)], one


def test_undescribed_names_are_found():
    def function(a: int, b, **c: int) -> None:
        """Do it.

        Args:
            b: A number.
        """

    assert [*undescribed(function)] == ["a", "b without a type", "**c"]


def test_an_argument_means_what_its_api_says_of_it():
    of_jax, of_torch = (import_module(f"layerwise.{api}.optimizers") for api in ("jax", "torch"))
    assert "\n    eps: What is added to the squared gradient, or a pair of that and" in of_jax.adafactor.__doc__
    assert "\n    eps: Pair (eps1, eps2): eps1 is added to the squared gradient" in of_torch.Adafactor.__doc__
    assert "b1: The first of the two: decay rates of the first moment m" in of_jax.lamb.__doc__
    assert '1/√t) by learning_rate ("factor", True)' in of_jax.adafactor.__doc__
    assert '1/√t) by lr ("factor", True)' in of_torch.Adafactor.__doc__


def test_types_in_signatures_have_their_place():
    page = (DOCS / "reference" / "types.md").read_text("utf-8")
    optimizers = import_module("layerwise.torch.optimizers")
    named = set(re.findall(r"\b[A-Z]\w+", str(inspect.signature(optimizers.Adafactor))))
    for name in named - {"Any", "None", "Literal", "Mapping", "True", "False", "ProcessGroup"}:
        assert re.search(rf"^::: \S+\.{name}$", page, re.MULTILINE), name
