"""Classes and functions made at import: for Python, for tools and for readers they are as if they had been written."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import pydoc
import re
import sys
import typing
from pathlib import Path

import pytest

import layerwise
from layerwise.catalog.making import parameters
from layerwise.catalog.registry import ENTRIES
from layerwise.catalog.signatures import APIS
from layerwise.errors import ArgumentError
from layerwise.options.arguments import OPTAX_ORDER

torch = pytest.importorskip("torch")
optax = pytest.importorskip("optax")

from layerwise import jax as of_jax  # noqa: E402
from layerwise import torch as of_torch  # noqa: E402
from layerwise.torch import Lamb  # noqa: E402

PACKAGE = Path(layerwise.__file__).parent
P = [torch.nn.Parameter(torch.ones(2))]
MADE = [
    *(getattr(of_torch, name) for name in (*ENTRIES, "Mixed")),
    *(getattr(of_jax, name.lower()) for name in ENTRIES),
    *(getattr(of_jax, f"{name}State") for name in ENTRIES),
]


def in_stub(api):
    """What a stub has, by name, without what it imports and names."""
    text = re.sub(r"^(from|Rate: TypeAlias) .*$", "", (PACKAGE / api / "optimizers.pyi").read_text("utf-8"), flags=re.M)
    space = {"Optimizer": object, "NamedTuple": typing.NamedTuple, "__name__": api}
    exec(compile(text, api, "exec", annotations.compiler_flag), space)  # noqa: S102  # types stay as they are written
    return space


def shown(taken):
    return [str(one).replace("'", '"') for one in taken]  # Python has one kind of quotes in types


@pytest.mark.parametrize("api", APIS)
def test_a_stub_has_the_arguments_that_are_made(api):
    there = in_stub(api)
    for entry in ENTRIES.values():
        found = inspect.signature(there[entry.name.lower() if api == "jax" else entry.name])
        assert shown(found.parameters.values()) == shown(parameters(APIS[api](entry)))


@pytest.mark.parametrize("made", MADE, ids=lambda one: one.__name__)
def test_what_is_made_belongs_to_its_module(made):
    assert pickle.loads(pickle.dumps(made)) is made
    assert getattr(sys.modules[made.__module__], made.__qualname__) is made
    function = made.__init__ if is_of_torch(made) else made
    if not made.__name__.endswith("State"):
        assert typing.get_type_hints(function).keys() == {*inspect.signature(made).parameters, "return"}
    shown = pydoc.plain(pydoc.render_doc(made))
    assert made.__doc__.splitlines()[0] in shown
    assert f"    {[*inspect.signature(made).parameters][-1]}: " in shown


def is_of_torch(made):
    return isinstance(made, type) and issubclass(made, torch.optim.Optimizer)


def test_an_optimizer_can_be_copied_and_saved():
    opt, file = Lamb(P, 0.5, (0.5, 0.25)), io.BytesIO()
    torch.save(opt, file)
    file.seek(0)
    for other in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt)), torch.load(file, weights_only=False)):
        assert type(other) is Lamb
        assert other.param_groups[0]["betas"] == (0.5, 0.25)


def test_a_class_can_be_derived_from_and_mixed():
    class Slow:
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.slow = True

    class Mine(Slow, Lamb):
        def __init__(self, params, warmth=1):
            super().__init__(params, lr=warmth)

    assert Mine(P, 0.5).get_lr() == 0.5
    assert Mine(P).slow


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Lamb(P, 1, (0, 0), 1, 0, 0), r"^Lamb takes at most 5 arguments by position \(params, .*but got 6\."),
        (
            lambda: Lamb(P, params=P),
            r"^Lamb got `params` twice: by name, and a list by position\. The parameters come",
        ),
        (lambda: Lamb(), r"^Lamb is missing `params`\. The parameters come first"),
        (lambda: of_jax.lamb(), r"^lamb is missing `learning_rate`\.$"),
    ],
)
def test_a_call_that_python_would_refuse_says_what_is_wrong(call, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert isinstance(caught.value, TypeError)


def test_all_optimizers_of_optax_are_known():
    assert {name for name in ENTRIES if hasattr(optax, name.lower())} == OPTAX_ORDER.keys()
