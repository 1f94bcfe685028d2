"""Checkpoints: through paddle.save, into Paddle's own optimizers and back, and those that do not fit."""

import numpy as np
import pytest
from paddle_front.front import bits, close, make, numbers, paddle, parameters, set_grads, walk

from layerwise.errors import StateError
from layerwise.paddle import Lamb
from layerwise.paddle._state import power, steps_from_power

pytestmark = pytest.mark.slow
lr = paddle.optimizer.lr


def test_resumes_with_masters_and_a_scheduler(tmp_path):
    schedulers = [lr.CosineAnnealingDecay(0.1, T_max=9) for _ in range(2)]
    params, others = parameters(3, dtype="bfloat16"), parameters(3, dtype="bfloat16")
    opt = make("Lamb", params, multi_precision=True, learning_rate=schedulers[0], name="outer")
    walk(opt, params, range(3), schedulers[0])
    state = opt.state_dict()
    assert "matrix_fp32_master_0_outer_moment1_0" in state
    assert {"master_weights", "LR_Scheduler"} <= state.keys()
    paddle.save(state, str(tmp_path / "opt.pdopt"))
    for name, p in params.items():
        others[name].set_value(p.detach())

    resumed = make("Lamb", others, multi_precision=True, learning_rate=schedulers[1], name="outer")
    resumed.set_state_dict(paddle.load(str(tmp_path / "opt.pdopt"), return_numpy=True))
    assert schedulers[1].last_epoch == 3
    walk(opt, params, range(3, 6), schedulers[0])
    walk(resumed, others, range(3, 6), schedulers[1])
    assert bits(others) == bits(params)
    assert bits(resumed._master_weights) == bits(opt._master_weights)


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.999, 0.9999])
@pytest.mark.parametrize("count", [0, 1, 7, 100, 2000])
def test_powers_count_steps(beta, count):
    [found] = power(beta, count, "float32")
    product = np.float32(beta)
    for _ in range(count):
        product *= np.float32(beta)
    assert found == (product if product > 1e-37 else 0)
    assert steps_from_power(float(found), beta, "float32") == (count if found else None)


@pytest.mark.parametrize(("dtype", "masters"), [("float32", False), ("float64", False)])
@pytest.mark.parametrize("steps", [1, 12])
def test_goes_on_with_the_state_of_paddle_s_lamb_and_back(dtype, masters, steps):
    params, others = parameters(6, dtype=dtype), parameters(6, dtype=dtype)
    their = paddle.optimizer.Lamb(0.01, parameters=list(params.values()), multi_precision=masters)
    with paddle.utils.unique_name.guard():
        walk(their, params, range(steps))
    ours = Lamb(0.01, parameters=list(others.values()), multi_precision=masters)
    ours.set_state_dict(their.state_dict())
    for name, p in params.items():
        others[name].set_value(p.detach())
    state = {key: x for key, x in ours.state_dict().items() if "_step_" not in key}
    assert bits(state) == bits(their.state_dict())
    walk(their, params, range(50, 53))
    walk(ours, others, range(50, 53))
    # Paddle takes 1 − β₂ of a rounded β₂.
    close(numbers(others), numbers(params), 1e-6)

    back = parameters(6, dtype=dtype)
    for name, p in others.items():
        back[name].set_value(p.detach())
    with paddle.utils.unique_name.guard():
        their = paddle.optimizer.Lamb(0.01, parameters=list(back.values()), multi_precision=masters)
        their.set_state_dict(ours.state_dict())
        walk(their, back, range(60, 63))
    walk(ours, others, range(60, 63))
    close(numbers(others), numbers(back), 1e-6)


def test_the_name_of_a_parameter_may_begin_with_that_of_another():
    params = parameters(16, {"w": (2,), "w_moment1": (3,)})
    opt, other = make("Lamb", params), make("Lamb", params)
    walk(opt, params, range(2))
    other.set_state_dict(opt.state_dict())
    assert bits(other.state_dict()) == bits(opt.state_dict())


