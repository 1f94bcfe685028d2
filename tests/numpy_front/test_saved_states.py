"""State is a dict of plain arrays, which goes through a file under any name; what cannot be right changes nothing."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
from numpy_front.front import DTYPES, arrays, bits, busy, copies, everything, fronts
from reference.former_codes import check, former_state

from layerwise.errors import LayerwiseError, StateError
from layerwise.numpy import Adafactor, Lamb, Lars

pytestmark = pytest.mark.thinned(1, 3)
WEIRD = {
    "encoder/block.0/weight": (3, 2),
    "a/b/../c": (2,),
    "step": (2,),
    "lr": (2, 2),
    "x/step": (3,),
    "x": (3,),
    "größe.权重 🙂": (2, 3),
    "with space\n": (2,),
    "/lead": (2,),
    "trail/": (2,),
    "file": (2,),
    "w.npy": (2,),
    "C:\\w": (),
}


def halving(step):
    return 0.1 / (1 + step)


def saved(opt):
    """The state dict after a file has been between."""
    file = io.BytesIO()
    np.savez(file, **opt.state_dict())
    file.seek(0)
    with np.load(file, allow_pickle=False) as loaded:
        return dict(loaded)


def walk(opt, weights, steps, names=None):
    for t in steps:
        grads = arrays(100 + t, {name: w.shape for name, w in weights.items()}, next(iter(weights.values())).dtype)
        opt.step_all(weights, {name: grads[name] for name in names or weights})


SETTINGS = [
    (Lamb, {"lr": halving, "weight_decay": lambda step: 0.01 * step}),
    (Adafactor, {"lr": None, "momentum_dtype": "bfloat16"}),
    (Adafactor, {"momentum_dtype": "float64", "decay_offset": 2, "factored": False}),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("front", "options"), SETTINGS, ids=lambda one: str([*one]) if isinstance(one, dict) else "")
def test_a_run_under_any_names_is_saved_in_a_file_after_each_step_and_goes_on_bit_for_bit(front, options, dtype):
    """Arrays in the file are plain ones, whose names say what they are."""
    straight, broken = busy(front, **options), busy(front, **options)
    a, b = arrays(1, WEIRD, dtype), arrays(1, WEIRD, dtype)
    for t in range(4):
        names = list(WEIRD)[:5] if t < 2 else None
        walk(straight, a, [t], names)
        fresh = busy(front, **options)
        fresh.load_state_dict(saved(broken))
        broken = fresh
        walk(broken, b, [t], names)
        assert bits(a) == bits(b)
        assert bits(straight.state_dict()) == bits(broken.state_dict())
    assert broken.parameters == WEIRD
    state = straight.state_dict()
    assert all(type(key) is str and type(x) is np.ndarray and not x.dtype.hasobject for key, x in state.items())


@fronts
def test_a_run_goes_on_after_the_furthest_name_was_cleared(front):
    straight, fresh = busy(front, lr=halving), busy(front, lr=halving)
    a = arrays(1)
    walk(straight, a, range(3), ["matrix"])
    walk(straight, a, [3])
    straight.clear_state("matrix")
    fresh.load_state_dict(saved(straight))
    b = copies(a)
    assert fresh.lr == straight.lr
    walk(straight, a, [4])
    walk(fresh, b, [4])
    assert bits(a) == bits(b)


@fronts
def test_saved_arrays_are_copies_both_ways_and_may_be_read_only(front):
    opt, weights = busy(front), arrays(4)
    walk(opt, weights, range(2))
    state = opt.state_dict()
    before = bits(state)
    for array in state.values():
        array.flags.writeable = False
    fresh = busy(front)
    fresh.load_state_dict(state)
    walk(fresh, copies(weights), [2])
    fresh.load_state_dict(state)
    for array in state.values():
        array.flags.writeable = True
        if array.dtype.kind == "f":
            array[...] = 77
    assert bits(opt.state_dict()) == bits(fresh.state_dict()) == before


# ---- lr


@fronts
def test_lr_and_weight_decay_are_restored_unless_a_schedule_is_given(front):
    opt, fresh, follows = front(lr=0.5), front(lr=0.25), front(lr=lambda step: 0.125)
    opt.lr, opt.weight_decay = 0.75, 0.5
    fresh.load_state_dict(opt.state_dict())
    assert (fresh.lr, fresh.weight_decay) == (0.75, 0.5)
    follows.load_state_dict(opt.state_dict())
    assert (follows.lr, follows.weight_decay) == (0.125, 0.5)
    opt.load_state_dict(follows.state_dict())
    assert opt.lr == 0.75


@pytest.mark.parametrize(("given", "then"), [(None, 0.1), (0.1, None)])
def test_a_state_does_not_switch_between_lr_and_the_relative_step(given, then):
    opt, fresh = Adafactor(lr=then), Adafactor(lr=given)
    walk(opt, arrays(5), range(2))
    before = fresh.lr
    with pytest.raises(StateError, match="give lr another meaning"):
        fresh.load_state_dict(opt.state_dict())
    assert (fresh.lr, fresh.parameters) == (before, {})


@pytest.mark.parametrize("role", ["factor", "cap"])
def test_the_lr_of_a_relative_step_is_restored(role):
    opt, fresh = Adafactor(relative_step=role), Adafactor(lr=0.25, relative_step=role)
    opt.lr = 0.5
    walk(opt, arrays(5), range(2))
    fresh.load_state_dict(opt.state_dict())
    assert fresh.lr == 0.5


# ---- what cannot be right


def change(key, value):
    return lambda state: state.__setitem__(key, np.array(value))


def drop(key):
    return lambda state: state.pop(key)


def buffer(make):
    def spoil(state):
        key = next(key for key in sorted(state) if key.startswith("w/") and key.split("/")[1] not in ("step", "shape"))
        state[key] = make(state[key])

    return spoil


SPOILT = {
    "an unknown header": (change("beta", 1), "the state has 'beta', which a state of layerwise lacks"),
    "a stray name": (change("v/step", 3), "'v"),
    "a key that is no text": (lambda state: state.update({1: np.ones(1)}), "1"),
    **{f"no {key}": (drop(key), key) for key in ("optimizer", "format", "skipped", "w/step", "w/shape")},
    **{f"shape {x}": (change("w/shape", x), "w/") for x in ([3, 2], 2, [[2, 3]], [-2, 3], [2.0, 3.0])},
    **{f"step {x}": (change("w/step", x), "w/step") for x in (1.0, [1, 2])},
    "a step too far": (change("w/step", 1 << 62), "'w/step' must be an integer ≥ 0 and < 2^53"),
    "another optimizer": (change("optimizer", "Adam"), "Adam"),
    "a newer format": (change("format", 2), "format"),
    **{f"format {x}": (change("format", x), "format") for x in ("one", 1.5)},
    **{f"skipped {x}": (change("skipped", x), "skipped") for x in ("none", -1, [1, 2])},
    **{f"lr {x}": (change("lr", x), "lr") for x in ("fast", [0.1, 0.2], float("nan"), -1.0)},
    **{f"seed {x}": (change("seed", x), "seed") for x in (-1, 1.5)},
    "text in a buffer": (buffer(lambda a: a.astype(str)), "'w/"),
    "objects in a buffer": (buffer(lambda a: a.astype(object)), "object"),
}


@fronts
@pytest.mark.parametrize("what", SPOILT)
def test_a_state_that_cannot_be_right_is_refused_and_changes_nothing(front, what):
    spoil, words = SPOILT[what]
    opt, weights = busy(front), {"w": np.ones((2, 3)), "other": np.ones(2)}
    walk(opt, weights, range(2))
    state = opt.state_dict()
    walk(opt, weights, [2])
    opt.lr = 0.3
    before = everything(opt, weights)
    spoil(state)
    with pytest.raises(StateError) as caught:
        opt.load_state_dict(state)
    assert words in str(caught.value)
    assert everything(opt, weights) == before


@pytest.mark.parametrize("state", [None, 3, [], "state", {}], ids=repr)
def test_values_that_are_not_states_are_refused(state):
    with pytest.raises(StateError):
        Lamb().load_state_dict(state)


@pytest.mark.parametrize(("before", "after"), [({}, {"momentum": 0, "dampening": 0}), ({"momentum": 0}, {})])
def test_a_momentum_that_the_options_do_not_keep_is_refused(before, after):
    opt, other = busy(Lars, **{"dampening": 0, **before}), busy(Lars, **after)
    opt.step("w", np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(StateError, match=r"'w' does not fit these options.*[Oo]ptions it was saved with"):
        other.load_state_dict(opt.state_dict())
    assert other.num_parameters == 0


@fronts
def test_weights_that_do_not_fit_a_loaded_state_are_refused_and_state_keeps_its_dtype(front):
    opt, fresh = busy(front), busy(front)
    w = np.ones((2, 3), np.float32)
    opt.step("w", w, w * 0.5)
    fresh.load_state_dict(opt.state_dict())
    with pytest.raises(LayerwiseError, match=r"'w' had the shape \(2, 3\) and now have \(3, 2\)"):
        fresh.step("w", w.T.copy(), w.T.copy())
    fresh.step("w", w, w * 0.5)
    kept = {x.dtype for key, x in fresh.state_dict().items() if key.startswith("w/") and x.dtype.kind == "f"}
    assert kept == {np.dtype(np.float32)}


def test_codes_of_row_statistics_are_refused():
    opt = Adafactor(min_dim_size_to_factor=1)
    opt.step("w", np.ones((64, 80), np.float32), np.ones((64, 80), np.float32))
    codes = {"w/exp_avg_sq_row": np.ones((64, 1), np.uint8), "w/exp_avg_sq_row_unit": np.ones((64, 2), np.float32)}
    with pytest.raises(StateError, match="'w/exp_avg_sq_row' must be floating point of shape"):
        opt.load_state_dict(opt.state_dict() | codes)


@pytest.mark.parametrize("wanted", [None, "int8"])
def test_codes_of_a_former_format_are_loaded_as_numbers(wanted):
    (stored, numbers), w = former_state(), np.ones((70, 65), np.float32)
    opt = Lamb(state_dtype=wanted)
    opt.step("w", w, w)
    saved = {key: x for key, x in opt.state_dict().items() if "exp_avg" not in key}
    opt.load_state_dict(saved | {f"w/{key}": x for key, x in stored.items()})
    check({key: opt.state_dict()[f"w/{key}"] for key in numbers}, numbers)
    assert "w/exp_avg_scale" not in opt.state_dict()
    opt.step("w", w, w)
    assert opt.state_dict()["w/exp_avg"].dtype == ("float32" if wanted is None else "int8")


# ---- copies


def by_name(name):
    return 0.5 if name == "vector" else None


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda opt: pickle.loads(pickle.dumps(opt))}


@pytest.mark.parametrize("how", COPIES)
@fronts
def test_copies_have_schedules_and_settings_of_their_own(front, how):
    named = {"lr_scale": by_name, "decay": {"scalar": False}, "blocks": {"stack": "each"}}
    opt = busy(front, lr=halving, **named)
    walk(opt, a := arrays(7), range(2))
    twin = COPIES[how](opt)
    assert (repr(twin), repr(twin.stats())) == (repr(opt), repr(opt.stats()))
    walk(twin, b := copies(a), [2])
    walk(opt, a, [2])
    assert bits(a) == bits(b)
    before = everything(opt, {})
    twin.clear_state("scalar")
    twin.lr = lambda step: 0.7
    assert (everything(opt, {}), opt.lr) == (before, halving(3))


def test_options_of_storage_are_attributes():
    opt = Lamb(seed=5)
    assert (opt.master_weights, opt.rounding, opt.state_dtype, opt.seed) == (False, None, None, 5)
    opt.set_options(state_dtype={"exp_avg": "int8"}, rounding="nearest")
    assert "state_dtype={'exp_avg': 'int8'}" in repr(opt)
    weights = arrays(0, {"w": (64, 80)})
    for _ in range(2):  # also after state was forgotten
        walk(opt, weights, [0])
        assert opt.state_dict()["w/exp_avg"].dtype == np.int8
        opt.clear_state()
