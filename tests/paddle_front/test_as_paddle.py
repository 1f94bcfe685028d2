"""Steps of Paddle's parameters: against the references, in place, in groups, with what Paddle does to gradients."""

import copy
import subprocess
import sys

import numpy as np
import pytest
from cases import CASES
from paddle_front.front import FRONT_OF, bits, close, make, numbers, paddle, parameters, set_grads, walk

from layerwise.errors import (
    ContradictionError,
    EngineError,
    GradientError,
    HyperparameterError,
    ParameterError,
    UnknownOptionError,
)
from layerwise.paddle import SGD, Adafactor, Lamb, Lars

pytestmark = pytest.mark.slow

nn = paddle.nn


def engines_of(opt):
    """The engines that took the last step, by their places in the table."""
    return {share.engine for step in steps_of(opt) for share in step.prepared._last}


def steps_of(opt):
    return [*opt._tensors._steps.values()]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_compiled_engine_writes_where_the_parameter_lies(dtype):
    params = parameters(1, dtype=dtype)
    places = {name: p.data_ptr() for name, p in params.items()}
    opt = make("Lamb", params, {"lr": 0.1})
    for t in range(2):
        set_grads(params, t)
        before = numbers(params)
        opt.step()
        assert engines_of(opt) == {0}
        assert {name: p.data_ptr() for name, p in params.items()} == places
        assert all((numbers(params)[name] != before[name]).any() for name in params)
    [step] = steps_of(opt)
    jobs = step.jobs
    assert [job.p.data_ptr() for job in jobs] == list(places.values())
    assert all(job.p is p for job, p in zip(jobs, params.values(), strict=True))


