"""Saving, loading, copying: whoever goes on, goes on bit for bit."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
from numpy_front.front import FRONTS, arrays, bits, busy, dtypes, everything, fronts, kept_of

from layerwise.errors import LayerwiseError, StateError
from layerwise.numpy import Adafactor, Lamb, Lars

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
SETTINGS = [
    (Lamb, {}),
    (Lamb, {"bias_correction": "lr", "max_grad_norm": 0.5, "lr": lambda step: 0.1 / (1 + step)}),
    (Lars, {}),
    (Lars, {"momentum": 0, "dampening": 0}),
    (Lars, {"nesterov": True, "dampening": 0, "weight_decay": lambda step: 0.01 * step}),
    (Adafactor, {"lr": None}),
    (Adafactor, {"factored": False, "momentum_dtype": "float16"}),
    (Adafactor, {"momentum_dtype": "float64", "lr_in_momentum": False}),
    (Adafactor, {"beta1": None, "decay_offset": 2, "lr": lambda step: 0.1 / (1 + step)}),
]
settings = pytest.mark.parametrize(
    ("front", "options"), SETTINGS, ids=lambda x: x.__name__ if isinstance(x, type) else str([*x])
)


def saved(opt):
    """The state dict after a file has been between."""
    file = io.BytesIO()
    np.savez(file, **opt.state_dict())
    file.seek(0)
    with np.load(file, allow_pickle=False) as loaded:
        return dict(loaded)


def walk(opt, weights, steps, names=None):
    for t in steps:
        grads = arrays(100 + t, {name: w.shape for name, w in weights.items()})
        opt.step_all(weights, {name: grads[name] for name in names or weights})


@settings
@dtypes
def test_resumes_bit_for_bit(front, options, dtype):
    straight, broken = busy(front, **options), busy(front, **options)
    a, b = arrays(1, WEIRD, dtype), arrays(1, WEIRD, dtype)
    early = list(WEIRD)[:5]
    walk(straight, a, range(3), early)
    walk(broken, b, range(3), early)
    for t in range(3, 6):
        walk(straight, a, [t])
        fresh = busy(front, **options)
        fresh.load_state_dict(saved(broken))
        broken = fresh
        walk(broken, b, [t])
        assert bits(a) == bits(b)
        assert bits(straight.state_dict()) == bits(broken.state_dict())
    assert broken.parameters == WEIRD


@fronts
def test_resumes_after_the_furthest_name_was_cleared(front):
    straight, fresh = busy(front, lr=scheduled), busy(front, lr=scheduled)
    a = arrays(1)
    walk(straight, a, range(3), ["matrix"])
    walk(straight, a, [3])
    straight.clear_state("matrix")
    fresh.load_state_dict(saved(straight))
    b = {name: w.copy() for name, w in a.items()}
    assert fresh.lr == straight.lr
    walk(straight, a, [4])
    walk(fresh, b, [4])
    assert bits(a) == bits(b)


def test_bfloat16_momentum_resumes():
    options = {"momentum_dtype": "bfloat16"}
    straight, fresh = busy(Adafactor, **options), busy(Adafactor, **options)
    a = arrays(1, dtype=np.float32)
    walk(straight, a, range(3))
    assert straight.state_dict()["matrix/exp_avg"].nbytes == 2 * a["matrix"].size
    fresh.load_state_dict(saved(straight))
    b = {name: w.copy() for name, w in a.items()}
    walk(straight, a, [3])
    walk(fresh, b, [3])
    assert bits(a) == bits(b)


@fronts
def test_loads_straight_from_an_open_file(front, tmp_path):
    opt, fresh = busy(front), busy(front)
    walk(opt, arrays(2), range(2))
    np.savez(tmp_path / "state.npz", **opt.state_dict())
    with np.load(tmp_path / "state.npz") as file:
        fresh.load_state_dict(file)
    assert bits(fresh.state_dict()) == bits(opt.state_dict())


@fronts
def test_state_is_plain_arrays(front):
    opt = busy(front)
    walk(opt, arrays(3, WEIRD), range(2))
    state = opt.state_dict()
    assert all(
        type(key) is str and type(value) is np.ndarray and not value.dtype.hasobject for key, value in state.items()
    )
    assert bits(saved(opt)) == bits(state)


@fronts
def test_state_has_the_names_that_checkpoints_use(front):
    opt = busy(front)
    opt.step("w", np.ones((2, 3)), np.ones((2, 3)))
    assert {key.rpartition("/")[2] for key in opt.state_dict() if key.startswith("w/")} == {
        "step",
        "shape",
        *kept_of(front, (2, 3)),
    }


@fronts
def test_state_is_a_copy_both_ways(front):
    opt, weights = busy(front), arrays(4)
    walk(opt, weights, range(2))
    state = opt.state_dict()
    before = bits(state)
    fresh = busy(front)
    fresh.load_state_dict(state)
    for array in state.values():
        if array.dtype.kind == "f":
            array[...] = 77
    assert bits(opt.state_dict()) == before
    assert bits(fresh.state_dict()) == before
    state = opt.state_dict()
    walk(opt, weights, [2])
    assert bits(state) == before


@fronts
def test_read_only_arrays_load(front):
    opt, fresh, weights = busy(front), busy(front), arrays(4)
    walk(opt, weights, range(2))
    state = opt.state_dict()
    for array in state.values():
        array.flags.writeable = False
    fresh.load_state_dict(state)
    resumed = {name: w.copy() for name, w in weights.items()}
    walk(fresh, resumed, [2])
    walk(opt, weights, [2])
    assert bits(resumed) == bits(weights)


@fronts
def test_lr_is_restored_unless_a_schedule_is_given(front):
    opt, fresh, scheduled = front(lr=0.5), front(lr=0.25), front(lr=lambda step: 0.125)
    opt.lr = 0.75
    fresh.load_state_dict(opt.state_dict())
    assert fresh.lr == 0.75
    scheduled.load_state_dict(opt.state_dict())
    assert scheduled.lr == 0.125
    opt.load_state_dict(scheduled.state_dict())
    assert opt.lr == 0.75


@pytest.mark.parametrize(("given", "then"), [(None, 0.1), (0.1, None)])
@pytest.mark.parametrize("left_open", [False, True])  # as states that do not say what lr is
def test_a_state_does_not_switch_between_lr_and_the_relative_step(given, then, left_open):
    opt, fresh = Adafactor(lr=then), Adafactor(lr=given)
    walk(opt, arrays(5), range(2))
    state = opt.state_dict()
    if left_open:
        del state["relative_step"]
        state["lr"] = np.array(np.nan if then is None else then)
    before = fresh.lr
    with pytest.raises(StateError, match="lr means something else"):
        fresh.load_state_dict(state)
    assert fresh.lr == before
    assert not fresh.parameters


@pytest.mark.parametrize("role", ["factor", "cap"])
def test_a_state_that_leaves_the_relative_step_open_is_taken_over(role):
    opt, fresh = Adafactor(relative_step=role), Adafactor(lr=0.25, relative_step=role)
    walk(opt, arrays(5), range(2))
    state = {key: value for key, value in opt.state_dict().items() if key != "relative_step"}
    fresh.load_state_dict({**state, "lr": np.array(np.nan)})
    assert fresh.lr == 0.25
    assert fresh.parameters == opt.parameters


def test_the_factor_of_a_relative_step_is_restored():
    opt, fresh = Adafactor(), Adafactor()
    opt.lr = 0.5
    walk(opt, a := arrays(5), range(2))
    b = {name: w.copy() for name, w in a.items()}
    fresh.load_state_dict(opt.state_dict())
    assert fresh.lr == 0.5
    walk(opt, a, [2])
    walk(fresh, b, [2])
    assert bits(a) == bits(b)


@fronts
def test_weight_decay_is_restored_as_lr_is(front):
    opt, fresh = busy(front), busy(front)
    opt.weight_decay = 0.5
    walk(opt, a := arrays(5), range(2))
    b = {name: w.copy() for name, w in a.items()}
    fresh.load_state_dict(opt.state_dict())
    walk(opt, a, [2])
    walk(fresh, b, [2])
    assert bits(a) == bits(b)


@fronts
def test_skipped_steps_are_saved(front):
    opt, fresh = busy(front, skip_nonfinite=True), busy(front, skip_nonfinite=True)
    opt.step("w", np.ones(2), np.array([1.0, np.nan]))
    fresh.load_state_dict(saved(opt))
    assert fresh.skipped == 1


@fronts
def test_loading_replaces_everything(front):
    opt, empty = busy(front), busy(front)
    walk(opt, arrays(6), range(2))
    opt.load_state_dict(empty.state_dict())
    assert (opt.parameters, opt.stats()) == ({}, {})


def change(key, value):
    return lambda state: state.__setitem__(key, np.array(value))


def drop(key):
    return lambda state: state.pop(key)


def first_buffer(state):
    return next(
        key for key in sorted(state) if key.startswith("w/") and key.rpartition("/")[2] not in ("step", "shape")
    )


def buffer(make):
    def spoil(state):
        key = first_buffer(state)
        state[key] = make(state[key])

    return spoil


SPOILT = {
    "unknown header": (change("beta", 1), "unknown keys ['beta']"),
    "unknown field": (change("w/exp", np.ones((2, 3))), "'w/exp'"),
    "another's field": (change("w/max_exp_avg_sq", np.ones((2, 3))), "max_exp_avg_sq"),
    "no optimizer": (drop("optimizer"), "'optimizer'"),
    "no format": (drop("format"), "'format'"),
    "no skipped": (drop("skipped"), "'skipped'"),
    "no step": (drop("w/step"), "w/step"),
    "no shape": (drop("w/shape"), "w/shape"),
    "no buffer": (lambda state: state.pop(first_buffer(state)), "missing"),
    "stray name": (change("v/step", 3), "'v"),
    "shape of buffer": (buffer(lambda a: a[..., None]), "'w/"),
    "transposed buffer": (buffer(lambda a: np.ones((3, 2))), "'w/"),
    "integer buffer": (buffer(lambda a: a.astype(int)), "int64"),
    "complex buffer": (buffer(lambda a: a.astype(complex)), "complex128"),
    "text buffer": (buffer(lambda a: a.astype(str)), "'w/"),
    "object buffer": (buffer(lambda a: a.astype(object)), "object"),
    "other shape": (change("w/shape", [3, 2]), "'w/"),
    "scalar shape": (change("w/shape", 2), "w/shape"),
    "nested shape": (change("w/shape", [[2, 3]]), "w/shape"),
    "negative shape": (change("w/shape", [-2, 3]), "w/shape"),
    "float shape": (change("w/shape", [2.0, 3.0]), "w/shape"),
    "negative step": (change("w/step", -1), "w/step"),
    "more steps than there can be": (change("w/step", 1 << 62), "'w/step' must be an integer ≥ 0 and < 2^53"),
    "float step": (change("w/step", 1.0), "w/step"),
    "step of two": (change("w/step", [1, 2]), "w/step"),
    "other optimizer": (change("optimizer", "Adam"), "Adam"),
    "newer format": (change("format", 2), "format"),
    "text format": (change("format", "one"), "format"),
    "half format": (change("format", 1.5), "format"),
    "text skipped": (change("skipped", "none"), "skipped"),
    "negative skipped": (change("skipped", -1), "skipped"),
    "two skipped": (change("skipped", [1, 2]), "skipped"),
    "text lr": (change("lr", "fast"), "lr"),
    "two lr": (change("lr", [0.1, 0.2]), "lr"),
    "nan lr": (change("lr", float("nan")), "lr"),
    "negative lr": (change("lr", -1.0), "lr"),
    "key that is no text": (lambda state: state.update({1: np.ones(1)}), "1"),
}


@fronts
@pytest.mark.parametrize("what", SPOILT)
def test_spoilt_states_are_refused_and_nothing_is_changed(front, what):
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
def test_what_is_no_state_at_all(state):
    with pytest.raises(StateError):
        Lamb().load_state_dict(state)


@fronts
def test_states_of_another_optimizer(front):
    for other in FRONTS:
        if other is not front:
            opt = busy(other)
            opt.step("w", np.ones(2), np.ones(2))
            with pytest.raises(StateError, match=f"of {other.__name__}, not of {front.__name__}"):
                busy(front).load_state_dict(opt.state_dict())


OPTIONS = [
    (Lars, {}, {"momentum": 0, "dampening": 0}),
    (Lars, {"momentum": 0, "dampening": 0}, {}),
    (Adafactor, {}, {"beta1": None}),
    (Adafactor, {"beta1": None}, {}),
    (Adafactor, {}, {"factored": False}),
    (Adafactor, {"factored": (1, 0)}, {"factored": False}),
    (Adafactor, {}, {"min_dim_size_to_factor": 128}),
]


@pytest.mark.parametrize(("front", "before", "after"), OPTIONS)
def test_states_of_other_options(front, before, after):
    opt, other = busy(front, **before), busy(front, **after)
    opt.step("w", np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(StateError, match=r"'w' does not fit these options.*[Oo]ptions it was saved with"):
        other.load_state_dict(opt.state_dict())
    assert other.num_parameters == 0


@fronts
def test_weights_that_do_not_fit_a_loaded_state(front):
    opt, fresh = busy(front), busy(front)
    opt.step("w", np.ones((2, 3)), np.ones((2, 3)))
    fresh.load_state_dict(opt.state_dict())
    with pytest.raises(LayerwiseError, match=r"'w' had the shape \(2, 3\) and now have \(3, 2\)"):
        fresh.step("w", np.ones((3, 2)), np.ones((3, 2)))


def scheduled(step):
    return 0.1 / (1 + step)


def by_name(name):
    return 0.5 if name == "vector" else None


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda opt: pickle.loads(pickle.dumps(opt))}


@pytest.mark.parametrize("how", COPIES)
@fronts
def test_copies_go_their_own_way(front, how):
    opt = busy(
        front, lr=scheduled, lr_scale=by_name, decay={"scalar": False}, blocks={"stack": "each"}, skip_nonfinite=True
    )
    a = arrays(7)
    walk(opt, a, range(2))
    twin = COPIES[how](opt)
    assert type(twin) is front
    assert repr(twin)
    assert everything(twin, a) == everything(opt, a)
    assert {n: {k: np.array(v).tolist() for k, v in s.items()} for n, s in twin.stats().items()} == {
        n: {k: np.array(v).tolist() for k, v in s.items()} for n, s in opt.stats().items()
    }
    b = {name: w.copy() for name, w in a.items()}
    before = everything(opt, {})
    walk(twin, b, [2])
    twin.step("vector", b["vector"], b["vector"] * np.nan)
    twin.clear_state("scalar")
    assert everything(opt, {}) == before
    walk(opt, a, [2])
    assert bits(a) == bits(b)


@pytest.mark.parametrize("how", COPIES)
@fronts
def test_copies_have_an_lr_of_their_own(front, how):
    opt = busy(front)
    twin = COPIES[how](opt)
    twin.lr = 0.7
    opt.weight_decay = 0.6
    assert (opt.lr, twin.weight_decay) == (busy(front).lr, 0.01)


@fronts
def test_state_keeps_its_dtype(front):
    opt, fresh = busy(front), busy(front)
    w = np.ones((2, 3), np.float32)
    opt.step("w", w, w * 0.5)
    fresh.load_state_dict(opt.state_dict())
    fresh.step("w", w, w * 0.5)
    assert {
        value.dtype for key, value in fresh.state_dict().items() if key.startswith("w/") and value.dtype.kind == "f"
    } == {np.dtype(np.float32)}