def test_a_vanished_power_is_replaced_by_the_other_one():
    params = parameters(7, dtype="float32")
    opt = make("Lamb", params)
    walk(opt, params, range(1))
    state = {key: x for key, x in opt.state_dict().items() if "_step_" not in key}
    for name in params:
        state[f"{name}_beta1_pow_acc_0"] = paddle.zeros([1])
        state[f"{name}_beta2_pow_acc_0"] = paddle.to_tensor(power(0.999, 5000, "float32"))
    opt.set_state_dict(state)
    assert {slot.step for slot in opt._tensors.slots.values()} == {5000}


def test_masters_have_the_names_of_paddle_s():
    params = parameters(12, dtype="bfloat16")
    opt = make("Lamb", params, multi_precision=True, name="outer")
    walk(opt, params, range(1))
    with paddle.utils.unique_name.guard():
        # Of what Paddle cannot step on a CPU, it makes the state all the same.
        their = paddle.optimizer.Lamb(parameters=list(params.values()), multi_precision=True, name="outer")
        their._create_accumulators(paddle.static.default_main_program().global_block(), list(params.values()))
    ours, theirs = opt.state_dict(), their.state_dict()
    assert {key for key in ours if "_step_" not in key} == theirs.keys()
    assert {p: x.name for p, x in ours["master_weights"].items()} == {
        p: x.name for p, x in theirs["master_weights"].items()
    }
    forms = {key: (tuple(x.shape), str(x.dtype)) for key, x in theirs.items() if key != "master_weights"}
    assert {key: (tuple(ours[key].shape), str(ours[key].dtype)) for key in forms} == forms
    assert all(key == ours[key].name for key in forms)


def _lars(params):
    from paddle.incubate.optimizer import LarsMomentumOptimizer

    return LarsMomentumOptimizer(0.5, 0.875, lars_coeff=2.0**-8, lars_weight_decay=0.125, parameter_list=params)