@pytest.mark.parametrize("moved", ["matrix", "stack"])
def test_a_parameter_that_lies_elsewhere_now_is_stepped_there(moved):
    params, others = parameters(3), parameters(3)
    moving, staying = (Lamb(0.1, parameters=list(some.values()), blocks={"stack": 2}) for some in (params, others))
    for t in range(3):
        walk(moving, params, [t])
        walk(staying, others, [t])
        before = params[moved].data_ptr()
        params[moved].detach().clone()._share_buffer_to(params[moved])
        assert params[moved].data_ptr() != before
    close(numbers(params), numbers(others), 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("engine", [None, "rule"])
def test_masters_are_the_float32_run(dtype, engine):
    params = parameters(4, dtype=dtype)
    plain = parameters(4, dtype=dtype)
    plain = {name: paddle.base.framework.EagerParamBase.from_tensor(p.astype("float32")) for name, p in plain.items()}
    for name, p in plain.items():
        p.name = name
    opt, wide = make("Lamb", params, multi_precision=True, engine=engine), make("Lamb", plain, engine=engine)
    for t in range(5):
        set_grads(params, t)
        for name, p in plain.items():
            p.grad = params[name].grad.astype("float32")
        opt.step()
        wide.step()
    assert bits({name: opt._master_weights[name] for name in params}) == bits(plain)
    assert bits(params) == bits({name: p.astype(dtype) for name, p in plain.items()})


@pytest.mark.parametrize("engine", [None, "rule"])
@pytest.mark.parametrize("size", [1e25, 1e33])
def test_numbers_whose_squares_float32_cannot_hold_have_norms(engine, size):
    p = parameters(36, {"w": (5, 4)}, dtype="float32")["w"]
    p.set_value(paddle.full([5, 4], size))
    opt = Lamb(0.125, parameters=[p], engine=engine)
    opt.apply_gradients([(p, paddle.ones([5, 4]))])
    np.testing.assert_allclose(p.numpy(), size * (1 - 0.125), rtol=1e-5)


def test_gradients_kept_as_main_grad_go_first():
    params, others = parameters(5, dtype="bfloat16"), parameters(5, dtype="bfloat16")
    one, other = (make("Lamb", some, multi_precision=True) for some in (params, others))
    set_grads(others, 1)
    for name, p in params.items():
        p.main_grad = others[name].grad.astype("float32")
    one.step()
    other.step()
    assert bits(params) == bits(others)


def test_amp_decorate_asks_for_masters():
    from paddle.amp.auto_cast import _set_multi_precision  # which decorate calls, on other devices than CPUs

    params, others = parameters(5, dtype="bfloat16"), parameters(5, dtype="bfloat16")
    opt, other = make("Lamb", params), make("Lamb", others, multi_precision=True)
    _set_multi_precision(opt, True)
    walk(opt, params, range(3))
    walk(other, others, range(3))
    assert opt._master_weights.keys() == params.keys()
    assert bits(opt._master_weights) == bits(other._master_weights)
    _set_multi_precision(opt, False)
    opt.step()
    assert not opt._master_weights


def test_a_scheduler_sets_the_rate():
    scheduler = paddle.optimizer.lr.StepDecay(0.5, step_size=2, gamma=0.1)
    params, others = parameters(6), parameters(6)
    opt, other = make("Lamb", params, learning_rate=scheduler), make("Lamb", others)
    for t in range(4):
        other.set_lr(0.5 * 0.1 ** (t // 2))
        assert opt.get_lr() == pytest.approx(other.get_lr())
        walk(other, others, [t])
        walk(opt, params, [t], scheduler)
    close(numbers(params), numbers(others))
    with pytest.raises(RuntimeError, match="scheduler") as caught:  # as in Paddle
        opt.set_lr(0.1)
    assert isinstance(caught.value, ContradictionError)
    opt.set_lr_scheduler(paddle.optimizer.lr.NoamDecay(64, 10, verbose=False))
    assert isinstance(opt._learning_rate, paddle.optimizer.lr.NoamDecay)
    with pytest.raises(HyperparameterError, match="`scheduler` must be an LRScheduler"):
        opt.set_lr_scheduler(0.1)
    with pytest.raises(HyperparameterError, match="`value` must be a finite number ≥ 0, but is -1"):
        other.set_lr(-1)
    other.set_lr(1)
    assert other.get_lr() == 1.0


def test_a_scheduler_that_returns_no_rate_changes_nothing():
    scheduler = paddle.optimizer.lr.LambdaDecay(0.1, lambda epoch: 1 - 2 * epoch)
    params = parameters(6)
    opt = make("Lamb", params, learning_rate=scheduler)
    walk(opt, params, [0])
    scheduler.step()
    before = bits(params), bits(opt.state_dict())
    with pytest.raises(HyperparameterError, match="`learning_rate` must be a finite number ≥ 0"):
        opt.step()
    assert (bits(params), bits(opt.state_dict())) == before


@pytest.mark.parametrize("name", ["Lamb", "Lars", "AdamW"])
def test_groups_have_options_of_their_own(name):
    params, others = parameters(7), parameters(7)
    decay = "lamb_weight_decay" if name == "Lamb" else "weight_decay"
    groups = [
        {"params": [params["matrix"], params["stack"]], "learning_rate": 0.5, decay: 0.2},
        {"params": params["vector"], "max_grad_value": 0.1},
        {"params": [params["scalar"]], "learning_rate": paddle.to_tensor(0.3)},
    ]
    opt = FRONT_OF[name](0.1, parameters=groups)
    each = [
        FRONT_OF[name](0.05, parameters=[others["matrix"], others["stack"]], **{decay: 0.2}),
        FRONT_OF[name](0.1, parameters=[others["vector"]], max_grad_value=0.1),
        FRONT_OF[name](float(np.float32(0.3)), parameters=[others["scalar"]]),
    ]
    walk(opt, params, range(3))
    for one in each:
        walk(one, others, range(3))
    close(numbers(params), numbers(others))


def test_attributes_of_a_parameter_are_used():
    regularizer = paddle.regularizer.L2Decay(0.3)
    params = parameters(8, dtype="float32", learning_rate=0.5, regularizer=regularizer, need_clip=False)
    others = parameters(8, dtype="float32")
    clip = nn.ClipGradByNorm(0.01)
    opt = make("Lamb", params, {"lr": 0.1, "l2": 0.1}, grad_clip=clip)
    other = make("Lamb", others, {"lr": 0.05, "l2": 0.1 + 0.3})
    walk(opt, params, range(3))
    walk(other, others, range(3))
    close(numbers(params), numbers(others), 1e-6)


def test_excluded_parameters_have_no_decay():
    params, others = parameters(9), parameters(9)
    opt = make("Lars", params, {"weight_decay": 0.3}, exclude_from_weight_decay_fn=lambda p: p.ndim < 2)
    low = {name: p for name, p in others.items() if p.ndim < 2}
    high = {name: p for name, p in others.items() if p.ndim >= 2}
    each = [make("Lars", low), make("Lars", high, {"weight_decay": 0.3})]
    walk(opt, params, range(3))
    for one in each:
        walk(one, others, range(3))
    close(numbers(params), numbers(others))


CLIPS = {
    "max_grad_norm": nn.ClipGradByGlobalNorm,
    "max_grad_norm_per_tensor": nn.ClipGradByNorm,
    "max_grad_value": nn.ClipGradByValue,
}


@pytest.mark.parametrize("option", CLIPS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_clips_are_those_of_the_rule(option, case):
    params, others = parameters(10, dtype="float32"), parameters(10, dtype="float32")
    opt = make(case.name, params, grad_clip=CLIPS[option](0.3))
    known = option in case.options
    other = make(case.name, others, {option: 0.3} if known else {})
    for t in range(3):
        set_grads(params, t)
        set_grads(others, t)
        grads = {name: p.grad.clone() for name, p in params.items()}
        if not known:
            pairs = CLIPS[option](0.3)([(p, p.grad) for p in others.values()])
            for p, g in pairs:
                p.grad = g
        opt.step()
        other.step()
        assert bits({name: p.grad for name, p in params.items()}) == bits(grads)  # which stay as they were
    close(numbers(params), numbers(others), 1e-6)


@pytest.mark.parametrize("groups", [["matrix vector", "stack"], ["matrix stack", "vector"]])
def test_a_norm_is_of_those_in_a_group_that_are_to_be_clipped(groups):
    """As in Paddle: with a group for each norm, or in one group with some that are left as they are."""
    params, others = parameters(37), parameters(37)
    names, alone = (group.split() for group in groups)
    if alone == ["vector"]:
        params["vector"].need_clip = False
        given = [params[name] for name in (*names, *alone)]
    else:
        given = [{"params": [params[name] for name in group]} for group in (names, alone)]
    opt = Lamb(0.1, parameters=given, grad_clip=nn.ClipGradByGlobalNorm(0.3))
    bound = 0.3 if alone == ["stack"] else None
    each = [
        Lamb(0.1, parameters=[others[name] for name in names], max_grad_norm=0.3),
        Lamb(0.1, parameters=[others[name] for name in alone], max_grad_norm=bound),
    ]
    walk(opt, params, range(3))
    for one in each:
        walk(one, others, range(3))
    close(numbers(params), numbers(others), 1e-6)


def test_a_user_s_clip_is_called():
    class Half(nn.ClipGradByValue):
        def _dygraph_clip(self, params_grads):
            return [(p, 0.5 * g) for p, g in params_grads]

    params, others = parameters(11), parameters(11)
    opt, other = make("SGD", params, grad_clip=Half(1.0)), make("SGD", others, {"lr": 5e-4})
    walk(opt, params, range(2))
    walk(other, others, range(2))
    close(numbers(params), numbers(others))


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("how", ["another", "other numbers"])
def test_a_clip_set_by_a_wrapper_is_used(how, grouped):
    params, others = parameters(34), parameters(34)
    opts = []
    for some in (params, others):
        given = [{"params": list(some.values())}] if grouped else list(some.values())
        opts.append(SGD(0.1, parameters=given, grad_clip=nn.ClipGradByValue(5.0 if some is params else 0.25)))
    for t in range(2):
        if t == 0:
            set_grads(params, 9)  # of a first step, whose weights are put back
            before = {name: p.detach().clone() for name, p in params.items()}
            opts[0].step()
            for name, p in params.items():
                p.set_value(before[name])
            holder = opts[0]._param_groups[0] if grouped else vars(opts[0])
            key = "grad_clip" if grouped else "_grad_clip"
            if how == "another":
                holder[key] = nn.ClipGradByValue(0.25)
            else:
                holder[key].min, holder[key].max = -0.25, 0.25
        walk(opts[0], params, [t])
        walk(opts[1], others, [t])
    close(numbers(params), numbers(others))


def test_a_penalty_without_a_matching_option_is_applied():
    params, others = (parameters(12, **given) for given in ({"regularizer": paddle.regularizer.L1Decay(0.3)}, {}))
    for name, p in params.items():  # which making another dtype of it leaves out
        p.regularizer = paddle.regularizer.L1Decay(0.3)
        assert others[name].regularizer is None
    opt, other = make("SGD", params), make("SGD", others)
    set_grads(params, 1)
    set_grads(others, 1)
    for p in others.values():
        p.grad = p.grad + 0.3 * paddle.sign(p.detach())
    opt.step()
    other.step()
    close(numbers(params), numbers(others))


def test_parameters_without_gradient_are_left_alone():
    params = parameters(13)
    opt = make("Lamb", params)
    set_grads(params, 0, but=("vector",))
    params["matrix"].stop_gradient = True
    before = numbers(params)
    opt.step()
    assert [name for name in params if (numbers(params)[name] == before[name]).all()] == ["matrix", "vector"]
    assert {key.partition("_")[0] for key in opt.state_dict()} == {"scalar", "stack"}
    for p in params.values():
        p.stop_gradient = True
    before = numbers(params)
    opt.step()  # of nothing
    opt.apply_gradients([(p, paddle.ones_like(p)) for p in params.values()])
    close(numbers(params), before, 0)


@pytest.fixture
def scaler(monkeypatch):
    """A GradScaler, which Paddle has do nothing on CPUs, made to do all it does elsewhere."""
    from paddle.amp import grad_scaler

    class Place:
        def is_gpu_place(self):
            return True

    class Tracer:
        _expected_place = Place()

    monkeypatch.setattr(grad_scaler, "_dygraph_tracer", lambda: Tracer())
    made = paddle.amp.GradScaler(init_loss_scaling=8.0, decr_every_n_nan_or_inf=2)
    assert made._enable
    monkeypatch.setattr(grad_scaler.amp_global_state(), "amp_dtype", "float16")
    return made


@pytest.mark.parametrize("call", ["step", "minimize"])
def test_a_grad_scaler_unscales_and_skips(scaler, call):
    params, others = parameters(15, dtype="float32"), parameters(15, dtype="float32")
    opt, other = make("Lamb", params, skip_nonfinite=False), make("Lamb", others)

    def step():
        if call == "minimize":
            scaler.minimize(opt, paddle.to_tensor(1.0))
        else:
            scaler.step(opt)
            scaler.update()

    for t in range(3):
        set_grads(others, t)
        for name, p in params.items():
            p.grad = others[name].grad * scaler._scale.item()
        if t == 1:
            before = bits(params), bits(opt.state_dict())
            params["matrix"].grad[0, 0] = np.inf
            step()
            assert (bits(params), bits(opt.state_dict())) == before
            assert (opt.skipped, scaler._decr_count) == (1, 1)
        else:
            step()
            other.step()
    assert bits(params) == bits(others)
    opt.step()  # by itself, after the scaler's last answer was heard
    assert opt.skipped == 1


def test_minimize_returns_what_theirs_does():
    found = []
    for front in (Lamb, paddle.optimizer.Lamb):
        params = parameters(16, dtype="float32")
        opt = front(parameters=list(params.values()))
        set_grads(params, 1, but=("scalar",))
        ops, pairs = opt.minimize(paddle.to_tensor(1.0))
        found.append((ops, [p.name for p, _ in pairs], bits(pairs[0][1]), type(pairs), type(pairs[0])))
    assert found[0] == found[1]


@pytest.mark.parametrize("by_name", [False, True])
def test_minimize_steps_some_and_leaves_out_others(by_name):
    params, others = parameters(33), parameters(33)
    opt, other = make("Lamb", params), make("Lamb", others)
    set_grads(params, 1)
    set_grads(others, 1, but=("vector", "stack"))
    loss = sum(p.sum() for p in params.values())

    def named(*names):
        return [name if by_name else params[name] for name in names]

    _, pairs = opt.minimize(loss, parameters=named("matrix", "scalar", "stack"), no_grad_set={*named("stack")})
    assert [p.name for p, _ in pairs] == ["matrix", "scalar"]
    other.step()
    assert bits(params) == bits(others)
    namesake = paddle.create_parameter([2], "float32")
    namesake.name = "scalar"
    for some in (
        {"parameters": ["nobody"]},
        {"no_grad_set": "nobody"},
        {"parameters": [[3]]},
        {"parameters": [namesake]},
    ):
        with pytest.raises(ParameterError, match="is not one of this optimizer's parameters"):
            opt.minimize(loss, **some)
    with pytest.raises(ParameterError, match=r"`loss` must be a tensor, after its backward\(\), but is of type float"):
        opt.minimize(1.0)
    assert opt.apply_gradients(opt.backward(loss)) == []


def test_clear_grad():
    params = parameters(18)
    opt = make("Lamb", params)
    for clear in (opt.clear_grad, opt.clear_gradients, lambda: opt.zero_grad(set_to_none=False)):
        set_grads(params, 1)
        clear()
        assert all(float(p.grad.abs().sum()) == 0 for p in params.values())
    set_grads(params, 1)
    opt.clear_grad(set_to_zero=False)
    assert all(p.grad is None for p in params.values())


def test_a_copy_is_independent():
    params = parameters(21)
    opt = make("Lamb", params)
    walk(opt, params, [1])
    twin = copy.deepcopy(opt)
    before = bits(opt.state_dict())
    assert bits(list(twin.state_dict().values())) == bits(list(opt.state_dict().values()))
    for p in twin._members:
        p.grad = paddle.ones_like(p)
    twin.step()
    assert bits(opt.state_dict()) == before
    assert bits(twin.state_dict()) != before


def test_an_optimizer_steps_in_the_graph_that_it_was_made_in():
    params = parameters(23)
    opt = make("Lamb", params)
    paddle.enable_static()
    try:
        for act in (opt.step, lambda: opt.minimize(None), lambda: opt.apply_gradients([])):
            with pytest.raises(EngineError, match="created in the dynamic graph, but this is the static graph"):
                act()
    finally:
        paddle.disable_static()


@pytest.mark.filterwarnings("ignore")
def test_a_function_around_the_step_may_be_compiled():
    params, others = (parameters(31, {"matrix": (3, 4)}, dtype="float32") for _ in range(2))
    opt, other = make("Lamb", params), make("Lamb", others)

    def train(some, each):
        loss = (some["matrix"] ** 2).sum()
        loss.backward()
        each.step()
        each.clear_grad()

    compiled = paddle.jit.to_static(lambda: train(params, opt), full_graph=False)
    for _ in range(3):
        compiled()
        train(others, other)
    assert bits(params) == bits(others)

    def whole(x):
        opt.step()
        return x

    with pytest.raises(EngineError, match=r"cannot step inside paddle\.jit\.to_static"):
        paddle.jit.to_static(whole, full_graph=True)(paddle.ones([2]))


@pytest.mark.filterwarnings("ignore:Op `increment`")
def test_paddle_s_wrappers_take_it():
    shapes = {"matrix": (5, 4), "vector": (7,)}  # Paddle's own makes vectors of scalars
    params, others = parameters(32, shapes, dtype="float32"), parameters(32, shapes, dtype="float32")
    options = {"beta1": 0.875, "beta2": 1 - 2.0**-10, "epsilon": 2.0**-20, "lamb_weight_decay": 2.0**-7}
    for some, front in ((params, Lamb), (others, paddle.optimizer.Lamb)):
        opt = paddle.incubate.LookAhead(front(parameters=list(some.values()), **options), alpha=0.5, k=2)
        for t in range(4):
            set_grads(some, t)
            opt.step()
            opt.clear_grad()
    close(numbers(params), numbers(others), 1e-6)


def test_without_the_extension_the_rule_steps():
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); sys.modules['layerwise._native'] = None; "
        "import paddle; from layerwise.paddle import Lamb; p = paddle.create_parameter([2, 3], 'float32'); "
        "opt = Lamb(parameters=[p]); before = p.numpy().copy(); p.grad = paddle.ones([2, 3]); opt.step(); opt.step(); "
        "print([one.name for one in opt._engines], (p.numpy() != before).all())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['the rule'] True"


def test_numbers_may_be_tensors_of_one():
    """As in the example of Paddle's own Lamb, which takes none."""
    params, others = parameters(38), parameters(38)
    tensors = {
        "beta1": paddle.to_tensor([0.875]),
        "beta2": paddle.to_tensor([0.5]),
        "learning_rate": paddle.to_tensor(0.25),
    }
    opt = Lamb(parameters=[*params.values()], lamb_weight_decay=0.01, **tensors)
    other = Lamb(0.25, 0.01, 0.875, 0.5, parameters=[*others.values()])
    walk(opt, params, range(2))
    walk(other, others, range(2))
    assert bits(params) == bits(others)


REFUSED = [
    ({"parameters": None}, ParameterError, "`parameters` is missing"),
    ({"parameters": []}, ParameterError, "at least one parameter"),
    ({"parameters": [1]}, ParameterError, "must contain tensors of Paddle, but one has the type int"),
    ({"parameters": {"params": []}}, ParameterError, "`parameters` must be a list"),
    ({"parameters": [{"learning_rate": 1.0}]}, ParameterError, "has no 'params'"),
    ({"learning_rate": -1.0}, HyperparameterError, "`learning_rate` must be"),
    ({"learning_rate": lambda t: 0.1}, HyperparameterError, r"a finite number ≥ 0, but .* or an LRScheduler\.$"),
    ({"beta1": 1.0}, HyperparameterError, r"`beta1` must be a number in \[0, 1\), but is 1.0"),
    ({"epsilon": None}, HyperparameterError, "`epsilon` must be"),
    ({"lamb_weight_decay": "much"}, HyperparameterError, "`lamb_weight_decay` must be"),
    ({"grad_clip": 1.0}, HyperparameterError, "`grad_clip` must be a gradient clip of Paddle"),
    ({"grad_clip": nn.ClipGradByNorm(1.0), "max_grad_value": 1.0}, ContradictionError, "None if grad_clip is given"),
    ({"exclude_from_weight_decay_fn": "bias"}, HyperparameterError, "must be a function of a parameter"),
    ({"multi_precision": 1}, HyperparameterError, "`multi_precision` must be"),
    ({"always_adapt": "yes"}, HyperparameterError, "`always_adapt` must be"),
    ({"always_adapt": "yes", "adapt": True}, HyperparameterError, "`always_adapt` must be"),
    ({"always_adapt": True, "adapt": "decayed"}, ContradictionError, "pass only one of the two"),
    ({"engine": "fastest"}, EngineError, "`engine` must be None or one of"),
    ({"blocks": {"nothing": 2}}, HyperparameterError, "matches no parameter"),
    ({"weight_decay": 0.1}, UnknownOptionError, "Did you mean `lamb_weight_decay`"),
    ({"lr": 0.1}, UnknownOptionError, "Did you mean `learning_rate`"),
]


@pytest.mark.parametrize(
    ("given", "error", "says"), REFUSED, ids=lambda one: next(iter(one)) if type(one) is dict else ""
)
def test_refused(given, error, says):
    with pytest.raises(error, match=says):
        Lamb(**{"parameters": list(parameters(24).values()), **given})


OF_GROUPS = [
    ({"learning_rate": paddle.optimizer.lr.NoamDecay(64, 10)}, HyperparameterError, "must be a factor in a group"),
    ({"learning_rate": -1.0}, HyperparameterError, "`learning_rate` must be"),
    ({"weight_decay": "l2"}, HyperparameterError, "`weight_decay` must be a number or a regularizer"),
    ({"beta3": 0.1}, UnknownOptionError, "group 0 of `parameters` has no option 'beta3'"),
    ({"multi_precision": True}, UnknownOptionError, "multi_precision"),
]


@pytest.mark.parametrize(
    ("own", "error", "says"), OF_GROUPS, ids=lambda one: next(iter(one)) if type(one) is dict else ""
)
def test_groups_that_are_refused_change_nothing(own, error, says):
    params = list(parameters(25).values())
    params[0].regularizer = kept = paddle.regularizer.L2Decay(0.1)
    with pytest.raises(error, match=says):
        Lamb(parameters=[{"params": params, **own}])
    assert params[0].regularizer is kept


@pytest.mark.parametrize("dtype", ["int64", "complex64"])
def test_parameters_that_cannot_be_stepped(dtype):
    p = paddle.zeros([2], dtype)
    with pytest.raises(ParameterError, match="floating-point"):
        SGD(parameters=[p])


def test_a_group_s_ratio_option_overrides_the_optimizer_s():
    p, q = parameters(29, {"p": (2,), "q": (3,)}).values()
    for given, own, wanted in (
        ({"adapt": "decayed"}, {"always_adapt": True}, True),
        ({"always_adapt": True}, {"adapt": False}, False),
        ({"always_adapt": True}, {"adapt": None}, True),
        ({"adapt": "decayed"}, {}, "decayed"),
        ({}, {}, "decayed"),
    ):
        opt = Lamb(parameters=[{"params": [p], **own}, {"params": [q]}], **given)
        assert opt._groups[0].h.adapt == wanted


def test_pairs_that_cannot_be_stepped():
    params = parameters(30)
    opt = make("Lamb", params)
    set_grads(params, 1)
    before, (p, q, *_) = bits(params), params.values()
    other = parameters(30, {"other": (5, 4)})["other"]
    for pairs, says in (
        ([(p, p.grad), (other, p.grad)], "other is not one of this optimizer's parameters"),
        ([(p, p.grad), (q, q.grad), (p, p.grad)], "matrix is .* listed twice"),
        ("ab", "must be pairs of a parameter and its gradient, but one is str"),
        ([(p, p.grad), q], "must be pairs"),
    ):
        with pytest.raises(ParameterError, match=says):
            opt.apply_gradients(pairs)
    opt.apply_gradients([(p, None)])
    assert bits(params) == before
    assert opt.state_dict().keys() == {"lamb_fresh_0"}  # a mark of a state without steps
    opt.apply_gradients([(p, None), (q, q.grad)])
    assert opt.stats().keys() == {"vector"}


def test_parameters_that_share_memory_are_refused():
    params = parameters(31, {"one": (5, 4), "other": (5, 4)}, dtype="float32")
    opt = make("Lamb", params)
    walk(opt, params, [1])
    params["one"]._share_buffer_to(params["other"])
    before = bits(params)
    for step in (opt.step, opt.step, lambda: make("Lamb", params)):
        with pytest.raises(ParameterError, match=r"'(one|other)' and '(one|other)' share memory"):
            step()
    assert bits(params) == before


def test_parameters_are_given_once():
    params = parameters(26)
    p = params["matrix"]
    with pytest.raises(ParameterError, match="matrix is listed twice"):
        Lars(parameters=[p, p])
    params["vector"].name = "matrix"
    with pytest.raises(ParameterError, match="name of another parameter"):
        Adafactor(parameters=[p, params["vector"]])


def test_a_step_that_cannot_be_taken_leaves_no_trace():
    params = parameters(28, dtype="bfloat16")
    opt = make("Lamb", params, multi_precision=True, blocks={"stack": 5})
    set_grads(params, 1)
    before = bits(params)
    with pytest.raises(ParameterError, match="must divide axis 0"):
        opt.step()
    assert bits(params) == before
    assert opt.state_dict().keys() == {"lamb_fresh_0"}  # a mark of a state without steps


@pytest.mark.parametrize("clip", [None, nn.ClipGradByValue(-1.0, -2.0)], ids=["ours", "theirs"])
def test_bad_gradients_change_nothing(clip):
    params = parameters(27, dtype="float32")
    opt = make("Lamb", params, grad_clip=clip)
    walk(opt, params, [1])
    before = bits(params), bits(opt.state_dict())
    others = [(params[name], params[name].grad) for name in ("matrix", "vector")]
    for bad, says in ((paddle.ones([3]), "has the shape"), (paddle.ones([2, 3, 4], "int32"), "floating-point")):
        with pytest.raises(GradientError, match=f"gradient of stack .*{says}|gradient of stack must be {says}"):
            opt.apply_gradients([*others, (params["stack"], bad)])
        assert (bits(params), bits(opt.state_dict())) == before


def test_numbers_of_numpy_in_a_group_become_python_s():
    params = parameters(3)
    group = {"params": list(params.values()), "learning_rate": np.float64(0.5), "momentum": np.float32(0.5)}
    opt = SGD(np.float64(0.1), parameters=[group])
    found = [opt._learning_rate, *(opt._param_groups[0][name] for name in ("learning_rate", "momentum"))]
    assert found == [0.1, 0.5, 0.5]
    assert {*map(type, found)} == {float}
