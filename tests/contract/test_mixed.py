"""Several rules in one optimizer: each takes its own step, and all are clipped, skipped and saved together."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES
from contract.apis import arrays, bits, close
from contract.test_resume import COPIES

pytestmark = pytest.mark.offers("mixed")
BOUND = 0.5
SHAPES = {f"{case.name}.{key}": shape for case in CASES for key, shape in {"matrix": (4, 3), "vector": (5,)}.items()}
OWN = {case.name: [name for name in SHAPES if name.startswith(f"{case.name}.")] for case in CASES}


def mixed(api, **options):
    """Return an optimizer with two parameters for each rule."""
    groups = [(OWN[case.name], {"rule": case.name, **case.busy}) for case in CASES]
    return api.make("Mixed", arrays(0, SHAPES), groups=groups, **options)


@pytest.mark.parametrize("engine", [None, "rule"])
@pytest.mark.parametrize("bound", [None, BOUND])
def test_each_rule_takes_the_step_of_its_optimizer_and_the_norm_is_of_all(api, bound, engine):
    """Also of gradients whose rules do not clip."""
    given = {"engine": engine} if engine else {}
    run, weights = mixed(api, max_grad_norm=bound, **given), arrays(0, SHAPES)
    apart = [api.busy(name, {key: weights[key] for key in own}, **given) for name, own in OWN.items()]
    for t in range(3):
        grads = arrays(100 + t, SHAPES)
        norm = np.sqrt(sum(np.square(g).sum() for g in grads.values()))
        run.step(grads)
        for one in apart:
            one.step({name: grads[name] / max(1.0, norm / (bound or np.inf)) for name in OWN[one.name]})
    close(run.weights(), {name: w for one in apart for name, w in one.weights().items()})
    wanted, found = {name: seen for one in apart for name, seen in one.stats().items()}, run.stats()
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        close(found[name], one, 1e-10, name)


def test_a_gradient_that_is_not_finite_leaves_out_the_step_of_all(api):
    run = mixed(api, skip_nonfinite=True)
    run.step(arrays(1, SHAPES))
    before = run.bits(), bits(run.state())
    grads = arrays(2, SHAPES)
    grads["Lars.vector"][0] = np.nan
    run.step(grads)
    assert (run.bits(), bits(run.state()), run.skipped) == (*before, 1)
    run.step(arrays(3, SHAPES))
    assert run.bits() != before[0]


@pytest.mark.parametrize("how", [None, *COPIES], ids=str)
def test_a_run_that_was_saved_or_copied_goes_on_bit_for_bit(api, how):
    run = mixed(api, max_grad_norm=BOUND)
    for t in range(2):
        run.step(arrays(t, SHAPES))
    again = run.copied(COPIES[how]) if how else api.again(run)
    for t in range(2, 4):
        for one in (run, again):
            one.step(arrays(t, SHAPES))
        assert (run.bits(), bits(run.state())) == (again.bits(), bits(again.state()))


def test_a_name_is_cleared_by_the_optimizer_that_steps_it(api):
    run = mixed(api)
    run.step(arrays(1, SHAPES))
    run.opt.clear_state("Lamb.matrix")
    assert run.state().keys() == SHAPES.keys() - {"Lamb.matrix"}
    run.opt.clear_state()
    assert (run.state(), run.stats()) == ({}, {})