EXACT = {"beta1": 0.875, "beta2": 1 - 2.0**-10, "epsilon": 2.0**-20}
OTHERS = {
    "Lars": (_lars, {"learning_rate": 0.5, "momentum": 0.875, "trust_coefficient": 2.0**-8, "weight_decay": 0.125}),
    "SGD": (
        lambda params: paddle.optimizer.Momentum(0.125, 0.875, parameters=params),
        {"learning_rate": 0.125, "momentum": 0.875},
    ),
    "AdamW": (
        lambda params: paddle.optimizer.AdamW(2.0**-6, weight_decay=0.125, parameters=params, **EXACT),
        {"learning_rate": 2.0**-6, "weight_decay": 0.125, **EXACT},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("back", [False, True])
def test_exchanges_state_with_the_others_of_paddle(name, back):
    make_theirs, options = OTHERS[name]
    params, others = parameters(13, dtype="float32"), parameters(13, dtype="float32")

    def begun(theirs, some):
        return make_theirs(list(some.values())) if theirs else make(name, some, **options)

    with paddle.utils.unique_name.guard():
        first = begun(not back, params)
        walk(first, params, range(3))
        state = first.state_dict()
    for key, p in params.items():
        others[key].set_value(p.detach())
    with paddle.utils.unique_name.guard():
        second = begun(back, others)
        second.set_state_dict(state)
        walk(second, others, range(3, 6))
    walk(first, params, range(3, 6))
    close(numbers(others), numbers(params), 1e-6)


class Data(paddle.io.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        x = np.random.default_rng(i).normal(size=4).astype("float32")
        return x, x.sum(keepdims=True)


def trained(front, to, path=None):
    """The weights of a `paddle.Model` that was loaded, trained and saved."""
    paddle.seed(1)
    with paddle.utils.unique_name.guard():
        model = paddle.Model(paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.Tanh(), paddle.nn.Linear(3, 1)))
        clip, scheduler = paddle.nn.ClipGradByGlobalNorm(1.0), lr.CosineAnnealingDecay(0.05, T_max=20)
        opt = front(learning_rate=scheduler, parameters=model.parameters(), grad_clip=clip)
        model.prepare(opt, paddle.nn.MSELoss())
        if path is not None:
            model.load(str(path))
        model.fit(Data(), batch_size=4, epochs=2, verbose=0, shuffle=False)
        model.save(str(to))
    return {p.name: p.numpy() for p in model.parameters()}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_paddle_s_model_saves_and_loads(tmp_path):
    ours, theirs, other = tmp_path / "ours", tmp_path / "theirs", tmp_path / "other"
    close(trained(Lamb, ours), trained(paddle.optimizer.Lamb, theirs), 1e-6)
    expected = trained(paddle.optimizer.Lamb, other, theirs)
    for front, path in ((Lamb, ours), (Lamb, theirs), (paddle.optimizer.Lamb, ours)):
        close(trained(front, other, path), expected, 1e-6)


# ---- what does not fit


def broken():
    """By what is wrong: the change of a state, and what the error says."""
    return {
        "not a dict": (lambda s: [1], "must be a dict, but is list"),
        "unknown": (lambda s: {**s, "linear_9.w_0_moment1_0": s["matrix_moment1_0"]}, "matches no parameter"),
        "unnamed": (lambda s: {**s, "rubbish": s["matrix_moment1_0"]}, "'rubbish'"),
        "a number": (lambda s: {**s, 3: s["matrix_moment1_0"]}, "the state has 3"),
        "missing": (lambda s: without(s, "matrix_moment2_0"), "no 'moment2' of matrix"),
        "uncounted": (lambda s: without(s, "matrix_lamb_step_0", "matrix_beta2_pow_acc_0"), "does not count the steps"),
        "shape": (lambda s: {**s, "matrix_moment1_0": paddle.ones([4, 5])}, r"has the shape \(4, 5\)"),
        "dtype": (lambda s: {**s, "matrix_moment1_0": paddle.ones([5, 4], "int32")}, "floating-point"),
        "kind": (lambda s: {**s, "matrix_moment1_0": [1.0]}, "must be a tensor, but is list"),
        "twice": (lambda s: {**s, "matrix_moment1_7": s["matrix_moment1_0"]}, "'moment1' of matrix twice"),
        **{
            f"count {n}": (
                lambda s, n=n: {**s, "matrix_lamb_step_0": np.array([n])},
                r"must be an integer ≥ 0 and < 2\^53, but",
            )
            for n in (-1, 2.5, float("nan"), float("inf"), 1e30, 1 << 62)
        },
        "count in words": (lambda s: {**s, "matrix_lamb_step_0": "many"}, "must be one number"),
        "count of many": (lambda s: {**s, "matrix_lamb_step_0": paddle.ones([2])}, "must be one number"),
        "power": (
            lambda s: {**without(s, "matrix_lamb_step_0"), "matrix_beta2_pow_acc_0": paddle.to_tensor([1.5])},
            "power",
        ),
        "betas": (lambda s: {**without(s, "matrix_lamb_step_0"), **pows(0.9, 0.99)}, "step counts: 20 and 210"),
        "masters": (lambda s: {**s, "master_weights": {"nobody": paddle.ones([2])}}, "'master_weights' must be"),
        "masters of one": (
            lambda s: {**s, "master_weights": paddle.ones([2])},
            "'master_weights' must be .* is Tensor",
        ),
        "scheduler in words": (lambda s: {**s, "LR_Scheduler": paddle.ones([2])}, "'LR_Scheduler' must be a dict"),
        "another class": (
            lambda s: {**s, "matrix_adamw_step_0": paddle.ones([1])},
            "the state is of AdamW, not of Lamb",
        ),
        "emptied": (lambda s: {**s, "matrix_moment1_0": emptied([5, 4])}, "'moment1' of matrix has no values"),
        "scheduler": (lambda s: without(s, "LR_Scheduler"), "has no 'LR_Scheduler'"),
        "other scheduler": (
            lambda s: {**s, "LR_Scheduler": {"last_epoch": 3}},
            "does not fit this optimizer's",
        ),
    }


def emptied(shape):
    tensor = paddle.ones(shape)
    tensor._clear_data()
    return tensor


def without(state, *keys):
    return {key: x for key, x in state.items() if key not in keys}


def pows(*betas):
    return {
        f"matrix_beta{i}_pow_acc_0": paddle.to_tensor(power(beta, 20, "float32")) for i, beta in enumerate(betas, 1)
    }


@pytest.mark.parametrize("what", broken())
def test_states_that_do_not_fit_change_nothing(what):
    params = parameters(8, dtype="float32")
    scheduler = lr.StepDecay(0.1, step_size=2)
    opt = make("Lamb", params, learning_rate=scheduler)
    walk(opt, params, range(3), scheduler)
    change, says = broken()[what]
    state = change(dict(opt.state_dict()))
    walk(opt, params, range(3), scheduler)
    before = bits(opt.state_dict()), bits(params), scheduler.state_dict()
    with pytest.raises(StateError, match=says):
        opt.set_state_dict(state)
    assert (bits(opt.state_dict()), bits(params), scheduler.state_dict()) == before
    walk(opt, params, range(1))


@pytest.mark.parametrize("engine", [None, "rule"])
@pytest.mark.parametrize("how", ["emptied", "shortened"])
def test_state_whose_memory_was_given_away_is_an_error(engine, how):
    params = parameters(15, dtype="float32")
    opt = make("Lamb", params, engine=engine)
    walk(opt, params, range(2))
    before, set_aside = bits(params), opt._tensors.slots["matrix"].arrays["exp_avg"]
    if how == "emptied":
        set_aside._clear_data()
    else:
        paddle.zeros([1])._share_buffer_to(set_aside)
    set_grads(params, 1)
    with pytest.raises(StateError, match=r"'exp_avg' of matrix .*clear_state\('matrix'\)"):
        opt.step()
    assert bits(params) == before
    opt.clear_state("matrix")
    opt.step()


def test_other_options_do_not_fit():
    params = parameters(9)
    opt = make("Lars", params, {"momentum": 0.9})
    walk(opt, params, range(1))
    with pytest.raises(StateError, match="which these options do not use"):
        make("Lars", params, {"momentum": 0.0}).set_state_dict(opt.state_dict())
    with pytest.raises(StateError, match="has no 'moment1' of matrix"):
        make("Lamb", params).set_state_dict({key: x for key, x in opt.state_dict().items() if "_step_" not in key})


def test_dropped_masters_warn():
    params = parameters(10, dtype="bfloat16")
    opt = make("Lamb", params, multi_precision=True)
    walk(opt, params, range(1))
    other = make("Lamb", params)
    with pytest.warns(UserWarning, match="multi_precision=True to keep") as caught:
        other.set_state_dict(opt.state_dict())
    assert [one.filename for one in caught] == [__file__]
    assert bits(other._tensors.slots["matrix"].arrays["exp_avg"]) == bits(
        opt._tensors.slots["matrix"].arrays["exp_avg"]
    )


def test_an_empty_state_is_refused_unless_of_a_fresh_optimizer():
    params = parameters(3)
    opt = make("Lamb", params)
    walk(opt, params, range(2))
    before = bits(opt.state_dict())
    theirs = paddle.optimizer.Lamb(parameters=list(parameters(4).values()))
    for state in ({}, theirs.state_dict()):
        with pytest.raises(StateError, match=r"the state is empty.*clear_state"):
            opt.set_state_dict(state)
        assert bits(opt.state_dict()) == before
    with pytest.raises(StateError, match="matches no parameter"):
        opt.set_state_dict(make("AdamW", params).state_dict())
    opt.set_state_dict(make("Lamb", params).state_dict())
    assert not opt._tensors.slots
