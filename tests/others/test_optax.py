"""optax's tests of its optimizers, which come in its wheel, on those of layerwise.jax."""

from __future__ import annotations

import pytest
from others.theirs import cases, check_expected, module, run_case, standing_in, tried

import layerwise.jax as front

pytestmark = pytest.mark.slow
alias = module("optax._src.alias_test")
contrib = module("optax.contrib._common_test")

# Theirs, and which of ours takes its place; of other rules it is only asked what does not depend on where they go.
SAME = {name: name for name in ("adafactor", "adamw", "lamb", "lars", "novograd", "sgd")}
OTHERS = [("adamw", "adammini"), ("adamw", "came"), ("adamw", "stableadamw"), ("lamb", "lans"), ("sgd", "scalesgd"),
          ("sgd", "sinkgd")]  # fmt: skip
GOING = "test_optimization|test_optimizers-|test_explicit_dtype"


def rows():
    for theirs, ours in [*SAME.items(), *OTHERS]:
        but = "nothing" if theirs == ours else GOING
        named = rf"opt_name='{theirs}(_mom)?'"
        for one in [*cases(alias.AliasTest, named, but), *cases(contrib.ContribTest, named, but)]:
            marks = one.marks if theirs == ours else [pytest.mark.repeats]
            yield pytest.param(*one.values, theirs, ours, id=f"{ours}-{one.id}", marks=marks)


CASES = list(rows())


@pytest.mark.parametrize(("case", "method", "theirs", "ours"), CASES)
def test_tests_of_others_pass_with_our_optimizers(case, method, theirs, ours, monkeypatch, request):
    for one in (alias, contrib):
        monkeypatch.setattr(one, "alias", standing_in(one.alias, **{theirs: getattr(front, ours)}))
    tried(lambda: run_case(case, method), "optax", request.node.callspec.id)


def test_expected_differences_are_up_to_date():
    check_expected("optax", CASES)
